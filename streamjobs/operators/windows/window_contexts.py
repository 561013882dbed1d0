"""What triggers and functions over windows are given: time, timers and state of the current key and window.

State per window is registered under a name with a prefix, one for triggers and one for functions, so that neither meets
the other's, the operator's own, or state per key of the same name. A handle is the same for all windows; whoever gives
it out sets it to the current one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from statebackend import StateDescriptor
from statebackend.api.errors import StateBackendError, StateRegistrationError
from statebackend.api.operator_state_descriptors import OperatorStateDescriptor
from statebackend.api.states import State
from statebackend.kinds.internal_states import InternalState, MergingState
from streamjobs.api.functions import RuntimeContext
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.windows.triggers import OnMergeContext, Trigger
from streamjobs.api.windows.window_functions import WindowContext, WindowRuntimeContext, WindowStateStore
from streamjobs.operators.delegating_context import DelegatingContext
from streamjobs.operators.ordered_output import OrderedOutput
from streamjobs.time.internal_timer_service import InternalTimerService
from streamjobs.user_errors import cited

__all__ = [
    "FUNCTION_PREFIX",
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
    """State per window was asked for where windows merge."""


class PartitionedStates:
    """States with windows as namespaces, by the names that their users gave them."""

    def __init__(self, register: Register, prefix: str, who: str) -> None:
        self._register = register
        self._prefix = prefix
        self._who = who
        self._states: dict[str, tuple[StateDescriptor, Any]] = {}

    def register(self, descriptor: StateDescriptor) -> Any:
        """Registers a state; raises `StateRegistrationError` for two of one name."""
        known = self._states.get(descriptor.name)
        if known is not None and known[0] != descriptor:
            raise StateRegistrationError(f"{self._who} registers two states {descriptor.name!r} per window; rename one")
        if known is None:
            handle = self._register(evolve(descriptor, name=f"{self._prefix}{descriptor.name}"))
            self._states[descriptor.name] = known = (descriptor, handle)
        return known[1]

    def handle(self, descriptor: StateDescriptor) -> Any:
        """The handle of a state, in whatever window it is; raises `StateRegistrationError` for an unknown one."""
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
        """All of them."""
        return [handle for _, handle in self._states.values()]


class WindowTriggerContext(OnMergeContext):
    """One for all keys and windows of a subtask; whoever calls the trigger says which window is current."""

    def __init__(self, trigger: Trigger[Any, Any], timers: InternalTimerService[Any], register: Register) -> None:
        self.window: Any = None
        """The current window."""
        self.merged: Sequence[Any] = ()
        """The windows that have merged into it, in `Trigger.on_merge`."""
        self._timers = timers
        self._states = PartitionedStates(register, TRIGGER_PREFIX, type(trigger).__name__)
        for descriptor in trigger.state_descriptors:
            self._states.register(descriptor)

    def current_watermark(self) -> int:
        return self._timers.current_watermark()

    def current_processing_time(self) -> int:
        return self._timers.current_processing_time()

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        self._timers.register_event_time_timer(self.window, timestamp_ms)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        self._timers.register_processing_time_timer(self.window, timestamp_ms)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        self._timers.delete_event_time_timer(self.window, timestamp_ms)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        self._timers.delete_processing_time_timer(self.window, timestamp_ms)

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


class _RefusingStates:
    """State per window where windows merge."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        raise WindowsMergeError(
            f"state per window, here {descriptor.name!r}, is not allowed where windows merge, as sessions do: windows "
            f"that become one would each have their own; use context.global_state(), or another assigner"
        )


class _RefusedState(State):
    """What registering state per window gives where windows merge: a function may serve other assigners too."""

    def __init__(self, descriptor: StateDescriptor) -> None:
        self._descriptor = descriptor

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        return _RefusingStates().get_state(self._descriptor)

    def clear(self) -> None:
        """Refused, as every access."""


class _RegisteredStates:
    """What registers state per window, at once or refusing it at its use."""

    def __init__(self, states: PartitionedStates | None) -> None:
        self._states = states

    def get_state(self, descriptor: StateDescriptor) -> Any:
        return _RefusedState(descriptor) if self._states is None else self._states.register(descriptor)


class OpeningContext(DelegatingContext, WindowRuntimeContext):
    """What a function over windows is given in `open()`: the operator's own context, and state per window."""

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
    """One for all keys and windows of a subtask; whoever calls the function enters the window first."""

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
        self._window_states: WindowStateStore = _RefusingStates() if states is None else _WindowStates(states, self)
        self._global_states = _GlobalStates(opening.registered, opening.operator_uid)

    def enter(self, window: Any) -> None:
        """Makes a window current, in all state per window too."""
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
            raise TypeError(f"output() takes an OutputTag and a record, and was given {cited(given, 80)}")
        if tag in self._output.side_outputs:
            self._output.add(tag, value, self.window.max_timestamp)
