"""An entry as plain data: what commands print, and files of lines have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from savepoints.reading.plain_values import plain_value
from savepoints.reading.stored_entries import StateEntry

__all__ = ["plain_entry"]

_FIELDS: Final = ("key_group", "key", "namespace", "user_key", "value", "last_access_ms")


def plain_entry(entry: StateEntry, plain: Callable[[Any], Any] = plain_value) -> dict[str, Any]:
    """The fields of an entry by name, as ``plain`` makes values; without those that it does not have."""
    found = {name: plain(getattr(entry, name)) for name in _FIELDS}
    return {name: value for name, value in found.items() if value is not None or name == "value"}
