"""What can be asked of a savepoint that it has not, or cannot give as it is asked for, and locks that are none."""

from __future__ import annotations

from checkpointing.errors import CheckpointError, SavepointError

__all__ = [
    "ColumnValueError",
    "ExportExistsError",
    "StateLockError",
    "UnknownKeyError",
    "UnknownOperatorError",
    "UnknownStateError",
]


class ColumnValueError(SavepointError, ValueError):
    """A stored value does not fit the type of its column; the message says which, and what to ask for instead."""


class ExportExistsError(SavepointError, FileExistsError):
    """Where an export is to be written, there is something already."""


class UnknownOperatorError(SavepointError, LookupError):
    """There is no state of an operator of that uid; the message names those there are."""


class UnknownStateError(SavepointError, LookupError):
    """The operator has no state of that name; the message names those it has."""


class UnknownKeyError(SavepointError, LookupError):
    """The state has no entry of that key."""


class StateLockError(CheckpointError):
    """A file is no lock of state, or not as it was written; the message says what to do."""
