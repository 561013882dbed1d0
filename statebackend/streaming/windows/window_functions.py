"""What is made of a window when it fires: functions over what it holds, and what they are given.

A `ProcessWindowFunction` sees all that a window holds. State of its own it registers in `open()`, as everywhere: state
per key as ever, which no window clears, and state per key *and window*, which belongs to the window that is current and
which `clear()` has to clear when the window is given up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from attrs import frozen

from statebackend.state.state_kind import StateDescriptor
from statebackend.streaming.functions import RuntimeContext, WorkerLifecycle
from statebackend.streaming.output_tag import OutputTag

__all__ = ["ProcessWindowFunction", "WindowContext", "WindowRuntimeContext", "WindowStateStore"]

K = TypeVar("K")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
W = TypeVar("W")
T = TypeVar("T")


class WindowStateStore(Protocol):
    """State of the current key, or of the current key and window."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        """The state of a descriptor, of its kind.

        Raises `StateRegistrationError` for one that `open()` has not registered, and for state per window where windows
        merge: there is no saying what would become of it.
        """


class WindowRuntimeContext(RuntimeContext):
    """What the `open()` of a function over windows is given."""

    @property
    @abstractmethod
    def window_state(self) -> WindowStateStore:
        """Registers state per key and window. The handle is that of the current window in every call of `process`."""


class WindowContext(ABC, Generic[W]):
    """What every call of a function over windows is given; one object per subtask and epoch."""

    window: W
    """The window that fires, or is given up."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark of the operator, in milliseconds; `MIN_TIMESTAMP` before the first."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The processing time, in milliseconds since 1970."""

    @abstractmethod
    def window_state(self) -> WindowStateStore:
        """State per key and window, as registered in `open()`; rejected where windows merge."""

    @abstractmethod
    def global_state(self) -> WindowStateStore:
        """State per key, over all windows, as registered in `open()`."""

    @abstractmethod
    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emits a record to a side output, in order with what is yielded; it is dropped if nobody reads that."""


class ProcessWindowFunction(WorkerLifecycle, ABC, Generic[K, I, O, W]):
    """Makes of a window what is emitted. The timestamp of that is the last one of the window.

    Instances travel to the subtasks by pickling, and hold configuration only; connections are made in `setup()`.
    """

    def open(self, context: WindowRuntimeContext) -> None:
        """Called before the first record of an epoch, and once on the driver. Register all state here."""

    @abstractmethod
    def process(self, key: K, context: WindowContext[W], elements: list[I]) -> Iterable[O] | None:
        """Called when a window fires; yields what to emit, or returns a list of records or None.

        ``elements`` is what the window holds: its records or, behind `reduce` and `aggregate`, the one result.
        """

    def clear(self, context: WindowContext[W]) -> None:
        """Called when a window is given up: clear its state per window here."""

    def close(self) -> None:
        """Called after the last record of an epoch, also after a failure."""


@frozen
class AppliedWindowFunction(ProcessWindowFunction[Any, Any, Any, Any]):
    """A plain function of key, window and records."""

    function: Callable[[Any, Any, list[Any]], Iterable[Any] | None]

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any] | None:
        return self.function(key, context.window, elements)
