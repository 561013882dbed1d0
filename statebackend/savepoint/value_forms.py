"""Values by serializer family: one table of how each is a column, compared, made of a column again, and named.

| Stored | Arrow |
|---|---|
| booleans, numbers by width, text, bytes | bool, int8 to int64, float, double, string, binary |
| unbounded int, `decimal.Decimal` | decimal128(38, 0), decimal128(38, 18) |
| date, time, timedelta | date32, time64[us], duration[us] |
| datetime | timestamp[us, UTC]; without a time zone it is taken as UTC |
| Flink's local date, time, date-time | date32, time64[ns], timestamp[us] |
| Flink's instant and SQL timestamp; Java's `Date` | timestamp[us, UTC]; timestamp[ms, UTC] |
| SQL date and time | date32, time32[ms], of the stored instant in UTC |
| enumerations, UUIDs | string |
| records that operators of Flink store | struct of the value, and its timestamp or whether it was joined |
| values of Flink SQL | as the same types above; decimals with their precision and scale |
| records, POJOs without subclasses, rows, tuples | struct by field or column; unnamed fields are `f0`, `f1`, ... |
| lists, sets (sorted), arrays; maps | list; map |
| optional values | the same, nullable |
| either | struct of `left` and `right`, one of them null |
| time windows; global windows, types without fields | struct of `start` and `end`; bool, always true |
| Arrow structs and record batches | the struct; a list of it |
| values with time-to-live, timers | struct by field |
| unions, POJOs with subclasses, recursive types, Avro, pickles, foreign serializers | string: JSON of `plain_value` |
| serializers that cannot be restored here | binary: the stored bytes of the whole key or value |

Reads and writes of every tool use this table (`FAMILIES`):

- *Columns* (`ColumnForms`). A value that its Arrow type cannot hold raises `ColumnValueError` and is never rounded,
  truncated or nulled. ``decimal_scale`` sets the fractional digits of decimals. With ``as_text``, decimals, unbounded
  ints and Java's times become text, and lone surrogates are escaped. `notes` describes substitutes. A struct is built
  from one array per field, never from a dict per record.
- *Conditions* (`stored_type`): the type that parses the literal of a condition
  (`statebackend.savepoint.conditions`).
- *Values of columns* (`stored_values`). A type that is JSON in a column is rejected by name. A timestamp comes back in
  UTC, because Arrow does not keep the zone of each value. A decimal comes back as the same number with the 18
  fractional digits of its column.
- *Names* (`type_name`): the Python name, with the width of numbers.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
from attrs import evolve, field, frozen

import typeserializers as ts
from snapshots.errors import format_value
from statebackend.savepoint import conditions
from statebackend.savepoint.conditions import AnyType, ListType, MapType, RecordType, StoredType, UnionType
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.foreign import flink_records, flink_tables
from statebackend.savepoint.plain_values import digits, plain_value
from typeserializers.avro import NamedSchemas, type_of
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import is_plain_text
from typeserializers.records.column_names import displayed_names

__all__ = [
    "FAMILIES",
    "ColumnForm",
    "ColumnForms",
    "ListForm",
    "MapForm",
    "ScalarForm",
    "StructForm",
    "from_arrow_value",
    "stored_type",
    "stored_values",
    "type_name",
]


Convert = Callable[[Any], Any]


class ColumnForm(Protocol):
    """The Arrow representation of the values of one type."""

    @property
    def data_type(self) -> pa.DataType:
        """The type of the arrays."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return one array of the values.

        Raises:
            ColumnValueError: A value does not fit.
        """

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        """Return the paths of substitutes, each beginning with ``path``, with their descriptions."""


@frozen
class ScalarForm:
    """Values that Arrow accepts as they are, or after ``convert``, which may raise."""

    data_type: pa.DataType
    convert: Convert | None = None
    note: str | None = None
    fix: str = ""
    """How to fix a value that does not fit, for the error."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        try:
            return self._array(values)
        except (pa.ArrowException, OverflowError, ValueError, TypeError, UnicodeError) as error:
            raise self._misfit(values, error) from error

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        if self.note is not None:
            yield path, self.note

    def _array(self, values: Sequence[Any]) -> pa.Array:
        convert = self.convert
        taken = values if convert is None else [None if value is None else convert(value) for value in values]
        made = pa.array(taken, self.data_type)
        if isinstance(made, pa.ChunkedArray):
            raise OverflowError("the values of one batch are more than 2 GiB; ask for smaller batches")
        return made

    def _misfit(self, values: Sequence[Any], error: Exception) -> ColumnValueError:
        culprit, reason = next(filter(None, map(self._misfit_of, values)), ("a value", error))
        fix = f"; {self.fix}" if self.fix else ""
        return ColumnValueError(f"{culprit} does not fit a column of type {self.data_type}: {reason}{fix}")

    def _misfit_of(self, value: Any) -> tuple[str, Exception] | None:
        try:
            self._array([value])
        except (pa.ArrowException, OverflowError, ValueError, TypeError, UnicodeError) as error:
            return format_value(value), error
        return None


