"""When a window fires: what a trigger is, and what it is given.

A trigger is asked at every record of a window and at every timer that it has registered. It answers whether the window
is to *fire* (what it holds is given to the function) and whether it is to be *purged* (what it holds is thrown away;
the window and what the trigger keeps stay).

One trigger object serves all windows of all keys: what it has to remember of one it keeps in state, which belongs to
the current key and window and is named in `Trigger.state_descriptors`. Timers belong to both too. When a window is
given up, `Trigger.clear` takes away all of that.

Where windows merge, a trigger says what is to become of the timers and the state of those that have merged; one that
cannot is refused when the job is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

from statebackend import StateDescriptor

__all__ = ["OnMergeContext", "Trigger", "TriggerContext", "TriggerResult"]

T = TypeVar("T")
W = TypeVar("W")


class TriggerResult(Enum):
    """What is to be done with a window: whether to fire, and whether to purge."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    def __init__(self, fires: bool, purges: bool) -> None:
        self.fires = fires
        """Whether the function is given what the window holds."""
        self.purges = purges
        """Whether what the window holds is thrown away, after it has fired if it fires."""


class TriggerContext(ABC):
    """What a trigger is given: time, and the timers and state of the current key and window."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark of the operator, in milliseconds; `MIN_TIMESTAMP` before the first."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The processing time, in milliseconds since 1970."""

    @abstractmethod
    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Has `Trigger.on_event_time` called when the watermark has reached that time. Registering twice is once."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Has `Trigger.on_processing_time` called at that time. Registering twice is once."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Takes a timer away; one that is not there is ignored."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Takes a timer away; one that is not there is ignored."""

    @abstractmethod
    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        """The state of the current key and window, of the descriptor's kind.

        Raises `StateRegistrationError` for a descriptor that `Trigger.state_descriptors` does not have.
        """


class OnMergeContext(TriggerContext):
    """What a trigger is given when windows have merged; the current window is the merged one."""

    @abstractmethod
    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        """Merges the state of the windows that have merged into that of the merged window.

        Raises `StateRegistrationError` for one that cannot be merged: list, reducing and aggregating state can.
        """


class Trigger(ABC, Generic[T, W]):
    """See the module. Instances travel to the subtasks by pickling, and hold configuration only."""

    @property
    def state_descriptors(self) -> Sequence[StateDescriptor]:
        """What the trigger keeps per key and window. It is registered before the first record."""
        return ()

    @abstractmethod
    def on_element(self, element: T, timestamp_ms: int | None, window: W, context: TriggerContext) -> TriggerResult:
        """Called for every record, after it was added to the window; ``timestamp_ms`` is None if it has none."""

    @abstractmethod
    def on_event_time(self, timestamp_ms: int, window: W, context: TriggerContext) -> TriggerResult:
        """Called when a timer is due by the watermark. It may be one that somebody else registered for the window."""

    @abstractmethod
    def on_processing_time(self, timestamp_ms: int, window: W, context: TriggerContext) -> TriggerResult:
        """Called when a timer is due by the clock. It may be one that somebody else registered for the window."""

    def can_merge(self) -> bool:
        """Whether the trigger knows what to do when windows merge."""
        return False

    def on_merge(self, window: W, context: OnMergeContext) -> None:
        """Called when windows have merged into ``window``; those are cleared afterwards.

        It moves state with `OnMergeContext.merge_partitioned_state`, and registers the timers of the merged window.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot merge windows")

    @abstractmethod
    def clear(self, window: W, context: TriggerContext) -> None:
        """Called when a window is given up: takes away all timers and state that the trigger may have for it."""
