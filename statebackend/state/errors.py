"""The exceptions of state backends. Each names the state, the problem and the fix."""

from __future__ import annotations

from snapshots.errors import SerializationError


class StateBackendError(Exception):
    """The base of the errors about keyed and operator state."""


class StateRegistrationError(StateBackendError, ValueError):
    """A descriptor cannot be registered: its name is taken by another kind of state, or it is malformed."""


class StateMigrationException(StateBackendError):
    """A registered descriptor is incompatible with the restored state; named as in Flink."""


class StateRestoreError(StateBackendError):
    """Restored state cannot be read, or does not match the request."""


def unreadable_entry(place: str, serializer: object, error: object) -> StateRestoreError:
    """The error for stored bytes that the serializer cannot read."""
    return StateRestoreError(f"{place}: a stored entry cannot be read by {serializer!r}: {error}")


def null_element(place: str, position: int) -> SerializationError:
    """The error for None as an element of a list state."""
    return SerializationError(place, (f"[{position}]: None cannot be an element of a list state",))


class NoCurrentKeyError(StateBackendError, RuntimeError):
    """Keyed state was accessed without a current key."""


class StateBackendClosedError(StateBackendError, RuntimeError):
    """A state handle was used after its backend was closed."""
