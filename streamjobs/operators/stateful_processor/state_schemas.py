"""The schemas of a processor's state, and the values it reads and writes under them.

A value is a tuple of the fields of its schema, which is stored as a record that evolves by the names of the fields. As
in Spark, a list or a Row is taken by position, a dict by name; what is read is a plain tuple, or a Row where Spark
gives one. An instant is given out without a zone, in the local time of the process, as everywhere in PySpark's state;
what is stored has the zone UTC, so that the same instant has the same bytes, and a decimal has the scale of its type.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from streamjobs.rows.declared_schema import output_schema
from streamjobs.rows.record_serializer import stored_records
from streamjobs.user_errors import cited
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["ProcessorSchema"]

_SHOWN_CHARACTERS: Final = 200


class ProcessorSchema:
    """One schema, given as DDL or as Spark's ``StructType``; ``where`` begins messages of errors.

    Raises `JobDefinitionError` for a schema that cannot be read, or has a type that no state can hold.
    """

    __slots__ = (
        "_before",
        "_from_instants",
        "_names",
        "_to_row",
        "_to_stored",
        "_to_values",
        "serializer",
        "where",
    )

    def __init__(self, declared: object, where: str) -> None:
        arrow = output_schema(declared, where, "a schema").arrow
        records = stored_records(arrow, where)
        self.where = where
        self.serializer: TypeSerializer[Any] = records.serializer
        """That of what is stored."""
        self._names = tuple(arrow.names)
        self._to_stored = records.to_stored
        self._to_row = records.to_row
        self._to_values = records.to_values
        instants = {index: _local for index, one in enumerate(arrow) if _is_instant(one.type)}
        before: dict[int, Callable[[Any], Any]] = dict.fromkeys(instants, _in_utc)
        before |= {
            index: partial(_with_scale, one.type) for index, one in enumerate(arrow) if pa.types.is_decimal(one.type)
        }
        self._before: Callable[[Any], Any] | None = partial(_changed, before) if before else None
        self._from_instants: Callable[[Any], Any] | None = partial(_changed, instants) if instants else None

    def stored(self, value: Any) -> Any:
        """What is stored of a value; raises `TypeError` or `ValueError` for one that is not of the schema."""
        if not isinstance(value, tuple):
            value = self._tuple_of(value)
        if len(value) != len(self._names):
            raise ValueError(
                f"{self.where}: {cited(value, _SHOWN_CHARACTERS)} has {len(value)} values, and the schema has the "
                f"{len(self._names)} fields {', '.join(self._names)}"
            )
        return self._to_stored(value if self._before is None else self._before(value))

    def values(self, stored: Any) -> tuple[Any, ...]:
        """The tuple of what is stored."""
        values: tuple[Any, ...] = self._to_values(stored)
        return values if self._from_instants is None else tuple(self._from_instants(values))

    def row(self, stored: Any) -> Any:
        """The Row of what is stored."""
        row = self._to_row(stored)
        return row if self._from_instants is None else tuple.__new__(type(row), self._from_instants(row))

    def _tuple_of(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, list):
            return tuple(value)
        if isinstance(value, Mapping):
            return tuple(value.get(name) for name in self._names)
        raise TypeError(
            f"{self.where}: {cited(value, _SHOWN_CHARACTERS)} is no value of state: give a tuple of the fields "
            f"{', '.join(self._names)}"
        )


def _is_instant(data_type: pa.DataType) -> bool:
    return pa.types.is_timestamp(data_type) and data_type.tz is not None


def _changed(changes: Mapping[int, Callable[[Any], Any]], values: Sequence[Any]) -> list[Any]:
    changed = list(values)
    for index, change in changes.items():
        if changed[index] is not None:
            changed[index] = change(changed[index])
    return changed


def _with_scale(data_type: pa.Decimal128Type, value: Any) -> Any:
    """The decimal with the digits of its type behind the point, so that equal ones have the same bytes."""
    if not isinstance(value, decimal.Decimal) or not value.is_finite():
        return value
    context = decimal.Context(prec=data_type.precision, traps=[])
    # What has more digits than the type becomes no number, and so another one.
    scaled = value.quantize(decimal.Decimal(1).scaleb(-data_type.scale), context=context)
    if scaled != value:
        raise ValueError(f"{value} is no decimal of {data_type.precision} digits, {data_type.scale} behind the point")
    return scaled


def _in_utc(value: datetime.datetime) -> datetime.datetime:
    return value.astimezone(datetime.timezone.utc)


def _local(value: datetime.datetime) -> datetime.datetime:
    zoned = value.astimezone()
    local = zoned.replace(tzinfo=None)
    if not datetime.MINYEAR < local.year < datetime.MAXYEAR:
        return local
    # Of an hour that clocks show twice it may be the second.
    return local if local.astimezone().utcoffset() == zoned.utcoffset() else local.replace(fold=1)
