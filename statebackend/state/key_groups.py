"""Key groups: the unit in which keyed state is assigned to subtasks, and the hash that assigns a key to its group.

Every key belongs to one of ``max_parallelism`` groups; a subtask owns a contiguous range of them. Rescaling moves whole
groups. The arithmetic is Flink's ``KeyGroupRangeAssignment``.

A key group is `pmod(xxhash64(key columns), max_parallelism)`. Spark computes it in SQL before the shuffle; the local
runtime, the savepoint tools and the tests compute it here. Both must agree on every value: a key in another group would
not be found after a restore.

The function is XXH64 with seed 42 over a fixed encoding of each column. The hash of one column is the seed of the next
(Spark's expression `XxHash64`). The encodings, little-endian:

    boolean, tinyint, smallint, int, date     4 bytes (false 0, true 1; date: days since 1970-01-01)
    bigint, timestamp, timestamp_ntz          8 bytes (timestamps: microseconds since the epoch)
    float, double                             IEEE bits; -0.0 as 0.0, every NaN as the one quiet NaN
    decimal(p <= 18, s)                       the unscaled value in 8 bytes
    decimal(p > 18, s)                        the unscaled value, two's complement, BIG-endian, shortest form
    string, binary                            UTF-8 bytes, bytes
    null                                      nothing: the seed is passed on

A hasher runs once per record. It is generated for each tuple of types (Spark's simple strings), without loops.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import xxhash
from attrs import frozen

from snapshots.errors import format_value
from statebackend.state.errors import StateBackendError

__all__ = ["SEED", "KeyHashError", "key_group_hasher", "key_groups_hasher", "key_hasher"]


SEED = 42
"""The seed that Spark's SQL function `xxhash64` starts from."""

_WORD = 1 << 64
_SIGN = 1 << 63
_LARGEST_DECIMAL_PRECISION = 38
_LARGEST_PRECISION_IN_A_LONG = 18
_DAYS_BEFORE_1970 = datetime.date(1970, 1, 1).toordinal()
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_DIGITS = 2 * _LARGEST_DECIMAL_PRECISION
_EXACT = decimal.Context(
    prec=_DIGITS, Emax=_DIGITS, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow]
)
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


class KeyHashError(ValueError):
    """A key does not have the types of its columns, or a type cannot be a key."""


def key_hasher(types: Sequence[str]) -> Callable[[Any], int]:
    """Return the hash function for keys of `types`; it returns Spark's signed 64-bit value.

    With one type the function takes the value itself, with several a sequence of as many values.
    The function raises `KeyHashError`, naming the column, for a value outside its column's type. A type that Spark
    does not hash by value in the ways above (structs, arrays, maps, collated strings) is rejected here.
    """
    return _key_hasher(tuple(types), None)


def key_group_hasher(types: Sequence[str], max_parallelism: int) -> Callable[[Any], int]:
    """Like `key_hasher`, but the function returns the key group, `0 <= group < max_parallelism`."""
    if max_parallelism < 1:
        raise KeyHashError(f"max_parallelism is {max_parallelism}; it must be at least 1")
    return _key_hasher(tuple(types), max_parallelism)


@lru_cache(maxsize=256)
def key_groups_hasher(types: tuple[str, ...], max_parallelism: int) -> Callable[[Sequence[Any]], list[int]]:
    """Like `key_group_hasher`, for a function that maps a sequence of keys to a list of key groups."""
    hash_key = key_group_hasher(types, max_parallelism)
    if len(types) > 1:
        return lambda keys: list(map(hash_key, keys))
    encode, digest = _encoder(types[0]), xxhash.xxh64_intdigest
    # The remainder is the same with or without the sign, and depends only on the last bits.
    mask = max_parallelism - 1 if _WORD % max_parallelism == 0 else None

    def hash_keys(keys: Sequence[Any]) -> list[int]:
        try:
            hashes = map(digest, map(encode, keys), itertools.repeat(SEED))
            if mask is not None:
                return [h & mask for h in hashes]
            return [(h - _WORD if h & _SIGN else h) % max_parallelism for h in hashes]
        except Exception:
            # A key contains null, or is invalid. The function for one key handles null, and its error names the column.
            return list(map(hash_key, keys))

    return hash_keys


# One function for each encoding that needs more than one expression.


