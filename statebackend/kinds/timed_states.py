"""What the handles of state with time-to-live share: how long entries live, and the clean-up.

The state beneath holds `TtlValue`s and knows nothing of time: it checks, copies, caches and stores them as it does all
values, so that what holds for state without time-to-live holds here. A handle adds the time on the way in, and on the
way out looks whether it is over; what has expired is removed as soon as it is met, and then either not returned, or, if
it may be seen until it is removed, returned for this last time.

An entry expires when its last access lies ``ttl_ms`` back: at that very millisecond it is gone. Python's integers do
not overflow, so the longest time-to-live simply never comes to its end. A clock that goes backwards lets entries live
longer, and never takes time away from one: a read does not put the last access back.

``cleanup``, called at the beginning of every access, is the incremental clean-up of the state, or None.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from statebackend.api.clock import Clock
from statebackend.api.time_to_live import StateTtlConfig, TtlStateVisibility, TtlUpdateType
from statebackend.kinds.internal_states import HandleContext, InternalState
from typeserializers.containers.ttl import TtlValue

T = TypeVar("T")


class Lifetime:
    """How long the entries of one state live, by which clock."""

    __slots__ = ("cleanup", "clock", "renews_on_read", "returns_expired", "ttl_ms")

    def __init__(self, config: StateTtlConfig, clock: Clock) -> None:
        self.clock = clock
        self.cleanup = config.incremental_cleanup
        self.ttl_ms = config.ttl_ms
        self.renews_on_read = config.update_type is TtlUpdateType.ON_READ_AND_WRITE
        self.returns_expired = config.visibility is TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP

    def stamped(self, value: T) -> TtlValue[T]:
        """The value as accessed now."""
        return TtlValue(value, self.clock())

    def is_expired(self, stored: TtlValue[Any]) -> bool:
        """Whether the time of an entry is over."""
        return stored.last_access_timestamp + self.ttl_ms <= self.clock()

    def is_visible(self, stored: TtlValue[Any]) -> bool:
        """Whether an entry that is still there may be seen."""
        return self.returns_expired or not self.is_expired(stored)


class Cleanup(Protocol):
    """The incremental clean-up; a call before ``due_ms`` would do nothing."""

    due_ms: int

    def __call__(self) -> None: ...


class TtlState(InternalState):
    """What all kinds share: the state beneath, and the clean-up."""

    __slots__ = ("_stored", "cleanup", "lifetime")

    def __init__(self, stored: Any, lifetime: Lifetime) -> None:
        self._stored: Any = stored
        self.lifetime = lifetime
        self.cleanup: Cleanup | None = None

    @property
    def key_context(self) -> HandleContext:
        context: HandleContext = self._stored.key_context
        return context

    @abstractmethod
    def remove_expired(self) -> None:
        """Removes what has expired under the current key and namespace; renews nothing."""

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        self._stored.read_ahead(keys, key_groups)

    def clear(self) -> None:
        self._clean_up()
        self._stored.clear()

    def _clean_up(self) -> None:
        if self.cleanup is not None:
            self.cleanup()
