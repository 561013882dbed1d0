"""Any value of state as what JSON knows: for printing, comparing and exporting without the classes of the program.

    records, named tuples   objects, by field            lists, tuples, sets   lists; of sets, sorted
    bytes                   {"base64": ...}              times, decimals, UUIDs, enumerations   texts
    maps with text keys     objects                      other maps            lists of [key, value]

Numbers that JSON does not know (not a number, infinite), and whole ones with more digits than Python reads again, are
texts. What is of no known class is shown as its repr.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import math
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from snapshots.value_text import shown
from typeserializers.records.field_names import field_names

__all__ = ["digits", "plain_value"]

_MOST_BITS: Final = 14_281
"""Numbers of so many bits have no more than the 4,300 digits that Python writes and reads by itself."""


def plain_value(value: Any) -> Any:
    """The value, made of None, bool, int, float, str, list and dict only; never raises."""
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain(value)
    for kind, of_kind in _BY_KIND.items():
        if isinstance(value, kind):
            return of_kind(value)
    names = field_names(type(value))
    if names is not None:
        return {name: plain_value(getattr(value, name, None)) for name in names}
    return shown(value)


def digits(number: int) -> str:
    """The decimal digits of a whole number of any size."""
    return str(number if number.bit_length() <= _MOST_BITS else decimal.Decimal(number))


def _int(value: int) -> Any:
    return value if value.bit_length() <= _MOST_BITS else digits(value)


def _float(value: float) -> Any:
    return value if math.isfinite(value) else str(value)


def _bytes(value: bytes) -> Any:
    return {"base64": base64.b64encode(value).decode("ascii")}


def _sequence(value: Any) -> Any:
    if hasattr(value, "_fields"):
        return {name: plain_value(part) for name, part in zip(value._fields, value, strict=True)}
    return [plain_value(part) for part in value]


def _set(value: Any) -> Any:
    return sorted((plain_value(part) for part in value), key=repr)


def _mapping(value: Mapping[Any, Any]) -> Any:
    if all(isinstance(key, str) for key in value):
        return {key: plain_value(part) for key, part in value.items()}
    return [[plain_value(key), plain_value(part)] for key, part in value.items()]


def _duration(value: datetime.timedelta) -> str:
    # As a float the seconds of a long one would lose their last digits.
    seconds, microseconds = divmod(abs(value) // datetime.timedelta(microseconds=1), 1_000_000)
    sign = "-" if value < datetime.timedelta(0) else ""
    return f"{sign}{seconds}.{f'{microseconds:06d}'.rstrip('0') or '0'} s"


def _itself(value: Any) -> Any:
    return value


_PLAIN: Final[Mapping[type, Callable[[Any], Any]]] = {
    type(None): _itself,
    bool: _itself,
    int: _int,
    str: _itself,
    float: _float,
    bytes: _bytes,
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
}

_BY_KIND: Final[Mapping[Any, Callable[[Any], Any]]] = {
    enum.Enum: lambda value: value.name,
    int: lambda value: _int(int(value)),
    str: str,
    float: _float,
    (bytes, bytearray, memoryview): lambda value: _bytes(bytes(value)),
    (datetime.date, datetime.time): lambda value: value.isoformat(),
    datetime.timedelta: _duration,
    (decimal.Decimal, uuid.UUID): str,
    (set, frozenset): _set,
    Mapping: _mapping,
    (list, tuple): _sequence,
}
"""Of subclasses, and of classes that have many; the first that fits."""
