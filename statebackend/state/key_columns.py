"""The types of key columns, by Spark's names, and the serializers that store them.

The names are Spark's simple strings in every runtime, so that a savepoint means the same everywhere. A key of several
columns is a tuple. An operator without key columns has the key ``None``. Each type has exactly one serializer, so the
serializer of a stored key determines how the key is hashed.

A key of type timestamp is stored as a datetime in `datetime.timezone.utc`, whatever zone it had: the zone is part of
the bytes of a datetime, but not of its hash.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from statebackend.state.errors import StateRestoreError
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VoidSerializer
from typeserializers.times.python_times import PythonDateSerializer, PythonDateTimeSerializer

__all__ = ["KEY_COLUMNS", "columns_of_key", "moment_in_utc", "parsed_key", "serializer_of_key"]

KEY_COLUMNS: Final[Mapping[str, TypeSerializer[Any]]] = {
    "string": StringSerializer(),
    "bigint": LongSerializer(),
    "int": IntSerializer(),
    "smallint": ShortSerializer(),
    "tinyint": ByteSerializer(),
    "boolean": BooleanSerializer(),
    "binary": BytesSerializer(),
    "date": PythonDateSerializer(),
    "timestamp": PythonDateTimeSerializer(),
}
"""The serializer for each column type."""

_COLUMNS: Final[Mapping[type, str]] = {type(serializer): name for name, serializer in KEY_COLUMNS.items()}


def serializer_of_key(column_types: Sequence[str]) -> TypeSerializer[Any]:
    """The serializer of a key with these columns, which must be in `KEY_COLUMNS`."""
    if not column_types:
        return VoidSerializer()
    serializers = [KEY_COLUMNS[column_type] for column_type in column_types]
    return serializers[0] if len(serializers) == 1 else TupleSerializer(serializers)


def columns_of_key(serializer: TypeSerializer[Any]) -> tuple[str, ...]:
    """The column types of a key, from its serializer; the inverse of `serializer_of_key`.

    Raises `StateRestoreError` for a serializer of other keys, which only another library could have written.
    """
    if isinstance(serializer, VoidSerializer):
        return ()
    parts = serializer.field_serializers if isinstance(serializer, TupleSerializer) else (serializer,)
    columns = tuple(_COLUMNS.get(type(part), "") for part in parts)
    if not all(columns):
        raise StateRestoreError(
            f"keys of the type {serializer.type_name} are not keys of a job, so their key groups are unknown; "
            f"keys are {', '.join(KEY_COLUMNS)}, and tuples of them"
        )
    return columns


def moment_in_utc(value: datetime.datetime) -> datetime.datetime:
    """Convert a datetime to UTC, its form as a key. One without a zone is in the local time of the process.

    Raises `OverflowError` for a moment outside the years 1 to 9999 of UTC.
    """
    # `fold` is cleared because UTC has no repeated hour.
    return value.astimezone(datetime.timezone.utc).replace(fold=0)


def parsed_key(column_types: Sequence[str], texts: Sequence[str]) -> Any:
    """Parse a key from one text per column: numbers in decimal, binary in hexadecimal.

    Dates and timestamps are ISO 8601; a timestamp without a zone is in UTC. Raises `ValueError`, naming the column, for
    an invalid text or a wrong number of texts.
    """
    if len(texts) != len(column_types):
        columns = "one column" if len(column_types) == 1 else f"{len(column_types)} columns"
        raise ValueError(f"the key has {columns} ({', '.join(column_types)}), not {len(texts)}")
    values = [_parsed_column(index, *column) for index, column in enumerate(zip(column_types, texts, strict=True))]
    return values[0] if len(values) == 1 else tuple(values)


def _parsed_column(index: int, column_type: str, text: str) -> Any:
    try:
        return _PARSED.get(column_type, _integer)(text)
    except (ValueError, KeyError, OverflowError) as error:
        raise ValueError(f"column {index} of the key is {text!r}, which is not a {column_type}") from error


def _integer(text: str) -> int:
    # `int` also accepts spaces, underscores, and the digits of every script.
    if not re.fullmatch("[+-]?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def _timestamp(text: str) -> datetime.datetime:
    # Python 3.10 does not know Z.
    moment = datetime.datetime.fromisoformat(re.sub("[Zz]$", "+00:00", text))
    return moment_in_utc(moment.replace(tzinfo=datetime.timezone.utc) if moment.tzinfo is None else moment)


_PARSED: Final[Mapping[str, Callable[[str], Any]]] = {
    "string": str,
    "boolean": {"true": True, "false": False}.__getitem__,
    "binary": bytes.fromhex,
    "date": datetime.date.fromisoformat,
    "timestamp": _timestamp,
}
