"""Local jobs that take periodic checkpoints while they process records."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    JobDefinitionError,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    UserFunctionError,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.store.completed_checkpoint_store import DirectoryCheckpointStore
from statebackend.local import LocalStreamEnvironment
from statebackend.local.job_parts import CheckpointSettings
from statebackend.streaming.stream_graph import SplitRead

pytestmark = pytest.mark.slow

RECORD = "k string, n bigint"
MODES: dict[str, dict[str, Any]] = {
    "aligned": {},
    "unaligned": {"unaligned_checkpoints": True},
    "unaligned after a time": {"unaligned_checkpoints": True, "aligned_checkpoint_timeout": 1},
    "at least once": {"checkpointing_mode": "at_least_once"},
    "several at once": {"max_concurrent_checkpoints": 3},
}


class Count(KeyedProcessFunction[str, Any, Any]):
    """Counts records, and fails at a marked record."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        if value["n"] == -1:
            raise ArithmeticError("poison")
        self.count.update((self.count.value() or 0) + 1)
        yield context.current_key, self.count.value()


def elements(count: int, keys: int = 7) -> list[Any]:
    return [{"k": f"k{number % keys}", "n": number} for number in range(count)]


def run(given: list[Any], job_dir: Path | None = None, parallelism: int = 2, **options: Any) -> tuple[Any, list[Any]]:
    results: list[Any] = []
    environment = LocalStreamEnvironment(
        job_dir=job_dir, parallelism=parallelism, checkpoint_interval=options.pop("interval_ms", 1), **options
    )
    counted = environment.from_elements(given, RECORD).key_by("k").process(Count(), uid="count", schema=RECORD)
    counted.key_by("k").process(Count(), uid="again", schema=RECORD).sink_to(results)
    return environment.execute("job"), results


AT_LEAST = 30_000
WHILE_WAITING = 70
"""Records per batch after ``at_least``. They fill little memory, however long a checkpoint takes."""


class UntilOutput:
    """One split: it emits records until the sink has output, so a checkpoint is complete, and then the last ones.

    A run from a checkpoint reads after its position, so it may read fewer records than ``at_least``.
    """

    def __init__(self, output: list[Any], last: list[Any], at_least: int = AT_LEAST) -> None:
        self.output, self.last, self.at_least = output, last, at_least
        self.given: list[Any] = []

    def splits(self) -> Mapping[str, int]:
        return {"all": 0}

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        is_last = bool(self.output) and position >= self.at_least
        records = self.last if is_last else elements(max_records if position < self.at_least else WHILE_WAITING)
        self.given += records
        return SplitRead(records, position + len(records), is_at_end=is_last)


def read_twice_counted(job_dir: Path, source: UntilOutput, results: list[Any], parallelism: int, **options: Any) -> Any:
    environment = LocalStreamEnvironment(job_dir=job_dir, parallelism=parallelism, checkpoint_interval=1, **options)
    counted = environment.from_source(source, RECORD, uid="records").key_by("k")
    again = counted.process(Count(), uid="count", schema=RECORD).key_by("k")
    again.process(Count(), uid="again", schema=RECORD).sink_to(results)
    return environment.execute("job")


@pytest.mark.extended_after(2)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("mode", MODES)
def test_every_record_counts_once_in_state_and_output(tmp_path: Path, backend: str, mode: str) -> None:
    options = {"backend": backend, **MODES[mode]}
    results: list[Any] = []
    source = UntilOutput(results, elements(100))
    job = read_twice_counted(tmp_path / "job", source, results, 2, **options)
    assert job.epochs > 1
    assert Counter(row[0] for row in results) == Counter(row["k"] for row in source.given)
    last = {row[0]: row[1] for row in results}
    more: list[Any] = []
    again = read_twice_counted(tmp_path / "job", UntilOutput(results, elements(7)), more, 3, **options)
    assert {row[0]: row[1] for row in more} == {key: count + 1 for key, count in last.items()}
    again.savepoint(tmp_path / "savepoint")


def test_a_failed_job_continues_from_a_checkpoint_consistent_with_its_output(tmp_path: Path) -> None:
    def execute(results: list[Any], source: Any, parallelism: int) -> None:
        environment = LocalStreamEnvironment(job_dir=tmp_path / "job", parallelism=parallelism, checkpoint_interval=1)
        given = environment.from_source(source, RECORD, uid="records").key_by("k")
        given.process(Count(), uid="count", schema=RECORD).sink_to(results)
        environment.execute("job")

    results: list[Any] = []
    with pytest.raises(UserFunctionError, match="poison"):
        execute(results, UntilOutput(results, [{"k": "k0", "n": -1}]), 2)
    reported = Counter(row[0] for row in results)
    assert reported.total() > 0
    again: list[Any] = []
    execute(again, UntilOutput(["there is some"], elements(7), at_least=0), 1)
    # The sink has exactly the counts of the last checkpoint's state.
    assert [row[0] for row in again] == [row["k"] for row in elements(7)]
    assert {row[0]: row[1] - 1 for row in again} == reported


