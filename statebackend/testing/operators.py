"""A harness for one operator with a real backend, for authors of operators. It calls the operator as a subtask does.

A test can check the entries of state, pending timers, and the output of each call. Use `statebackend.testing.jobs` to
test an operator inside a job.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import pyarrow as pa
from attrs import define, frozen

from statebackend.checkpoint.state_handles import KeyedStateHandle, SubtaskState
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER, KeyedStateBackend
from statebackend.state.operator_state_redistribution import RestoredOperatorState
from statebackend.state.priority_queue import TIMER_STATES
from statebackend.state.state_backend import StateBackend
from statebackend.streaming.functions import RuntimeContext
from statebackend.streaming.operators.operator import ObjectBatch, Operator
from statebackend.streaming.operators.subtask_backends import SubtaskBackends
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.row_reader import RowReader
from statebackend.streaming.rows.row_writer import ENCODER_WITHOUT_SCHEMA, RowEncoder
from statebackend.streaming.time.internal_timer_service import InternalTimerService, TimerKey, timer_queue_descriptors
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.testing.backends.harness import BackendHarness
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.strings import StringSerializer

__all__ = ["EmittedRow", "OperatorTestHarness"]

UID: Final = "operator"
"""The uid of the operator."""


class CountingTimers(InternalTimerService[Any]):
    """Counts the registrations of event-time timers."""

    registrations = 0

    def register_event_time_timer(self, namespace: Any, timestamp_ms: int) -> None:
        self.registrations += 1
        super().register_event_time_timer(namespace, timestamp_ms)

    def register_event_time_timers(
        self,
        namespace: Any,
        timestamp_ms: int,
        keys: Sequence[Any],
        key_groups: Sequence[int],
        rows: Sequence[bytes] | None = None,
    ) -> None:
        self.registrations += len(keys)
        super().register_event_time_timers(namespace, timestamp_ms, keys, key_groups, rows)


class HarnessContext(RuntimeContext):
    """The context of `Operator.open`."""

    operator_uid = UID
    subtask_index = 0
    parallelism = 1
    epoch_id = 1
    is_restored = False

    def __init__(
        self,
        backend: KeyedStateBackend,
        schemas: tuple[DeclaredSchema | None, ...],
        watermark: int,
        operator_state: RestoredOperatorState | None,
    ) -> None:
        self.backend = self.keyed = backend
        self.equal_keys_have_equal_bytes = backend.key_serializer.equal_values_have_equal_bytes
        self.access_in_bulk = backend.access_in_bulk
        self.backends = SubtaskBackends(backend, operator_state)
        self.input_schemas = schemas
        self.current = TimerKey()
        self.now_ms = 0
        self.watermark_ms = watermark
        self.queues: list[Any] = []
        self.timers: Any = None

    def register(self, descriptor: Any, namespace_serializer: Any = VOID_NAMESPACE_SERIALIZER) -> Any:
        return self.backend.get_or_create_keyed_state(namespace_serializer, descriptor)

    def register_operator_state(self, descriptor: Any) -> Any:
        return self.backends.register_operator_state(descriptor)

    def clock(self) -> int:
        return self.now_ms

    def leave_key(self) -> None:
        self.backend.leave_key()
        self.current.leave()

    def internal_timer_service(self, name: str, namespace_serializer: TypeSerializer[Any]) -> CountingTimers:
        descriptors = timer_queue_descriptors(name, self.backend.key_serializer, namespace_serializer)
        self.queues = [self.backend.get_priority_queue(descriptor) for descriptor in descriptors]
        timers = self.timers = CountingTimers(
            self.queues[0], self.queues[1], self.current, self.clock, self.watermark_ms
        )
        return timers

    def key_setter(self) -> Callable[[Any, int], None]:
        set_key, current = self.backend.key_setter(), self.current

        def set_both(key: Any, key_group: int) -> None:
            current.key, current.key_group = key, key_group
            set_key(key, key_group)

        return set_both


@frozen
class EmittedRow:
    """An emitted row, with the watermark at that time."""

    tag: OutputTag[Any] | None
    row: Any
    timestamp_ms: int | None
    watermark: int


@define
class RecordingEmitter:
    """Records emitted rows, in order."""

    side_outputs: Collection[OutputTag[Any]]
    watermark: Callable[[], int]
    emitted: list[EmittedRow]

    def encoder(self, tag: OutputTag[Any] | None) -> RowEncoder:
        """Return an encoder that only copies mutable rows."""
        return ENCODER_WITHOUT_SCHEMA

    def emit(
        self, tag: OutputTag[Any] | None, rows: Sequence[Any], timestamps: Sequence[int | None] | None = None
    ) -> None:
        times = [None] * len(rows) if timestamps is None else timestamps
        if isinstance(rows, pa.RecordBatch):
            rows = RowReader(rows.schema).rows(rows)
        for row, time in zip(rows, times, strict=True):
            self.emitted.append(EmittedRow(tag, row, time, self.watermark()))

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Do nothing. Tests of operators that hold watermarks back use another emitter."""


