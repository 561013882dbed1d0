"""The operators of functions over a stream and one that is broadcast: keyed, or not.

Input 0 is the stream, input 1 the broadcast one: a batch of it is asked for no key, and while it is processed no key is
current. Each subtask keeps its own copy of the broadcast state, and takes the same records into it.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from types import GeneratorType
from typing import Any, Final, NoReturn

from statebackend import StateDescriptor
from statebackend.api.errors import StateRegistrationError
from statebackend.api.operator_state_descriptors import BroadcastStateDescriptor, OperatorStateDescriptor
from statebackend.api.states import State
from statebackend.keyed.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from streamjobs.api.broadcast_functions import (
    BroadcastContext,
    BroadcastOnTimerContext,
    BroadcastProcessDefinition,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    KeyedReadOnlyContext,
    ReadOnlyContext,
)
from streamjobs.api.functions import RuntimeContext
from streamjobs.operators.broadcast_states import GuardedBroadcastStates
from streamjobs.operators.delegating_context import DelegatingContext
from streamjobs.operators.function_calls import call_failure, call_user, of_key, of_record
from streamjobs.operators.function_results import check_results
from streamjobs.operators.keyed_process import ElementMethod, KeyedCallForms, KeyedProcessOperator
from streamjobs.operators.keyed_timers import NoTimers
from streamjobs.operators.operator import Emitter, InputBatch, Operator
from streamjobs.operators.ordered_output import OrderedOutput
from streamjobs.operators.subtask_context import SubtaskContext
from typeserializers.scalars.void import VOID_NAMESPACE

__all__ = ["BROADCAST_INPUT", "broadcast_process_operator"]

BROADCAST_INPUT: Final = 1
"""Which input is broadcast."""


def broadcast_process_operator(definition: BroadcastProcessDefinition, uid: str) -> Operator:
    """The operator of such a function."""
    return (KeyedBroadcastOperator if definition.is_keyed else BroadcastOperator)(definition, uid)


class KeyedBroadcastOperator(Operator):
    """That of a `KeyedBroadcastProcessFunction`: a keyed operator whose other input has no key."""

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
                # Of a function that yields, nothing has run yet, and its changes would be lost without a word.
                if isinstance(function(key, state), GeneratorType):
                    raise TypeError("it yields, so that it would not run; collect what is to be emitted in a list")
            except Exception as error:
                where = f"{of_key(self._uid, key)}, broadcast {of_record(self._broadcast.record)}"
                raise call_failure(error, where, "the function of apply_to_keyed_state") from error

        # A state that is not registered is refused here.
        self._context.register(descriptor)
        self._context.keyed.apply_to_all_keys(VOID_NAMESPACE, VOID_NAMESPACE_SERIALIZER, descriptor, apply)


class BroadcastOperator(Operator):
    """That of a `BroadcastProcessFunction`: neither input has keys."""

    def __init__(self, definition: BroadcastProcessDefinition, uid: str) -> None:
        self._definition = definition
        self._function: Any = definition.function
        self._uid = uid

    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        states = self._states = _opened_states(self._definition, context)
        call_user(self._uid, "open", lambda: self._function.open(_KeylessOpening(context, states)))
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
    """What `open()` is given: handles of broadcast state that it keeps are guarded too."""

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
    """What `open()` of a function without keys is given."""

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
        """The record that is processed."""

    def begin_epoch(self, epoch_id: int) -> None:
        """See `Operator`."""
        self._context.epoch_id = epoch_id

    def run(self, batch: InputBatch) -> None:
        """Processes a batch; raises `UserFunctionError`, naming the record, for whatever the method raises."""
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
            # What was emitted before stays emitted.
            self._output.flush()
            what = "" if isinstance(context, ReadOnlyContext) else "broadcast "
            where = f"operator {self._uid!r}, {what}{of_record(self.record)}"
            raise call_failure(error, where, self._method) from error
        self._output.flush()
        # As behind a batch of records with keys: see `record_function`.
        gc.collect(0)
