"""Merging windows in snapshots, and the state of merged ones."""

from __future__ import annotations

from typing import Any

import pytest

from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from statebackend.streaming.windows.assigners import EventTimeSessionWindows, GlobalWindows
from statebackend.streaming.windows.triggers import CountTrigger, EventTimeTrigger
from statebackend.streaming.windows.window_definition import WindowDefinition
from statebackend.streaming.windows.windowed_stream import WindowedStream
from statebackend.testing.backends.harness import BackendHarness
from tests.streaming.operators.windows.window_harness import WindowRun

HEAP = HeapStateBackend()


def sessions(gap_ms: int = 10) -> Any:
    return WindowedStream.of(lambda definition, **_: definition, EventTimeSessionWindows.with_gap(gap_ms))


def summed(windowed: Any) -> WindowDefinition:
    definition: WindowDefinition = windowed.reduce(int.__add__, element_type=int)
    return definition


@pytest.mark.parametrize("state_backend", [HEAP, RocksDBStateBackend()], ids=["heap", "rocksdb"])
def test_a_session_that_grows_in_several_runs_fires_with_all_records(
    harness: BackendHarness, state_backend: Any
) -> None:
    handles: tuple[Any, ...] = ()
    for at in range(3):
        run = WindowRun(harness, state_backend, summed(sessions()), *handles)
        run.records(("a", 1 << at, 5 * at))
        handles = (run.snapshot(),)
    run = WindowRun(harness, state_backend, summed(sessions()), *handles)
    run.watermark(MAX_TIMESTAMP)
    assert run.rows() == [7]
    assert run.entries() == {}


def test_sessions_of_more_keys_than_the_cache_all_fire(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, summed(sessions()))
    many = [(f"key {number}", 1, 0) for number in range(5_000)]
    run.records(*many)
    run.records(*((key, value, 5) for key, value, _ in many[:10]))
    run.watermark(MAX_TIMESTAMP)
    assert sorted(run.rows()) == [1] * 4_990 + [2] * 10
    assert run.entries() == {}


def test_stored_sessions_leave_memory(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, summed(sessions()))
    run.records(("a", 1, 0), ("b", 2, 0))
    operator: Any = run.operator
    assert len(operator._merging._in_use) == 2
    run.snapshot()
    assert operator._merging._in_use == {}
    run.records(("a", 4, 5))
    run.watermark(MAX_TIMESTAMP)
    assert sorted(run.rows()) == [2, 5]


@pytest.mark.parametrize(
    ("trigger", "timers"),
    [(EventTimeTrigger(), 2), (CountTrigger.of(5), 1)],
    ids=lambda one: type(one).__name__,
)
def test_merged_sessions_have_the_state_of_one(harness: BackendHarness, trigger: Any, timers: int) -> None:
    run = WindowRun(harness, HEAP, summed(sessions().trigger(trigger).allowed_lateness(50)))
    run.records(("a", 1, 0), ("a", 2, 12), ("a", 4, 6))
    left = run.entries()
    assert left["timers"] == timers
    assert left["merging-window-set"] == left["window-contents"] == 1
    assert all(count == 1 for name, count in left.items() if name.startswith("trigger."))
    run.watermark(MAX_TIMESTAMP)
    assert run.entries() == {}


def test_a_late_record_that_joins_closed_sessions_fires_once(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, summed(sessions().allowed_lateness(50)))
    run.records(("a", 1, 0), ("a", 2, 12))
    run.watermark(30)
    assert run.rows() == [1, 2]
    run.records(("a", 4, 6))
    assert run.rows() == [1, 2, 7]
    run.watermark(31)
    assert run.rows() == [1, 2, 7]


def test_a_window_without_an_end_has_no_end_timer(harness: BackendHarness) -> None:
    endless = WindowedStream.of(lambda definition, **_: definition, GlobalWindows.create())
    run = WindowRun(harness, HEAP, summed(endless.trigger(CountTrigger.of(2))))
    run.records(("a", 1, None), ("b", 1, None), ("b", 2, None))
    assert run.rows() == [3]
    assert "timers" not in run.entries()
