"""Converts emitted rows to Arrow record batches, the output of tasks.

Users may emit as a row:

    a tuple, or a Row without names    the columns in order
    a Row or namedtuple with names,    the columns by name; all columns and no other names
    a dict, an attrs or dataclass
    instance
    any other value                    the value of the column, if the schema has exactly one

With one column, a record (dict, Row, attrs) is the row if its only field has the column's name; otherwise it is the
value. A list is a value, never a row. Integers are accepted for floats and decimals; otherwise a value must have its
column's type, as with `createDataFrame(..., verifySchema=True)`. Arrow alone would accept 1.0 for 1, b"x" for "x" and 5
for a date, turn too large numbers into infinity, and drop time zones. Numpy scalars are converted with `tolist`. A
naive datetime in a timestamp column is in the session's zone.

A function may change a row after emitting it, so `RowEncoder` converts rows at once and copies mutable values. Rows are
transposed by one `zip`, and each column is converted by one `pyarrow.array`. Checks use the set of classes in a column,
not every value. Only if a column fails, its values are converted one by one to find the row.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Any, Final

import pyarrow as pa
from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.rows.declared_schema import column_type_name
from statebackend.streaming.rows.record_copies import IMMUTABLE_TYPES, copied
from statebackend.streaming.rows.record_schema import constant_value
from statebackend.streaming.rows.row_reader import is_row_class, row_class
from statebackend.streaming.rows.time_zones import time_zone_named
from typeserializers.records.record_shape import field_names
from typeserializers.times.calendar_values import plain_datetime, plain_timedelta

__all__ = [
    "ENCODER_WITHOUT_SCHEMA",
    "MismatchError",
    "RecordShape",
    "RowEncoder",
    "RowMismatchError",
    "RowWriter",
    "fitted_column",
]

MAX_BATCH_BYTES: Final = 64 << 20
"""Spark's limit for batches that are sent to a worker. An Arrow array of strings is limited to 2 GiB."""

_FIRST_BATCH_ROWS: Final = 1024
_MAX_BATCH_ROWS: Final = 65_536
_GROWTH: Final = 4

_SHOWN_CHARACTERS = 300


class RowMismatchError(StreamJobError, ValueError):
    """An emitted row does not fit the schema. The message names the column and shows the value."""


@frozen
class RowEncoder:
    """Encodes a row when it is emitted, with ``encode``. Rows of classes in ``unchanged`` need no encoding.

    The caller checks the class, because a call would be too slow. ``encode`` may add classes.
    """

    encode: Callable[[Any], Any]
    unchanged: set[type] = field(factory=set)


ENCODER_WITHOUT_SCHEMA: Final = RowEncoder(copied, set(IMMUTABLE_TYPES))
"""The encoder of rows without a known schema. It only copies mutable rows."""


