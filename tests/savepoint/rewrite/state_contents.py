"""The content of a savepoint in a form that does not depend on key groups and subtasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from statebackend import OperatorStateMode, Savepoint
from statebackend.savepoint.plain_values import plain_value

__all__ = ["contents", "entries_of"]


def entries_of(path: Path, uid: str, state: str) -> dict[Any, Any]:
    """The values of a state by key, or by key, namespace and user key if they exist."""
    found: dict[Any, Any] = {}
    for entry in Savepoint.open(path).read(uid, state):
        place = tuple(part for part in (entry.key, entry.namespace, entry.user_key) if part is not None)
        assert place not in found
        found[place[0] if len(place) == 1 else place] = entry.value
    return found


def contents(path: Path) -> dict[tuple[str, str], Counter[str]]:
    """The content of every state of every operator as texts with counts. Broadcast state counts once."""
    savepoint = Savepoint.open(path)
    found: dict[tuple[str, str], Counter[str]] = {}
    for uid, operator in savepoint.operators.items():
        for name in operator.states:
            found[uid, name] = Counter(
                repr(
                    (
                        plain_value(entry.key),
                        plain_value(entry.namespace),
                        plain_value(entry.user_key),
                        plain_value(entry.value),
                        entry.last_access_ms,
                    )
                )
                for entry in savepoint.read(uid, name)
            )
        for name, meta in operator.operator_states.items():
            elements = [
                repr((plain_value(one.key), plain_value(one.value))) for one in savepoint.read_operator_state(uid, name)
            ]
            # Each subtask has a copy of a broadcast state, and the number of subtasks may differ.
            found[uid, name] = Counter(set(elements) if meta.mode is OperatorStateMode.BROADCAST else elements)
    return found
