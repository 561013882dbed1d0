"""Workers of Spark call setup() and teardown(), and serve many tasks, epochs and runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_job_fixture import WordCount, memory_sink, pickled_by_value, rows_of

from statebackend import (
    EpochError,
    JobDefinitionError,
    KeyedProcessFunction,
    ReducingStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


class Connecting(KeyedProcessFunction[str, Any, Any]):
    """Records its calls with their process, and emits whether its connection is closed."""

    def __init__(self, calls: Path, run: str, failing: bool = False) -> None:
        self.calls = str(calls)
        self.run = run
        self.failing = failing

    def setup(self) -> None:
        self._write("setup")
        if self.failing:
            raise ConnectionError("nobody is there")
        # An attribute that cannot be pickled.
        self.connection = open(os.devnull)  # noqa: SIM115

    def open(self, context: RuntimeContext) -> None:
        if hasattr(self, "connection"):
            self._write("open")
            assert not hasattr(self, "opened"), "what open() has made belongs to an epoch"
            self.opened = True

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value.word, int(self.connection.closed), 0

    def teardown(self) -> None:
        self.connection.close()
        self._write("teardown")

    def _write(self, method: str) -> None:
        line = json.dumps([os.getpid(), self.run, method]) + "\n"
        descriptor = os.open(self.calls, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(descriptor, line.encode())
        os.close(descriptor)


def calls_by_process(calls: Path) -> dict[int, list[tuple[str, str]]]:
    found: dict[int, list[tuple[str, str]]] = {}
    for line in calls.read_text().splitlines():
        process_id, run, method = json.loads(line)
        found.setdefault(process_id, []).append((run, method))
    return found


def test_a_worker_sets_up_once_per_run_and_keeps_its_objects_over_epochs(spark: SparkSession, tmp_path: Path) -> None:
    word_count = WordCount(spark, tmp_path)
    calls = tmp_path / "calls"
    sink = memory_sink()
    for run in ("first", "second"):
        for number in range(6):
            word_count.add_batch([("a", number), ("b", number), ("c", number)])
        word_count.run(sink, Connecting(calls, run))
    assert len(rows_of(sink)) == 36
    assert {row[1] for row in rows_of(sink)} == {0}

    by_process = calls_by_process(calls)
    assert os.getpid() not in by_process
    for made in by_process.values():
        runs = [run for run in ("first", "second") if (run, "setup") in made]
        for run in runs:
            assert made.count((run, "setup")) == 1
            assert made.index((run, "setup")) < made.index((run, "open"))
        if runs == ["first", "second"]:
            assert made.index(("first", "teardown")) < made.index(("second", "setup"))
    everything = [call for made in by_process.values() for call in made]
    assert everything.count(("first", "open")) == 12
    assert everything.count(("first", "setup")) < 12


@pytest.mark.extended
def test_a_setup_that_fails_fails_the_epoch_and_names_the_operator(spark: SparkSession, tmp_path: Path) -> None:
    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("a", 1)])
    calls = tmp_path / "calls"
    with pytest.raises(EpochError, match="operator 'words': setup raised ConnectionError: nobody is there"):
        word_count.run(memory_sink(), Connecting(calls, "first", failing=True))
    sink = memory_sink()
    word_count.run(sink, Connecting(calls, "second"))
    assert [row[0] for row in rows_of(sink)] == ["a"]


class CountsOnClass(KeyedProcessFunction[str, Any, Any]):
    """Declares its states in the class body, and counts like `CountWords` of `spark_job_fixture`."""

    times = ValueStateDescriptor("times", int, default=0)
    total = ReducingStateDescriptor("total", int.__add__, int)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.times.update(self.times.value() + 1)
        self.total.add(value.number)
        yield value.word, self.times.value(), self.total.get()


@pytest.mark.extended
def test_states_of_the_class_body_are_kept_over_epochs_and_runs(spark: SparkSession, tmp_path: Path) -> None:
    word_count = WordCount(spark, tmp_path)
    sink = memory_sink()
    for _ in range(2):
        for number in range(2):
            word_count.add_batch([("a", number), ("b", 10 * number)])
        word_count.run(sink, CountsOnClass(), backend="rocksdb")
    assert sorted(rows_of(sink)) == word_count.expected()


@pytest.mark.extended
def test_a_second_job_of_a_name_is_rejected_before_its_directory_changes(spark: SparkSession, tmp_path: Path) -> None:
    word_count = WordCount(spark, tmp_path)
    word_count.add_batch([("a", 1)])
    environment = word_count.environment("first")
    words = environment.from_dataframe(word_count.stream()).key_by("word")
    words.process(CountsOnClass(), uid="words", schema="word string, times bigint, total bigint").sink_to(memory_sink())
    first = environment.execute("same name")
    try:
        with pytest.raises(JobDefinitionError, match="a query named 'same name' is running in this Spark session"):
            word_count.run(memory_sink(), CountsOnClass(), job="second", name="same name")
        assert not (tmp_path / "second" / "checkpoints").exists()
    finally:
        first.stop()
    word_count.run(memory_sink(), CountsOnClass(), job="second", name="same name")
    assert (tmp_path / "second").exists()
