"""What the handles of state with time-to-live share: the clock, the configuration, and what they say of an entry.

An entry expires when its last access lies ``ttl_ms`` back: at that very millisecond it is gone. Python's integers do
not overflow, so the longest time-to-live simply never comes to its end. A clock that goes backwards lets entries live
longer, and never takes time away from one: a read does not put the last access back.
"""

from __future__ import annotations

from typing import Any, TypeVar

from statebackend.api.clock import Clock
from statebackend.api.time_to_live import StateTtlConfig, TtlStateVisibility, TtlUpdateType
from typeserializers.containers.ttl import TtlValue

T = TypeVar("T")


class Lifetime:
    """How long the entries of one state live, by which clock."""

    __slots__ = ("clock", "renews_on_read", "returns_expired", "ttl_ms")

    def __init__(self, config: StateTtlConfig, clock: Clock) -> None:
        self.clock = clock
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
