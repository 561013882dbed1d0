"""What a trigger and a window function receive: time, timers, and state per window and per key.

The names of state per window have one prefix for triggers and one for functions, so they do not conflict with each
other or with other state. A handle serves all windows; the code that returns it sets the current window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from snapshots.errors import format_value
from statebackend.state.errors import StateBackendError, StateRegistrationError
from statebackend.state.internal_states import InternalState, MergingState
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.states import State
from statebackend.streaming.functions import DelegatingContext, RuntimeContext
from statebackend.streaming.operators.operator import OrderedOutput
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.time.internal_timer_service import InternalTimerService
from statebackend.streaming.time.timestamps import Time, time_ms
from statebackend.streaming.windows.triggers import OnMergeContext, Trigger
from statebackend.streaming.windows.window_functions import (
    WindowContext,
    WindowRuntimeContext,
    WindowStateStore,
)

__all__ = [
    "FUNCTION_PREFIX",
    "TRIGGER_PREFIX",
    "FunctionContext",
    "OpeningContext",
    "PartitionedStates",
    "WindowTriggerContext",
    "WindowsMergeError",
]

TRIGGER_PREFIX: Final = "trigger."
FUNCTION_PREFIX: Final = "window."

Register = Callable[[StateDescriptor], Any]


class WindowsMergeError(StateBackendError):
    """State per window is not supported for windows that merge."""


class PartitionedStates:
    """States with windows as namespaces, by the names in their descriptors."""

    def __init__(self, register: Register, prefix: str, who: str) -> None:
        self._register = register
        self._prefix = prefix
        self._who = who
        self._states: dict[str, tuple[StateDescriptor, Any]] = {}

    def register(self, descriptor: StateDescriptor) -> Any:
        """Register a state. Raises `StateRegistrationError` for a duplicate name."""
        known = self._states.get(descriptor.name)
        if known is not None and known[0] != descriptor:
            raise StateRegistrationError(f"{self._who} registers two states {descriptor.name!r} per window; rename one")
        if known is None:
            handle = self._register(evolve(descriptor, name=f"{self._prefix}{descriptor.name}"))
            self._states[descriptor.name] = known = (descriptor, handle)
        return known[1]

    def handle(self, descriptor: StateDescriptor) -> Any:
        """Return the handle of a state, in its current window. Raises `StateRegistrationError` if unknown."""
        known = self._states.get(descriptor.name)
        if known is None:
            names = ", ".join(map(repr, self._states)) or "none"
            raise StateRegistrationError(
                f"{self._who} asks for the state {descriptor.name!r} per window, and has registered {names}: name it "
                f"in state_descriptors of a trigger, or register it in open() of a function with context.window_state"
            )
        return known[1]

    @property
    def handles(self) -> Sequence[InternalState]:
        """All handles."""
        return [handle for _, handle in self._states.values()]


class WindowTriggerContext(OnMergeContext):
    """The trigger context for all keys and windows of a subtask. The caller of the trigger sets the current window."""

    def __init__(self, trigger: Trigger[Any, Any], timers: InternalTimerService[Any], register: Register) -> None:
        self.window: Any = None
        """The current window."""
        self.merged: Sequence[Any] = ()
        """The windows that merged into it, during `Trigger.on_merge`."""
        self._timers = timers
        self._states = PartitionedStates(register, TRIGGER_PREFIX, type(trigger).__name__)
        for descriptor in trigger.state_descriptors:
            self._states.register(descriptor)

    def current_watermark(self) -> int:
        return self._timers.current_watermark()

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def register_event_time_timer(self, time: Time) -> None:
        self._timers.register_event_time_timer(self.window, time if time.__class__ is int else time_ms(time))

    def register_processing_time_timer(self, time: Time) -> None:
        self._timers.register_processing_time_timer(self.window, time if time.__class__ is int else time_ms(time))

    def delete_event_time_timer(self, time: Time) -> None:
        self._timers.delete_event_time_timer(self.window, time if time.__class__ is int else time_ms(time))

    def delete_processing_time_timer(self, time: Time) -> None:
        self._timers.delete_processing_time_timer(self.window, time if time.__class__ is int else time_ms(time))

    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        handle = self._states.handle(descriptor)
        handle.set_current_namespace(self.window)
        return handle

    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        handle = self._states.handle(descriptor)
        if not isinstance(handle, MergingState):
            raise StateRegistrationError(
                f"the state {descriptor.name!r} of a trigger is a {descriptor.kind.name} state, which cannot be "
                f"merged; list, reducing and aggregating state can"
            )
        handle.merge_namespaces(self.window, self.merged)


class _RejectingStates:
    """State per window for windows that merge: every access raises."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        raise WindowsMergeError(
            f"state per window ({descriptor.name!r}) is not supported for windows that merge, such as sessions, "
            f"because its values cannot be merged; use context.global_state(), or another assigner"
        )


