"""Computes the key groups of many stored keys at once, with the hash of `statebackend.state.key_groups`.

Keys of one column of integers, strings or bytes are decoded and hashed as columns. Other keys are decoded one by one,
each distinct key of a batch once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from statebackend.savepoint.column_codecs import read_column
from statebackend.state.key_columns import KEY_COLUMNS, serializer_of_key
from statebackend.state.key_groups import key_group_hasher
from statebackend.state.key_hashes import key_groups_of_columns

__all__ = ["KeyPlacement"]


_READ_AS_COLUMNS: Final = frozenset({"bigint", "int", "string", "binary"})


class KeyPlacement:
    """Maps decoded or stored keys of these columns to key groups. Raises as `key_group_hasher`."""

    def __init__(self, columns: Sequence[str], max_parallelism: int) -> None:
        self._columns = tuple(columns)
        self._max_parallelism = max_parallelism
        self._hash = key_group_hasher(columns, max_parallelism)
        self._read = serializer_of_key(columns).from_bytes
        is_read_as_column = len(columns) == 1 and columns[0] in _READ_AS_COLUMNS
        self._column_serializer = KEY_COLUMNS[columns[0]] if is_read_as_column else None

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return KeyPlacement, (self._columns, self._max_parallelism)

    def of_key(self, key: Any) -> int:
        """Return the key group of a key. Raises `KeyHashError` for a key of another type."""
        return self._hash(key)

    def of_stored(self, keys: pa.Array) -> pa.Array:
        """Return the key groups of a column of stored keys, as int32."""
        column = None if self._column_serializer is None else read_column(self._column_serializer, keys)
        groups = None if column is None else key_groups_of_columns([column], self._max_parallelism)
        if groups is not None:
            return groups
        distinct = keys.dictionary_encode()
        of_distinct = [self._hash(self._read(key)) for key in distinct.dictionary.to_pylist()]
        return pa.array(of_distinct, pa.int32()).take(distinct.indices)
