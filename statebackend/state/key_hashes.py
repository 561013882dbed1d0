"""Hashes columns of keys with numpy, to the hashes of `statebackend.state.key_groups`.

    hash  := XXH64 of the encoding of the first column with seed 42, then of the next one with that hash as seed
    group := signed hash modulo max_parallelism

XXH64 of less than 32 bytes takes eight bytes, then four bytes, then single bytes. Each of these steps is one operation
on the values of a column, because the products of numpy wrap around. Strings and bytes are hashed by their length.
Longer ones are hashed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import xxhash

from statebackend.state.key_groups import SEED

if TYPE_CHECKING:
    import numpy as np
else:
    try:
        import numpy as np
    except ImportError:
        np = None

__all__ = ["gathered", "key_groups_of_columns"]

_PRIME_1: Final = 0x9E3779B185EBCA87
_PRIME_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME_3: Final = 0x165667B19E3779F9
_PRIME_4: Final = 0x85EBCA77C2B2AE63
_PRIME_5: Final = 0x27D4EB2F165667C5
_SHORT: Final = 32
"""The length from which XXH64 takes four words at a time."""
_MOST_LENGTHS: Final = 8
"""Strings of more lengths are hashed one by one: each length costs a pass over the column."""


def key_groups_of_columns(columns: Sequence[pa.Array], max_parallelism: int) -> pa.Array | None:
    """Return the key groups of keys without nulls, as int32. None if they must be hashed one by one.

    The types of the columns are those of `KEY_COLUMNS`.
    """
    if np is None or not len(columns[0]):
        return None
    hashes: Any = np.full(len(columns[0]), SEED, np.uint64)
    for column in columns:
        hashes = _hashed(column, hashes)
        if hashes is None:
            return None
    if max_parallelism & max_parallelism - 1:
        return pa.array((hashes.view(np.int64) % max_parallelism).astype(np.int32))
    return pa.array((hashes & np.uint64(max_parallelism - 1)).astype(np.int32))


def _hashed(column: pa.Array, seeds: Any) -> Any:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _hashed_bytes(column, seeds)
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        values = _numbers(column, pa.int64()).view(np.uint64)
        return _avalanche(_with_long(seeds + np.uint64(_PRIME_5 + 8), values))
    values = _numbers(column, pa.int32()).view(np.uint32)
    return _avalanche(_with_integer(seeds + np.uint64(_PRIME_5 + 4), values))


def _numbers(column: pa.Array, data_type: pa.DataType) -> Any:
    return np.ascontiguousarray(column.cast(data_type).to_numpy(zero_copy_only=False))


def _hashed_bytes(column: pa.Array, seeds: Any) -> Any:
    _, bounds, content = column.buffers()
    places = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.diff(places)
    longest = int(lengths.max())
    counts = np.bincount(lengths) if longest < _SHORT else ()
    found = np.flatnonzero(counts).tolist()
    if not 0 < len(found) <= _MOST_LENGTHS:
        digest, values = xxhash.xxh64_intdigest, column.cast(pa.binary()).to_pylist()
        return np.fromiter(map(digest, values, seeds.tolist()), np.uint64, len(values))
    data = np.frombuffer(b"" if content is None else content, np.uint8)
    if len(found) == 1:
        return _hashed_matrix(gathered(data, places[:-1], found[0]), seeds)
    hashes = np.empty(len(column), np.uint64)
    for length in found:
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _hashed_matrix(gathered(data, places[rows], length), seeds[rows])
    return hashes


def _hashed_matrix(matrix: Any, hashes: Any) -> Any:
    """Hash the rows of a matrix of bytes."""
    count, width = matrix.shape
    hashes = hashes + np.uint64((_PRIME_5 + width) % (1 << 64))
    for start in range(0, width - 7, 8):
        hashes = _with_long(hashes, np.ascontiguousarray(matrix[:, start : start + 8]).view("<u8").reshape(count))
    start = width & ~7
    if width - start >= 4:
        part = np.ascontiguousarray(matrix[:, start : start + 4]).view("<u4").reshape(count)
        hashes, start = _with_integer(hashes, part), start + 4
    for place in range(start, width):
        hashes = _rotated(hashes ^ matrix[:, place].astype(np.uint64) * _PRIME_5, 11) * _PRIME_1
    return _avalanche(hashes)


def _with_long(hashes: Any, values: Any) -> Any:
    return _rotated(hashes ^ _rotated(values * _PRIME_2, 31) * _PRIME_1, 27) * _PRIME_1 + _PRIME_4


def _with_integer(hashes: Any, values: Any) -> Any:
    return _rotated(hashes ^ values.astype(np.uint64) * _PRIME_1, 23) * _PRIME_2 + _PRIME_3


def _rotated(hashes: Any, bits: int) -> Any:
    return hashes << bits | hashes >> 64 - bits


def _avalanche(hashes: Any) -> Any:
    hashes = (hashes ^ hashes >> 33) * _PRIME_2
    hashes = (hashes ^ hashes >> 29) * _PRIME_3
    return hashes ^ hashes >> 32


def gathered(data: Any, positions: Any, width: int) -> Any:
    """Return the bytes at each position, as rows of a matrix. Raises `IndexError` after the end of the data."""
    count = len(positions)
    if not count:
        return np.zeros((0, width), np.uint8)
    if positions.max() + width > len(data):
        raise IndexError("a value ends after the data")
    step = int(positions[1] - positions[0]) if count > 1 else width
    if step > 0 and (np.diff(positions) == step).all():
        rows = np.lib.stride_tricks.as_strided(data[int(positions[0]) :], (count, width), (step, 1))
        return np.ascontiguousarray(rows)
    # One element of this width begins at every byte.
    elements: Any = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    return elements[positions].view(np.uint8).reshape(count, width)
