"""Async I/O in Spark's workers."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from json_source import add_file
from spark_job_fixture import WordCount, memory_sink, pickled_by_value, rows_of

from statebackend import EpochError, OutputTag, TumblingEventTimeWindows, WatermarkStrategy
from statebackend.streaming.async_functions import AsyncContext, AsyncFunction
from statebackend.streaming.data_stream import AsyncDataStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statebackend.spark import SparkJob

pytestmark = pytest.mark.spark

GIVE_UP_S = 240


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


class Asking(AsyncFunction[Any, Any]):
    """Emits word, number and process. Its client belongs to the event loop of setup()."""

    async def setup(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.lock = asyncio.Lock()
        self.process_id = os.getpid()

    async def open(self, context: Any) -> None:
        assert self.process_id == os.getpid()

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        assert asyncio.get_running_loop() is self.loop
        if value.word == "never":
            await asyncio.Event().wait()
        async with self.lock:
            await asyncio.sleep(0)
        return [(value.word, value.number, self.process_id)]


class Answering(Asking):
    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        return [(value.word, value.number, self.process_id)]


class AnsweringWhenAllowed(AsyncFunction[Any, Any]):
    """A client that completes a request only if its file exists."""

    def __init__(self, allowed: Path) -> None:
        self.allowed = allowed

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        if not self.allowed.exists():
            await asyncio.Event().wait()
        return [value]


def allowing_sink(allowed: Path) -> Any:
    """Let requests complete after the first epoch. The first rows set ``has_rows``."""
    from statebackend.spark.frame_sinks import MemorySink

    class AllowingSink(MemorySink):
        def __init__(self) -> None:
            super().__init__()
            self.has_rows = threading.Event()

        def commit(self, epoch_id: int, committable: bytes) -> None:
            super().commit(epoch_id, committable)
            allowed.touch()
            if self.rows:
                self.has_rows.set()

    return AllowingSink()


def run(
    word_count: WordCount,
    sink: Any,
    function: Any,
    wait: Any,
    timeout: Any = "10 minutes",
    is_keyed: bool = True,
    **options: Any,
) -> None:
    environment = word_count.environment()
    records: Any = environment.from_dataframe(word_count.stream())
    stream = records.key_by("word") if is_keyed else records
    schema = "word string, number int, process bigint"
    wait(stream, function, timeout, uid="ask", schema=schema, **options).sink_to(sink)
    environment.execute("job", trigger={"availableNow": True}).await_termination()


def test_every_record_of_a_stream_without_keys_is_emitted_once_and_a_hanging_one_fails_the_epoch(
    spark: SparkSession, tmp_path: Path
) -> None:
    word_count = WordCount(spark, tmp_path)
    for batch in range(3):
        word_count.add_batch([(word, batch * 100 + number) for number in range(20) for word in "abcd"])
    sink = memory_sink()
    run(word_count, sink, Asking(), AsyncDataStream.unordered_wait, is_keyed=False, capacity=7)
    expected = [(word, number) for batch in word_count.batches for word, number in batch]
    assert sorted((row[0], row[1]) for row in rows_of(sink)) == sorted(expected)
    assert os.getpid() not in {row[2] for row in rows_of(sink)}

    word_count.add_batch([("never", 1)])
    message = r"AsyncTimeoutError: operator 'ask', record Row\(word='never', number=1\): no results within 20"
    with pytest.raises(EpochError, match=message):
        run(word_count, memory_sink(), Asking(), AsyncDataStream.ordered_wait, 20, is_keyed=False)


class Slow(Asking):
    """Completes after many turns of the event loop, which take longer than a small epoch."""

    async def async_invoke(self, value: Any, context: AsyncContext) -> Any:
        for _ in range(100_000):
            await asyncio.sleep(0)
        return [(value.word, value.number, self.process_id)]


def test_a_request_that_takes_longer_than_an_epoch_completes_in_the_next_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    word_count = WordCount(spark, tmp_path)
    for number in range(4):
        word_count.add_batch([("a", number)])
    sink = memory_sink()
    run(word_count, sink, Slow(), AsyncDataStream.ordered_wait, carry_in_flight=True)
    assert [row[1] for row in rows_of(sink)][:3] == [0, 1, 2]


def test_records_in_flight_are_restored_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("a", 3), ("never", 1), ("never", 2), ("never", 4)])
    sink = memory_sink()
    run(word_count, sink, Asking(), AsyncDataStream.ordered_wait, carry_in_flight=True)
    word_count.add_batch([("never", 5)])
    run(word_count, sink, Answering(), AsyncDataStream.ordered_wait)
    rows = [(row[0], row[1]) for row in rows_of(sink)]
    assert sorted(rows) == [("a", 3), ("never", 1), ("never", 2), ("never", 4), ("never", 5)]
    assert [number for word, number in rows if word == "never"] == [1, 2, 4, 5]


def test_records_in_flight_are_sent_again_by_a_run_without_records(spark: SparkSession, tmp_path: Path) -> None:
    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("a", 3), ("never", 1), ("never", 2)])
    sink = memory_sink()
    run(word_count, sink, Asking(), AsyncDataStream.ordered_wait, carry_in_flight=True)
    for _ in range(2):
        run(word_count, sink, Answering(), AsyncDataStream.ordered_wait, carry_in_flight=True)
        rows = [(row[0], row[1]) for row in rows_of(sink)]
        assert rows == [("a", 3), ("never", 1), ("never", 2)]


@pytest.mark.extended
def test_an_idle_stream_waits_for_records_in_flight_after_their_timeout(spark: SparkSession, tmp_path: Path) -> None:
    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("a", 1), ("b", 2)])
    sink, environment = allowing_sink(tmp_path / "allowed"), word_count.environment()
    records: Any = environment.from_dataframe(word_count.stream())
    ask, schema = AnsweringWhenAllowed(tmp_path / "allowed"), "word string, number int"
    AsyncDataStream.ordered_wait(records, ask, "5 seconds", uid="ask", schema=schema, carry_in_flight=True).sink_to(
        sink
    )
    job = environment.execute("job")
    assert sink.has_rows.wait(GIVE_UP_S), job.query.exception()
    job.stop()
    assert [one.has_batch for one in job.epochs] == [True, False]
    assert rows_of(sink) == [("a", 1), ("b", 2)]


@pytest.mark.extended
def test_a_drained_job_restores_nothing_in_flight_even_without_event_time(spark: SparkSession, tmp_path: Path) -> None:
    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("a", 1)])
    sink, environment = memory_sink(), word_count.environment()
    records: Any = environment.from_dataframe(word_count.stream())
    ask, schema = AnsweringWhenAllowed(tmp_path / "allowed"), "word string, number int"
    AsyncDataStream.ordered_wait(records, ask, "10 minutes", uid="ask", schema=schema, carry_in_flight=True).sink_to(
        sink
    )
    job = environment.execute("job")
    job.process_all_available()
    assert rows_of(sink) == []
    (tmp_path / "allowed").touch()
    job.stop_with_savepoint(tmp_path / "savepoint", drain=True)
    assert rows_of(sink) == [("a", 1)]


@pytest.mark.extended
def test_records_in_flight_of_a_savepoint_are_restored_when_all_sources_start_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("never", 1), ("never", 2)])

    def start(job: str, sink: Any, function: Any, carry_in_flight: bool = False, **options: Any) -> SparkJob:
        environment = word_count.environment(job)
        records: Any = environment.from_dataframe(word_count.stream())
        schema = "word string, number int, process bigint"
        AsyncDataStream.ordered_wait(
            records, function, "10 minutes", uid="ask", schema=schema, carry_in_flight=carry_in_flight
        ).sink_to(sink)
        started = environment.execute("job", trigger={"availableNow": True}, **options)
        started.await_termination()
        return started

    start("job", memory_sink(), Asking(), carry_in_flight=True).savepoint(tmp_path / "savepoint")
    # Both are in flight, and the source reads them again.
    word_count.add_batch([("a", 3)])
    sink = memory_sink()
    start("new", sink, Answering(), from_savepoint=tmp_path / "savepoint", restore_source_progress=False)
    rows = [(row[0], row[1]) for row in rows_of(sink)]
    assert sorted(rows) == [("a", 3), ("never", 1), ("never", 1), ("never", 2), ("never", 2)]


def test_time_waits_for_records_in_flight_when_their_source_becomes_idle(spark: SparkSession, tmp_path: Path) -> None:
    sent = {"slow": [1], "busy": [5, 30, 31, 32, 33]}
    for name, times in sent.items():
        (tmp_path / name).mkdir()
        for number, at in enumerate(times):
            add_file(tmp_path / name, number, [{"word": name, "number": at}])
    environment = WordCount(spark, tmp_path).environment()
    idle = WatermarkStrategy.no_watermarks().with_idleness("1 ms")
    strategies = {"slow": idle, "busy": WatermarkStrategy.for_monotonous_timestamps()}
    schema, streams = "word string, number int", {}
    for name, strategy in strategies.items():
        files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path / name))
        stream: Any = environment.from_dataframe(files, uid=name)
        streams[name] = stream.assign_timestamps_and_watermarks(strategy.with_timestamps("number"))
    ask = AnsweringWhenAllowed(tmp_path / "allowed")
    asked = AsyncDataStream.ordered_wait(
        streams["slow"], ask, "10 minutes", uid="ask", schema=schema, carry_in_flight=True
    )
    late: Any = OutputTag("late", schema)
    windows = asked.union(streams["busy"]).key_by("word").window(TumblingEventTimeWindows.of(10))
    counted: Any = windows.side_output_late_data(late).count(
        uid="windows", schema="word string, start bigint, until bigint, count bigint"
    )
    sink, late_sink = allowing_sink(tmp_path / "allowed"), memory_sink()
    counted.sink_to(sink, uid="counts")
    counted.get_side_output(late).sink_to(late_sink, uid="late")
    environment.execute("job", trigger={"availableNow": True}).await_termination()
    assert rows_of(late_sink) == []
    assert sorted(rows_of(sink)) == [("busy", 0, 10, 1), ("slow", 0, 10, 1)]
