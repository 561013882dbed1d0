"""Converts emitted values to rows, with the same result as a conversion to Arrow and back, but faster.

Most values need no conversion, and checking a column is faster than two conversions. A column of another type is
converted through Arrow. If a value does not fit, all rows go through Arrow, which raises the error.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from statebackend.streaming.rows.columnar import Columnar
from statebackend.streaming.rows.row_reader import RecordRow, RowReader, row_class
from statebackend.streaming.rows.row_writer import MismatchError, RecordShape, RowEncoder, RowMismatchError, RowWriter
from statebackend.streaming.rows.time_zones import time_zone_named

__all__ = ["RowConverter"]

Values = Sequence[Any]
Convert = Callable[[Values], Values | None]
"""Converts the values of a column; returns None if Arrow must convert them."""

_NONE: Final = type(None)
_LARGEST_ARRAY: Final = (1 << 31) - 1
"""The maximum size in bytes of one Arrow array of strings."""


class RowConverter:
    """Converts emitted values to rows of a schema; errors start with ``where``."""

    def __init__(self, schema: pa.Schema, where: str | None) -> None:
        self._writer = RowWriter(schema, where)
        self._reader = RowReader(schema, where)
        self._columns = [_column(field) for field in schema]
        self._new_row: Callable[[Sequence[Any]], Any] = partial(tuple.__new__, self._reader.row_class)

    @property
    def encoder(self) -> RowEncoder:
        """Encodes a value when it is emitted."""
        return self._writer.encoder

    def rows(self, records: Sequence[Any]) -> Sequence[Any]:
        """Convert records to rows. A record batch stays in columns (`Columnar`). Raises `RowMismatchError`."""
        if isinstance(records, pa.RecordBatch):
            return Columnar(self._writer.fitted(records), self._reader.rows)
        rows = self._direct_rows(records) if records else []
        if rows is None:
            return [row for batch in self._writer.batches(records) for row in self._reader.rows(batch)]
        return rows

    def _direct_rows(self, records: Sequence[Any]) -> list[Any] | None:
        try:
            tuples, columns = self._writer.columns(records)
        except RowMismatchError:
            return None
        made = []
        for index, (convert, values) in enumerate(zip(self._columns, columns, strict=True)):
            converted = convert(values)
            if converted is None:
                converted = self._through_arrow(index, records, values)
                if converted is None:
                    return None
            made.append(converted)
        are_same = all(one is given for one, given in zip(made, columns, strict=True))
        return list(map(self._new_row, tuples if are_same else zip(*made, strict=True)))

    def _through_arrow(self, index: int, records: Sequence[Any], values: Values) -> Values | None:
        try:
            return self._reader.column(index, self._writer.array(index, values, records))
        except Exception:
            # The conversion of all rows through Arrow raises the error later.
            return None


@lru_cache(maxsize=1024)
def _column(field: pa.Field) -> Convert:
    """Return the conversion of a column."""
    for applies, kinds, make in _RULES:
        if applies(field.type):
            return partial(_converted, kinds, field.nullable, make(field.type))
    return _undecided


def _converted(kinds: set[type] | None, nullable: bool, convert: Convert, values: Values) -> Values | None:
    found = set(map(type, values))
    if not (kinds is None or found - {_NONE} <= kinds):
        return None
    if _NONE not in found:
        return convert(values)
    if not nullable:
        return None
    present = [value for value in values if value is not None]
    made = convert(present)
    if made is None or made is present:
        return None if made is None else values
    following = iter(made)
    return [None if value is None else next(following) for value in values]


def _undecided(values: Values) -> Values | None:
    return None


def _unchanged(values: Values) -> Values | None:
    return values


def _unchanged_values(column_type: pa.DataType) -> Convert:
    return _unchanged


def _integers(column_type: pa.DataType) -> Convert:
    bits, signed = column_type.bit_width, pa.types.is_signed_integer(column_type)
    lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def convert(values: Values) -> Values | None:
        return values if not values or (min(values) >= lowest and max(values) <= highest) else None

    return convert


def _texts(column_type: pa.DataType) -> Convert:
    def convert(values: Values) -> Values | None:
        text = "".join(values)
        try:
            length = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:
            return None
        return values if length <= _LARGEST_ARRAY else None

    return convert


def _binaries(column_type: pa.DataType) -> Convert:
    return lambda values: values if sum(map(len, values)) <= _LARGEST_ARRAY else None


def _decimals(column_type: pa.Decimal128Type) -> Convert:
    zero, one = (decimal.Decimal((0, (digit,), -column_type.scale)) for digit in (0, 1))
    traps = [decimal.Inexact, decimal.InvalidOperation]
    quantize = decimal.Context(column_type.precision, decimal.ROUND_HALF_EVEN, traps=traps).quantize

    def convert(values: Values) -> Values | None:
        if not all(map(decimal.Decimal.is_finite, values)):
            return None
        try:
            # Arrow has no negative zero.
            return [made or zero for made in map(quantize, values, repeat(one))]
        except decimal.DecimalException:
            return None

    return convert


def _moments(column_type: pa.TimestampType) -> Convert:
    if column_type.unit != "us" or column_type.tz not in (None, "UTC"):
        return _undecided
    zone, utc = column_type.tz and time_zone_named(column_type.tz), datetime.timezone.utc
    since, epoch = (datetime.datetime(1970, 1, 1, tzinfo=one) for one in (utc, zone))

    def convert(values: Values) -> Values | None:
        zones = set(map(id, map(attrgetter("tzinfo"), values)))
        if any(map(attrgetter("fold"), values)):
            return None
        if zones <= {id(zone)}:
            return values
        if zone is None or not zones <= {id(zone), id(utc)}:
            return None
        # The same as `replace(tzinfo=zone)`, and much faster.
        return [epoch + (value - since) for value in values]

    return convert


def _structs(column_type: pa.StructType) -> Convert:
    shape = RecordShape(tuple(field.name for field in column_type), single_value_allowed=False)
    columns, new_row = (
        [_column(field) for field in column_type],
        partial(tuple.__new__, row_class(shape.names, RecordRow)),
    )
    if not columns:
        return _undecided

    def convert(values: Values) -> Values | None:
        try:
            tuples = shape.tuples_of(values)
            given = list(zip(*tuples, strict=True)) if values else [()] * len(columns)
        except (MismatchError, ValueError):
            return None
        made = [column(part) for column, part in zip(columns, given, strict=False)]
        if len(given) != len(columns) or None in made:
            return None
        return list(map(new_row, zip(*made, strict=True)))

    return convert


def _lists(column_type: pa.ListType) -> Convert:
    convert_items = _column(column_type.value_field)

    def convert(values: Values) -> Values | None:
        items = convert_items(list(chain.from_iterable(values)))
        if items is None:
            return None
        following = iter(items)
        return [list(islice(following, len(value))) for value in values]

    return convert


_RULES: Final[Sequence[tuple[Callable[[pa.DataType], bool], set[type] | None, Callable[[Any], Convert]]]] = (
    (pa.types.is_integer, {int}, _integers),
    (pa.types.is_float64, {float}, _unchanged_values),
    (pa.types.is_boolean, {bool}, _unchanged_values),
    (pa.types.is_string, {str}, _texts),
    (pa.types.is_binary, {bytes}, _binaries),
    (pa.types.is_decimal128, {decimal.Decimal}, _decimals),
    (pa.types.is_date32, {datetime.date}, _unchanged_values),
    (pa.types.is_timestamp, {datetime.datetime}, _moments),
    (pa.types.is_struct, None, _structs),
    (pa.types.is_list, {list, tuple}, _lists),
)