class Splits:
    """Ten splits, so that there is something to read for a while."""

    def __init__(self, count: int) -> None:
        self.records = elements(count)

    def splits(self) -> Mapping[str, int]:
        return dict.fromkeys("abcdefghij", 0)

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        place = "abcdefghij".index(split)
        return SplitRead(self.records[place::10][position:], len(self.records) // 10, is_at_end=True)


@pytest.mark.parametrize("mode", MODES)
def test_records_are_processed_although_a_checkpoint_is_always_due(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the messages of a checkpoint may take longer than the interval between two of them."""
    looks = itertools.count()

    def time_of_checkpoints_ms() -> int:
        now_ms = next(looks)
        assert now_ms < 200_000, "checkpoints hold up the records"
        return now_ms

    def settings(**given: Any) -> CheckpointSettings:
        # Without threads, every run makes the same moves.
        return CheckpointSettings(**{**given, "now_ms": time_of_checkpoints_ms, "has_threads": False})

    monkeypatch.setattr("statebackend.local.environment.CheckpointSettings", settings)
    options = {**MODES[mode], "max_concurrent_checkpoints": 3}
    environment = LocalStreamEnvironment(parallelism=4, checkpoint_interval=1, **options)
    one, other = (environment.from_source(Splits(200), RECORD, uid=uid) for uid in ("one", "other"))
    results: list[Any] = []
    one.union(other).key_by("k").process(Count(), uid="count", schema=RECORD).sink_to(results)
    environment.execute("job")
    assert Counter(row[0] for row in results) == Counter(row["k"] for row in elements(200) * 2)


def test_no_unreferenced_file_is_left(tmp_path: Path) -> None:
    run(elements(20_000), tmp_path / "job", max_concurrent_checkpoints=2)
    file_system = CheckpointFileSystem.from_uri(tmp_path / "job")
    store = DirectoryCheckpointStore(file_system)
    store.recover()
    needed = {file.path for one in store.all() for file in one.files}
    assert set(file_system.list_files("shared")) == needed


def test_processing_time_advances_between_batches() -> None:
    fired: list[int] = []
    clock = itertools.count(1000, 300)

    class Timed(KeyedProcessFunction[str, Any, Any]):
        def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
            if value["n"] == 0:
                timers = context.timer_service
                timers.register_processing_time_timer(timers.current_processing_time() + 500)
            yield from ()

        def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
            fired.append(timestamp)
            yield from ()

    environment = LocalStreamEnvironment(checkpoint_interval=1000, clock=lambda: next(clock))
    environment.from_elements(elements(10_000), RECORD).key_by("k").process(
        Timed(), uid="timed", schema=RECORD
    ).sink_to([])
    environment.execute("job")
    assert len(fired) == 1


def test_watermarks_follow_each_batch_and_a_drain_follows_the_last() -> None:
    results: list[Any] = []

    class Late(KeyedProcessFunction[str, Any, Any]):
        def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
            context.timer_service.register_event_time_timer(value["n"] + 1)
            yield from ()

        def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
            yield context.current_key, timestamp

    environment = LocalStreamEnvironment(parallelism=2, checkpoint_interval=1)
    timed = environment.from_elements(elements(5000), RECORD).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(10).with_timestamps("n")
    )
    timed.key_by("k").process(Late(), uid="late", schema=RECORD).sink_to(results)
    environment.execute("job", drain=True)
    assert sorted(row[1] for row in results) == list(range(1, 5001))


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_that_stops_before_its_sources_end_fires_its_timers_only_if_drained(drain: bool) -> None:
    results: list[Any] = []

    class Endless:
        def splits(self) -> Mapping[str, int]:
            return {"all": 0}

        def read(self, split: str, position: int, max_records: int) -> SplitRead:
            following = position + max_records
            return SplitRead([{"k": "k", "n": place} for place in range(position, following)], following)

    class AtTheEnd(KeyedProcessFunction[str, Any, Any]):
        def open(self, context: RuntimeContext) -> None:
            self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

        def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
            count = (self.count.value() or 0) + 1
            self.count.update(count)
            context.timer_service.register_event_time_timer(1 << 50)
            yield context.current_key, count

        def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
            yield "at the end", self.count.value()

    def take(row: Any) -> None:
        results.append(tuple(row))
        environment.request_stop()

    environment = LocalStreamEnvironment(checkpoint_interval=1)
    numbers = environment.from_source(Endless(), RECORD, uid="numbers").assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(10).with_timestamps("n")
    )
    numbers.key_by("k").process(AtTheEnd(), uid="counts", schema=RECORD).sink_to(take, uid="out")
    environment.execute("job", drain=drain)
    counts = [count for key, count in results if key == "k"]
    assert counts == list(range(1, len(counts) + 1))
    assert [row for row in results if row[0] != "k"] == ([("at the end", len(counts))] if drain else [])


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"epoch_size": 5}, "pass only one of them"),
        ({"interval_ms": 0}, "checkpoint_interval is 0"),
        ({"checkpointing_mode": "twice"}, "checkpointing_mode is 'twice'"),
        ({"max_concurrent_checkpoints": 0}, "max_concurrent_checkpoints"),
        ({"checkpoint_timeout": 0}, "checkpoint_timeout is 0"),
        ({"tolerable_failed_checkpoints": -1}, "tolerable_failed_checkpoints must be"),
        ({"checkpointing_mode": "at_least_once", "unaligned_checkpoints": True}, "no barrier waits"),
    ],
)
def test_invalid_settings_are_rejected_before_anything_changes(
    tmp_path: Path, options: dict[str, Any], reported: str
) -> None:
    with pytest.raises(JobDefinitionError, match=reported):
        run(elements(1), tmp_path / "job", **options)
    assert not (tmp_path / "job").exists()
