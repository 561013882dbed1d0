"""The harness of one operator: output and watermarks, remaining state and timers, and restores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statebackend import SplitListStateDescriptor, ValueStateDescriptor
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator
from statebackend.streaming.runtime.restore_plan import continued_subtask
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.operators import EmittedRow, OperatorTestHarness
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer


class Delaying(Operator):
    """Emits a record ten milliseconds of event time later, and counts the records of the subtask."""

    def open(self, context: Any, emitter: Emitter) -> None:
        self.emitter = emitter
        self.record = context.get_state(ValueStateDescriptor("record", str))
        self.seen = context.operator_state.get_list_state(SplitListStateDescriptor("seen", str))
        self.timers = context.internal_timer_service("delays", VoidNamespaceSerializer())
        self.set_key = context.key_setter()

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        for record, key, group, time_ms in zip(
            batch.records, batch.keys, batch.key_groups, batch.timestamps or (), strict=True
        ):
            self.set_key(key, group)
            self.record.update(record)
            self.seen.add(key)
            self.timers.register_event_time_timer(VOID_NAMESPACE, time_ms + 10)

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self.emitter.emit(None, [(self.record.value(), len(self.seen.get()))], [timestamp_ms])
        self.record.clear()

    def close(self) -> None: ...


class Holding(Operator):
    """Keeps the last record out of state until a snapshot, and records watermarks."""

    def open(self, context: Any, emitter: Emitter) -> None:
        self.record = context.get_state(ValueStateDescriptor("record", str))
        self.seen = context.operator_state.get_list_state(SplitListStateDescriptor("seen", str))
        self.timers = context.internal_timer_service("none", VoidNamespaceSerializer())
        self.set_key = context.key_setter()
        self.held: list[tuple[Any, int, Any]] = []
        self.watermarks: list[int] = []

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        self.held = list(zip(batch.keys, batch.key_groups, batch.records, strict=True))

    def on_watermark(self, watermark: int) -> None:
        self.watermarks.append(watermark)

    def prepare_snapshot(self) -> None:
        for key, group, record in self.held:
            self.set_key(key, group)
            self.record.update(record)
            self.seen.add(record)
        self.held = []

    def close(self) -> None: ...


@pytest.mark.parametrize("backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"])
def test_an_operator_is_driven_call_by_call_and_continues_from_its_state(tmp_path: Path, backend: Any) -> None:
    harness = BackendHarness(str(tmp_path))
    run = OperatorTestHarness(harness, backend, Delaying())
    run.records(("a", "one", 1), ("b", "two", 5))
    assert run.emitted == []
    assert run.entries() == {"record": 2, "timers": 2}
    run.watermark(11)
    run.watermark(10)
    assert run.emitted == [EmittedRow(None, ("one", 2), 11, 11)]
    assert run.entries() == {"record": 1, "timers": 1}
    restore = continued_subtask(run.subtask_state(), harness.file_system)
    handles = [one.handle for one in restore.keyed]
    again = OperatorTestHarness(harness, backend, Delaying(), *handles, operator_state=restore.operator)
    assert again.timers.current_watermark() == MIN_TIMESTAMP
    again.records(("c", "three", 2))
    again.watermark(20)
    assert again.rows() == [("three", 3), ("two", 3)]


def test_an_operator_is_notified_before_each_kind_of_snapshot(tmp_path: Path) -> None:
    harness = BackendHarness(str(tmp_path))
    run = OperatorTestHarness(harness, HeapStateBackend(), Holding())
    run.records(("a", "one", None))
    again = OperatorTestHarness(harness, HeapStateBackend(), Holding(), run.snapshot())
    assert again.entries() == {"record": 1}
    again.records(("b", "two", None))
    restore = continued_subtask(again.subtask_state(), harness.file_system)
    handles = [one.handle for one in restore.keyed]
    last = OperatorTestHarness(harness, HeapStateBackend(), Holding(), *handles, operator_state=restore.operator)
    assert last.entries() == {"record": 2}
    assert last.operator.seen.get() == ["two"]


def test_a_watermark_that_does_not_advance_is_dropped(tmp_path: Path) -> None:
    operator = Holding()
    run = OperatorTestHarness(BackendHarness(str(tmp_path)), HeapStateBackend(), operator)
    for watermark in (5, 5, 4, 6):
        run.watermark(watermark)
    assert operator.watermarks == [5, 6]