class OperatorTestHarness:
    """An open operator with its own backend. Times are in milliseconds.

    ``restore`` and ``operator_state`` are the state to restore.
    """

    def __init__(
        self,
        harness: BackendHarness,
        state_backend: StateBackend,
        operator: Operator,
        *restore: KeyedStateHandle,
        side_outputs: Collection[OutputTag[Any]] = (),
        schemas: tuple[DeclaredSchema | None, ...] = (None,),
        key_serializer: TypeSerializer[Any] | None = None,
        watermark: int = MIN_TIMESTAMP,
        subtask: int = 0,
        parallelism: int = 1,
        operator_state: RestoredOperatorState | None = None,
    ) -> None:
        self.harness = harness
        keys = key_serializer or StringSerializer()
        self.backend = harness.open(
            state_backend, *restore, key_serializer=keys, subtask=subtask, parallelism=parallelism
        )
        self.context = HarnessContext(self.backend, schemas, watermark, operator_state)
        self.emitted: list[EmittedRow] = []
        emitter = RecordingEmitter(side_outputs, lambda: self.timers.current_watermark(), self.emitted)
        self.operator = operator
        self.operator.open(self.context, emitter)  # type: ignore[arg-type]
        self._set_key = self.context.key_setter()

    @property
    def timers(self) -> CountingTimers:
        """The timers of the operator."""
        timers: CountingTimers = self.context.timers
        return timers

    def records(self, *records: tuple[Any, Any, int | None], input_index: int = 0) -> None:
        """Process records, as (key, record, timestamp), in one batch."""
        keys = [key for key, _, _ in records]
        groups = [self.harness.key_group(key) for key in keys]
        times = [time for _, _, time in records]
        self.operator.process_batch(input_index, ObjectBatch([record for _, record, _ in records], keys, groups, times))

    def broadcast(self, *records: tuple[Any, int | None], input_index: int = 1) -> None:
        """Process records of a broadcast input, as (record, timestamp), in one batch without keys."""
        unasked: Any = None
        batch = ObjectBatch([record for record, _ in records], unasked, unasked, [time for _, time in records])
        self.operator.process_batch(input_index, batch)

    def watermark(self, watermark: int) -> None:
        """Advance the watermark. A watermark that is not larger is ignored."""
        if watermark > self.timers.current_watermark():
            if self.operator.fires_together:
                self.timers.advance_watermark_together(watermark, self.operator.on_event_time_timers)
            else:
                self.timers.advance_watermark(watermark, self._fires(self.operator.on_event_time_timer))
            self.operator.on_watermark(watermark)

    def processing_time(self, now_ms: int) -> None:
        """Advance the clock, and fire the timers that are due."""
        self.context.now_ms = now_ms
        self.timers.advance_processing_time(self._fires(self.operator.on_processing_time_timer))

    def _fires(self, call: Callable[[int, Any, int, Any], None]) -> Any:
        def fire(timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
            self._set_key(key, key_group)
            call(timestamp_ms, key, key_group, namespace)

        return fire

    def rows(self) -> list[Any]:
        """Return the rows of the main output so far."""
        return [one.row for one in self.emitted if one.tag is None]

    def snapshot(self) -> KeyedStateHandle:
        """Take a snapshot of keyed state, as at a barrier."""
        self.operator.prepare_snapshot()
        return self.harness.snapshot(self.backend).handle

    def subtask_state(self) -> SubtaskState:
        """Close the operator and take a snapshot of keyed and operator state, as at the end of an epoch."""
        self.operator.prepare_snapshot()
        self.operator.close()
        return self.context.backends.snapshot(1, uuid.uuid4().hex).state

    def entries(self) -> dict[str, int]:
        """Return the number of pairs of key and namespace by state, and of timers. Empty states are missing."""
        self.operator.prepare_snapshot()
        found = {
            state.name: len(list(self.backend.get_keys_and_namespaces(state.name)))
            for state in self.backend.current_meta().states
            if not state.name.startswith(TIMER_STATES)
        }
        found["timers"] = sum(queue.size() for queue in self.context.queues)
        return {name: count for name, count in found.items() if count}
