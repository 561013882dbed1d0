"""Timers of a processor: order of calls in an epoch, deletion, registration, and lateness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processor_epochs import EpochDrive

from statebackend import JobDefinitionError, UserFunctionError, WatermarkStrategy
from statebackend.local import LocalStreamEnvironment
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.streaming.operators.stateful_processor import ProcessorTimers
from statebackend.streaming.rows.row_reader import row_class
from statebackend.streaming.stateful_processor import TimeMode
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

BACKENDS = {"heap": HeapStateBackend(), "rocksdb": RocksDBStateBackend()}


class Timed:
    """Registers and deletes the timers of its rows, and emits its calls; a timer at ...7 registers two more."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        rows = list(rows)  # type: ignore[assignment]
        for row in rows:
            for time in row["register"]:
                self.handle.registerTimer(time)
            for time in row["delete"]:
                self.handle.deleteTimer(time)
        yield self.reported(key, f"{len(list(rows))} rows", timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        if expiry % 1000 == 7:
            self.handle.registerTimer(expiry - 1)
            self.handle.registerTimer(expiry + 20_000)
        yield self.reported(key, f"timer {expiry}", timerValues)

    def reported(self, key: Any, what: str, timer_values: Any) -> Any:
        time = max(timer_values.getCurrentWatermarkInMs(), timer_values.getCurrentProcessingTimeInMs())
        text = f"{what} at {time}, {list(self.handle.listTimers())}"
        return tuple.__new__(row_class(("k", "text")), (key[0], text))

    def close(self) -> None: ...


MODES = [TimeMode.EVENT_TIME, TimeMode.PROCESSING_TIME]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return BACKENDS[request.param]


@pytest.mark.parametrize("mode", MODES)
def test_records_precede_timers_and_timers_are_in_time_order(tmp_path: Path, backend: Any, mode: TimeMode) -> None:
    epochs = EpochDrive(tmp_path, backend, Timed(), mode)
    assert epochs.epoch(0, ("a", 10, [5000, 10_000, 15_000], []), ("c", 10, [], [])) == [
        ("a", "1 rows at 0, [5000, 10000, 15000]"),
        ("c", "1 rows at 0, []"),
    ]
    # A timer that a record deletes does not fire, even if it is due. A timer that is due at its registration fires at
    # once. A timer that a timer registers fires in the next epoch.
    assert epochs.epoch(10_000, ("a", 10_011, [], [5000]), ("b", 10_012, [10, 9999, 10_001, 1007], [])) == [
        ("a", "1 rows at 10000, [10000, 15000]"),
        ("b", "1 rows at 10000, [10, 1007, 9999, 10001]"),
        ("b", "timer 10 at 10000, [10, 1007, 9999, 10001]"),
        ("b", "timer 1007 at 10000, [1006, 1007, 9999, 10001, 21007]"),
        ("b", "timer 9999 at 10000, [1006, 9999, 10001, 21007]"),
        ("a", "timer 10000 at 10000, [10000, 15000]"),
    ]
    assert epochs.epoch(12_000) == [
        ("b", "timer 1006 at 12000, [1006, 10001, 21007]"),
        ("b", "timer 10001 at 12000, [10001, 21007]"),
    ]
    assert epochs.next_timer == 15_000
    assert epochs.epoch(30_000) == [
        ("a", "timer 15000 at 30000, [15000]"),
        ("b", "timer 21007 at 30000, [21006, 21007, 41007]"),
    ]
    assert epochs.next_timer == 21_006


@pytest.mark.parametrize("mode", MODES)
def test_a_timer_fires_once_for_any_number_of_registrations_and_deletions(
    tmp_path: Path, backend: Any, mode: TimeMode
) -> None:
    epochs = EpochDrive(tmp_path, backend, Timed(), mode)
    epochs.epoch(0, ("a", 1, [100, 100], []))
    assert epochs.next_timer == 100
    # One record deletes the first timer in the epoch in which it is due. The next record registers it again.
    assert epochs.epoch(100, ("a", 101, [], [100, 100, 5]), ("a", 102, [100, 50], []), ("a", 103, [], [50])) == [
        ("a", "3 rows at 100, [100]"),
        ("a", "timer 100 at 100, [100]"),
    ]
    assert epochs.epoch(200) == []
    assert epochs.next_timer is None


def test_records_are_late_by_the_watermark_of_the_former_epoch(tmp_path: Path, backend: Any) -> None:
    epochs = EpochDrive(tmp_path, backend, Timed(), TimeMode.EVENT_TIME)
    epochs.epoch(MIN_TIMESTAMP, ("a", 10_000, [], []))
    epochs.epoch(10_000, ("a", 12_000, [], []))
    times = {"a": 9000, "b": 10_000, "c": 10_001, "d": 11_999, "e": None}
    records = [(key, time, [], []) for key, time in times.items()]
    assert [key for key, _ in epochs.epoch(12_000, *records)] == ["c", "d", "e"]
    assert epochs.epoch(12_000, ("a", 12_000, [], [])) == []


def test_timers_stored_by_an_older_version_fire_once_each(
    tmp_path: Path, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = EpochDrive(tmp_path, backend, Timed(), TimeMode.EVENT_TIME)
    with monkeypatch.context() as older:
        # The older version registered timers in the timer service at their own times.
        older.setattr(ProcessorTimers, "_in_service", lambda timers, timestamp_ms: timestamp_ms)
        epochs.epoch(0, ("a", 1, [5007, 5008, 9000], []))
    reported = [text.split(" at ")[0] for _, text in epochs.epoch(5009)]
    assert reported == ["timer 5007", "timer 5008"]
    assert [text.split(" at ")[0] for _, text in epochs.epoch(9000)] == ["timer 5006"]
    assert [text.split(" at ")[0] for _, text in epochs.epoch(9001)] == ["timer 9000"]
    assert [text.split(" at ")[0] for _, text in epochs.epoch(90_000)] == ["timer 25007"]


def test_a_missing_watermark_is_zero_for_timers_too(tmp_path: Path, backend: Any) -> None:
    epochs = EpochDrive(tmp_path, backend, Timed(), TimeMode.EVENT_TIME)
    assert epochs.epoch(MIN_TIMESTAMP, ("a", 10_000, [0, 1], [])) == [
        ("a", "1 rows at 0, [0, 1]"),
        ("a", "timer 0 at 0, [0, 1]"),
    ]
    assert epochs.next_timer == 1


class Latest(Timed):
    """Emits the content of each key by the watermark, and postpones its timer with each call."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        last = max(row.t for row in rows)
        for timer in self.handle.listTimers():
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + 10)
        yield self.reported(key, f"last {last}", timerValues)

    def reported(self, key: Any, what: str, timer_values: Any) -> Any:
        text = f"{what} at {timer_values.getCurrentWatermarkInMs()}"
        return tuple.__new__(row_class(("k", "text")), (key[0], text))


def run_in_job(
    records: list[tuple[str, int]], backend: Any, execute: Any = None, **given: Any
) -> tuple[Any, list[Any]]:
    environment = LocalStreamEnvironment(epoch_size=2, backend=backend, max_parallelism=16, **given)
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("t")
    timed = environment.from_elements(records, "k string, t bigint").assign_timestamps_and_watermarks(strategy)
    results: list[Any] = []
    grouped = timed.group_by("k")
    grouped.transform_with_state(Latest(), "k string, text string", "update", "eventTime", uid="latest").sink_to(
        results
    )
    job = environment.execute(**(execute or {}))
    job.environment = environment
    return job, [tuple(row) for row in results]


def test_event_time_timers_fire_in_jobs_and_are_in_savepoints(tmp_path: Path, backend: Any) -> None:
    job, results = run_in_job([("a", 5), ("b", 1), ("a", 12), ("c", 5)], backend)
    # The record of c is late: its time is not after the watermark of the first two records.
    assert results == [("a", "last 5 at 0"), ("b", "last 1 at 0"), ("a", "last 12 at 5"), ("b", "timer 11 at 12")]
    savepoint = job.savepoint(tmp_path / "savepoint").path
    other = next(one for one in BACKENDS.values() if one is not backend)
    execute = {"from_savepoint": savepoint, "drain": True}
    _, results = run_in_job([("a", 12), ("d", 30)], other, execute, parallelism=2)
    assert results[0] == ("d", "last 30 at 12")
    assert sorted(results[1:]) == [("a", "timer 22 at 30"), ("d", f"timer 40 at {MAX_TIMESTAMP}")]


def test_a_processor_in_event_time_needs_a_watermark_of_every_source() -> None:
    environment = LocalStreamEnvironment()
    without = environment.from_elements([("a", 1)], "k string, t bigint")
    strategy: Any = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamps("t")
    timed = environment.from_elements([("a", 1)], "k string, t bigint").assign_timestamps_and_watermarks(strategy)
    for stream in (without, timed.union(without).flat_map(lambda record: [record])):
        with pytest.raises(JobDefinitionError, match="needs watermarks, and a source of the stream has none"):
            stream.group_by("k").transform_with_state(Latest(), "k string, text string", "update", "eventTime")


@pytest.mark.parametrize(
    ("time", "reported"), [("x", "not a str"), (1 << 63, "milliseconds of 64 bits"), (1.5, "not a float")]
)
def test_the_time_of_a_timer_is_an_integer_of_milliseconds(tmp_path: Path, time: Any, reported: str) -> None:
    epochs = EpochDrive(tmp_path, BACKENDS["heap"], Timed(), TimeMode.EVENT_TIME)
    with pytest.raises(UserFunctionError, match=f"operator 'processor', key 'a': handleInputRows raised .*{reported}"):
        epochs.epoch(0, ("a", 1, [time], []))
