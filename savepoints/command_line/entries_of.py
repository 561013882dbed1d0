"""The entries that a command is asked for: all of a state, or those of one key, given as text."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from savepoints.operator_state_elements import OperatorStateElements
from savepoints.savepoint import Savepoint
from savepoints.state_entries import StateEntries
from statebackend.api.key_columns import parsed_key

__all__ = ["entries_of"]


def entries_of(
    savepoint: Savepoint, operator: str, state: str, key: Sequence[str] | None
) -> StateEntries | OperatorStateElements:
    """The entries of keyed state, or the elements of state without keys.

    Raises `typer.BadParameter` for a key that is none, or of state that has none.
    """
    stored = savepoint.operators.get(operator)
    if stored is not None and state in stored.operator_states and state not in stored.states:
        if key:
            raise typer.BadParameter(f"{state!r} is state without keys: leave out --key")
        return savepoint.read_operator_state(operator, state)
    savepoint.schema(operator, state)
    if not key:
        return savepoint.read(operator, state)
    try:
        wanted = parsed_key(savepoint.key_columns(operator), key)
    except ValueError as error:
        raise typer.BadParameter(f"--key: {error}") from error
    return savepoint.read(operator, state, key=wanted)
