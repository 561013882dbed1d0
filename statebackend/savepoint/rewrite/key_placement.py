"""Computes the key groups of many stored keys at once, with the hash of `statebackend.state.key_groups`.

    hash := XXH64 with seed 42 of 4 or 8 bytes       group := signed hash modulo max_parallelism

Keys of one integer column are hashed as numpy arrays, whose products wrap around. Strings and bytes are decoded as a
column and hashed one by one. Other keys are decoded one by one, each distinct key of a batch once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import xxhash

from statebackend.savepoint.column_codecs import read_column
from statebackend.state.key_columns import KEY_COLUMNS, serializer_of_key
from statebackend.state.key_groups import SEED, key_group_hasher

__all__ = ["KeyPlacement"]


_PRIME_1: Final = 0x9E3779B185EBCA87
_PRIME_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME_3: Final = 0x165667B19E3779F9
_PRIME_4: Final = 0x85EBCA77C2B2AE63
_PRIME_5: Final = 0x27D4EB2F165667C5
_WORD: Final = 1 << 64


class KeyPlacement:
    """Maps decoded or stored keys of these columns to key groups. Raises as `key_group_hasher`."""

    def __init__(self, columns: Sequence[str], max_parallelism: int) -> None:
        self._columns = tuple(columns)
        self._max_parallelism = max_parallelism
        self._hash = key_group_hasher(columns, max_parallelism)
        self._read = serializer_of_key(columns).from_bytes
        self._hash_column = _HASHED_COLUMNS.get(columns[0]) if len(columns) == 1 else None

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return KeyPlacement, (self._columns, self._max_parallelism)

    def of_key(self, key: Any) -> int:
        """Return the key group of a key. Raises `KeyHashError` for a key of another type."""
        return self._hash(key)

    def of_stored(self, keys: pa.Array) -> pa.Array:
        """Return the key groups of a column of stored keys, as int32."""
        hashes = None if self._hash_column is None else self._hash_column(keys)
        if hashes is not None:
            return pa.array((hashes.view("i8") % self._max_parallelism).astype("i4"))
        distinct = keys.dictionary_encode()
        groups = [self._hash(self._read(key)) for key in distinct.dictionary.to_pylist()]
        return pa.array(groups, pa.int32()).take(distinct.indices)


def _hashed_longs(keys: pa.Array) -> Any:
    column = read_column(KEY_COLUMNS["bigint"], keys)
    if column is None:
        return None
    hashes = column.to_numpy().view("u8")
    hashes = _rotate(hashes * _PRIME_2, 31) * _PRIME_1
    hashes = _rotate(hashes ^ (SEED + _PRIME_5 + 8) % _WORD, 27) * _PRIME_1 + _PRIME_4
    return _avalanche(hashes)


def _hashed_integers(keys: pa.Array) -> Any:
    column = read_column(KEY_COLUMNS["int"], keys)
    if column is None:
        return None
    hashes = column.to_numpy().view("u4").astype("u8") * _PRIME_1
    return _avalanche(_rotate(hashes ^ (SEED + _PRIME_5 + 4) % _WORD, 23) * _PRIME_2 + _PRIME_3)


def _rotate(column: Any, bits: int) -> Any:
    return column << bits | column >> 64 - bits


def _avalanche(column: Any) -> Any:
    column = (column ^ column >> 33) * _PRIME_2
    column = (column ^ column >> 29) * _PRIME_3
    return column ^ column >> 32


def _hashed_bytes(key_type: str, keys: pa.Array) -> Any:
    column = read_column(KEY_COLUMNS[key_type], keys)
    if column is None:
        return None
    digest = xxhash.xxh64_intdigest
    hashes = [digest(value, SEED) for value in column.cast(pa.binary()).to_pylist()]
    return pa.array(hashes, pa.uint64()).to_numpy()


_HASHED_COLUMNS: Final[Mapping[str, Callable[[pa.Array], Any]]] = {
    "bigint": _hashed_longs,
    "int": _hashed_integers,
    "string": partial(_hashed_bytes, "string"),
    "binary": partial(_hashed_bytes, "binary"),
}
"""The functions that hash a column of stored keys, by key type. None means that keys must be decoded one by one."""
