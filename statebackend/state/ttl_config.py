"""The time-to-live configuration of a descriptor.

A value, list element or map entry expires ``ttl_ms`` milliseconds after it was last written (or read, if so
configured), by the clock of the backend. An expired entry is not returned. It is removed by an access, by the
incremental clean-up, or by a snapshot that writes the state whole. Names and semantics are those of Flink's
``StateTtlConfig``.

The configuration is not stored. It may change from one run to the next, and a state may get or lose a time-to-live at a
restore.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.state.durations import Duration, DurationError, duration_ms
from statebackend.state.errors import StateRegistrationError

LONGEST_TTL_MS: Final = (1 << 63) - 1
"""The longest time-to-live, in milliseconds; with it nothing ever expires."""


class TtlUpdateType(enum.Enum):
    """The accesses that renew an entry."""

    ON_CREATE_AND_WRITE = "on create and write"
    ON_READ_AND_WRITE = "on read and write"


class TtlStateVisibility(enum.Enum):
    """Whether a read may return an expired entry that was not removed yet."""

    NEVER_RETURN_EXPIRED = "never return expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return expired if not cleaned up"


def _check_positive(instance: Any, attribute: Any, value: Any) -> None:
    if type(value) is not int or not 0 < value <= LONGEST_TTL_MS:
        raise StateRegistrationError(
            f"{attribute.name} must be a whole number from 1 to {LONGEST_TTL_MS}, not {format_value(value)}"
        )


def _as_ttl_ms(ttl: Duration) -> int:
    try:
        return duration_ms(ttl, "the time-to-live", at_least_ms=1)
    except DurationError as error:
        raise StateRegistrationError(f"{error}. State that never expires has no StateTtlConfig") from None


def _check_kind(*kinds: type) -> Any:
    def check(instance: Any, attribute: Any, value: Any) -> None:
        if not isinstance(value, kinds):
            names = ["None" if kind is type(None) else f"of type {kind.__name__}" for kind in kinds]
            expected = " or ".join(names)
            raise StateRegistrationError(f"{attribute.name} must be {expected}, not {format_value(value)}")

    return check


@frozen
class IncrementalCleanup:
    """Each access to the state checks some further entries, of any key, and removes the expired ones.

    ``entries_per_access`` bounds the extra cost of an access; a whole list or map may count as one. The default is
    enough: an access adds one entry at most, and checks two. With ``for_every_record`` the check also runs whenever a
    key becomes current, which cleans up a state that few records access.
    """

    entries_per_access: int = field(default=2, validator=_check_positive)
    for_every_record: bool = field(default=False, validator=_check_kind(bool))


@frozen
class StateTtlConfig:
    """The time-to-live of a state. Raises `StateRegistrationError` for an invalid combination.

    ``cleanup_full_snapshot`` leaves expired entries out of savepoints, and out of checkpoints that write the state
    whole. ``incremental_cleanup`` is None for no clean-up: an expired entry then stays, invisible, until an access or
    such a snapshot finds it.
    """

    ttl_ms: int = field(converter=_as_ttl_ms)
    """The time-to-live in milliseconds; pass a text such as "7 days", a `timedelta`, or milliseconds."""
    update_type: TtlUpdateType = field(
        default=TtlUpdateType.ON_CREATE_AND_WRITE, validator=_check_kind(TtlUpdateType), kw_only=True
    )
    visibility: TtlStateVisibility = field(
        default=TtlStateVisibility.NEVER_RETURN_EXPIRED, validator=_check_kind(TtlStateVisibility), kw_only=True
    )
    cleanup_full_snapshot: bool = field(default=True, validator=_check_kind(bool), kw_only=True)
    incremental_cleanup: IncrementalCleanup | None = field(
        factory=IncrementalCleanup, validator=_check_kind(IncrementalCleanup, type(None)), kw_only=True
    )