@frozen
class StructForm:
    """Records by field. ``parts`` holds the name, the getter and the form of each field."""

    parts: tuple[tuple[str, Convert, ColumnForm], ...]
    data_type: pa.DataType = field(init=False)

    @data_type.default
    def _type(self) -> pa.DataType:
        return pa.struct([pa.field(name, form.data_type) for name, _, form in self.parts])

    def array(self, values: Sequence[Any]) -> pa.Array:
        mask = _mask(values)
        if mask is None:
            children = [form.array(list(map(get, values))) for _, get, form in self.parts]
        else:
            children = [
                form.array([None if value is None else get(value) for value in values]) for _, get, form in self.parts
            ]
        return pa.StructArray.from_arrays(children, fields=list(self.data_type), mask=mask)

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        for name, _, form in self.parts:
            yield from form.notes(f"{path}.{name}")


@frozen
class ListForm:
    """Lists, sets, arrays and other collections in their order; sets are sorted if possible."""

    element: ColumnForm
    of_value: Callable[[Any], Sequence[Any]] | None = None
    data_type: pa.DataType = field(init=False)

    @data_type.default
    def _type(self) -> pa.DataType:
        return pa.list_(pa.field("element", self.element.data_type))

    def array(self, values: Sequence[Any]) -> pa.Array:
        mask = _mask(values)
        lists: Sequence[Sequence[Any]] = [() if value is None else value for value in values]
        if self.of_value is not None:
            lists = list(map(self.of_value, lists))
        elements = self.element.array(list(chain.from_iterable(lists)))
        return pa.ListArray.from_arrays(_offsets(lists), elements, type=self.data_type, mask=mask)

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        yield from self.element.notes(f"{path}[]")


@frozen
class MapForm:
    """Maps in their order."""

    key: ColumnForm
    value: ColumnForm
    data_type: pa.DataType = field(init=False)

    @data_type.default
    def _type(self) -> pa.DataType:
        return pa.map_(self.key.data_type, pa.field("value", self.value.data_type))

    def array(self, values: Sequence[Any]) -> pa.Array:
        mask = _mask(values)
        maps = [{} if value is None else value for value in values]
        keys = self.key.array(list(chain.from_iterable(maps)))
        if keys.null_count:
            raise ColumnValueError("a map with the key None does not fit a column of maps")
        items = self.value.array(list(chain.from_iterable(one.values() for one in maps)))
        return pa.MapArray.from_arrays(_offsets(maps), keys, items, type=self.data_type, mask=mask)

    def notes(self, path: str) -> Iterator[tuple[str, str]]:
        yield from self.key.notes(f"{path}{{key}}")
        yield from self.value.notes(f"{path}{{value}}")


def json_text(value: Any) -> str:
    """Return a value as one line of JSON, converted by `plain_value`."""
    plain = plain_value(value)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
    # A lone surrogate has an escape in JSON, but no UTF-8 form.
    return text if is_plain_text(text) else json.dumps(plain, allow_nan=False)


def sorted_elements(values: Iterable[Any]) -> Sequence[Any]:
    """Sort the elements of a set, whose own order differs between processes."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _mask(values: Sequence[Any]) -> pa.Array | None:
    return pa.array([value is None for value in values], pa.bool_()) if None in values else None


def _offsets(values: Sequence[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, values), initial=0), pa.int32())


MakeForm: TypeAlias = "Callable[[Any, ColumnForms], ColumnForm]"
"""From a serializer, and the forms of its parts, to the form of its values."""

Back: TypeAlias = "Callable[[Any, str], Convert | None]"
"""From a serializer, and the name of a column, to the function from Arrow's Python value to the state value."""


@frozen
class ColumnForms:
    """Chooses the form of each serializer. ``added`` forms take precedence, by exact serializer class.

    ``decimal_scale`` is the number of digits after the point of decimal columns, which have 38 digits in all.
    """

    added: Mapping[type[TypeSerializer[Any]], MakeForm] = field(factory=dict)
    as_text: bool = False
    decimal_scale: int = 18

    def of(self, serializer: TypeSerializer[Any]) -> ColumnForm:
        """Return the form for a serializer. Every serializer has one."""
        make = self.added.get(type(serializer))
        return make(serializer, self) if make is not None else _family_of(serializer).column(serializer, self)

    @property
    def text(self) -> ColumnForm:
        return _ESCAPED_TEXT if self.as_text else _TEXT


# Columns by family.


