"""Computes the key groups of many stored keys at once, with the hash of `statebackend.state.key_groups`.

    hash := XXH64 with seed 42 of 4 or 8 bytes       group := signed hash modulo max_parallelism

Keys of one integer column are hashed as Arrow columns, after swapping big-endian bytes to little-endian. Strings and
bytes are extracted as a column and hashed one by one. Other keys are decoded, each distinct key of a batch once.

`stored_column` encodes whole columns, the inverse of `whole_columns`: numbers by byte swapping, and short ASCII strings
with their length prefix. Any other column is encoded by its serializer.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from statebackend.savepoint.tables.whole_columns import whole_column
from statebackend.state.key_columns import KEY_COLUMNS, serializer_of_key
from statebackend.state.key_groups import SEED, key_group_hasher
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import DoubleSerializer, IntSerializer, LongSerializer
from typeserializers.scalars.strings import StringSerializer

__all__ = ["KeyPlacement", "stored_column", "turned_bytes"]


_CODES: Final = {4: "I", 8: "Q"}
_LONGEST_TEXT: Final = 126
"""The maximum length of a string with a length prefix of one byte."""


def stored_column(serializer: TypeSerializer[Any], values: Sequence[Any] | pa.Array) -> pa.Array | None:
    """Encode the values, or return None if they must be encoded one by one."""
    known = _COLUMNS.get(type(serializer))
    if known is None:
        return None
    data_type, python_class, write = known
    if isinstance(values, pa.Array):
        return write(values) if values.type == data_type and not values.null_count else None
    if set(map(type, values)) != {python_class}:
        return None
    try:
        return write(pa.array(values, data_type))
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None


def turned_bytes(fixed: pa.Array, width: int) -> pa.Buffer:
    """Swap concatenated values of four or eight bytes between big-endian and native order."""
    start = fixed.offset * width
    values = array.array(_CODES[width])
    values.frombytes(memoryview(fixed.buffers()[1])[start : start + len(fixed) * width])
    if sys.byteorder == "little":
        values.byteswap()
    return pa.py_buffer(values)


def _checked_numbers(numbers: pa.Array) -> pa.Array:
    width = numbers.type.bit_width // 8
    turned = turned_bytes(numbers.view(pa.binary(width)), width)
    return pa.Array.from_buffers(pa.binary(width), len(numbers), [None, turned]).cast(pa.binary())


def _doubles(numbers: pa.Array) -> pa.Array:
    # Only one NaN is stored.
    return _checked_numbers(pc.if_else(pc.is_nan(numbers), pa.scalar(float("nan"), pa.float64()), numbers))


def _texts(texts: pa.Array) -> pa.Array | None:
    content = texts.cast(pa.binary())
    lengths = pc.binary_length(content)
    is_short = (pc.max(lengths).as_py() or 0) <= _LONGEST_TEXT
    if not is_short or not pc.all(pc.string_is_ascii(texts), min_count=0).as_py():
        return None
    counts = pc.add(lengths, 1).cast(pa.uint8()).view(pa.binary(1)).cast(pa.binary())
    return pc.binary_join_element_wise(counts, content, b"")


_COLUMNS: Final[Mapping[type, tuple[pa.DataType, type, Callable[[pa.Array], pa.Array | None]]]] = {
    LongSerializer: (pa.int64(), int, _checked_numbers),
    IntSerializer: (pa.int32(), int, _checked_numbers),
    DoubleSerializer: (pa.float64(), float, _doubles),
    StringSerializer: (pa.string(), str, _texts),
}
"""The Arrow type, the Python type, and the function that encodes a column, by serializer."""


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
            return _modulo(hashes, self._max_parallelism)
        distinct = keys.dictionary_encode()
        groups = [self._hash(self._read(key)) for key in distinct.dictionary.to_pylist()]
        return pa.array(groups, pa.int32()).take(distinct.indices)


def _number(value: int) -> pa.Scalar:
    return pa.scalar(value % _WORD, pa.uint64())


def _multiply(column: pa.Array, factor: int) -> pa.Array:
    return pc.multiply(column, _number(factor))


def _rotate(column: pa.Array, bits: int) -> pa.Array:
    return pc.bit_wise_or(pc.shift_left(column, _number(bits)), pc.shift_right(column, _number(64 - bits)))


def _mix(column: pa.Array, bits: int) -> pa.Array:
    return pc.bit_wise_xor(column, pc.shift_right(column, _number(bits)))


def _avalanche(column: pa.Array) -> pa.Array:
    column = _multiply(_mix(column, 33), _PRIME_2)
    return _mix(_multiply(_mix(column, 29), _PRIME_3), 32)


def _hashed_longs(keys: pa.Array) -> pa.Array:
    column = _numbers(keys, pa.uint64())
    column = _multiply(_rotate(_multiply(column, _PRIME_2), 31), _PRIME_1)
    column = pc.bit_wise_xor(column, _number(SEED + _PRIME_5 + 8))
    return _avalanche(pc.add(_multiply(_rotate(column, 27), _PRIME_1), _number(_PRIME_4)))


def _hashed_integers(keys: pa.Array) -> pa.Array:
    column = _numbers(keys, pa.uint32()).cast(pa.uint64())
    column = pc.bit_wise_xor(_multiply(column, _PRIME_1), _number(SEED + _PRIME_5 + 4))
    return _avalanche(pc.add(_multiply(_rotate(column, 23), _PRIME_2), _number(_PRIME_3)))


def _hashed_texts(keys: pa.Array) -> pa.Array | None:
    return _hashed_bytes(whole_column(KEY_COLUMNS["string"], keys))


def _hashed_binaries(keys: pa.Array) -> pa.Array | None:
    return _hashed_bytes(whole_column(KEY_COLUMNS["binary"], keys))


def _hashed_bytes(values: pa.Array | None) -> pa.Array | None:
    if values is None:
        return None
    digest = xxhash.xxh64_intdigest
    return pa.array([digest(value, SEED) for value in values.cast(pa.binary()).to_pylist()], pa.uint64())


def _numbers(keys: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Decode numbers. Raises `pyarrow.ArrowInvalid` for another length."""
    width = data_type.bit_width // 8
    turned = turned_bytes(keys.cast(pa.binary(width)), width)
    return pa.Array.from_buffers(data_type, len(keys), [None, turned])


def _modulo(hashes: pa.Array, divisor: int) -> pa.Array:
    # Compute the modulo of the unsigned number, then correct it: a negative signed number is 2**64 less.
    rest = pc.subtract(hashes, _multiply(pc.divide(hashes, _number(divisor)), divisor))
    is_negative = pc.shift_right(hashes, _number(63))
    less = pc.add(rest, _multiply(is_negative, -_WORD % divisor))
    return pc.subtract(less, _multiply(pc.divide(less, _number(divisor)), divisor)).cast(pa.int32())


_HASHED_COLUMNS: Final[Mapping[str, Callable[[pa.Array], pa.Array | None]]] = {
    "bigint": _hashed_longs,
    "int": _hashed_integers,
    "string": _hashed_texts,
    "binary": _hashed_binaries,
}
"""The functions that hash a column of stored keys, by key type. None means that keys must be decoded one by one."""
