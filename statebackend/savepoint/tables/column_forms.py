"""The Arrow representation of each serializer's values: one table by serializer class, which a caller may extend.

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
| records, POJOs without subclasses, rows, tuples | struct by field; unnamed fields are `f0`, `f1`, ... |
| lists, sets (sorted), arrays; maps | list; map |
| optional values | the same, nullable |
| either | struct of `left` and `right`, one of them null |
| time windows; global windows, types without fields | struct of `start` and `end`; bool, always true |
| Arrow structs and record batches | the struct; a list of it |
| values with time-to-live, timers | struct by field |
| unions, POJOs with subclasses, recursive types, Avro, pickles, foreign serializers | string: JSON of `plain_value` |
| serializers that cannot be restored here | binary: the stored bytes of the whole key or value |

A value that its Arrow type cannot hold raises `ColumnValueError` and is never rounded, truncated or nulled. With
``as_text``, decimals, unbounded ints and Java's times become text, and lone surrogates are escaped.
`notes` describes substitutes. A struct is built from one array per field, never from a dict per record.
"""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
from attrs import field, frozen

from snapshots.errors import shown
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.plain_values import digits, plain_value
from typeserializers.arrow import ArrowSerializer, ArrowStructSerializer
from typeserializers.avro import AvroSerializer
from typeserializers.containers.converting import ConvertingSerializer
from typeserializers.containers.eithers import EitherSerializer, Left, Right
from typeserializers.containers.lists import ArrayListSerializer, ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.object_arrays import GenericArraySerializer, StringArraySerializer
from typeserializers.containers.primitive_arrays import (
    BooleanPrimitiveArraySerializer,
    CharPrimitiveArraySerializer,
    DoublePrimitiveArraySerializer,
    FloatPrimitiveArraySerializer,
    IntPrimitiveArraySerializer,
    LongPrimitiveArraySerializer,
    ShortPrimitiveArraySerializer,
)
from typeserializers.containers.rows import RowSerializer
from typeserializers.containers.sets import FrozenSetSerializer, SetSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.containers.tuples import Tuple0Serializer, TupleSerializer
from typeserializers.containers.unions import UnionSerializer
from typeserializers.kernel.references import ReferenceSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.opaque import PickleSerializer
from typeserializers.pojos.pojo_serializer import PojoSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.scalars.big_numbers import BigDecSerializer, BigIntSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer, UuidSerializer
from typeserializers.scalars.enums import EnumSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.literals import LiteralSerializer
from typeserializers.scalars.strings import CharSerializer, StringSerializer
from typeserializers.scalars.value_types import (
    BooleanValueSerializer,
    ByteValueSerializer,
    CharValueSerializer,
    DoubleValueSerializer,
    FloatValueSerializer,
    IntValueSerializer,
    LongValueSerializer,
    ShortValueSerializer,
    StringValueSerializer,
)
from typeserializers.scalars.void import NullValueSerializer, VoidNamespaceSerializer, VoidSerializer
from typeserializers.times.calendar_values import LocalDateSerializer, LocalDateTimeSerializer, LocalTimeSerializer
from typeserializers.times.moments import (
    DateSerializer,
    InstantSerializer,
    SqlDateSerializer,
    SqlTimeSerializer,
    SqlTimestampSerializer,
)
from typeserializers.times.python_times import (
    PythonDateSerializer,
    PythonDateTimeSerializer,
    PythonTimeSerializer,
    TimedeltaSerializer,
)
from typeserializers.times.timers import GlobalWindowSerializer, TimerSerializer, TimeWindowSerializer

