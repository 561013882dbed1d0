"""Converts any state value to JSON data, without the classes of the program, for printing, comparing and exporting.

| Value | JSON |
|---|---|
| records, named tuples | object, by field (`typeserializers.records.column_names`) |
| lists, tuples, sets | list; sets are sorted |
| maps with text keys | object |
| other maps | list of [key, value] |
| bytes | `{"base64": ...}` |
| times, decimals, UUIDs, enumerations | text |
| NaN, infinity, integers with more than 4,300 digits | text |
| anything else | its repr |

`printed_value` shows a very large integer by its size, because its digits take long to compute. `comparable_value`
writes it in hexadecimal.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import math
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from attrs import frozen

from snapshots.errors import format_value
from typeserializers.records.column_names import displayed_names
from typeserializers.records.record_shape import field_names

_MOST_BITS: Final = 14_281
"""An integer of so many bits has at most the 4,300 digits that Python writes."""


@frozen
class _PlainValues:
    """Converts values. ``large_integer`` formats integers that Python does not write by itself."""

    large_integer: Callable[[int], str]

    def __call__(self, value: Any) -> Any:
        """Return the value as None, bool, int, float, str, list or dict. Never raises."""
        plain = _PLAIN.get(type(value))
        if plain is not None:
            return plain(self, value)
        for kind, of_kind in _BY_KIND.items():
            if isinstance(value, kind):
                return of_kind(self, value)
        names = field_names(type(value))
        if names is not None:
            parts = zip(displayed_names(names), names, strict=True)
            return {shown: self(getattr(value, name, None)) for shown, name in parts}
        return format_value(value)

    def integer(self, value: int) -> Any:
        return int(value) if value.bit_length() <= _MOST_BITS else self.large_integer(int(value))

    def sequence(self, value: Any) -> Any:
        if hasattr(value, "_fields"):
            return {name: self(part) for name, part in zip(value._fields, value, strict=True)}
        return list(map(self, value))

    def sorted_set(self, value: Any) -> Any:
        return sorted(map(self, value), key=repr)

    def mapping(self, value: Mapping[Any, Any]) -> Any:
        if all(isinstance(key, str) for key in value):
            return {key: self(part) for key, part in value.items()}
        return [[self(key), self(part)] for key, part in value.items()]


def digits(number: int) -> str:
    """Return the decimal digits of an integer of any size."""
    if number.bit_length() <= _MOST_BITS:
        return str(number)
    # Divide and conquer: direct conversion takes quadratic time, 20 s for a megabyte.
    with decimal.localcontext() as context:
        context.prec, context.Emax, context.Emin = decimal.MAX_PREC, decimal.MAX_EMAX, decimal.MIN_EMIN

        @cache
        def power_of_two(exponent: int) -> decimal.Decimal:
            if exponent <= _MOST_BITS:
                return decimal.Decimal(1 << exponent)
            half = exponent // 2
            return power_of_two(half) * power_of_two(exponent - half)

        def converted(part: int, bits: int) -> decimal.Decimal:
            if bits <= _MOST_BITS:
                return decimal.Decimal(part)
            low_bits = bits // 2
            high = part >> low_bits
            low = part - (high << low_bits)
            return converted(high, bits - low_bits) * power_of_two(low_bits) + converted(low, low_bits)

        text = f"{converted(abs(number), number.bit_length()):f}"
    return f"-{text}" if number < 0 else text


_MOST_PRINTED_BITS: Final = 1 << 16
"""About 20,000 digits."""


def _digits_or_size(number: int) -> str:
    if number.bit_length() <= _MOST_PRINTED_BITS:
        return digits(number)
    sign = "negative " if number < 0 else ""
    return f"({sign}integer of {number.bit_length():,} bits)"


def _float(_: _PlainValues, value: float) -> Any:
    return value if math.isfinite(value) else str(value)


def _bytes(_: _PlainValues, value: Any) -> Any:
    return {"base64": base64.b64encode(bytes(value)).decode("ascii")}


def _duration(_: _PlainValues, value: datetime.timedelta) -> str:
    # A float would lose the last digits of a long duration.
    seconds, microseconds = divmod(abs(value) // datetime.timedelta(microseconds=1), 1_000_000)
    sign = "-" if value < datetime.timedelta(0) else ""
    return f"{sign}{seconds}.{f'{microseconds:06d}'.rstrip('0') or '0'} s"


def _itself(_: _PlainValues, value: Any) -> Any:
    return value


def _text(_: _PlainValues, value: Any) -> str:
    return str(value)


_PLAIN: Final[Mapping[type, Callable[[_PlainValues, Any], Any]]] = {
    type(None): _itself,
    bool: _itself,
    int: _PlainValues.integer,
    str: _itself,
    float: _float,
    bytes: _bytes,
    list: _PlainValues.sequence,
    tuple: _PlainValues.sequence,
    dict: _PlainValues.mapping,
}

_BY_KIND: Final[Mapping[Any, Callable[[_PlainValues, Any], Any]]] = {
    enum.Enum: lambda _, value: value.name,
    int: _PlainValues.integer,
    str: _text,
    float: _float,
    (bytes, bytearray, memoryview): _bytes,
    (datetime.date, datetime.time): lambda _, value: value.isoformat(),
    datetime.timedelta: _duration,
    (decimal.Decimal, uuid.UUID): _text,
    (set, frozenset): _PlainValues.sorted_set,
    Mapping: _PlainValues.mapping,
    (list, tuple): _PlainValues.sequence,
}
"""For subclasses and abstract types; the first match is used."""

plain_value: Final = _PlainValues(digits)
printed_value: Final = _PlainValues(_digits_or_size)
comparable_value: Final = _PlainValues(hex)
"""For comparisons: large integers are exact, without the time to compute their digits."""


def value_repr(value: Any) -> str:
    """Return the repr of a value. If it fails, as for integers with many digits, return that of `printed_value`."""
    try:
        return repr(value)
    except Exception:
        return repr(printed_value(value))
