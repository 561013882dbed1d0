"""Invalid Spark job definitions are rejected before anything runs. The error names the operator or source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType
from spark_job_fixture import CountWords, WordCount

from statebackend import JobDefinitionError, WatermarkStrategy
from statebackend.spark import NoopSink, SparkStreamEnvironment

COUNTED = "word string, times bigint, total bigint"


@pytest.fixture
def word_count(spark: SparkSession, tmp_path: Path) -> WordCount:
    return WordCount(spark, tmp_path)


def rejected(environment: SparkStreamEnvironment, reported: str) -> None:
    with pytest.raises(JobDefinitionError, match=reported) as error:
        environment.execute("rejected")
    assert "\n" not in str(error.value)
    assert not Path(environment.job_dir).exists()


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"parallelism": 17}, "parallelism"),
        ({"parallelism": "2"}, "parallelism is '2'; it takes a whole number"),
        ({"max_parallelism": None}, "max_parallelism is None; it takes a whole number"),
        ({"retained_checkpoints": 2.5}, "retained_checkpoints is 2.5; it takes a whole number"),
        ({"metrics": True}, "metrics is True; it takes an instance of StateMetricsConfig"),
        ({"high_availability": "host:2181"}, "high_availability is 'host:2181'; it takes an instance of JobServices"),
        ({"parallelism": 0}, "parallelism"),
        ({"epoch_timeout_s": -1.0}, "epoch_timeout_s"),
        ({"epoch_timeout_s": float("nan")}, "epoch_timeout_s"),
    ],
    ids=str,
)
def test_settings_out_of_their_bounds(word_count: WordCount, options: dict[str, Any], reported: str) -> None:
    with pytest.raises(JobDefinitionError, match=reported):
        word_count.environment(**options)
    word_count.environment(parallelism=16, epoch_timeout_s=0.5)


def test_names_that_differ_in_case_are_two_columns_where_the_session_says_so(word_count: WordCount) -> None:
    struct = StructType([StructField("word", StringType()), StructField("Word", LongType())])
    for schema in ("word string, Word bigint", struct):
        environment = word_count.environment()
        words = environment.from_dataframe(word_count.stream()).key_by("word")
        words.process(CountWords(), uid="words", schema=schema).sink_to(NoopSink())
        rejected(environment, "operator 'words': the schema .* cannot be read: two columns are called 'word'")
        word_count.spark.conf.set("spark.sql.caseSensitive", "true")
        try:
            environment.described()
        finally:
            word_count.spark.conf.unset("spark.sql.caseSensitive")


MONTHS = "column 'months' is of type .*interval month.*, which Python does not have; use a string or a whole number of"


@pytest.mark.parametrize("months", ["make_ym_interval(0, number)", "array(struct(make_ym_interval(0, number)))"])
def test_a_type_that_python_does_not_have_is_rejected_where_a_function_would_receive_it(
    word_count: WordCount, months: str
) -> None:
    steps: dict[str, Callable[[Any], Any]] = {
        r"map\(\)": lambda stream: stream.map(lambda row: (row.word,), schema="word string"),
        r"filter\(\)": lambda stream: stream.filter(lambda row: True),
        "operator 'words'": lambda stream: stream.key_by(len, key_type=int).process(
            CountWords(), uid="words", schema=COUNTED
        ),
    }
    for where, step in steps.items():
        environment = word_count.environment()
        frame = word_count.stream().selectExpr("word", f"cast({months} as {of_months(months)}) as months")
        step(environment.from_dataframe(frame)).sink_to(NoopSink())
        rejected(environment, f"{where}: {MONTHS}")


def of_months(months: str) -> str:
    return "array<struct<months: interval month>>" if months.startswith("array") else "interval month"


@pytest.mark.parametrize(
    ("schema", "reported"),
    [
        ("months interval month", MONTHS),
        ("months array<interval month>", MONTHS),
        ("took interval", "column 'took' is of type interval, which Python does not have; use a string"),
    ],
)
def test_a_type_that_python_does_not_have_is_rejected_in_a_schema(
    word_count: WordCount, schema: str, reported: str
) -> None:
    for place in (r"map\(\)", "operator 'words'"):
        environment = word_count.environment()
        stream: Any = environment.from_dataframe(word_count.stream())
        if place == "operator 'words'":
            stream = stream.key_by("word").process(CountWords(), uid="words", schema=schema)
        else:
            stream = stream.map(lambda row: (None,), schema=schema)
        stream.sink_to(NoopSink())
        rejected(environment, f"{place}: {reported}")


def test_each_of_several_sources_needs_a_uid(word_count: WordCount) -> None:
    environment = word_count.environment()
    streams = [environment.from_dataframe(word_count.stream(), uid=uid) for uid in (None, "second")]
    united = streams[0].union(streams[1]).key_by("word")
    united.process(CountWords(), uid="words", schema=COUNTED).sink_to(NoopSink())
    rejected(environment, "the job has 2 sources, and source 1 has no uid")


def test_one_frame_is_one_source_and_has_one_uid(word_count: WordCount) -> None:
    environment, frame = word_count.environment(), word_count.stream()
    stream = environment.from_dataframe(frame, uid="words")
    assert environment.from_dataframe(frame) is environment.from_dataframe(frame, uid="words") is stream
    with pytest.raises(JobDefinitionError, match="with uid='words' and with uid='others': it is one source"):
        environment.from_dataframe(frame, uid="others")


@pytest.mark.parametrize(
    ("key", "settings", "reported"),
    [
        (7, {}, "operator 'words': key_by takes column names, functions or expressions, not int"),
        ("word", {"order_by": [7]}, "operator 'words': order_by takes column names or expressions, not int"),
        ("word", {"order_by": [None]}, "operator 'words': order_by takes column names or expressions, not NoneType"),
        (
            "word",
            {"order_by": lambda: F.col("word.inner")},
            "operator 'words': order_by does not fit the operator's input, wh",
        ),
        (
            lambda: F.col("nubmer") + 1,
            {},
            "operator 'words': key_by does not fit the operator's input, which has the columns",
        ),
        ("word", {"schema": 5}, "operator 'words': schema must be DDL, a record class or a StructType, not int"),
    ],
)
def test_columns_that_the_input_does_not_have(
    word_count: WordCount, key: Any, settings: dict[str, Any], reported: str
) -> None:
    # A column expression needs a session, and there is none when tests are collected. So functions create it here.
    key, given = (
        (key() if callable(key) else key),
        {name: now() if callable(now) else now for name, now in settings.items()},
    )
    environment = word_count.environment()
    words = environment.from_dataframe(word_count.stream()).key_by(key)
    words.process(CountWords(), uid="words", **{"schema": COUNTED, **given}).sink_to(NoopSink())
    rejected(environment, reported)


@pytest.mark.parametrize("sink", [5, None, NoopSink, "a path"], ids=str)
def test_invalid_sinks(word_count: WordCount, sink: Any) -> None:
    environment = word_count.environment()
    words = environment.from_dataframe(word_count.stream()).key_by("word")
    words.process(CountWords(), uid="words", schema=COUNTED).sink_to(sink)
    rejected(environment, "sink_to was given .*, which is not a sink")


class HoldingALock(CountWords):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_a_function_that_cannot_be_pickled(word_count: WordCount) -> None:
    environment = word_count.environment()
    words = environment.from_dataframe(word_count.stream()).key_by("word")
    words.process(HoldingALock(), uid="words", schema=COUNTED).sink_to(NoopSink())
    rejected(environment, r"operator 'words': the function cannot be sent to the workers .*lock.*in setup\(\)")


def test_two_columns_of_one_name_in_one_of_several_sources(word_count: WordCount) -> None:
    environment = word_count.environment()
    doubled = word_count.stream().select("word", F.col("number").alias("word"), "number")
    first = environment.from_dataframe(word_count.stream(), uid="first").key_by("word")
    second = environment.from_dataframe(doubled, uid="second").transform_dataframe(lambda frame: frame.select("number"))
    for stream, uid in ((first, "a"), (second.key_by("number"), "b")):
        stream.process(CountWords(), uid=uid, schema=COUNTED).sink_to(NoopSink(), uid=uid)
    rejected(environment, r"source 2 of the job has two columns of the same name \(word, word, number\); rename one")


def test_a_reserved_column_name(word_count: WordCount) -> None:
    environment = word_count.environment()
    frame = word_count.stream().withColumn("__statebackend_mine", F.col("number").cast("timestamp"))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("__statebackend_mine")
    timed = environment.from_dataframe(frame).assign_timestamps_and_watermarks(strategy)
    timed.key_by("word").process(CountWords(), uid="words", schema=COUNTED).sink_to(NoopSink())
    rejected(environment, "the column names __statebackend_mine are reserved")


class Beginning(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        return None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return iter(())


@pytest.mark.parametrize(
    ("initial", "reported"),
    [
        (lambda place: place.spark.range(3), "must be a grouped batch DataFrame"),
        (lambda place: "a frame", "must be a grouped batch DataFrame"),
        (lambda place: place.stream().groupBy("word"), "is read once, so it cannot be a streaming DataFrame"),
        (lambda place: frame_of(place).groupBy(F.upper("word")), "is grouped by an expression; add it as a column"),
        (
            lambda place: frame_of(place).groupBy("number"),
            "is grouped by columns of the types int, and the stream by string: cast",
        ),
        (
            lambda place: frame_of(place).groupBy("word", "number"),
            "is grouped by columns of the types string, int, and the stream",
        ),
    ],
    ids=["not grouped", "no frame", "a stream", "an expression", "another type", "more columns"],
)
def test_initial_state_that_does_not_fit_the_keys(
    word_count: WordCount, initial: Callable[[WordCount], Any], reported: str
) -> None:
    environment = word_count.environment()
    grouped = environment.from_dataframe(word_count.stream()).group_by("word")
    processed = grouped.transform_with_state(
        Beginning(), "word string", "update", "none", initial_state=initial(word_count), uid="words"
    )
    processed.sink_to(NoopSink())
    rejected(environment, f"operator 'words': initial_state {reported}")


def frame_of(place: WordCount) -> Any:
    return place.spark.createDataFrame([("a", 1)], "word string, number int")


def test_a_savepoint_before_an_epoch_has_completed(word_count: WordCount) -> None:
    from statebackend.streaming.errors import EpochError

    job = word_count.start(NoopSink())
    job.await_termination()
    assert not job.epochs
    with pytest.raises(EpochError, match="there is nothing to save: no epoch of this job has completed yet"):
        job.savepoint(word_count.directory / "savepoint")
    assert not (word_count.directory / "savepoint").exists()
