"""The operators of functions over a stream and a broadcast stream, keyed or not.

Input 0 is the stream, input 1 the broadcast stream. Batches of input 1 have no keys, and no key is current while they
are processed. Each subtask has its own copy of the broadcast state and applies the same records to it.

Only code that runs in the same way in all subtasks may change broadcast state: the processing of broadcast records, and
`open()` (`GuardedBroadcastStates.may_change`). Any other change is an error, also through a handle that the function
stored.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import GeneratorType
from typing import Any, Final, Generic, NoReturn, TypeVar

from snapshots.errors import format_value
from statebackend.state.errors import StateBackendError, StateRegistrationError
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor, OperatorStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.states import BroadcastState, ReadOnlyBroadcastState, State
from statebackend.streaming.broadcast_functions import (
    BroadcastContext,
    BroadcastOnTimerContext,
    BroadcastProcessDefinition,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    KeyedReadOnlyContext,
    ReadOnlyContext,
)
from statebackend.streaming.functions import DelegatingContext, RuntimeContext, open_function
from statebackend.streaming.operators.function_calls import call_failure, call_user, check_results, of_key, of_record
from statebackend.streaming.operators.keyed_process import ElementMethod, KeyedCallForms, KeyedProcessOperator
from statebackend.streaming.operators.keyed_timers import NoTimers
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator, OrderedOutput
from statebackend.streaming.operators.subtask_context import SubtaskContext
from typeserializers.scalars.void import VOID_NAMESPACE

__all__ = ["BROADCAST_INPUT", "BroadcastWriteError", "GuardedBroadcastStates", "broadcast_process_operator"]


K = TypeVar("K")
V = TypeVar("V")


class BroadcastWriteError(StateBackendError):
    """Broadcast state was changed by code that does not run in the same way in all subtasks."""


class GuardedBroadcastStates:
    """The broadcast states of an operator, guarded against changes."""

    def __init__(self, uid: str, register: Callable[[OperatorStateDescriptor], State]) -> None:
        self.may_change = True
        """Whether the current code runs in the same way in all subtasks."""
        self._uid = uid
        self._register = register
        self._states: dict[str, tuple[BroadcastStateDescriptor[Any, Any], GuardedBroadcastState[Any, Any]]] = {}

    def register(self, descriptor: BroadcastStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Register a state. Raises as the backend does."""
        # The backend rejects a second descriptor with the same name.
        state: Any = self._register(descriptor)
        known = self._states.get(descriptor.name)
        if known is None:
            known = descriptor, GuardedBroadcastState(state, descriptor.name, self)
            self._states[descriptor.name] = known
        return known[1]

    def writable(self, descriptor: BroadcastStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Return a registered state. Raises `StateRegistrationError` for others."""
        known = self._states.get(descriptor.name) if isinstance(descriptor, BroadcastStateDescriptor) else None
        if known is None or (known[0] is not descriptor and known[0] != descriptor):
            names = ", ".join(map(repr, self._states)) or "none"
            raise StateRegistrationError(
                f"get_broadcast_state was given {format_value(descriptor, 120)}, "
                f"and the broadcast states of the operator are "
                f"{names}: pass it to broadcast(...) too, or register it in open() with "
                f"context.operator_state.get_broadcast_state"
            )
        return known[1]

    def read_only(self, descriptor: BroadcastStateDescriptor[K, V]) -> ReadOnlyBroadcastState[K, V]:
        """Return a view of a registered state that rejects changes. Raises as `writable`."""
        return self.writable(descriptor).read_only()


class _Readable(Generic[K, V]):
    """The read access of states and views."""

    __slots__ = ("_guard", "_name", "_state")

    def __init__(self, state: BroadcastState[K, V], name: str, guard: GuardedBroadcastStates) -> None:
        self._state = state
        self._name = name
        self._guard = guard

    def get(self, key: K) -> V | None:
        return self._state.get(key)

    def contains(self, key: K) -> bool:
        return self._state.contains(key)

    def items(self) -> Iterator[tuple[K, V | None]]:
        return self._state.items()

    def is_empty(self) -> bool:
        return self._state.is_empty()


class GuardedBroadcastState(_Readable[K, V], BroadcastState[K, V]):
    """A broadcast state that rejects changes while they are not allowed."""

    __slots__ = ()

    def put(self, key: K, value: V | None) -> None:
        self._changing().put(key, value)

    def put_all(self, entries: Mapping[K, V | None]) -> None:
        self._changing().put_all(entries)

    def remove(self, key: K) -> None:
        self._changing().remove(key)

    def clear(self) -> None:
        self._changing().clear()

    def read_only(self) -> ReadOnlyBroadcastState[K, V]:
        return _RejectingView(self._state, self._name, self._guard)

    def _changing(self) -> BroadcastState[K, V]:
        if not self._guard.may_change:
            raise write_rejected(self._name)
        return self._state


class _RejectingView(_Readable[K, V], ReadOnlyBroadcastState[K, V]):
    """A read-only state. Its write methods raise."""

    __slots__ = ()

    def put(self, key: K, value: V | None) -> NoReturn:
        """Rejected."""
        raise write_rejected(self._name)

    def put_all(self, entries: Mapping[K, V | None]) -> NoReturn:
        """Rejected."""
        raise write_rejected(self._name)

    def remove(self, key: K) -> NoReturn:
        """Rejected."""
        raise write_rejected(self._name)

    def clear(self) -> NoReturn:
        """Rejected."""
        raise write_rejected(self._name)


def write_rejected(name: str) -> BroadcastWriteError:
    """Return the error for a change of this state."""
    return BroadcastWriteError(
        f"broadcast state {name!r} can be changed only in process_broadcast_element: other methods run with other "
        f"records in each subtask, so the copies of the state would differ"
    )


BROADCAST_INPUT: Final = 1
"""The index of the broadcast input."""


def broadcast_process_operator(definition: BroadcastProcessDefinition, uid: str) -> Operator:
    """Create the operator of a broadcast function."""
    return (KeyedBroadcastOperator if definition.is_keyed else BroadcastOperator)(definition, uid)


class KeyedBroadcastOperator(Operator):
    """The operator of a `KeyedBroadcastProcessFunction`: a keyed operator with a second input without keys."""

    def __init__(self, definition: BroadcastProcessDefinition, uid: str) -> None:
        self._definition = definition
        self._function: Any = definition.function
        self._uid = uid

    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        self._context = context
        states = self._states = _opened_states(self._definition, context)
        forms = KeyedCallForms(
            _keyed_method,
            partial(KeyedReadOnlyContext, states=states),
            partial(BroadcastOnTimerContext, states=states),
            lambda context: _KeyedOpening(context, states),
        )
        self._keyed = KeyedProcessOperator(self._function, self._uid, forms)
        self._keyed.open(context, emitter)
        self._states.may_change = False
        output = self._keyed.output
        called: KeyedBroadcastContext = KeyedBroadcastContext(
            context.epoch_id,
            output.side_outputs_at(lambda: called.timestamp),
            self._keyed.timers,
            states,
            self._apply_to_keyed_state,
        )
        self._broadcast = _KeylessCalls(
            self._function.process_broadcast_element, "process_broadcast_element", self._uid, called, output
        )

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        if input_index != BROADCAST_INPUT:
            self._keyed.process_batch(input_index, batch)
            return
        self._keyed.output.flush()
        self._context.leave_key()
        self._states.may_change = True
        self._broadcast.run(batch)
        self._states.may_change = False

    def on_watermark(self, timestamp_ms: int) -> None:
        self._keyed.on_watermark(timestamp_ms)

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._keyed.on_event_time_timer(timestamp_ms, key, key_group, namespace)

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._keyed.on_processing_time_timer(timestamp_ms, key, key_group, namespace)

    def prepare_snapshot(self) -> None:
        self._keyed.prepare_snapshot()

    def begin_epoch(self, epoch_id: int) -> None:
        self._keyed.begin_epoch(epoch_id)
        self._broadcast.begin_epoch(epoch_id)

    def close(self) -> None:
        call_user(self._uid, "close", self._function.close)

    def _apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Any, Any], object]) -> None:
        def apply(key: Any, state: Any) -> None:
            try:
                # The body of a generator function does not run here, so its changes would be lost.
                if isinstance(function(key, state), GeneratorType):
                    raise TypeError("it yields, so that it would not run; collect what is to be emitted in a list")
            except Exception as error:
                where = f"{of_key(self._uid, key)}, broadcast {of_record(self._broadcast.record)}"
                raise call_failure(error, where, "the function of apply_to_keyed_state") from error

        # A state that is not registered is rejected here.
        self._context.register(descriptor)
        self._context.keyed.apply_to_all_keys(VOID_NAMESPACE, VOID_NAMESPACE_SERIALIZER, descriptor, apply)


class BroadcastOperator(Operator):
    """The operator of a `BroadcastProcessFunction`: neither input has keys."""

    def __init__(self, definition: BroadcastProcessDefinition, uid: str) -> None:
        self._definition = definition
        self._function: Any = definition.function
        self._uid = uid

    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        states = self._states = _opened_states(self._definition, context)
        call_user(self._uid, "open", lambda: open_function(self._function, _KeylessOpening(context, states)))
        states.may_change = False
        self._time = NoTimers(self._uid, type(self._function).__name__, context.clock, context.watermark_ms)
        self._output = output = OrderedOutput(emitter)
        read_only: ReadOnlyContext = ReadOnlyContext(
            context.epoch_id, output.side_outputs_at(lambda: read_only.timestamp), self._time, states
        )
        writable: BroadcastContext = BroadcastContext(
            context.epoch_id, output.side_outputs_at(lambda: writable.timestamp), self._time, states
        )
        self._calls = (
            _KeylessCalls(self._function.process_element, "process_element", self._uid, read_only, output),
            _KeylessCalls(
                self._function.process_broadcast_element, "process_broadcast_element", self._uid, writable, output
            ),
        )

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        self._states.may_change = input_index == BROADCAST_INPUT
        self._calls[input_index].run(batch)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._time.watermark_ms = timestamp_ms

    def begin_epoch(self, epoch_id: int) -> None:
        for calls in self._calls:
            calls.begin_epoch(epoch_id)

    def close(self) -> None:
        call_user(self._uid, "close", self._function.close)


def _keyed_method(function: KeyedBroadcastProcessFunction[Any, Any, Any, Any], input_index: int) -> ElementMethod:
    return ElementMethod("process_element", function.process_element)


def _opened_states(definition: BroadcastProcessDefinition, context: RuntimeContext) -> GuardedBroadcastStates:
    states = GuardedBroadcastStates(context.operator_uid, context.register_operator_state)
    for descriptor in definition.descriptors:
        states.register(descriptor)
    return states


class _KeyedOpening(DelegatingContext):
    """The context of `open()`, which guards the handles of broadcast state."""

    def __init__(self, context: RuntimeContext, states: GuardedBroadcastStates) -> None:
        super().__init__(context)
        self._states = states

    def register(self, descriptor: StateDescriptor) -> State:
        return self._context.register(descriptor)

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        if isinstance(descriptor, BroadcastStateDescriptor):
            return self._states.register(descriptor)
        return self._context.register_operator_state(descriptor)


class _KeylessOpening(_KeyedOpening):
    """The context of `open()` of a function without keys."""

    def register(self, descriptor: StateDescriptor) -> NoReturn:
        raise StateRegistrationError(
            f"operator {self.operator_uid!r}: a BroadcastProcessFunction has no keyed state, here {descriptor.name!r}: "
            f"its records have no key; key the stream, and write a KeyedBroadcastProcessFunction"
        )


class _KeylessCalls:
    """Calls a method for every record of a batch, without a key."""

    def __init__(
        self,
        call: Callable[[Any, Any], Iterable[Any] | None],
        method: str,
        uid: str,
        context: ReadOnlyContext | BroadcastContext,
        output: OrderedOutput,
    ) -> None:
        self._call = call
        self._method = method
        self._uid = uid
        self._context = context
        self._output = output
        self.record: Any = None
        """The record being processed."""

    def begin_epoch(self, epoch_id: int) -> None:
        self._context.epoch_id = epoch_id

    def run(self, batch: InputBatch) -> None:
        """Process a batch. Raises `UserFunctionError` with the record if the method fails."""
        call, context, add = self._call, self._context, self._output.add
        timestamps = batch.timestamps
        timed = zip(batch.records, itertools.repeat(None) if timestamps is None else timestamps, strict=False)
        try:
            for self.record, context.timestamp in timed:
                result = call(self.record, context)
                if result is not None:
                    if result.__class__ is not GeneratorType:
                        check_results(result, self._method)
                    for row in result:
                        add(None, row, context.timestamp)
        except Exception as error:
            # Rows emitted before the failure stay emitted.
            self._output.flush()
            what = "" if isinstance(context, ReadOnlyContext) else "broadcast "
            where = f"operator {self._uid!r}, {what}{of_record(self.record)}"
            raise call_failure(error, where, self._method) from error
        self._output.flush()
        # As after a batch of records with keys, see `record_function`.
        gc.collect(0)
