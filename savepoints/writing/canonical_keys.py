"""Keys as a job knows them: of all Python values that are one key, the one whose bytes the job looks for.

Only a moment is many values: a job knows it as a datetime in `datetime.timezone.utc`, and finds nothing under the bytes
of another zone, though they have the same key group. Here a datetime in any zone becomes that one. A datetime without a
zone is refused: which moment it is would depend on the machine that writes the savepoint.

What serializers would write and no job has for a key is refused too: None, in any column, and True for a number.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from snapshots.value_text import shown
from statebackend.api.key_columns import moment_in_utc
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import FixedWidthSerializer
from typeserializers.times.python_times import PythonDateTimeSerializer

__all__ = ["canonical_key", "refused_key"]


def refused_key(serializer: TypeSerializer[Any], keys: Sequence[Any] | pa.Array) -> tuple[int, str] | None:
    """The first of these keys that serializers would write and no job has: its place, and why; None if all are keys."""
    if isinstance(keys, pa.Array):
        # Of columns only those of numbers and text come as they are.
        return (keys.is_null().index(True).as_py(), "None cannot be one") if keys.null_count else None
    if not isinstance(serializer, TupleSerializer):
        place = _none_or_truth(serializer, keys)
        return None if place is None else (place, _why(keys[place], "None cannot be one"))
    if not all(issubclass(kind, (tuple, list)) for kind in set(map(type, keys))):
        # What is no key of several columns is for the serializer to refuse.
        return None
    for part, column in zip(serializer.field_serializers, zip(*keys, strict=False), strict=False):
        place = _none_or_truth(part, column)
        if place is not None:
            return place, _why(column[place], "a column of it is None")
    return None


def _none_or_truth(serializer: TypeSerializer[Any], values: Sequence[Any]) -> int | None:
    is_number = isinstance(serializer, FixedWidthSerializer) and serializer.value_class is int
    refused = {type(None), bool} if is_number else {type(None)}
    if refused.isdisjoint(map(type, values)):
        return None
    return next(place for place, value in enumerate(values) if type(value) in refused)


def _why(value: Any, if_none: str) -> str:
    return if_none if value is None else f"{shown(value)} is a truth value, and the column is one of numbers"


def canonical_key(serializer: TypeSerializer[Any]) -> Callable[[Any], Any] | None:
    """What makes the job's key of a value; None where every value is that itself.

    The function raises `ValueError` or `OverflowError` for a datetime that is no moment of UTC's, and leaves what is no
    key of the serializer to the serializer.
    """
    if isinstance(serializer, TupleSerializer):
        moments = [index for index, part in enumerate(serializer.field_serializers) if _is_moment(part)]
        return partial(_with_moments, moments) if moments else None
    return _moment if _is_moment(serializer) else None


def _is_moment(serializer: TypeSerializer[Any]) -> bool:
    return isinstance(serializer, PythonDateTimeSerializer)


def _with_moments(indexes: list[int], key: Any) -> Any:
    if not isinstance(key, tuple):
        return key
    return tuple(_moment(part) if index in indexes else part for index, part in enumerate(key))


def _moment(value: Any) -> Any:
    if not isinstance(value, datetime.datetime):
        raise ValueError("is not a datetime.datetime")
    if value.utcoffset() is None:
        raise ValueError("has no time zone, so it is another moment on another machine; give it one, such as UTC")
    return moment_in_utc(value)