def _column(type_: pa.DataType, convert: Convert | None = None) -> MakeForm:
    form = ScalarForm(type_, convert)
    return lambda serializer, forms: form


def _json(reason: str) -> MakeForm:
    form = ScalarForm(pa.string(), json_text, f"text in JSON: {reason}")
    return lambda serializer, forms: form


def _decimal(number: int) -> decimal.Decimal:
    if number.bit_length() > _MOST_DECIMAL_BITS:
        # Its digits take quadratic time to compute, and do not fit in any case.
        raise OverflowError(f"it has {number.bit_length():,} bits")
    return decimal.Decimal(number)


_MOST_DECIMAL_BITS: Final = 1 << 16


def _bounded(type_: pa.DataType, convert: Convert | None, text: Callable[[Any], str]) -> MakeForm:
    """Make the form of a type that does not hold every value, or text with ``as_text``."""

    def make(serializer: Any, forms: ColumnForms) -> ColumnForm:
        if forms.as_text:
            return ScalarForm(pa.string(), text, _AS_TEXT)
        return ScalarForm(type_, convert, fix=_FIX)

    return make


def _decimal_column(serializer: Any, forms: ColumnForms) -> ColumnForm:
    fix = f"ask for another number of digits after the point than {forms.decimal_scale}, as decimal_scale=30; or {_FIX}"
    type_ = pa.decimal128(38, forms.decimal_scale)
    return ScalarForm(pa.string(), str, _AS_TEXT) if forms.as_text else ScalarForm(type_, fix=fix)


def _list_column(part: str, of_value: Callable[[Any], Any] | None = None) -> MakeForm:
    return lambda serializer, forms: ListForm(forms.of(getattr(serializer, part)), of_value)


def _struct(parts: Iterable[tuple[str, Convert, ColumnForm]]) -> ColumnForm:
    named = tuple(parts)
    return StructForm(named) if named else _NOTHING


def _attributes(*parts: tuple[str, str, str | None]) -> MakeForm:
    """Make a struct of attributes: column name, attribute, and the serializer's attribute, or None for an int64."""
    return lambda serializer, forms: _struct(
        (name, attrgetter(attribute), ScalarForm(pa.int64()) if part is None else forms.of(getattr(serializer, part)))
        for name, attribute, part in parts
    )


def _record_column(serializer: Any, forms: ColumnForms) -> ColumnForm:
    parts = zip(_displayed(serializer), serializer.fields, strict=True)
    return _struct((name, attrgetter(part.name), forms.of(part.serializer)) for name, part in parts)


def _displayed(serializer: Any) -> tuple[str, ...]:
    return displayed_names([part.name for part in serializer.fields])


def _pojo_column(serializer: ts.PojoSerializer[Any], forms: ColumnForms) -> ColumnForm:
    if serializer.registered_subclasses or serializer.unregistered_subclasses:
        return _json(f"values of {serializer.type_name} may be of its subclasses")(serializer, forms)
    return _record_column(serializer, forms)


def _tuple_column(serializer: Any, forms: ColumnForms) -> ColumnForm:
    parts = enumerate(_positional(serializer))
    return _struct((name, itemgetter(index), forms.of(part)) for index, (name, part) in parts)


def _positional(serializer: Any) -> Iterator[tuple[str, TypeSerializer[Any]]]:
    """Yield the fields of a tuple or row. Unnamed fields are `f0`, `f1`, ..."""
    fields = serializer.field_serializers
    names = getattr(serializer, "field_names", None) or [f"f{index}" for index in range(len(fields))]
    return zip(names, fields, strict=True)


def _either_column(serializer: ts.EitherSerializer[Any, Any], forms: ColumnForms) -> ColumnForm:
    return StructForm(
        (
            ("left", lambda one: one.value if isinstance(one, ts.Left) else None, forms.of(serializer.left_serializer)),
            (
                "right",
                lambda one: one.value if isinstance(one, ts.Right) else None,
                forms.of(serializer.right_serializer),
            ),
        )
    )


def _same_column(part: str) -> MakeForm:
    return lambda serializer, forms: forms.of(getattr(serializer, part))


def _nothing(serializer: Any, forms: ColumnForms) -> ColumnForm:
    return _NOTHING


