"""Functions over the contents of windows, and the contexts that they receive.

A `ProcessWindowFunction` receives the contents of a window. It registers state in `open()`: state per key, which stays
when windows are disposed, and state per key *and window*, which its `clear()` must clear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol

from attrs import frozen
from typing_extensions import TypeVar

from statebackend.state.state_kind import StateDescriptor
from statebackend.streaming.functions import RuntimeContext, WorkerLifecycle
from statebackend.streaming.output_tag import OutputTag
from typeserializers.times.timers import TimeWindow

K = TypeVar("K")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
W = TypeVar("W", default=TimeWindow)
T = TypeVar("T")


class WindowStateStore(Protocol):
    """State of the current key, or of the current key and window."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        """Return the state of a descriptor.

        Raises:
            StateRegistrationError: `open()` did not register it, or it is state per window and the windows merge.
        """


class WindowRuntimeContext(RuntimeContext):
    """The argument of `open()` of a function over windows."""

    @property
    @abstractmethod
    def window_state(self) -> WindowStateStore:
        """The registry of state per key and window. In calls of `process` a handle refers to the current window."""


class WindowContext(ABC, Generic[W]):
    """The argument of the calls of a function over windows; one object per subtask and epoch."""

    window: W
    """The window that fires or is disposed."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark of the operator in milliseconds, or `MIN_TIMESTAMP` before the first one."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The processing time, in milliseconds since 1970."""

    @abstractmethod
    def window_state(self) -> WindowStateStore:
        """State per key and window that `open()` registered. Not supported for windows that merge."""

    @abstractmethod
    def global_state(self) -> WindowStateStore:
        """State per key, over all windows, that `open()` registered."""

    @abstractmethod
    def output(self, tag: OutputTag[T], value: T) -> None:
        """Emit a record to a side output, in order with the yielded records. Dropped if no operator reads it."""


class ProcessWindowFunction(WorkerLifecycle, ABC, Generic[K, I, O, W]):
    """Computes output records from the contents of a window. Their timestamp is the last one of the window.

    The types in brackets are those of the key, the input and the output. A fourth one is the type of the window, if it
    is not `TimeWindow`.
    Instances travel to the subtasks by pickling and hold configuration only. Create connections in `setup()`.
    """

    def open(self, context: WindowRuntimeContext) -> None:
        """Register all state. Called before the first record of an epoch, and once on the driver."""

    @abstractmethod
    def process(self, key: K, context: WindowContext[W], elements: list[I]) -> Iterable[O] | None:
        """Process a window that fires. Yield the records to emit, or return a list of them or None.

        ``elements`` holds the records of the window or, after `reduce` and `aggregate`, the one result.
        """

    def clear(self, context: WindowContext[W]) -> None:
        """Clear the state per window. Called when a window is disposed."""

    def close(self) -> None:
        """Called after the last record of an epoch, also after a failure."""


@frozen
class AppliedWindowFunction(ProcessWindowFunction[Any, Any, Any, Any]):
    """A plain function of key, window and records."""

    function: Callable[[Any, Any, list[Any]], Iterable[Any] | None]

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any] | None:
        return self.function(key, context.window, elements)


@frozen
class ResultWindowFunction(ProcessWindowFunction[Any, Any, Any, Any]):
    """A plain function of key, window and the result of `reduce`, `aggregate` or `count`."""

    function: Callable[[Any, Any, Any], Iterable[Any] | None]

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any] | None:
        [result] = elements
        return self.function(key, context.window, result)
