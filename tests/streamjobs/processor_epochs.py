"""A stateful processor run epoch by epoch over a real backend, as a runtime does it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from checkpointing.handles.state_handles import KeyedStateHandle
from statebackend.keyed.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from streamjobs.api.functions import RuntimeContext
from streamjobs.api.stateful_processor import StatefulProcessorFunction, TimeMode
from streamjobs.operators.input_batch import ObjectBatch
from streamjobs.operators.operator import CollectingEmitter
from streamjobs.operators.stateful_processor.processor_operator import StatefulProcessorOperator
from streamjobs.rows.row import row_class
from streamjobs.time.internal_timer_service import CurrentKey, InternalTimerService, timer_queue_descriptors
from testkit.backends.harness import BackendHarness
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.scalars.strings import StringSerializer

UID = "processor"


class Context(RuntimeContext):
    operator_uid = UID
    subtask_index = 0
    parallelism = 1
    epoch_id = 1
    is_restored = False

    def __init__(self, backend: Any, operator_state: dict[str, dict[Any, Any]]) -> None:
        self.backend = backend
        self.broadcast = operator_state
        self.timers: Any = None
        self.time_ms = 0

    def register(self, descriptor: Any, namespace_serializer: Any = VOID_NAMESPACE_SERIALIZER) -> Any:
        return self.backend.get_or_create_keyed_state(namespace_serializer, descriptor)

    def register_operator_state(self, descriptor: Any) -> Any:
        entries = self.broadcast.setdefault(descriptor.name, {})

        class State:
            get = entries.get
            put = entries.__setitem__

        return State

    def internal_timer_service(self, name: str, namespace_serializer: Any) -> InternalTimerService[Any]:
        descriptors = timer_queue_descriptors(name, self.backend.key_serializer, namespace_serializer)
        queues = [self.backend.get_priority_queue(descriptor) for descriptor in descriptors]
        self.current = CurrentKey()
        self.timers = InternalTimerService(*queues, self.current, lambda: self.time_ms)
        return self.timers

    def key_setter(self) -> Callable[[Any, int], None]:
        set_key, current = self.backend.key_setter(), self.current

        def set_both(key: Any, key_group: int) -> None:
            current.key, current.key_group = key, key_group
            set_key(key, key_group)

        return set_both


class Epochs:
    """Runs a processor epoch by epoch, as a runtime does: timers that are due, records, the barrier, all anew."""

    def __init__(
        self,
        directory: Path,
        backend: Any,
        processor: Any,
        mode: TimeMode,
        columns: Sequence[str] = ("k", "register", "delete"),
        output: str = "k string, text string",
        key_width: int = 1,
    ) -> None:
        self.harness = BackendHarness(str(directory))
        self.backend = backend
        self.function = StatefulProcessorFunction(processor, mode, output, key_width)
        self.key_width = key_width
        text = StringSerializer()
        self.key_serializer: Any = text if key_width == 1 else TupleSerializer([text] * key_width)
        self.record_class = row_class(tuple(columns))
        self.handles: list[KeyedStateHandle] = []
        self.operator_state: dict[str, dict[Any, Any]] = {}
        self.is_in_event_time = mode is TimeMode.EVENT_TIME

    def epoch(self, time: int, *records: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """An epoch at a time; records are (key, timestamp, the columns behind the key ...), sorted by key."""
        backend = self.harness.open(self.backend, *self.handles, key_serializer=self.key_serializer)
        context, emitter = Context(backend, self.operator_state), CollectingEmitter()
        operator = StatefulProcessorOperator(copy.deepcopy(self.function), UID)
        operator.open(context, emitter)  # type: ignore[arg-type]
        timers, set_key = context.timers, context.key_setter()

        def fire(timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
            set_key(key, key_group)
            called = operator.on_event_time_timer if self.is_in_event_time else operator.on_processing_time_timer
            called(timestamp_ms, key, key_group, namespace)

        if self.is_in_event_time:
            timers.advance_watermark(time, fire)
            operator.on_watermark(time)
        else:
            context.time_ms = time
            timers.advance_processing_time(fire)
        for key, timestamp, *values in records:
            parts = (key,) if self.key_width == 1 else key
            record = tuple.__new__(self.record_class, (*parts, *values))
            operator.process_batch(0, ObjectBatch([record], [key], [self.harness.key_group(key)], [timestamp]))
        operator.prepare_snapshot()
        operator.close()
        next_timers = timers.next_event_time_timer(), timers.next_processing_time_timer()
        self.next_timer = next((one for one in next_timers if one is not None), None)
        self.handles = [self.harness.snapshot(backend).handle]
        return [tuple(row) for _, rows, *_ in emitter.taken() for row in rows]
