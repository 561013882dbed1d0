"""Copies records, so that two functions that receive the same record do not see each other's changes.

Most records need no copy because they are immutable, such as tuples and rows of numbers and strings. Such batches are
recognised by the classes of their values.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import attrs

from snapshots.errors import format_value
from statebackend.streaming.errors import StreamJobError, describe_exception
from typeserializers.records.record_shape import field_names

__all__ = ["IMMUTABLE_TYPES", "copied", "copied_records"]

IMMUTABLE_TYPES: Final[frozenset[type]] = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        decimal.Decimal,
        datetime.date,
        datetime.datetime,
        datetime.time,
        datetime.timedelta,
        uuid.UUID,
    }
)
"""Classes with immutable instances. Instances of their subclasses may have mutable attributes."""

_SHOWN_CHARACTERS: Final = 200


def copied(value: Any) -> Any:
    """Return a deep copy, or the value itself if it is immutable. Raises `TypeError` if it cannot be copied."""
    kind: Any = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if issubclass(kind, tuple):
        if _are_immutable(value):
            return value
    elif kind is list:
        if _are_immutable(value):
            return value.copy()
    elif kind is dict:
        if _are_immutable(value.values()):
            return value.copy()
    else:
        fields = _fields_of_frozen(kind)
        if fields is not None and _are_immutable(fields(value)):
            return value
    try:
        return _deep_copy(value, {})
    except Exception as error:
        raise TypeError(f"it cannot be copied: copy.deepcopy raised {describe_exception(error)}") from error


def copied_records(records: Sequence[Any], where: str) -> Sequence[Any]:
    """Copy each record of a batch, or return the batch itself if its records are immutable.

    Raises `StreamJobError`, starting with ``where``, for a record that cannot be copied.
    """
    if _are_immutable(records):
        return records
    made: list[Any] = []
    try:
        made.extend(map(copied, records))
    except TypeError as error:
        raise StreamJobError(
            f"{where}, record {format_value(records[len(made)], _SHOWN_CHARACTERS)}: "
            f"{error}. Give records of values that can "
            f"be copied, or define __deepcopy__ in the class of the record"
        ) from error
    return made


def _are_immutable(values: Collection[Any]) -> bool:
    """Whether all values are immutable, or tuples of immutable values. Checks only classes, level by level."""
    found = set(map(type, values))
    while not found <= IMMUTABLE_TYPES:
        others = found - IMMUTABLE_TYPES
        if not all(issubclass(kind, tuple) for kind in others):
            return False
        nested = values if others == found else [value for value in values if type(value) in others]
        found = set(map(type, chain.from_iterable(nested)))
        values = () if found <= IMMUTABLE_TYPES else list(chain.from_iterable(nested))
    return True


def _deep_copy(value: Any, memo: dict[int, Any]) -> Any:
    """Copy as `copy.deepcopy`, but several times faster for dicts of immutable values."""
    kind: Any = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is not dict or id(value) in memo:
        return copy.deepcopy(value, memo)
    made: dict[Any, Any] = {}
    memo[id(value)] = made
    for key, item in value.items():
        made[_deep_copy(key, memo)] = _deep_copy(item, memo)
    return made


@lru_cache(maxsize=1024)
def _fields_of_frozen(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return a function that reads the fields of a frozen attrs class or dataclass; None for other classes."""
    if attrs.has(kind):
        is_frozen = attrs.inspect(kind).is_frozen
    else:
        is_frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    names = field_names(kind) if is_frozen else None
    if not names:
        return None
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda record: (get(record),)
