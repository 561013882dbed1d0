"""Errors of reading, importing, exporting and rewriting savepoints, and of schema lockfiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from snapshots.data_views import DataInputView
from snapshots.errors import StateFormatError, format_value
from statebackend.checkpoint.errors import CheckpointError, SavepointError


class ColumnValueError(SavepointError, ValueError):
    """A stored value does not fit the Arrow type of its column."""


class ExportExistsError(SavepointError, FileExistsError):
    """The target of an export exists already."""


class UnknownOperatorError(SavepointError, LookupError):
    """No operator with this uid has state here. The message lists the known uids."""


class UnknownStateError(SavepointError, LookupError):
    """The operator does not have this state. The message lists the known states."""


class UnknownKeyError(SavepointError, LookupError):
    """The state has no entry for the key."""


class InvalidKeyError(SavepointError, ValueError):
    """A text is no key of the state, or the state has no keys."""


class StateLockError(CheckpointError):
    """A file is not a schema lockfile, or was changed after it was written."""


class PlanError(SavepointError, ValueError):
    """A plan is invalid. The message has one line per problem. Nothing was written."""


class EntryError(SavepointError, ValueError):
    """An entry does not fit its state. Nothing was written."""


class RepeatedKeyError(EntryError):
    """Two entries have the same address and no merge function was passed. Nothing was written."""


class RemainsError(SavepointError):
    """A savepoint still contains data that should have been removed."""


class ForeignFormatError(SavepointError):
    """A file of another engine is damaged or of an unknown version. The message names the file and the offset."""


class UnsupportedForeignStateError(SavepointError):
    """The savepoint is valid, but has unsupported state. The message describes what to do."""


def failed_function(state_name: str, key: Any, error: Exception) -> PlanError:
    """Return the error for a function of the plan that raised ``error`` for an entry of this key."""
    return PlanError(
        f"state {state_name!r}, key {format_value(key)}: a function of the plan failed with {type(error).__name__}: "
        f"{error}. Nothing was written"
    )


@contextmanager
def naming_position(location: str, source: DataInputView, start: int = 0) -> Iterator[None]:
    """Raise errors of the view as `ForeignFormatError` with the file and the offset. ``start`` is the view's offset."""
    try:
        yield
    except StateFormatError as error:
        raise ForeignFormatError(f"{location}, byte {start + source.position}: {error}") from error