class _RejectedState(State):
    """The handle of state per window for windows that merge. Every access raises.

    Registration succeeds, because a function may also be used with other assigners.
    """

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        return _RejectingStates().get_state(self._descriptor)

    def clear(self) -> None:
        """Raise `WindowsMergeError`, as every access."""


class _RegisteredStates:
    """Registers state per window, or rejects its use."""

    def __init__(self, states: PartitionedStates | None) -> None:
        self._states = states

    def get_state(self, descriptor: StateDescriptor) -> Any:
        return _RejectedState(descriptor) if self._states is None else self._states.register(descriptor)


class OpeningContext(DelegatingContext, WindowRuntimeContext):
    """The context of `open()` of a function over windows: the operator's context, and state per window."""

    def __init__(self, context: RuntimeContext, states: PartitionedStates | None) -> None:
        super().__init__(context)
        self._window_state = _RegisteredStates(states)
        self.registered: dict[str, State] = {}
        """The handles of state per key."""

    @property
    def window_state(self) -> WindowStateStore:
        return self._window_state

    def register(self, descriptor: StateDescriptor) -> State:
        state = self.registered[descriptor.name] = self._context.register(descriptor)
        return state

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> State:
        return self._context.register_operator_state(descriptor)


class _WindowStates:
    """State of the current key and window."""

    def __init__(self, states: PartitionedStates, context: FunctionContext) -> None:
        self._states = states
        self._context = context

    def get_state(self, descriptor: StateDescriptor) -> Any:
        handle = self._states.handle(descriptor)
        handle.set_current_namespace(self._context.window)
        return handle


class _GlobalStates:
    """State of the current key."""

    def __init__(self, registered: Mapping[str, State], uid: str) -> None:
        self._registered = registered
        self._uid = uid

    def get_state(self, descriptor: StateDescriptor) -> Any:
        state = self._registered.get(descriptor.name)
        if state is None:
            raise StateRegistrationError(
                f"operator {self._uid!r}: the state {descriptor.name!r} is not registered; register it in open()"
            )
        return state


class FunctionContext(WindowContext[Any]):
    """The context for all keys and windows of a subtask. The caller enters the window first."""

    def __init__(
        self,
        timers: InternalTimerService[Any],
        output: OrderedOutput,
        opening: OpeningContext,
        states: PartitionedStates | None,
    ) -> None:
        self.window: Any = None
        self._timers = timers
        self._output = output
        self._handles = () if states is None else tuple(states.handles)
        self._window_states: WindowStateStore = _RejectingStates() if states is None else _WindowStates(states, self)
        self._global_states = _GlobalStates(opening.registered, opening.operator_uid)

    def enter(self, window: Any) -> None:
        """Set the current window, also in all state per window."""
        self.window = window
        for handle in self._handles:
            handle.set_current_namespace(window)

    def current_watermark(self) -> int:
        return self._timers.current_watermark()

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def window_state(self) -> WindowStateStore:
        return self._window_states

    def global_state(self) -> WindowStateStore:
        return self._global_states

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if not isinstance(tag, OutputTag):
            given: object = tag
            raise TypeError(f"output() takes an OutputTag and a record, not {format_value(given, 80)}")
        if tag in self._output.side_outputs:
            self._output.add(tag, value, self.window.max_timestamp)
