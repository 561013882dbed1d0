"""Reads a savepoint as plain Python values, without the job's classes and without a state backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from statebackend import Savepoint


def state_contents(savepoint: Path | str, operator_uid: str, state_name: str) -> Mapping[Any, Any]:
    """Return the state as key -> value, (key, user key) -> value, or key -> list of elements; records are dicts.

    Raises `ValueError` if a value or map entry is stored twice, `CheckpointError` for a damaged savepoint.
    """
    contents: dict[Any, Any] = {}
    for entry in Savepoint.open(savepoint).read(operator_uid, state_name):
        key = entry.key if entry.user_key is None else (entry.key, entry.user_key)
        if key in contents:
            raise ValueError(f"state {state_name!r} holds {key!r} twice")
        contents[key] = _plain(entry.value)
    return contents


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return attrs.asdict(value) if attrs.has(type(value)) else value
