"""Looking up one key: which key group it is in, and which rows of that group are its own.

A key is hashed once, however many subtasks there are, and the values of other keys in its group are not decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from savepoints.reading.stored_entries import unreadable_entry
from snapshots.errors import SerializationError
from snapshots.value_text import shown
from statebackend.api.descriptors import ELEMENT_ROLE
from statebackend.api.key_columns import columns_of_key
from statebackend.api.key_hash import KeyHashError, key_group_hasher
from statebackend.canonical.canonical_entries import CanonicalBatch
from statebackend.keyed.state_meta import KeyedStateMeta, StateMeta
from typeserializers.times.timers import Timer

__all__ = ["group_of_key", "rows_of_key"]


def group_of_key(meta: KeyedStateMeta, key: Any, max_parallelism: int) -> int:
    """The key group of a key of an operator; raises `KeyHashError` for a key that is not of the key's types."""
    serializer = meta.key_snapshot.restore_serializer()
    columns = columns_of_key(serializer)
    key_group = key_group_hasher(columns, max_parallelism)(key)
    # What can be hashed and is no key would be found nowhere, and nobody would know why.
    try:
        serializer.to_bytes(key)
    except SerializationError as error:
        raise KeyHashError(f"{shown(key)} is no key of the type ({', '.join(columns)}): {error}") from error
    for column, part in zip(columns, key if len(columns) > 1 else (key,), strict=True):
        if column == "timestamp" and part is not None and part.utcoffset() is None:
            raise KeyHashError(
                f"{shown(part)} has no time zone, and keys are moments: say which it is, as by tzinfo=timezone.utc"
            )
    return key_group


def rows_of_key(
    batches: Iterable[CanonicalBatch], meta: KeyedStateMeta, state: StateMeta, key: Any
) -> Iterator[CanonicalBatch]:
    """Those of the rows, which come sorted, that are of the key; raises `StateRestoreError` for unreadable ones."""
    is_wanted = _of_key(meta, state, key)
    last, is_last_wanted = None, False
    for batch in batches:
        kept = CanonicalBatch.empty()
        for row in zip(*batch, strict=True):
            # A key has many rows, one behind the other.
            if row[1] != last:
                last = row[1]
                try:
                    is_last_wanted = is_wanted(last)
                except Exception as error:
                    raise unreadable_entry(state.name, row[0], error) from error
            if is_last_wanted:
                kept.append(*row)
        if kept.row_count:
            yield kept


def _of_key(meta: KeyedStateMeta, state: StateMeta, key: Any) -> Callable[[bytes], bool]:
    if state.form is not None:
        read_key = meta.key_snapshot.restore_serializer().from_bytes
        return lambda data: bool(read_key(data) == key)
    read_element = state.role_snapshots[ELEMENT_ROLE].restore_serializer().from_bytes

    def is_of_key(data: bytes) -> bool:
        element = read_element(data)
        return isinstance(element, Timer) and bool(element.key == key)

    return is_of_key