def _float_bytes(value: float) -> bytes:
    if value != value:
        return b"\x00\x00\xc0\x7f"
    data = _pack_float(value)
    return b"\0\0\0\0" if data == b"\0\0\0\x80" else data


def _double_bytes(value: float) -> bytes:
    if value != value:
        return b"\x00\x00\x00\x00\x00\x00\xf8\x7f"
    # Adding zero turns -0.0 into 0.0 and changes nothing else.
    return _pack_double(value + 0.0)


def _timestamp_bytes(value: datetime.datetime) -> bytes:
    """An instant; a naive datetime is in the local time of the process, as everywhere in PySpark."""
    if value.tzinfo is None:
        return _pack_long(int(time.mktime(value.timetuple())) * 1_000_000 + value.microsecond)
    since = value - _EPOCH_UTC
    return _pack_long((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _timestamp_ntz_bytes(value: datetime.datetime) -> bytes:
    since = value - _EPOCH
    return _pack_long((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _date_bytes(value: datetime.date) -> bytes:
    return _pack_int(value.toordinal() - _DAYS_BEFORE_1970)


def _boolean_bytes(value: bool) -> bytes:
    return _BOOLEAN_BYTES[value]


def _binary_bytes(value: bytes | bytearray) -> bytes:
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"expected bytes, not {type(value).__name__}")
    return bytes(value)


def _decimal_encoder(precision: int, scale: int) -> Callable[[decimal.Decimal], bytes]:
    if not 1 <= precision <= _LARGEST_DECIMAL_PRECISION or not 0 <= scale <= precision:
        raise KeyHashError(f"decimal({precision},{scale}) is not a type of Spark's")
    limit = 10**precision

    def encode(value: decimal.Decimal) -> bytes:
        unscaled = int(_EXACT.to_integral_exact(_EXACT.scaleb(value, scale)))
        if not -limit < unscaled < limit:
            raise OverflowError(f"more than {precision} digits")
        if precision <= _LARGEST_PRECISION_IN_A_LONG:
            return _pack_long(unscaled)
        # As Java's BigInteger.toByteArray: the bits of the magnitude and one for the sign.
        magnitude = unscaled if unscaled >= 0 else ~unscaled
        return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)

    return encode


_pack_int = struct.Struct("<i").pack
_pack_long = struct.Struct("<q").pack
_pack_float = struct.Struct("<f").pack
_pack_double = struct.Struct("<d").pack
_BOOLEAN_BYTES = {False: b"\0\0\0\0", True: b"\1\0\0\0"}


def _ranged_encoder(lowest: int, highest: int) -> Callable[[int], bytes]:
    def encode(value: int) -> bytes:
        if not lowest <= value <= highest:
            raise OverflowError(f"outside {lowest}..{highest}")
        return _pack_int(value)

    return encode


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "string": str.encode,
    "binary": _binary_bytes,
    "boolean": _boolean_bytes,
    "tinyint": _ranged_encoder(-(2**7), 2**7 - 1),
    "smallint": _ranged_encoder(-(2**15), 2**15 - 1),
    "int": _pack_int,
    "bigint": _pack_long,
    "float": _float_bytes,
    "double": _double_bytes,
    "date": _date_bytes,
    "timestamp": _timestamp_bytes,
    "timestamp_ntz": _timestamp_ntz_bytes,
}


def _encoder(type_name: str) -> Callable[[Any], bytes]:
    encoder = _ENCODERS.get(type_name)
    if encoder is not None:
        return encoder
    matched = _DECIMAL.fullmatch(type_name)
    if matched:
        return _decimal_encoder(int(matched[1]), int(matched[2]))
    raise KeyHashError(
        f"a column of type {type_name} cannot be a key; key by columns of type "
        f"{', '.join(_ENCODERS)} or decimal(p,s), for instance by the fields of a struct or a cast of the column"
    )


@lru_cache(maxsize=256)
def _key_hasher(types: tuple[str, ...], max_parallelism: int | None) -> Callable[[Any], int]:
    if not types:
        raise KeyHashError("a key needs at least one column")
    encoders = [_encoder(type_name) for type_name in types]
    names = [f"v{i}" for i in range(len(types))]
    scope: dict[str, Any] = {"digest": xxhash.xxh64_intdigest, "explain": _explanation(types, encoders)}
    scope.update({f"encode{i}": encoder for i, encoder in enumerate(encoders)})

    lines = ["def hash_key(key):", "    try:"]
    if len(types) == 1:
        lines.append("        v0 = key")
    else:
        lines.append(f"        {', '.join(names)} = key")
    lines.append(f"        h = {SEED}")
    for i, name in enumerate(names):
        lines += [f"        if {name} is not None:", f"            h = digest(encode{i}({name}), h)"]
    lines += ["    except Exception as error:", "        raise explain(key, error) from error"]
    # The digest is unsigned and Spark's long is signed. Their remainders differ unless the modulus divides 2**64.
    signed = f"(h - {_WORD} if h & {_SIGN} else h)"
    lines.append(f"    return {signed}" if max_parallelism is None else f"    return {signed} % {max_parallelism}")
    exec(compile("\n".join(lines), f"<key hasher for {', '.join(types)}>", "exec"), scope)
    hasher: Callable[[Any], int] = scope["hash_key"]
    return hasher


def _explanation(
    types: tuple[str, ...], encoders: Sequence[Callable[[Any], bytes]]
) -> Callable[[Any, Exception], KeyHashError]:
    """Return a function that turns an error of a generated hasher into one that names the column."""

    def explain(key: Any, error: Exception) -> KeyHashError:
        try:
            values = [key] if len(types) == 1 else list(key)
        except TypeError:
            values = []
        if len(values) != len(types):
            return KeyHashError(f"the key {key!r} is not a sequence of {len(types)} values ({', '.join(types)})")
        for i, (value, type_name, encode) in enumerate(zip(values, types, encoders, strict=True)):
            reason = _rejection(encode, value)
            if reason is not None:
                shown = format_value(value, 200)
                return KeyHashError(f"key column {i} is of type {type_name}, which cannot hold {shown}: {reason}")
        return KeyHashError(f"the key {key!r} of types ({', '.join(types)}) cannot be hashed: {error}")

    return explain


def _rejection(encode: Callable[[Any], bytes], value: Any) -> str | None:
    try:
        if value is not None:
            encode(value)
    except (TypeError, AttributeError):
        return f"it is a {type(value).__name__}"
    except Exception as reason:
        return str(reason)
    return None


MAX_PARALLELISM_LIMIT: Final = 1 << 15
"""The largest number of key groups, as in Flink: a key group takes two bytes in every stored key."""


DEFAULT_MAX_PARALLELISM: Final = 128
"""The number of key groups of a job or a new savepoint, if not specified."""


@frozen
class KeyGroupRange:
    """The key groups ``start`` to ``end``, both included."""

    start: int
    end: int

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.start <= self.end < MAX_PARALLELISM_LIMIT:
            raise ValueError(f"no key group range: {self.start} to {self.end}")

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.start <= key_group <= self.end

    def require(self, key_group: int, what: str = "record") -> None:
        """Raise `StateBackendError` for a key group outside the range; ``what`` names its owner in the message."""
        if key_group not in self:
            raise StateBackendError(
                f"key group {key_group} does not belong to this subtask ({self}): "
                f"the {what} was routed to the wrong subtask"
            )

    def overlaps(self, other: KeyGroupRange) -> bool:
        """Whether the two ranges share a group."""
        return self.start <= other.end and other.start <= self.end

    def contains_range(self, other: KeyGroupRange) -> bool:
        """Whether every group of the other range is in this one."""
        return self.start <= other.start and other.end <= self.end

    def __str__(self) -> str:
        return f"key groups {self.start} to {self.end}"


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Raise `ValueError` unless ``1 <= parallelism <= max_parallelism <= 32768``."""
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ValueError(f"max_parallelism is {max_parallelism}; it must be from 1 to {MAX_PARALLELISM_LIMIT}")
    if not 1 <= parallelism <= max_parallelism:
        raise ValueError(f"parallelism is {parallelism}; it must be from 1 to max_parallelism ({max_parallelism})")


def subtask_of_key_group(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The index of the subtask that owns a key group."""
    return key_group * parallelism // max_parallelism


def key_group_range_of_subtask(subtask_index: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The groups that a subtask owns; the inverse of `subtask_of_key_group`."""
    check_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask_index < parallelism:
        raise ValueError(f"subtask {subtask_index} does not exist at parallelism {parallelism}")
    start = (subtask_index * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask_index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)
