"""What runs through a job beside records: watermarks, and the status of whoever sends them.

A watermark of T says that no record is expected any more whose timestamp is not after T. A sender that is idle is not
waited for; what it sends as watermarks counts again when it is active.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

from attrs import Attribute, field, frozen

from streamjobs.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["END_OF_TIME", "Watermark", "WatermarkElement", "WatermarkStatus", "check_timestamp"]


def check_timestamp(what: str, timestamp_ms: object) -> None:
    """Raises `ValueError` unless it is a whole number within the range of timestamps."""
    if type(timestamp_ms) is not int or not MIN_TIMESTAMP <= timestamp_ms <= MAX_TIMESTAMP:
        raise ValueError(
            f"{what} is {timestamp_ms!r}; it is a number of milliseconds since 1970 as a whole number of 64 bits"
        )


def _check_time(_: object, attribute: Attribute[int], timestamp_ms: object) -> None:
    check_timestamp("a watermark", timestamp_ms)


@frozen
class Watermark:
    """Event time has reached ``timestamp_ms`` (since 1970). Raises `ValueError` for what is no time."""

    timestamp_ms: int = field(validator=_check_time)


class WatermarkStatus(enum.Enum):
    """Whether a sender of watermarks is waited for."""

    ACTIVE = "active"
    IDLE = "idle"

    @property
    def is_idle(self) -> bool:
        """Whether it is not waited for."""
        return self is WatermarkStatus.IDLE


WatermarkElement: TypeAlias = Watermark | WatermarkStatus

END_OF_TIME: Final = Watermark(MAX_TIMESTAMP)
"""What an input that ended sends last: all that waits for event time is due."""