def _nanoseconds(value: Any) -> int:
    return int(((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000_000 + value.nano)


def _in_utc(value: datetime.datetime) -> datetime.datetime:
    return value.replace(tzinfo=datetime.timezone.utc) if value.tzinfo is None else value


def _escaped(text: str) -> str:
    return text if is_plain_text(text) else text.encode("utf-8", "backslashreplace").decode()


_AS_TEXT: Final = "text, as requested: no type holds every value"
_FIX: Final = "ask for such values as text: as_text=True, or --as-text for export"
_DAY_MS: Final = 86_400_000
_UTC: Final = "UTC"
_TEXT: Final = ScalarForm(pa.string(), fix=_FIX)
_ESCAPED_TEXT: Final = ScalarForm(pa.string(), _escaped)
_NOTHING: Final = ScalarForm(pa.bool_(), lambda value: True, "true: there is nothing in it")


# Types of conditions by family.


def stored_type(serializer: TypeSerializer[Any]) -> StoredType:
    """Return the type of a serializer's values in conditions."""
    return _family_of(serializer).condition(serializer)


def _any_type(serializer: TypeSerializer[Any]) -> StoredType:
    return AnyType(type(serializer).__name__)


def _always(stored: StoredType) -> Callable[[Any], StoredType]:
    return lambda serializer: stored


def _inside(part: str) -> Callable[[Any], StoredType]:
    return lambda serializer: stored_type(getattr(serializer, part))


def _record_type(serializer: Any) -> StoredType:
    fields = zip(_displayed(serializer), serializer.fields, strict=True)
    parts = {name: partial(stored_type, part.serializer) for name, part in fields}
    return RecordType(serializer.type_name, parts, conditions.of_class(serializer.python_type))


def _pojo_type(serializer: ts.PojoSerializer[Any]) -> StoredType:
    subclasses = (*serializer.registered_subclasses, *serializer.unregistered_subclasses)
    own = _record_type(serializer)
    return own if not subclasses else UnionType((*map(_record_type, subclasses), own))


def _positional_type(name: str, value_class: type) -> Callable[[Any], StoredType]:
    return lambda serializer: RecordType(
        name,
        {part: partial(stored_type, one) for part, one in _positional(serializer)},
        conditions.of_class(value_class),
    )


def _enum_type(serializer: ts.EnumSerializer[Any]) -> StoredType:
    known = serializer.python_type.__members__
    members = {name: known[name].name for name in known}
    of_enum = conditions.of_class(enum.Enum)
    return conditions.constants(serializer.type_name, members, of_enum, lambda value: str(value.name))


def _either_type(serializer: ts.EitherSerializer[Any, Any]) -> StoredType:
    def value() -> StoredType:
        return UnionType((stored_type(serializer.left_serializer), stored_type(serializer.right_serializer)))

    return RecordType("either", {"value": value}, lambda one: True)


def _list_type(part: str, *, is_set: bool = False) -> Callable[[Any], StoredType]:
    return lambda serializer: ListType(
        "set" if is_set else "list", partial(stored_type, getattr(serializer, part)), is_set
    )


def _avro(schema: Any, named: NamedSchemas) -> StoredType:
    found = named.resolved(schema)
    kind = type_of(found)
    details: Mapping[str, Any] = found if isinstance(found, dict) else {}
    logical = _AVRO_LOGICAL.get(str(details.get("logicalType")))
    if logical is not None:
        return logical
    if kind == "union":
        return UnionType(tuple(_avro(branch, named) for branch in found))
    if kind in ("record", "error"):
        parts = {one["name"]: partial(_avro, one["type"], named) for one in details["fields"]}
        return RecordType(details["name"], parts, lambda value: isinstance(value, Mapping) and set(value) == set(parts))
    if kind == "enum":
        members = {name: name for name in details["symbols"]}
        return conditions.constants(details["name"], members, conditions.of_class(str), str)
    if kind == "array":
        return ListType("array", partial(_avro, details["items"], named))
    if kind == "map":
        return MapType("map", lambda: conditions.TEXT, partial(_avro, details["values"], named))
    return _AVRO_PRIMITIVES.get(kind, AnyType(kind))


_AVRO_PRIMITIVES: Final[Mapping[str, StoredType]] = {
    "null": conditions.NULL,
    "boolean": conditions.BOOL,
    "int": conditions.LONG,
    "long": conditions.LONG,
    "float": conditions.SINGLE,
    "double": conditions.DOUBLE,
    "bytes": conditions.BYTES,
    "fixed": conditions.BYTES,
    "string": conditions.TEXT,
}

_AVRO_LOGICAL: Final[Mapping[str, StoredType]] = {
    "decimal": conditions.DECIMAL,
    "uuid": conditions.UUID,
    "date": conditions.DATE,
    **dict.fromkeys(("time-millis", "time-micros"), conditions.TIME),
    **dict.fromkeys(
        ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros"), conditions.MOMENT
    ),
}


def _arrow(data_type: pa.DataType) -> StoredType:
    if pa.types.is_struct(data_type):
        parts = {part.name: partial(_arrow, part.type) for part in data_type}
        return RecordType("struct", parts, conditions.of_class(Mapping))
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type) or pa.types.is_fixed_size_list(data_type):
        return ListType("list", partial(_arrow, data_type.value_type))
    return next((stored for is_of, stored in _ARROW if is_of(data_type)), AnyType(str(data_type)))


_ARROW: Final[Sequence[tuple[Callable[[pa.DataType], bool], StoredType]]] = (
    (pa.types.is_boolean, conditions.BOOL),
    (pa.types.is_integer, conditions.LONG),
    (pa.types.is_float32, conditions.SINGLE),
    (pa.types.is_floating, conditions.DOUBLE),
    (pa.types.is_decimal, conditions.DECIMAL),
    (pa.types.is_string, conditions.TEXT),
    (pa.types.is_large_string, conditions.TEXT),
    (pa.types.is_binary, conditions.BYTES),
    (pa.types.is_large_binary, conditions.BYTES),
    (pa.types.is_fixed_size_binary, conditions.BYTES),
    (pa.types.is_date, conditions.DATE),
    (pa.types.is_time, conditions.TIME),
    (pa.types.is_timestamp, conditions.MOMENT),
    (pa.types.is_duration, conditions.DURATION),
    (pa.types.is_null, conditions.NULL),
)

# Values of columns by family.


def _as_it_is(serializer: Any, what: str) -> None:
    return None


def _by(convert: Convert) -> Back:
    return lambda serializer, what: convert


def stored_values(serializer: TypeSerializer[Any], column: pa.Array, what: str) -> list[Any]:
    """Return the values of a column as the serializer writes them. ``what`` names the column in errors.

    Raises:
        ColumnValueError: The type cannot be converted back, or a value does not fit.
    """
    convert = from_arrow_value(serializer, what)
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise ColumnValueError(
            f"{what}: the column of type {column.type} has a value for which Python has none: {error}"
        ) from error
    if convert is None:
        return values
    return [_converted(convert, value, what) for value in values]


def from_arrow_value(serializer: TypeSerializer[Any], what: str) -> Convert | None:
    """Return the function from Arrow's Python value to the state value, None for identity.

    Raises:
        ColumnValueError: The column does not hold the complete value.
    """
    back = _family_of(serializer).back
    if back is None:
        raise ColumnValueError(
            f"{what}: values of the type {type_name(serializer)} cannot be made of a column. Write them as Python "
            f"objects: as a list in a batch function, with statebackend.savepoint.rewrite in a savepoint"
        )
    return back(serializer, what)


def _converted(convert: Convert, value: Any, what: str) -> Any:
    try:
        return None if value is None else convert(value)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise ColumnValueError(f"{what}: {format_value(value)} does not fit: {error}") from error


def _part(serializer: TypeSerializer[Any], what: str) -> Convert:
    """As `from_arrow_value`, for a nullable part."""
    convert = from_arrow_value(serializer, what)
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _record_back(serializer: ts.AttrsSerializer[Any], what: str) -> Convert:
    fields = zip(_displayed(serializer), serializer.fields, strict=True)
    parts = [(name, _part(part.serializer, f"{what}.{name}")) for name, part in fields]
    record_of = serializer.shape.record_of
    names = frozenset(name for name, _ in parts)

    def make(value: Mapping[str, Any]) -> Any:
        if not names.issuperset(value):
            raise ValueError(f"{serializer.type_name} has no field {', '.join(sorted(set(value) - names))}")
        return record_of([convert(value[name]) for name, convert in parts])

    return make


def _tuple_back(serializer: ts.TupleSerializer, what: str) -> Convert:
    parts = [_part(part, f"{what}.f{index}") for index, part in enumerate(serializer.field_serializers)]
    # By position: a frame may name the columns of a key as it likes.
    return lambda value: tuple(convert(part) for convert, part in zip(parts, value.values(), strict=True))


def _list_back(make: Convert, part: str) -> Back:
    def back(serializer: Any, what: str) -> Convert:
        convert = from_arrow_value(getattr(serializer, part), f"{what}[]")
        if convert is None:
            return make
        return lambda value: make([None if one is None else convert(one) for one in value])

    return back


def _map_back(serializer: ts.MapSerializer[Any, Any], what: str) -> Convert:
    key, value_of = _part(serializer.key_serializer, f"{what}{{key}}"), _part(serializer.value_serializer, what)
    return lambda value: {key(one): value_of(other) for one, other in value}


def _inner_back(serializer: Any, what: str) -> Convert | None:
    return from_arrow_value(serializer.inner, what)


def _whole_number(value: Any) -> int:
    number = int(value)
    # Columns that were read as text have the digits as text.
    if number != value and not isinstance(value, str):
        raise ValueError("it is not a whole number")
    return number


def _decimal_back(value: Any) -> decimal.Decimal:
    # Text, as of columns that were read as text, has every digit.
    if not isinstance(value, decimal.Decimal | str):
        raise TypeError("it is not a decimal; cast it to decimal or string")
    return decimal.Decimal(value)


def _enum_back(serializer: ts.EnumSerializer[Any], what: str) -> Convert:
    constants: Any = serializer.python_type
    return lambda value: constants[value]


def _moment_back(value: datetime.datetime) -> datetime.datetime:
    # A datetime without a zone is UTC, as in the columns that a state is read as.
    is_naive = value.tzinfo is None
    return value.replace(tzinfo=datetime.timezone.utc) if is_naive else value.astimezone(datetime.timezone.utc)


# Names by family.


def type_name(serializer: TypeSerializer[Any]) -> str:
    """Return the name of a type in descriptions."""
    name = _family_of(serializer).name
    return serializer.type_name if name is None else name(serializer)


def _named(name: str) -> Callable[[Any], str]:
    return lambda serializer: name


def _around(before: str, part: str, after: str) -> Callable[[Any], str]:
    """Format a type that contains one other type."""
    return lambda serializer: f"{before}{type_name(getattr(serializer, part))}{after}"


def _timer_name(timer: ts.TimerSerializer[Any, Any]) -> str:
    has_namespaces = not isinstance(timer.namespace_serializer, ts.VoidNamespaceSerializer)
    parts = (timer.key_serializer, timer.namespace_serializer) if has_namespaces else (timer.key_serializer,)
    return f"timer of {_joined(parts, ' in ')}"


def _joined(parts: Iterable[TypeSerializer[Any]], between: str) -> str:
    return between.join(map(type_name, parts))


def _row_name(serializer: ts.RowSerializer) -> str:
    fields = serializer.field_serializers
    names = serializer.field_names or [str(index) for index in range(len(fields))]
    return f"Row[{', '.join(f'{name}: {type_name(part)}' for name, part in zip(names, fields, strict=True))}]"


# The table.


@frozen
class Family:
    """How the values of one serializer class are a column, a condition's type, made of a column again, and named.

    Attributes:
        column: Makes the form of the column.
        condition: Makes the type of conditions.
        back: Makes the function from a column's value to a state value; None if a column does not hold the value.
        name: Returns the name; None for the serializer's own.
    """

    column: MakeForm
    condition: Callable[[Any], StoredType] = _any_type
    back: Back | None = None
    name: Callable[[Any], str] | None = None


def _family_of(serializer: TypeSerializer[Any]) -> Family:
    known = FAMILIES.get(type(serializer))
    if known is not None:
        return known
    if isinstance(serializer, flink_tables.ReadOnlySerializer):
        return FAMILIES[serializer.shown_as]
    return Family(_json(f"{type(serializer).__name__} is not of this library, and no form was given for it"))


def _scalars(
    plain: type, value_class: type, data_type: pa.DataType, condition: StoredType, name: str | None = None
) -> Mapping[type, Family]:
    """Return the families of a type with a fixed width, and of Flink's mutable class for it."""
    family = Family(_column(data_type), _always(condition), _as_it_is, None if name is None else _named(name))
    return {plain: family, value_class: evolve(family, back=None)}


def _array(element: pa.DataType, condition: StoredType, name: str) -> Family:
    form = ListForm(ScalarForm(element))
    return Family(
        lambda serializer, forms: form, _always(ListType("list", lambda: condition)), name=_named(f"array[{name}]")
    )


def _java_time(column: MakeForm, condition: StoredType) -> Family:
    return Family(column, _always(condition))


def _recorded(name: str, type_: pa.DataType) -> Family:
    """Return the family of a value in a record of Flink with something about it."""
    return Family(
        lambda serializer, forms: _struct(
            (
                ("value", itemgetter(0), forms.of(serializer.value_serializers[0])),
                (name, itemgetter(1), ScalarForm(type_)),
            )
        ),
        name=lambda serializer: f"record of {type_name(serializer.value_serializers[0])}",
    )


_TEXTS: Final = Family(lambda serializer, forms: forms.text, _always(conditions.TEXT))
_LISTS: Final = Family(
    _list_column("element_serializer"),
    _list_type("element_serializer"),
    _list_back(list, "element_serializer"),
    _around("list[", "element_serializer", "]"),
)
_TO_DATETIME: Final = methodcaller("to_datetime")

FAMILIES: Final[Mapping[type, Family]] = {
    **_scalars(ts.BooleanSerializer, ts.BooleanValueSerializer, pa.bool_(), conditions.BOOL),
    **_scalars(ts.ByteSerializer, ts.ByteValueSerializer, pa.int8(), conditions.LONG, "int8"),
    **_scalars(ts.ShortSerializer, ts.ShortValueSerializer, pa.int16(), conditions.LONG, "int16"),
    **_scalars(ts.IntSerializer, ts.IntValueSerializer, pa.int32(), conditions.LONG, "int32"),
    **_scalars(ts.LongSerializer, ts.LongValueSerializer, pa.int64(), conditions.LONG, "int64"),
    **_scalars(ts.FloatSerializer, ts.FloatValueSerializer, pa.float32(), conditions.SINGLE, "float32"),
    **_scalars(ts.DoubleSerializer, ts.DoubleValueSerializer, pa.float64(), conditions.DOUBLE, "float64"),
    **_scalars(ts.VoidSerializer, ts.NullValueSerializer, pa.null(), conditions.NULL),
    ts.StringSerializer: evolve(_TEXTS, back=_as_it_is),
    **dict.fromkeys(
        (ts.StringValueSerializer, ts.CharSerializer, ts.CharValueSerializer, ts.CharPrimitiveArraySerializer), _TEXTS
    ),
    ts.BytesSerializer: Family(_column(pa.binary()), _always(conditions.BYTES), _as_it_is),
    ts.BigIntSerializer: Family(
        _bounded(pa.decimal128(38, 0), _decimal, digits), _always(conditions.LONG), _by(_whole_number)
    ),
    ts.BigDecSerializer: Family(_decimal_column, _always(conditions.DECIMAL), _by(_decimal_back)),
    ts.EnumSerializer: Family(_column(pa.string(), attrgetter("name")), _enum_type, _enum_back),
    ts.UuidSerializer: Family(_column(pa.string(), str), _always(conditions.UUID), _by(uuid.UUID)),
    ts.PythonDateSerializer: Family(_column(pa.date32()), _always(conditions.DATE), _as_it_is),
    ts.PythonTimeSerializer: Family(_column(pa.time64("us")), _always(conditions.TIME), _as_it_is),
    ts.PythonDateTimeSerializer: Family(
        _column(pa.timestamp("us", _UTC), _in_utc), _always(conditions.MOMENT), _by(_moment_back)
    ),
    ts.TimedeltaSerializer: Family(_bounded(pa.duration("us"), None, str), _always(conditions.DURATION), _as_it_is),
    ts.LocalDateSerializer: _java_time(
        _bounded(pa.date32(), methodcaller("to_date"), json_text), conditions.LOCAL_DATE
    ),
    ts.LocalTimeSerializer: _java_time(_column(pa.time64("ns"), _nanoseconds), conditions.LOCAL_TIME),
    ts.LocalDateTimeSerializer: _java_time(
        _bounded(pa.timestamp("us"), _TO_DATETIME, json_text), conditions.LOCAL_DATE_TIME
    ),
    ts.InstantSerializer: _java_time(_bounded(pa.timestamp("us", _UTC), _TO_DATETIME, json_text), conditions.INSTANT),
    ts.SqlTimestampSerializer: _java_time(
        _bounded(pa.timestamp("us", _UTC), _TO_DATETIME, json_text), conditions.SQL_TIMESTAMP
    ),
    ts.DateSerializer: _java_time(_column(pa.timestamp("ms", _UTC), attrgetter("epoch_milli")), conditions.JAVA_DATE),
    ts.SqlDateSerializer: _java_time(
        _column(pa.date32(), lambda value: int(value.epoch_milli // _DAY_MS)), conditions.SQL_DATE
    ),
    ts.SqlTimeSerializer: _java_time(
        _column(pa.time32("ms"), lambda value: int(value.epoch_milli % _DAY_MS)), conditions.SQL_TIME
    ),
    ts.AttrsSerializer: Family(_record_column, _record_type, _record_back),
    ts.PojoSerializer: Family(_pojo_column, _pojo_type),
    ts.RowSerializer: Family(_tuple_column, _positional_type("Row", ts.Row), name=_row_name),
    ts.TupleSerializer: Family(
        _tuple_column,
        _positional_type("tuple", tuple),
        _tuple_back,
        lambda one: f"tuple[{_joined(one.field_serializers, ', ')}]",
    ),
    ts.Tuple0Serializer: Family(_nothing),
    ts.GlobalWindowSerializer: Family(_nothing, back=_by(lambda value: ts.GLOBAL_WINDOW)),
    ts.VoidNamespaceSerializer: Family(_nothing, back=_by(lambda value: ts.VOID_NAMESPACE)),
    **dict.fromkeys(
        (ts.TimeWindowSerializer, flink_tables.TableTimeWindowSerializer),
        Family(
            _attributes(("start", "start", None), ("end", "end", None)),
            _always(
                RecordType(
                    "time window",
                    {"start": lambda: conditions.LONG, "end": lambda: conditions.LONG},
                    lambda value: hasattr(value, "start"),
                )
            ),
            _by(lambda value: ts.TimeWindow(value["start"], value["end"])),
        ),
    ),
    ts.TtlSerializer: Family(
        _attributes(("value", "value", "value_serializer"), ("last_access_ms", "last_access_timestamp", None)),
        _inside("value_serializer"),
        name=_around("", "value_serializer", " with the time of its last access"),
    ),
    ts.TimerSerializer: Family(
        _attributes(
            ("timestamp_ms", "timestamp", None),
            ("key", "key", "key_serializer"),
            ("namespace", "namespace", "namespace_serializer"),
        ),
        name=_timer_name,
    ),
    **dict.fromkeys(
        (ts.EitherSerializer, flink_records.TaggedSerializer),
        Family(
            _either_column,
            _either_type,
            name=lambda one: f"Left[{type_name(one.left_serializer)}] | Right[{type_name(one.right_serializer)}]",
        ),
    ),
    **dict.fromkeys((ts.ListSerializer, ts.ArrayListSerializer), _LISTS),
    **{
        serializer: Family(
            _list_column("element_serializer", sorted_elements),
            _list_type("element_serializer", is_set=True),
            _list_back(value_class, "element_serializer"),
            _around(f"{value_class.__name__}[", "element_serializer", "]"),
        )
        for serializer, value_class in ((ts.SetSerializer, set), (ts.FrozenSetSerializer, frozenset))
    },
    ts.GenericArraySerializer: Family(
        _list_column("component_serializer"),
        _list_type("component_serializer"),
        _list_back(list, "component_serializer"),
        _around("array[", "component_serializer", " | None]"),
    ),
    ts.StringArraySerializer: Family(
        lambda serializer, forms: ListForm(forms.text),
        _always(ListType("list", lambda: conditions.TEXT)),
        _as_it_is,
        _named("array[str | None]"),
    ),
    ts.BooleanPrimitiveArraySerializer: _array(pa.bool_(), conditions.BOOL, "bool"),
    ts.ShortPrimitiveArraySerializer: _array(pa.int16(), conditions.LONG, "int16"),
    ts.IntPrimitiveArraySerializer: _array(pa.int32(), conditions.LONG, "int32"),
    ts.LongPrimitiveArraySerializer: _array(pa.int64(), conditions.LONG, "int64"),
    ts.FloatPrimitiveArraySerializer: _array(pa.float32(), conditions.SINGLE, "float32"),
    ts.DoublePrimitiveArraySerializer: _array(pa.float64(), conditions.DOUBLE, "float64"),
    ts.MapSerializer: Family(
        lambda one, forms: MapForm(forms.of(one.key_serializer), forms.of(one.value_serializer)),
        lambda one: MapType(
            "map", partial(stored_type, one.key_serializer), partial(stored_type, one.value_serializer)
        ),
        _map_back,
        lambda one: f"dict[{_joined((one.key_serializer, one.value_serializer), ', ')}]",
    ),
    ts.NullableSerializer: Family(
        _same_column("inner"),
        _inside("inner"),
        _inner_back,
        _around("", "inner", " | None"),
    ),
    ts.LiteralSerializer: Family(
        _same_column("inner"),
        _inside("inner"),
        _inner_back,
        name=lambda one: f"{type_name(one.inner)}[{', '.join(sorted(map(format_value, one.values)))}]",
    ),
    ts.ConvertingSerializer: Family(_same_column("inner"), _inside("inner"), _inner_back, _around("", "inner", "")),
    ts.ArrowStructSerializer: Family(
        lambda serializer, forms: ScalarForm(serializer.struct_type),
        lambda serializer: _arrow(serializer.struct_type),
        name=lambda one: str(one.struct_type),
    ),
    ts.ArrowSerializer: Family(
        lambda serializer, forms: ScalarForm(pa.list_(pa.struct(list(serializer.schema))), methodcaller("to_pylist")),
        _always(RecordType("record batch", {}, lambda value: True)),
        name=lambda one: f"record batch of {pa.struct(list(one.schema))}",
    ),
    ts.ReferenceSerializer: Family(_json("a type that contains itself has no end"), _inside("target")),
    ts.UnionSerializer: Family(
        _json("a union has values of several types"),
        lambda serializer: UnionType(tuple(map(stored_type, serializer.member_serializers))),
        name=lambda one: _joined(one.member_serializers, " | "),
    ),
    ts.AvroSerializer: Family(
        _json("values of an Avro schema"),
        lambda serializer: _avro(serializer.schema, serializer.named),
        name=lambda one: f"Avro {json.dumps(one.schema, sort_keys=True)}",
    ),
    ts.PickleSerializer: Family(_json("a pickle is of any class")),
    flink_records.StreamElementSerializer: _recorded("timestamp_ms", pa.int64()),
    flink_records.JoinEntrySerializer: _recorded("joined", pa.bool_()),
    flink_tables.TableDecimalSerializer: Family(
        lambda serializer, forms: ScalarForm(pa.decimal128(serializer.precision, serializer.scale)),
        _always(conditions.DECIMAL),
    ),
}
"""By the exact class: a subclass may have other values."""
