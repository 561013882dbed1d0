"""What can be wrong with a plan to write a savepoint, with an entry that it gives, or with what was written."""

from __future__ import annotations

from typing import Any

from checkpointing.errors import SavepointError
from snapshots.value_text import shown

__all__ = ["EntryError", "PlanError", "RemainsError", "RepeatedKeyError", "failed_function"]


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
