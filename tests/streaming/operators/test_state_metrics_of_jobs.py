"""Keyed state metrics of a job: by operator and state, over all subtasks and epochs, on both runtimes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from json_source import add_file

from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessContext,
    ReducingStateDescriptor,
    RuntimeContext,
    StateMetricsConfig,
    ValueStateDescriptor,
)
from statebackend.checkpoint import Acknowledgement, KeyedStateHandle, SubtaskState
from statebackend.local import LocalStreamEnvironment
from statebackend.state.metrics import KeyedStateMetrics, LatencyHistogram, SnapshotMetrics, StateMetrics
from statebackend.streaming.metrics import SubtaskMetrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACKENDS = ("heap", "rocksdb")
EVERY_ACCESS = StateMetricsConfig(latency_sample_interval=1)


@attrs.frozen
class Word:
    word: str
    number: int


class CountWords(KeyedProcessFunction[str, Any, tuple[str, int]]):
    """Reads and writes its count, appends to its numbers, and folds its maximum, for every record."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, 0))
        self.numbers = context.get_list_state(ListStateDescriptor("numbers", int))
        self.highest = context.get_reducing_state(ReducingStateDescriptor("highest", max, int))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[tuple[str, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.numbers.add(value.number)
        self.highest.add(value.number)
        yield value.word, count


WORDS = [Word(word, number) for number in range(4) for word in ("a", "b", "c")]


def run(metrics: StateMetricsConfig | None, backend: str, **options: Any) -> Any:
    environment = LocalStreamEnvironment(backend=backend, epoch_size=6, metrics=metrics, **options)
    results: list[Any] = []
    environment.from_elements(WORDS).key_by("word").process(
        CountWords(), uid="words", schema="word string, count bigint"
    ).sink_to(results)
    job = environment.execute("words")
    assert sorted(results)[-1] == ("c", 4)
    return job


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_metrics_there_are_none(backend: str) -> None:
    job = run(None, backend)
    assert dict(job.metrics().totals.state_metrics) == {}
    assert [dict(epoch.state_metrics) for epoch in job.metrics().epochs] == [{}, {}]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_accesses_of_all_subtasks_and_epochs_are_summed(backend: str, parallelism: int) -> None:
    job = run(EVERY_ACCESS, backend, parallelism=parallelism)
    check_metrics(job.metrics().totals.state_metrics, records=12, epochs=2, keys=3)
    first, second = (epoch.state_metrics for epoch in job.metrics().epochs)
    check_metrics(first, records=6, epochs=1, keys=3)
    check_metrics(second, records=6, epochs=1, keys=3)
    count = job.metrics().totals.state_metrics["words"].states["count"]
    assert count.size_bytes == second["words"].states["count"].size_bytes
    assert count.bytes_written == sum(epoch["words"].states["count"].bytes_written for epoch in (first, second))


def test_cache_hits_of_rocksdb_are_accesses_without_a_read() -> None:
    count = run(EVERY_ACCESS, "rocksdb").metrics().totals.state_metrics["words"].states["count"]
    # Each of two epochs reads each of three keys from the database once.
    assert (count.accesses, count.cache_misses, count.cache_hits) == (24, 6, 18)
    assert run(EVERY_ACCESS, "heap").metrics().totals.state_metrics["words"].states["count"].cache_hits is None


def test_unreadable_metrics_in_an_acknowledgement_are_ignored() -> None:
    good = KeyedStateMetrics({"s/ä": StateMetrics(reads=1)}, SnapshotMetrics(snapshots=1)).to_report()
    assert SubtaskMetrics.of(acknowledgement(good)).state.states["s/ä"].reads == 1
    for bad in (
        {**good, "snapshot": 5},
        {**good, "state/x": "[]"},
        {**good, "state/x": "{"},
        {**good, "state/x": '{"reads":-1}'},
        {**good, "state/x": '{"reads":true}'},
        {**good, "state/x": '{"reads":null}'},
        {**good, "state/x": '{"read_latency":[1,1,[[5000,1]]]}'},
        {**good, "state/x": '{"read_latency":[1,1,[[1,-1]]]}'},
    ):
        assert SubtaskMetrics.of(acknowledgement(bad)).state is None
    assert SubtaskMetrics.of(acknowledgement({"entries_written": 1})).state is None


def test_metrics_round_trip_in_an_acknowledgement() -> None:
    latency = LatencyHistogram()
    for nanoseconds in (0, 1, 999, 10**6, 10**12):
        latency.record(nanoseconds)
    metrics = KeyedStateMetrics(
        {
            "one": StateMetrics(
                reads=5, writes=2**40, read_latency=latency, cache_misses=0, entries=7, entries_are_exact=False,
                size_bytes=9, bytes_written=1,
            ),
            "two": StateMetrics(),
        },
        SnapshotMetrics(
            snapshots=1, entries_written=3, bytes_written=4, synchronous_s=0.5, asynchronous_s=2.0
        ),
    )  # fmt: skip
    travelled = Acknowledgement.decode(acknowledgement(metrics.to_report()).encode())
    assert KeyedStateMetrics.from_report(travelled.metrics) == metrics


@pytest.fixture
def _by_value() -> Iterator[None]:
    """Pickle functions of this module by value, for workers that cannot import it."""
    from pyspark import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.usefixtures("_by_value")
@pytest.mark.parametrize("backend", BACKENDS)
def test_metrics_of_a_job_on_spark(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    from statebackend.spark import NoopSink, SparkStreamEnvironment

    source = tmp_path / "source"
    for number in range(2):
        add_file(source, number, map(attrs.asdict, WORDS[number * 6 : number * 6 + 6]))
    frame = spark.readStream.schema("word string, number int").option("maxFilesPerTrigger", 1).json(str(source))

    def execute(job_dir: Path, metrics: StateMetricsConfig | None) -> Any:
        environment = SparkStreamEnvironment(
            spark,
            job_dir=job_dir,
            backend=backend,
            local_state_directory=tmp_path / "local",
            metrics=metrics,
        )
        stream = environment.from_dataframe(frame).key_by("word")
        stream.process(CountWords(), uid="words", schema="word string, count bigint").sink_to(NoopSink())
        job = environment.execute("words", trigger={"availableNow": True})
        job.await_termination()
        return job

    job = execute(tmp_path / "measured", EVERY_ACCESS)
    check_metrics(job.metrics().totals.state_metrics, records=12, epochs=2, keys=3)
    for epoch in job.epochs:
        check_metrics(epoch.state_metrics, records=6, epochs=1, keys=3)
        assert epoch.entries_written == epoch.state_metrics["words"].snapshot.entries_written
    unmeasured = execute(tmp_path / "unmeasured", None)
    assert dict(unmeasured.metrics().totals.state_metrics) == {}
    assert [dict(epoch.state_metrics) for epoch in unmeasured.epochs] == [{}, {}]


def check_metrics(metrics: Mapping[str, KeyedStateMetrics], *, records: int, epochs: int, keys: int) -> None:
    """Check what `CountWords` must have done to its state."""
    assert set(metrics) == {"words"}
    states, snapshot = metrics["words"].states, metrics["words"].snapshot
    assert {name: (state.reads, state.writes) for name, state in states.items()} == {
        "count": (records, records),
        "numbers": (0, records),
        "highest": (0, records),
    }
    for state in states.values():
        assert (state.read_latency.count, state.write_latency.count) == (state.reads, state.writes)
        assert state.bytes_written > 0
        assert state.size_bytes > 0
    for name in ("count", "highest"):
        assert states[name].entries == keys or not states[name].entries_are_exact
    assert snapshot.snapshots == epochs
    assert snapshot.entries_written == 3 * keys * epochs
    assert snapshot.bytes_written == sum(state.bytes_written for state in states.values())


def acknowledgement(metrics: Mapping[str, Any]) -> Acknowledgement:
    """An acknowledgement with these metrics."""
    return Acknowledgement(
        "job", "run", 1, "words", 0, "0", "digest", SubtaskState(KeyedStateHandle("s", "heap", 0, 9, b"")), {}, metrics
    )
