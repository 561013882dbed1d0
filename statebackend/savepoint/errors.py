"""What can be wrong with a plan to write a savepoint, with an entry that it gives, or with what was written.

What can be asked of a savepoint that it has not, or cannot give as it is asked for, and locks that are none.
"""

from __future__ import annotations

from typing import Any

from snapshots.errors import shown
from statebackend.checkpoint.errors import CheckpointError, SavepointError

__all__ = [
    "ColumnValueError",
    "EntryError",
    "ExportExistsError",
    "PlanError",
    "RemainsError",
    "RepeatedKeyError",
    "StateLockError",
    "UnknownKeyError",
    "UnknownOperatorError",
    "UnknownStateError",
    "failed_function",
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


class PlanError(SavepointError, ValueError):
    """A plan cannot be carried out; the message has a line for each thing that is wrong. Nothing was written."""


class EntryError(SavepointError, ValueError):
    """An entry does not fit the state it is to be written to; the message names both. Nothing was written."""


class RepeatedKeyError(EntryError):
    """Two entries have one address, and no function was passed that merges them. Nothing was written."""


class RemainsError(SavepointError):
    """A savepoint still has what was to be gone; the message says what and where."""


def failed_function(state_name: str, key: Any, error: Exception) -> PlanError:
    """That a function of the plan has raised ``error`` for an entry of this key."""
    return PlanError(
        f"state {state_name!r}, key {shown(key)}: a function of the plan failed with {type(error).__name__}: {error}. "
        f"Nothing was written"
    )