class RowWriter:
    """Converts lists of emitted rows to record batches of one schema. The module lists the accepted rows."""

    def __init__(self, schema: pa.Schema, where: str | None = None, max_batch_bytes: int = MAX_BATCH_BYTES) -> None:
        """Create it. ``where`` starts error messages. ``max_batch_bytes`` is the target size of `batches`."""
        self.schema = pa.schema([field.with_nullable(True) for field in schema])
        """The schema of the batches. A column that is not nullable is only checked: see `nullable_type`."""
        self._where = f"{where}: " if where is not None else ""
        self._shape = RecordShape(tuple(schema.names), single_value_allowed=len(schema.names) == 1)
        self._columns = [_ColumnWriter(field) for field in schema]
        self._max_batch_bytes = max_batch_bytes
        self._rows_per_batch = _FIRST_BATCH_ROWS
        self._mutable_columns = [index for index, field in enumerate(schema) if _can_change(field.type)]
        self._new_row: Callable[[Sequence[Any]], Any] = partial(tuple.__new__, row_class(tuple(schema.names)))
        self.encoder = RowEncoder(self._encoded, set() if self._mutable_columns else {tuple})
        """Converts emitted values to immutable rows; its ``encode`` raises `RowMismatchError`."""

    def batches(self, rows: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """Convert rows to batches of about the target size, with at least one row each.

        The number of rows per batch adapts to the size of previous batches. A record batch is not converted; only its
        columns are ordered and cast (`fitted`). Raises `RowMismatchError`.
        """
        if isinstance(rows, pa.RecordBatch):
            yield from self._parts(self.fitted(rows))
            return
        start = 0
        while start < len(rows):
            is_whole = start == 0 and len(rows) <= self._rows_per_batch
            part = rows if is_whole else rows[start : start + self._rows_per_batch]
            try:
                batch = self._batch(part)
            except _OversizeError as error:
                if len(part) == 1:
                    raise RowMismatchError(f"{self._where}{error}; the row: {_shown(part[0])}") from error
                self._rows_per_batch = len(part) // 2
                continue
            yield batch
            start += len(part)
            fitting = len(part) * self._max_batch_bytes // max(1, batch.nbytes)
            self._rows_per_batch = max(1, min(fitting, _GROWTH * self._rows_per_batch, _MAX_BATCH_ROWS))

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Convert rows to one batch. Raises `RowMismatchError` if any row does not fit."""
        if not rows:
            return _empty_batch(self.schema)
        try:
            return self._batch(rows)
        except _OversizeError as error:
            raise RowMismatchError(f"{self._where}{error}") from error

    def fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of the schema, by name. Types are cast if no value changes.

        Raises `RowMismatchError` for a missing, unknown or unfitting column.
        """
        for field_, writer in zip(self.schema, self._columns, strict=True):
            index = batch.schema.get_field_index(field_.name)
            if index >= 0 and batch.column(index).null_count and not writer.is_nullable:
                raise RowMismatchError(
                    f"{self._where}column {field_.name!r} ({writer.description}) cannot hold the nulls of a batch"
                )
        if batch.schema.equals(self.schema):
            return batch
        names = batch.schema.names
        if sorted(names) != sorted(self.schema.names):
            raise RowMismatchError(
                f"{self._where}a batch of the columns ({', '.join(names)}) was emitted for the columns "
                f"({', '.join(self.schema.names)})"
            )
        columns = []
        for field_ in self.schema:
            column = batch.column(field_.name)
            try:
                columns.append(fitted_column(column, field_.type))
            except _CONVERSION_ERRORS as error:
                raise RowMismatchError(
                    f"{self._where}column {field_.name!r} ({field_.type}) cannot hold a column of type {column.type}: "
                    f"{error}"
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = max(1, batch.num_rows * self._max_batch_bytes // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)

    def columns(self, rows: Sequence[Any]) -> tuple[Sequence[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return the rows as tuples in column order, and their columns. Raises `RowMismatchError`."""
        try:
            tuples = self._shape.tuples_of(rows)
        except MismatchError:
            # This raises the error for the row.
            tuples = list(map(self._tuple, rows))
        try:
            columns = list(zip(*tuples, strict=True))
        except ValueError:
            raise self._wrong_length(tuples) from None
        if len(columns) != len(self._columns):
            raise self._wrong_length(tuples)
        return tuples, columns

    def _batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        _, columns = self.columns(rows)
        arrays = [self.array(index, values, rows) for index, values in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _wrong_length(self, rows: Sequence[tuple[Any, ...]]) -> RowMismatchError:
        wrong = next(row for row in rows if len(row) != len(self._columns))
        return RowMismatchError(
            f"{self._where}a row of {len(wrong)} values was emitted for the {len(self._columns)} columns "
            f"({', '.join(self.schema.names)}): {_shown(wrong)}"
        )

    def _encoded(self, row: Any) -> Any:
        """Convert to a row of the schema. A row of wrong length is returned unchanged, and fails when written."""
        kind = type(row)
        values: Sequence[Any] = row if kind is tuple else self._tuple(row)
        if len(values) != len(self._columns):
            return row
        if self._mutable_columns:
            values = list(values)
            for index in self._mutable_columns:
                values[index] = self._copied(values[index], self._columns[index], row)
            if kind is tuple:
                return tuple(values)
        elif self._shape.is_in_order(kind):
            self.encoder.unchanged.add(kind)
            return row
        return self._new_row(values)

    def _copied(self, value: Any, writer: _ColumnWriter, row: Any) -> Any:
        try:
            return copied(value)
        except TypeError as error:
            raise self._misfit(writer, value, error, row) from error

    def _misfit(self, writer: _ColumnWriter, value: Any, reason: object, row: Any) -> RowMismatchError:
        return RowMismatchError(
            f"{self._where}column {writer.name!r} ({writer.description}) cannot hold {_shown(value)}: {reason}; "
            f"the row: {_shown(row)}"
        )

    def _tuple(self, row: Any) -> tuple[Any, ...]:
        try:
            return self._shape.tuple_of(row)
        except MismatchError as reason:
            raise RowMismatchError(f"{self._where}{reason}; the row: {_shown(row)}") from None

    def array(self, index: int, values: Sequence[Any], rows: Sequence[Any]) -> pa.Array:
        """Convert the values of one column of the rows. Raises `RowMismatchError`, or an error about their size."""
        writer = self._columns[index]
        try:
            return writer.array(values)
        except _OversizeError:
            raise
        except _CONVERSION_ERRORS as error:
            for row, value in zip(rows, values, strict=True):
                reason = writer.rejection(value)
                if reason is not None:
                    raise self._misfit(writer, value, reason, row) from error
            raise RowMismatchError(f"{self._where}column {writer.name!r} ({writer.description}): {error}") from error


class _OversizeError(Exception):
    """The values of one column exceed the limit of an Arrow array."""


class MismatchError(Exception):
    """A value does not fit. The caller adds the column and the row to the message."""


_CONVERSION_ERRORS = (MismatchError, pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError)


def fitted_column(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return a column of this type, with the fields of structs by name. Raises `ValueError` if a value would change."""
    if column.type == data_type:
        return column
    if pa.types.is_struct(data_type) and pa.types.is_struct(column.type):
        names = [field_.name for field_ in data_type]
        if sorted(names) != sorted(field_.name for field_ in column.type):
            raise ValueError(f"a struct of {column.type} has other fields than {data_type}")
        given = dict(zip((field_.name for field_ in column.type), column.flatten(), strict=True))
        parts = [fitted_column(given[field_.name], field_.type) for field_ in data_type]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(data_type), mask=mask)
    return column.cast(data_type)


def _can_change(column_type: pa.DataType) -> bool:
    """Whether values of the column may be mutable, such as a list or a bytearray."""
    return any(applies(column_type) for applies in (pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary))


def _shown(value: Any) -> str:
    return format_value(value, _SHOWN_CHARACTERS)


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


class RecordShape:
    """Converts records of all accepted kinds to tuples in the order of `names`."""

    def __init__(self, names: tuple[str, ...], single_value_allowed: bool) -> None:
        self.names = names
        self._single_value_allowed = single_value_allowed
        self._converters: dict[type, Callable[[Any], tuple[Any, ...]]] = {tuple: tuple}

    def is_in_order(self, kind: type) -> bool:
        """Whether all instances of `kind` are tuples in column order."""
        # A plain Row has its names in the instance, a generated row in its class.
        return kind is tuple or (is_row_class(kind) and getattr(kind, "__fields__", None) == list(self.names))

    def tuples_of(self, records: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
        """Return the records as tuples in column order. Raises `MismatchError`."""
        kinds = set(map(type, records))
        if all(map(self.is_in_order, kinds)):
            return records
        if kinds == {dict} and len(self.names) > 1 and set(map(len, records)) == {len(self.names)}:
            with contextlib.suppress(KeyError):
                return list(map(itemgetter(*self.names), records))
        return list(map(self.tuple_of, records))

    def tuple_of(self, record: Any) -> tuple[Any, ...]:
        converter = self._converters.get(type(record))
        if converter is None:
            converter = self._converters[type(record)] = self._converter(type(record))
        return converter(record)

    def _converter(self, kind: type) -> Callable[[Any], tuple[Any, ...]]:
        if is_row_class(kind):
            return self._from_row
        if issubclass(kind, tuple):
            names = getattr(kind, "_fields", None)
            return tuple if names is None else partial(self._from_names, tuple(names), tuple)
        if issubclass(kind, Mapping):
            return lambda record: self._from_names(tuple(record), lambda mapping: tuple(mapping.values()), record)
        names = field_names(kind)
        if names:
            get = attrgetter(*names)
            return partial(self._from_names, names, get if len(names) > 1 else lambda record: (get(record),))
        if self._single_value_allowed:
            return lambda value: (value,)
        return self._reject

    def _reject(self, value: Any) -> tuple[Any, ...]:
        raise MismatchError(
            f"a value of type {type(value).__name__} is not a row of the columns ({', '.join(self.names)}); emit a "
            f"tuple, a dict, a Row or an attrs instance"
        )

    def _from_row(self, row: Any) -> tuple[Any, ...]:
        names = getattr(row, "__fields__", None)
        return tuple(row) if names is None else self._from_names(tuple(names), tuple, row)

    def _from_names(
        self, names: tuple[str, ...], values_of: Callable[[Any], tuple[Any, ...]], record: Any
    ) -> tuple[Any, ...]:
        if names == self.names:
            return values_of(record)
        missing = [name for name in self.names if name not in names]
        unknown = [name for name in names if name not in self.names]
        if not missing and not unknown and len(names) == len(self.names):
            by_name = dict(zip(names, values_of(record), strict=True))
            return tuple(by_name[name] for name in self.names)
        if self._single_value_allowed:
            return (record,)
        differences = [f"lacks {', '.join(missing)}"] if missing else []
        if unknown:
            which = "which is not a column" if len(unknown) == 1 else "which are not columns"
            differences.append(f"has {', '.join(map(str, unknown))}, {which}")
        raise MismatchError(f"the {type(record).__name__} {' and '.join(differences) or 'names a column twice'}")


_Prepare = Callable[[Any], Any]


class _ColumnWriter:
    """Writes one column: checks and prepares values that Arrow would change silently, then converts them."""

    def __init__(self, field: pa.Field) -> None:
        self.name = field.name
        self._type = field.type
        self.is_nullable = field.nullable
        self._accepts, self._prepare = _rules(field.type)
        self._field = field

    @property
    def description(self) -> str:
        """The type of the column, for messages."""
        return column_type_name(self._field)

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return the values as an array. Raises one of `_CONVERSION_ERRORS`; the message does not contain the value."""
        kinds = set(map(type, values))
        if any(map(_has_plain_form, kinds)):
            values = [_plain(value) for value in values]
            kinds = set(map(type, values))
        for kind in kinds:
            if not (self._accepts(kind) or kind is type(None)):
                raise MismatchError(self._mismatch(kind))
        if self._prepare is not None:
            prepare = self._prepare
            values = [None if value is None else prepare(value) for value in values]
        try:
            array = pa.array(values, self._type, from_pandas=False)
        except pa.ArrowCapacityError as error:
            raise _OversizeError(self._oversize()) from error
        if isinstance(array, pa.ChunkedArray):
            raise _OversizeError(self._oversize())
        if array.null_count and not self.is_nullable:
            raise MismatchError("it is None, and the column is not nullable")
        return array

    def _mismatch(self, kind: type) -> str:
        if kind is int and pa.types.is_timestamp(self._type):
            # Timers, windows and timestamps of records are in milliseconds.
            return "it is an int; if it is milliseconds, emit datetime.fromtimestamp(milliseconds / 1000, timezone.utc)"
        return f"it is {'an' if kind is int else 'a'} {kind.__name__}"

    def _oversize(self) -> str:
        return f"column {self.name!r} ({self.description}): the values of one batch are larger than 2 GiB"

    def rejection(self, value: Any) -> object | None:
        """Return why this value does not fit, or None."""
        try:
            self.array([value])
        except MismatchError as reason:
            return reason
        except _CONVERSION_ERRORS as reason:
            return _unfit(self._type, _plain(value), "") or reason
        return None


def _unfit(column_type: pa.DataType, value: Any, path: str) -> str | None:
    """Return why a value of an accepted class does not fit a type, or None. Arrow's own messages contain no limits."""
    if value is None:
        return None
    if pa.types.is_list(column_type) or pa.types.is_large_list(column_type):
        parts = [(column_type.value_type, item, f"{path}[{index}]") for index, item in enumerate(value)]
    elif pa.types.is_map(column_type):
        keys = [(column_type.key_type, key, f"{path}{{key}}") for key in value]
        parts = [*keys, *((column_type.item_type, item, f"{path}[{key!r}]") for key, item in value.items())]
    elif pa.types.is_struct(column_type):
        shape = RecordShape(tuple(field.name for field in column_type), single_value_allowed=False)
        values = zip(column_type, shape.tuple_of(value), strict=True)
        parts = [(field.type, item, f"{path}.{field.name}") for field, item in values]
    else:
        limit = next((limit(column_type, value) for applies, limit in _LIMITS if applies(column_type)), None)
        return None if limit is None else f"{path or 'it'} is {limit}"
    return next(filter(None, (_unfit(kind, _plain(item), place) for kind, item, place in parts)), None)


def _beyond_integer(column_type: pa.DataType, value: int) -> str | None:
    bits = column_type.bit_width - 1
    low, high = -(1 << bits), (1 << bits) - 1
    return None if low <= value <= high else f"outside of {low} to {high}"


def _beyond_float(column_type: pa.DataType, value: float) -> str | None:
    try:
        struct.pack({16: "<e", 32: "<f"}.get(column_type.bit_width, "<d"), float(value))
        # Arrow accepts whole numbers that have an exact float.
        return None if int(float(value)) == value else "an int without an exact float; emit float(value)"
    except OverflowError:
        return f"too large for a float of {column_type.bit_width} bits"
    except ValueError:
        return None


def _beyond_decimal(column_type: pa.Decimal128Type, value: decimal.Decimal | int) -> str | None:
    number = decimal.Decimal(value)
    if not number.is_finite():
        return "not finite"
    places = -int(number.normalize().as_tuple().exponent)
    if places > column_type.scale:
        return f"a number with {places} decimal places, and the column has {column_type.scale}; round it before"
    whole = column_type.precision - column_type.scale
    return f"a number with more than {whole} digits before the point" if number.adjusted() >= whole else None


def _beyond_text(column_type: pa.DataType, value: str) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"text with a lone surrogate at position {error.start}, which UTF-8 cannot hold"
    return None


_LIMITS: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[Any, Any], str | None]]]] = [
    (pa.types.is_integer, _beyond_integer),
    (pa.types.is_floating, _beyond_float),
    (pa.types.is_decimal, _beyond_decimal),
    (pa.types.is_string, _beyond_text),
]
"""The limits of types, for values that Arrow rejects."""


def _kinds(*accepted: type, but_not: tuple[type, ...] = ()) -> Callable[[type], bool]:
    return lambda kind: issubclass(kind, accepted) and not issubclass(kind, but_not)


def _has_plain_form(kind: type) -> bool:
    return kind.__module__ == "numpy" or issubclass(kind, enum.Enum)


def _plain(value: Any) -> Any:
    """Convert numpy scalars and enums to Python values. Arrow would truncate a numpy 1.5 to 1 in an integer column."""
    if not _has_plain_form(type(value)):
        return value
    return constant_value(value) if isinstance(value, enum.Enum) else value.tolist()


_Rules = tuple[Callable[[type], bool], _Prepare | None]


def _anything(kind: type) -> bool:
    return True


@lru_cache(maxsize=1024)
def _rules(column_type: pa.DataType) -> _Rules:
    for applies, make in _WRITER_RULES:
        if applies(column_type):
            return make(column_type)
    return _anything, None


def _timestamp_rules(column_type: pa.TimestampType) -> _Rules:
    accepts = _kinds(datetime.datetime)
    if column_type.tz is None:
        return accepts, _without_a_zone
    zone = time_zone_named(column_type.tz)

    def prepare(value: datetime.datetime) -> datetime.datetime:
        value = plain_datetime(value)
        return value if value.tzinfo is not None else value.replace(tzinfo=zone)

    return accepts, prepare


def _duration_rules(column_type: pa.DataType) -> _Rules:
    return _kinds(datetime.timedelta), plain_timedelta


def _narrow_float_rules(column_type: pa.DataType) -> _Rules:
    pack = struct.Struct("<e" if column_type.bit_width == 16 else "<f").pack

    def prepare(value: float) -> float:
        # Raises `OverflowError` for a number that Arrow would convert to infinity.
        pack(value)
        return value

    return _kinds(float, int, but_not=(bool,)), prepare


def _without_a_zone(value: datetime.datetime) -> datetime.datetime:
    if value.tzinfo is not None:
        raise MismatchError("it has a time zone, which the column does not have; emit it with replace(tzinfo=None)")
    return plain_datetime(value)


def _checked(field: pa.Field) -> _Prepare:
    """Return a function that checks and prepares a nested value, as `_ColumnWriter` does per column."""
    accepts, prepare = _rules(field.type)

    def check(value: Any) -> Any:
        if value is None:
            if not field.nullable:
                raise MismatchError(f"{field.name} is None, and not nullable")
            return None
        value = _plain(value)
        if not accepts(type(value)):
            raise MismatchError(f"{field.name} is a {type(value).__name__}: {_shown(value)}")
        return value if prepare is None else prepare(value)

    return check


def _struct_rules(column_type: pa.StructType) -> _Rules:
    shape = RecordShape(tuple(field.name for field in column_type), single_value_allowed=False)
    checks = [_checked(field) for field in column_type]

    def prepare(value: Any) -> tuple[Any, ...]:
        values = shape.tuple_of(value)
        if len(values) != len(checks):
            raise MismatchError(
                f"{len(values)} values for the {len(checks)} fields of {column_type_name(pa.field('', column_type))}"
            )
        return tuple(check(part) for check, part in zip(checks, values, strict=True))

    return _anything, prepare


def _list_rules(column_type: pa.ListType) -> _Rules:
    check = _checked(column_type.value_field)
    return _kinds(list, tuple), lambda value: [check(item) for item in value]


def _map_rules(column_type: pa.MapType) -> _Rules:
    check_key = _checked(column_type.key_field)
    check_item = _checked(column_type.item_field)
    return _kinds(Mapping), lambda value: [(check_key(key), check_item(item)) for key, item in value.items()]


def _fixed_rules(*accepted: type, but_not: tuple[type, ...] = ()) -> Callable[[Any], _Rules]:
    return lambda column_type: (_kinds(*accepted, but_not=but_not), None)


_WRITER_RULES: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], _Rules]]] = [
    (pa.types.is_integer, _fixed_rules(int, but_not=(bool,))),
    (pa.types.is_float16, _narrow_float_rules),
    (pa.types.is_float32, _narrow_float_rules),
    (pa.types.is_floating, _fixed_rules(float, int, but_not=(bool,))),
    (pa.types.is_boolean, _fixed_rules(bool)),
    (pa.types.is_string, _fixed_rules(str)),
    (pa.types.is_large_string, _fixed_rules(str)),
    (pa.types.is_binary, _fixed_rules(bytes, bytearray)),
    (pa.types.is_large_binary, _fixed_rules(bytes, bytearray)),
    (pa.types.is_decimal, _fixed_rules(decimal.Decimal, int, but_not=(bool,))),
    (pa.types.is_date, _fixed_rules(datetime.date, but_not=(datetime.datetime,))),
    (pa.types.is_timestamp, _timestamp_rules),
    (pa.types.is_time, _fixed_rules(datetime.time)),
    (pa.types.is_duration, _duration_rules),
    (pa.types.is_struct, _struct_rules),
    (pa.types.is_map, _map_rules),
    (pa.types.is_list, _list_rules),
    (pa.types.is_large_list, _list_rules),
    (pa.types.is_null, _fixed_rules(type(None))),
]