__all__ = [
    "KNOWN_FORMS",
    "ColumnForm",
    "ColumnForms",
    "ListForm",
    "MakeForm",
    "MapForm",
    "ScalarForm",
    "StructForm",
    "has_utf8",
    "json_form",
    "json_text",
    "part_at",
    "sorted_elements",
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
    way_out: str = ""
    """What to do where a value does not fit, for the error."""

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
        way_out = f"; {self.way_out}" if self.way_out else ""
        return ColumnValueError(f"{culprit} does not fit a column of type {self.data_type}: {reason}{way_out}")

    def _misfit_of(self, value: Any) -> tuple[str, Exception] | None:
        try:
            self._array([value])
        except (pa.ArrowException, OverflowError, ValueError, TypeError, UnicodeError) as error:
            return shown(value), error
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
    # Half of a surrogate pair has no form in UTF-8, and an escape in JSON.
    return text if has_utf8(text) else json.dumps(plain, allow_nan=False)


def json_form(reason: str) -> ScalarForm:
    """Return a form of JSON text. ``reason`` explains why the type has no other form."""
    return ScalarForm(pa.string(), json_text, f"text in JSON: {reason}")


def has_utf8(text: str) -> bool:
    """Whether a text can be encoded in UTF-8. Lone surrogates of Java's texts cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def sorted_elements(values: Iterable[Any]) -> Sequence[Any]:
    """Sort the elements of a set, whose own order differs between processes."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def part_at(index: int) -> Convert:
    """Return a getter of a tuple's field."""
    return itemgetter(index)


def _mask(values: Sequence[Any]) -> pa.Array | None:
    return pa.array([value is None for value in values], pa.bool_()) if None in values else None


def _offsets(values: Sequence[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, values), initial=0), pa.int32())


MakeForm: TypeAlias = "Callable[[Any, ColumnForms], ColumnForm]"
"""From a serializer, and the forms by which what is inside it is told, to the form of its values."""


@frozen
class ColumnForms:
    """Chooses the form of each serializer. ``added`` forms take precedence, by exact serializer class."""

    added: Mapping[type[TypeSerializer[Any]], MakeForm] = field(factory=dict)
    as_text: bool = False

    def of(self, serializer: TypeSerializer[Any]) -> ColumnForm:
        """Return the form for a serializer. Every serializer has one."""
        make = self.added.get(type(serializer)) or KNOWN_FORMS.get(type(serializer))
        if make is not None:
            return make(serializer, self)
        return json_form(f"{type(serializer).__name__} is not of this library, and no form was given for it")

    @property
    def text(self) -> ColumnForm:
        """Return the form of texts."""
        return _ESCAPED_TEXT if self.as_text else _TEXT

    def bounded(self, type_: pa.DataType, convert: Callable[[Any], Any] | None, text: Callable[[Any], str]) -> Any:
        """Return a form of a type that does not hold every value, or text with ``as_text``."""
        if self.as_text:
            return ScalarForm(pa.string(), text, "text, as was asked for: no type holds every such value")
        return ScalarForm(type_, convert, way_out=_WAY_OUT)


def _scalar(type_: pa.DataType, convert: Callable[[Any], Any] | None = None) -> MakeForm:
    form = ScalarForm(type_, convert)
    return lambda serializer, forms: form


def _json(reason: str) -> MakeForm:
    form = json_form(reason)
    return lambda serializer, forms: form


def _bounded(type_: pa.DataType, convert: Callable[[Any], Any] | None, text: Callable[[Any], str]) -> MakeForm:
    return lambda serializer, forms: forms.bounded(type_, convert, text)


def _elements_of(element_type: pa.DataType, of_value: Callable[[Any], Any] | None = None) -> MakeForm:
    form = ListForm(ScalarForm(element_type), of_value)
    return lambda serializer, forms: form


def _struct(parts: Any) -> ColumnForm:
    named = tuple(parts)
    return StructForm(named) if named else _NOTHING


def _record(serializer: Any, forms: ColumnForms) -> ColumnForm:
    return _struct((part.name, attrgetter(part.name), forms.of(part.serializer)) for part in serializer.fields)


def _pojo(serializer: PojoSerializer[Any], forms: ColumnForms) -> ColumnForm:
    if serializer.registered_subclasses or serializer.unregistered_subclasses:
        return json_form(f"values of {serializer.type_name} may be of its subclasses")
    return _record(serializer, forms)


