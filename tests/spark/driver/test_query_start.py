"""The start of a query: how Spark writes its log, the session setting, and failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_job_fixture import WordCount, memory_sink, pickled_by_value, rows_of

from statebackend.spark import query as query_start
from statebackend.spark.query import start_query
from statebackend.spark.session import configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statebackend.spark import SparkJob

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
ROOM = "org.apache.spark.sql.execution.streaming.checkpointing"
WITHOUT_PROCESSES = f"{ROOM}.FileSystemBasedCheckpointFileManager"
OF_SPARK = f"{ROOM}.FileContextBasedCheckpointFileManager"


@pytest.fixture
def word_count(spark: SparkSession, tmp_path: Path) -> Iterator[WordCount]:
    place = WordCount(spark, tmp_path)
    place.add_batch([("a", 1), ("b", 2)])
    with pickled_by_value():
        yield place


def managers_of_log(job: SparkJob) -> set[str]:
    """The classes with which Spark writes offsets and commits."""
    query: Any = job.query
    stream = query._jsq.streamingQuery()
    return {log.fileManager().getClass().getName() for log in (stream.offsetLog(), stream.commitLog())}


@pytest.mark.spark
def test_the_log_of_a_job_is_written_without_subprocesses_and_that_of_other_queries_as_before(
    spark: SparkSession, word_count: WordCount
) -> None:
    job = word_count.start(memory_sink())
    try:
        assert managers_of_log(job) == {WITHOUT_PROCESSES}
        assert spark.conf.get(SETTING, None) is None
    finally:
        job.stop()


@pytest.mark.spark
def test_a_setting_of_the_program_has_precedence(spark: SparkSession, word_count: WordCount) -> None:
    with configured(spark, {SETTING: OF_SPARK}):
        job = word_count.start(memory_sink())
        try:
            assert managers_of_log(job) == {OF_SPARK}
            assert spark.conf.get(SETTING) == OF_SPARK
        finally:
            job.stop()


@pytest.mark.spark
@pytest.mark.extended
def test_a_job_continues_with_a_log_that_was_written_by_the_other_class(
    spark: SparkSession, word_count: WordCount
) -> None:
    sink = memory_sink()
    emitted = []
    for number, setting in enumerate([{SETTING: OF_SPARK}, {}, {SETTING: OF_SPARK}, {}]):
        with configured(spark, setting):
            word_count.add_batch([("a", 10 + number)])
            word_count.run(sink)
        emitted.append(len(rows_of(sink)))
    assert emitted == [3, 4, 5, 6]
    assert sorted(rows_of(sink))[-2:] == [("a", 5, 47), ("b", 1, 2)]


class Conf(dict[str, str]):
    """The settings of a session."""

    set = dict.__setitem__
    unset = dict.__delitem__


class Query:
    """A query whose sources take a given time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.messages = ["Initializing StreamExecution", "Initializing sources", "Getting offsets from the source"]
        self.seen: list[str | None] = []
        self.is_stopped = False
        self.error: BaseException | None = None

    @property
    def status(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.seen.append(self.session.conf.get(SETTING))
        return {"message": self.messages.pop(0) if len(self.messages) > 1 else self.messages[0]}

    def stop(self) -> None:
        self.is_stopped = True


class Session:
    """A session, a frame in it and its writer, with the methods that a start uses."""

    def __init__(self) -> None:
        self.conf = Conf()
        self.query = Query(self)
        self.calls: dict[str, Any] = {}

    @property
    def sparkSession(self) -> Session:  # noqa: N802
        return self

    @property
    def writeStream(self) -> Session:  # noqa: N802
        return self

    def __getattr__(self, name: str) -> Any:
        def say(*arguments: Any, **options: Any) -> Session:
            self.calls[name] = arguments or options
            return self

        return say

    def start(self) -> Query:
        return self.query

    def started(self) -> Query:
        query: Any = start_query(self, "a job", "/jobs/a/spark", lambda frame, batch_id: None, {"once": True})  # type: ignore[arg-type]
        return query


def test_the_session_has_the_setting_until_the_query_has_its_log() -> None:
    session = Session()
    query = session.started()
    assert query.seen == [WITHOUT_PROCESSES] * 3
    assert session.conf == {}
    assert not query.is_stopped
    assert session.calls["option"] == ("checkpointLocation", "file:///jobs/a/spark")
    assert session.calls["trigger"] == {"once": True}


def test_sources_that_take_long_do_not_keep_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    session.query.messages = ["Initializing sources"]
    monkeypatch.setattr(query_start, "_PATIENCE_S", 0.0)
    assert not session.started().is_stopped
    assert session.conf == {}


def test_an_interrupted_start_stops_the_query_and_reverts_the_setting() -> None:
    session = Session()
    session.query.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        session.started()
    assert session.query.is_stopped
    assert session.conf == {}