def _row(serializer: RowSerializer, forms: ColumnForms) -> ColumnForm:
    names = serializer.field_names or [f"f{index}" for index in range(len(serializer.field_serializers))]
    parts = enumerate(zip(names, serializer.field_serializers, strict=True))
    return _struct((name, part_at(index), forms.of(part)) for index, (name, part) in parts)


def _tuple(serializer: TupleSerializer, forms: ColumnForms) -> ColumnForm:
    parts = enumerate(serializer.field_serializers)
    return _struct((f"f{index}", part_at(index), forms.of(part)) for index, part in parts)


def _either(serializer: EitherSerializer[Any, Any], forms: ColumnForms) -> ColumnForm:
    return StructForm(
        (
            ("left", lambda one: one.value if isinstance(one, Left) else None, forms.of(serializer.left_serializer)),
            ("right", lambda one: one.value if isinstance(one, Right) else None, forms.of(serializer.right_serializer)),
        )
    )


def _sql_date(value: Any) -> int:
    return int(value.epoch_milli // _DAY_MS)


def _sql_time(value: Any) -> int:
    return int(value.epoch_milli % _DAY_MS)


def _unbounded_int(value: int) -> decimal.Decimal:
    return decimal.Decimal(value)


def _nanoseconds(value: Any) -> int:
    return int(((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000_000 + value.nano)


def _moment(value: datetime.datetime) -> datetime.datetime:
    return value.replace(tzinfo=datetime.timezone.utc) if value.tzinfo is None else value


def _escaped(text: str) -> str:
    return text if has_utf8(text) else text.encode("utf-8", "backslashreplace").decode()


_WAY_OUT: Final = "ask for such values as text: as_text=True"
_DAY_MS: Final = 86_400_000
_UTC: Final = "UTC"
_TEXT: Final = ScalarForm(pa.string(), way_out=_WAY_OUT)
_ESCAPED_TEXT: Final = ScalarForm(pa.string(), _escaped)
_NOTHING: Final = ScalarForm(pa.bool_(), lambda value: True, "true: there is nothing in it")

KNOWN_FORMS: Final[Mapping[type[TypeSerializer[Any]], MakeForm]] = {
    **dict.fromkeys((BooleanSerializer, BooleanValueSerializer), _scalar(pa.bool_())),
    **dict.fromkeys((ByteSerializer, ByteValueSerializer), _scalar(pa.int8())),
    **dict.fromkeys((ShortSerializer, ShortValueSerializer), _scalar(pa.int16())),
    **dict.fromkeys((IntSerializer, IntValueSerializer), _scalar(pa.int32())),
    **dict.fromkeys((LongSerializer, LongValueSerializer), _scalar(pa.int64())),
    **dict.fromkeys((FloatSerializer, FloatValueSerializer), _scalar(pa.float32())),
    **dict.fromkeys((DoubleSerializer, DoubleValueSerializer), _scalar(pa.float64())),
    **dict.fromkeys(
        (StringSerializer, StringValueSerializer, CharSerializer, CharValueSerializer, CharPrimitiveArraySerializer),
        lambda serializer, forms: forms.text,
    ),
    BytesSerializer: _scalar(pa.binary()),
    BigIntSerializer: _bounded(pa.decimal128(38, 0), _unbounded_int, digits),
    BigDecSerializer: _bounded(pa.decimal128(38, 18), None, str),
    EnumSerializer: _scalar(pa.string(), attrgetter("name")),
    UuidSerializer: _scalar(pa.string(), str),
    **dict.fromkeys((VoidSerializer, NullValueSerializer), _scalar(pa.null())),
    PythonDateSerializer: _scalar(pa.date32()),
    PythonTimeSerializer: _scalar(pa.time64("us")),
    PythonDateTimeSerializer: _scalar(pa.timestamp("us", _UTC), _moment),
    TimedeltaSerializer: _bounded(pa.duration("us"), None, str),
    LocalDateSerializer: _bounded(pa.date32(), lambda value: value.to_date(), json_text),
    LocalTimeSerializer: _scalar(pa.time64("ns"), _nanoseconds),
    LocalDateTimeSerializer: _bounded(pa.timestamp("us"), lambda value: value.to_datetime(), json_text),
    InstantSerializer: _bounded(pa.timestamp("us", _UTC), lambda value: value.to_datetime(), json_text),
    SqlTimestampSerializer: _bounded(pa.timestamp("us", _UTC), lambda value: value.to_datetime(), json_text),
    DateSerializer: _scalar(pa.timestamp("ms", _UTC), attrgetter("epoch_milli")),
    SqlDateSerializer: _scalar(pa.date32(), _sql_date),
    SqlTimeSerializer: _scalar(pa.time32("ms"), _sql_time),
    AttrsSerializer: _record,
    PojoSerializer: _pojo,
    RowSerializer: _row,
    TupleSerializer: _tuple,
    **dict.fromkeys((Tuple0Serializer, GlobalWindowSerializer, VoidNamespaceSerializer), lambda one, forms: _NOTHING),
    TimeWindowSerializer: lambda serializer, forms: StructForm(
        tuple((name, attrgetter(name), ScalarForm(pa.int64())) for name in ("start", "end"))
    ),
    TtlSerializer: lambda serializer, forms: _struct(
        (
            ("value", attrgetter("value"), forms.of(serializer.value_serializer)),
            ("last_access_ms", attrgetter("last_access_timestamp"), ScalarForm(pa.int64())),
        )
    ),
    TimerSerializer: lambda serializer, forms: _struct(
        (
            ("timestamp_ms", attrgetter("timestamp"), ScalarForm(pa.int64())),
            ("key", attrgetter("key"), forms.of(serializer.key_serializer)),
            ("namespace", attrgetter("namespace"), forms.of(serializer.namespace_serializer)),
        )
    ),
    EitherSerializer: _either,
    **dict.fromkeys(
        (ListSerializer, ArrayListSerializer),
        lambda serializer, forms: ListForm(forms.of(serializer.element_serializer)),
    ),
    **dict.fromkeys(
        (SetSerializer, FrozenSetSerializer),
        lambda serializer, forms: ListForm(forms.of(serializer.element_serializer), sorted_elements),
    ),
    GenericArraySerializer: lambda serializer, forms: ListForm(forms.of(serializer.component_serializer)),
    StringArraySerializer: lambda serializer, forms: ListForm(forms.text),
    BooleanPrimitiveArraySerializer: _elements_of(pa.bool_()),
    ShortPrimitiveArraySerializer: _elements_of(pa.int16()),
    IntPrimitiveArraySerializer: _elements_of(pa.int32()),
    LongPrimitiveArraySerializer: _elements_of(pa.int64()),
    FloatPrimitiveArraySerializer: _elements_of(pa.float32()),
    DoublePrimitiveArraySerializer: _elements_of(pa.float64()),
    MapSerializer: lambda serializer, forms: MapForm(
        forms.of(serializer.key_serializer), forms.of(serializer.value_serializer)
    ),
    NullableSerializer: lambda serializer, forms: forms.of(serializer.inner),
    LiteralSerializer: lambda serializer, forms: forms.of(serializer.inner),
    ConvertingSerializer: lambda serializer, forms: forms.of(serializer.inner),
    ArrowStructSerializer: lambda serializer, forms: ScalarForm(serializer.struct_type),
    ArrowSerializer: lambda serializer, forms: ScalarForm(
        pa.list_(pa.struct(list(serializer.schema))), lambda batch: batch.to_pylist()
    ),
    ReferenceSerializer: _json("a type that contains itself has no end"),
    UnionSerializer: _json("a union has values of several types"),
    AvroSerializer: _json("values of an Avro schema"),
    PickleSerializer: _json("a pickle is of any class"),
}
"""By the exact class: a subclass may have other values. The head of the module says what each is."""
