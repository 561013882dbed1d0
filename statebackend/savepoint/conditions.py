"""Conditions on stored values: the fields of a type, and how its values compare with a literal.

A `StoredType` is made from the serializer that wrote the values (`statebackend.savepoint.value_forms`). It parses the
literal of a condition as its own type, so ``value.amount>900`` compares decimals with a decimal, and it rejects a
literal of another type. Parts are created only when a path reaches them, so the cost is linear in the length of the
path and independent of the schema's size.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import enum
import json
import math
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Protocol, TypeAlias

from attrs import field, frozen

from statebackend.savepoint.plain_values import plain_value
from typeserializers.containers.rows import Row
from typeserializers.records.column_names import displayed_names
from typeserializers.records.record_shape import field_names
from typeserializers.times.calendar_values import LocalDate, LocalDateTime, LocalTime
from typeserializers.times.moments import Date, Instant, SqlDate, SqlTime, SqlTimestamp

Test: TypeAlias = "Callable[[Any], bool]"


class Unparsed(str):
    """A literal as typed. Each type parses it in its own way; parts of it are parsed as JSON."""


class StoredType(Protocol):
    """The type of stored values. None is a value of every type and is compared by `equals`."""

    @property
    def name(self) -> str:
        """The name for error messages."""

    @property
    def field_names(self) -> Sequence[str]:
        """The fields that a path may name; empty for types without fields and for maps."""

    def part(self, name: str) -> StoredType | None:
        """Return the type of a field, or of the values of a map with text keys; None if there is no such field."""

    def accepts(self, value: Any) -> bool:
        """Whether a value that is not None is of this type."""

    def equal_to(self, literal: Any) -> Test:
        """Return a test of values of this type. Raises `ValueError` for a literal of another type."""

    def order(self, literal: str) -> tuple[Callable[[Any], Any], Any]:
        """Return a function from values to sort keys and the literal's sort key. Raises `ValueError` as `equal_to`."""


StateCondition: TypeAlias = "Callable[[Mapping[str, StoredType]], Test]"
"""Makes the test of an entry from the columns of a state; raises `ValueError` if they do not allow the condition."""


def equals(stored: StoredType, literal: Any) -> Test:
    """Return a test of any value, None included. The literal ``null`` is None."""
    if literal is None or (isinstance(literal, Unparsed) and literal == "null"):
        return lambda value: value is None
    test = stored.equal_to(literal)
    return lambda value: value is not None and stored.accepts(value) and test(value)


def part_of(value: Any, name: str) -> Any:
    """Return the field of the value, or None if it has none of this name."""
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(value, Row) and value.names is not None and name in value.names:
        return value.as_dict()[name]
    names = getattr(value, "_fields", None) or field_names(type(value))
    if names is not None and not isinstance(value, Row):
        attribute = dict(zip(displayed_names(names), names, strict=True)).get(name)
        return None if attribute is None else getattr(value, attribute, None)
    position = _POSITION.fullmatch(name)
    parts = value.fields if isinstance(value, Row) else value
    if position is not None and isinstance(parts, tuple) and int(position[1]) < len(parts):
        return parts[int(position[1])]
    return None


_POSITION: Final = re.compile(r"f([0-9]{1,6})")


@frozen
class ScalarType:
    """Single values. ``parse`` returns the sort key of a literal, ``sort_key`` that of a value."""

    name: str
    accepts: Test
    parse: Callable[[str], Any]
    sort_key: Callable[[Any], Any]
    is_ordered: bool = True
    field_names: Sequence[str] = ()

    def part(self, name: str) -> StoredType | None:
        """Return the numeric fields of Java's times."""
        return LONG if name in self.field_names else None

    def equal_to(self, literal: Any) -> Test:
        wanted, sort_key = self._parsed(literal), self.sort_key
        return lambda value: bool(sort_key(value) == wanted)

    def order(self, literal: str) -> tuple[Callable[[Any], Any], Any]:
        if not self.is_ordered:
            raise ValueError(f"values of type {self.name} have no order: use = or !=")
        return self.sort_key, self._parsed(literal)

    def _parsed(self, literal: Any) -> Any:
        text = _scalar_text(literal)
        try:
            return self.parse(text)
        except (ValueError, KeyError, OverflowError, ArithmeticError) as error:
            reason = str(error) if isinstance(error, _LiteralError) else f"{text!r} is not of type {self.name}"
            raise ValueError(reason) from error


class _LiteralError(ValueError):
    """A literal error with its own explanation."""


@frozen
class RecordType:
    """Values with fields: records, rows, tuples, windows. A literal is a JSON object with some of the fields."""

    name: str
    parts: Mapping[str, Callable[[], StoredType]]
    accepts: Test

    @property
    def field_names(self) -> Sequence[str]:
        return tuple(self.parts)

    def part(self, name: str) -> StoredType | None:
        make = self.parts.get(name)
        return None if make is None else make()

    def equal_to(self, literal: Any) -> Test:
        data = _json_of(literal, self)
        if isinstance(data, list) and tuple(self.parts) == tuple(f"f{index}" for index in range(len(data))):
            data = {f"f{index}": part for index, part in enumerate(data)}
        if not isinstance(data, Mapping) or not data:
            raise ValueError(f"a value of type {self.name} is compared {_by_its_fields(self)}")
        tests = []
        for name, wanted in data.items():
            part = self.part(name)
            if part is None:
                raise ValueError(f"{self.name} has no field {name!r}{_known_fields(self)}")
            tests.append((name, equals(part, wanted)))
        return lambda value: all(test(part_of(value, name)) for name, test in tests)

    def order(self, literal: str) -> tuple[Callable[[Any], Any], Any]:
        """Raise `ValueError`: records have no order."""
        raise ValueError(f"values of type {self.name} have no order; compare them {_by_its_fields(self)}")


@frozen
class ListType:
    """Lists, arrays and sets. A literal is a JSON list of all elements."""

    name: str
    element: Callable[[], StoredType]
    is_set: bool = False
    field_names: Sequence[str] = ()

    def part(self, name: str) -> StoredType | None:
        """Return None: elements have no names."""
        return None

    def accepts(self, value: Any) -> bool:
        return not isinstance(value, (str, bytes, Mapping)) and hasattr(value, "__len__")

    def equal_to(self, literal: Any) -> Test:
        data = _json_of(literal, self)
        if not isinstance(data, list):
            raise ValueError(f"a value of type {self.name} is compared with a list in JSON")
        tests = [equals(self.element(), wanted) for wanted in data]
        if self.is_set:
            return lambda value: len(value) == len(tests) and all(any(map(test, value)) for test in tests)
        return lambda value: (
            len(value) == len(tests) and all(test(part) for test, part in zip(tests, value, strict=True))
        )

    def order(self, literal: str) -> tuple[Callable[[Any], Any], Any]:
        """Raise `ValueError`: lists have no order."""
        raise ValueError(f"values of type {self.name} have no order: use = or !=")


@frozen
class MapType:
    """Maps. With text keys, a path may name a key. A literal is a JSON object, or a list of [key, value] pairs."""

    name: str
    key: Callable[[], StoredType]
    value: Callable[[], StoredType]
    field_names: Sequence[str] = ()

    def part(self, name: str) -> StoredType | None:
        return self.value() if self.key().accepts(name) else None

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def equal_to(self, literal: Any) -> Test:
        data = _json_of(literal, self)
        pairs = list(data.items()) if isinstance(data, Mapping) else data
        if not isinstance(pairs, list) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
            raise ValueError(f"a value of type {self.name} is compared with an object, or a list of pairs, in JSON")
        tests = [(equals(self.key(), key), equals(self.value(), value)) for key, value in pairs]
        return lambda value: (
            len(value) == len(tests)
            and all(any(of_key(key) and of_value(part) for key, part in value.items()) for of_key, of_value in tests)
        )

    def order(self, literal: str) -> tuple[Callable[[Any], Any], Any]:
        """Raise `ValueError`: maps have no order."""
        raise ValueError(f"values of type {self.name} have no order: use = or !=")


@frozen
class UnionType:
    """Values of one of several types. A literal is compared with values of the types that accept it."""

    alternatives: tuple[StoredType, ...]

    @property
    def name(self) -> str:
        return " | ".join(one.name for one in self.alternatives)

    @property
    def field_names(self) -> Sequence[str]:
        return tuple(dict.fromkeys(name for one in self.alternatives for name in one.field_names))

    def part(self, name: str) -> StoredType | None:
        parts = [part for part in (one.part(name) for one in self.alternatives) if part is not None]
        return None if not parts else parts[0] if len(parts) == 1 else UnionType(tuple(parts))

    def accepts(self, value: Any) -> bool:
        return any(one.accepts(value) for one in self.alternatives)

    def equal_to(self, literal: Any) -> Test:
        tests = list(self._fitting(lambda one: equals(one, literal)))
        return lambda value: any(test(value) for _, test in tests)

    def order(self, literal: str) -> tuple[Callable[[Any], Any], Any]:
        """A value of another type than the literal is neither less nor greater."""
        orders = list(self._fitting(lambda one: one.order(literal)))
        wanted = _Ordered(None, tuple(key for _, (_, key) in orders))

        def sort_key(value: Any) -> Any:
            for index, (one, (of_value, _)) in enumerate(orders):
                if one.accepts(value):
                    return _Ordered(index, (of_value(value),))
            return _Ordered(None, ())

        return sort_key, wanted

    def _fitting(self, make: Callable[[StoredType], Any]) -> Iterator[tuple[StoredType, Any]]:
        made = [_made_or_error(make, one) for one in self.alternatives]
        if all(isinstance(one, ValueError) for one in made):
            raise ValueError("; ".join(dict.fromkeys(map(str, made))))
        pairs = zip(self.alternatives, made, strict=True)
        return ((stored, one) for stored, one in pairs if not isinstance(one, ValueError))


def _made_or_error(make: Callable[[StoredType], Any], stored: StoredType) -> Any:
    try:
        return make(stored)
    except ValueError as error:
        return error


@frozen(eq=False)
class _Ordered:
    """The sort key of a union value. It compares only with a literal of the same member type."""

    index: int | None
    keys: tuple[Any, ...]

    def _is(self, other: _Ordered, relation: Callable[[Any, Any], bool]) -> bool:
        return self.index is not None and relation(self.keys[0], other.keys[self.index])

    def __lt__(self, other: _Ordered) -> bool:
        return self._is(other, lambda one, wanted: bool(one < wanted))

    def __le__(self, other: _Ordered) -> bool:
        return self._is(other, lambda one, wanted: bool(one <= wanted))

    def __gt__(self, other: _Ordered) -> bool:
        return self._is(other, lambda one, wanted: bool(one > wanted))

    def __ge__(self, other: _Ordered) -> bool:
        return self._is(other, lambda one, wanted: bool(one >= wanted))


@frozen
class AnyType:
    """Values of unknown structure: pickles and foreign serializers. Each value is compared by its class."""

    name: str = field(default="any")
    field_names: Sequence[str] = ()

    def part(self, name: str) -> StoredType | None:
        """Return this type: any name may be a field."""
        return self

    def accepts(self, value: Any) -> bool:
        return True

    def equal_to(self, literal: Any) -> Test:
        try:
            wanted = _json_of(literal, self)
        except ValueError:
            wanted = str(literal)
        scalar = None if isinstance(wanted, (Mapping, list)) else _ANY_SCALAR.equal_to(literal)

        def test(value: Any) -> bool:
            if _ANY_SCALAR.accepts(value):
                return scalar is not None and scalar(value)
            return bool(plain_value(value) == wanted)

        return test

    def order(self, literal: str) -> tuple[Callable[[Any], Any], Any]:
        return _ANY_SCALAR.order(literal)


def _scalar_text(literal: Any) -> str:
    """Return the text of a literal. It may be quoted as JSON: ``"null"`` is a text."""
    if isinstance(literal, Unparsed):
        if literal[:1] == '"':
            try:
                return str(json.loads(literal))
            except ValueError:
                return str(literal)
        return str(literal)
    if isinstance(literal, str):
        return literal
    return json.dumps(literal)


def _json_of(literal: Any, stored: StoredType) -> Any:
    """Parse a literal as JSON, with numbers as text: each type parses its own."""
    if not isinstance(literal, Unparsed):
        return literal
    try:
        return json.loads(literal, parse_int=str, parse_float=str, parse_constant=str)
    except ValueError:
        raise ValueError(f"{str(literal)!r} is not of type {stored.name}{_known_fields(stored)}") from None


def _known_fields(stored: StoredType) -> str:
    return f"; it has the fields {', '.join(stored.field_names)}" if stored.field_names else ""


def _by_its_fields(stored: StoredType) -> str:
    return f"by its fields: {', '.join(stored.field_names)}" if stored.field_names else "with null only"


# Numbers. Integers and decimals are compared exactly; a literal becomes a float for a column of floats.

_MOST_DIGITS: Final = 5_000
"""A larger exponent would need unbounded memory."""


_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE | re.ASCII)
"""Python's constructors also accept spaces, underscores, and the digits of every script."""

_NOT_FINITE: Final = re.compile(r"nan|[+-]?inf(inity)?", re.IGNORECASE | re.ASCII)


def _finite(text: str) -> decimal.Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return decimal.Decimal(text)


def _exact(text: str) -> Fraction:
    number = _finite(text)
    if abs(number.adjusted()) > _MOST_DIGITS or len(number.as_tuple().digits) > _MOST_DIGITS:
        raise _LiteralError(f"a number has at most {_MOST_DIGITS} digits here")
    return Fraction(number)


def _double(text: str) -> tuple[bool, Any]:
    if _NOT_FINITE.fullmatch(text):
        return _number_key(float(text))
    exact, number = _finite(text), float(text)
    # The literal may be larger than every finite value, but not infinite.
    return (False, exact) if math.isinf(number) else _number_key(number)


def _single(text: str) -> tuple[bool, Any]:
    is_nan, number = _double(text)
    try:
        return is_nan, struct.unpack(">f", struct.pack(">f", number))[0] if isinstance(number, float) else number
    except OverflowError:
        return is_nan, number


def _number_key(value: Any) -> tuple[bool, Any]:
    """Order numbers as Spark does: NaN equals itself and is greater than all others."""
    is_nan = math.isnan(value)
    return is_nan, 0.0 if is_nan else value


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, (bool, enum.Enum))


def _itself(value: Any) -> Any:
    return value


# Times. Moments are compared in nanoseconds since the epoch, whatever zone they are written in.

_DAY_MS: Final = 86_400_000
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_FRACTION: Final = re.compile(r"(.*\d\d:\d\d:\d\d)[.,](\d{1,9})(.*)", re.ASCII)


def _without_fraction(text: str) -> tuple[str, int]:
    """Return the text in a form that every Python release parses, and its nanoseconds."""
    if text[-1:] in ("Z", "z"):
        text = f"{text[:-1]}+00:00"
    matched = _FRACTION.fullmatch(text)
    return (text, 0) if matched is None else (matched[1] + matched[3], int(matched[2].ljust(9, "0")))


def _moment(text: str) -> int:
    whole, nano = _without_fraction(text)
    return _moment_key(datetime.datetime.fromisoformat(whole)) + nano


def _moment_key(value: datetime.datetime) -> int:
    """A datetime without a time zone is taken as UTC, as in tables. Integers do not overflow at year 1."""
    offset = value.utcoffset() or datetime.timedelta(0)
    # A pandas timestamp has nanoseconds, which its arithmetic with Python's would round.
    nano = getattr(value, "nanosecond", 0)
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    micros = (datetime.datetime(*parts) - _EPOCH) // _MICROSECOND - offset // _MICROSECOND
    return int(micros) * 1000 + nano


def _time(text: str) -> int:
    if text[2:3] != ":":
        # Python reads 20240109, a date, as a time with a fraction.
        raise ValueError(text)
    whole, nano = _without_fraction(text)
    time = datetime.time.fromisoformat(whole)
    if time.tzinfo is not None:
        raise ValueError(text)
    return _time_key(time) + nano


def _time_key(value: datetime.time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000_000 + value.microsecond * 1000


def _duration(text: str) -> Fraction:
    return _exact(text.strip().removesuffix("s").strip()) * 1_000_000


def _date(text: str) -> tuple[int, int, int]:
    return _date_key(datetime.date.fromisoformat(text))


def _date_key(value: Any) -> tuple[int, int, int]:
    return value.year, value.month, value.day


def _local_time_key(value: Any) -> int:
    return int(((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000_000 + value.nano)


def _local_moment(text: str) -> tuple[tuple[int, int, int], int]:
    whole, nano = _without_fraction(text)
    value = datetime.datetime.fromisoformat(whole)
    if value.tzinfo is not None:
        raise _LiteralError(f"{text!r} has a time zone, and a local date-time has none")
    return _date_key(value), _time_key(value.time()) + nano


def _sql_timestamp_key(value: SqlTimestamp) -> int:
    return value.epoch_milli // 1000 * 1_000_000_000 + value.nanos


# Bytes and constants.


def _bytes(text: str) -> bytes:
    """Parse hexadecimal, or the object that ``show --json`` prints."""
    if text.lstrip()[:1] != "{":
        return bytes.fromhex(text)
    data = json.loads(text)
    if not isinstance(data, dict) or list(data) != ["base64"] or not isinstance(data["base64"], str):
        raise ValueError(text)
    try:
        return base64.b64decode(data["base64"], validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error


def _no_literal(text: str) -> Any:
    raise _LiteralError(f"every value is null, and {text!r} is not")


def of_class(*classes: type) -> Test:
    """Return a test of the class of a value."""
    return lambda value: isinstance(value, classes)


def constants(name: str, members: Mapping[str, str], accepts: Test, of_value: Callable[[Any], str]) -> ScalarType:
    """Return the type of an enumeration. ``members`` maps each literal to the name of its constant."""

    def parse(text: str) -> str:
        if text not in members:
            raise _LiteralError(f"{text!r} is not a constant of {name}, which has {', '.join(members)}")
        return members[text]

    return ScalarType(name, accepts, parse, of_value, is_ordered=False)


LONG: Final = ScalarType("integer", _is_integer, _exact, _itself)
BOOL: Final = ScalarType("bool", of_class(bool), {"true": True, "false": False}.__getitem__, _itself, is_ordered=False)
DOUBLE: Final = ScalarType("float64", of_class(float), _double, _number_key)
SINGLE: Final = ScalarType("float32", of_class(float), _single, _number_key)
DECIMAL: Final = ScalarType("decimal", of_class(decimal.Decimal), lambda text: (False, _finite(text)), _number_key)
TEXT: Final = ScalarType("str", lambda value: isinstance(value, str) and not isinstance(value, enum.Enum), str, str)
BYTES: Final = ScalarType("bytes", of_class(bytes, bytearray, memoryview), _bytes, bytes)
UUID: Final = ScalarType("UUID", of_class(uuid.UUID), uuid.UUID, _itself)
DATE: Final = ScalarType(
    "date",
    lambda value: isinstance(value, datetime.date) and not isinstance(value, datetime.datetime),
    _date,
    _date_key,
)
TIME: Final = ScalarType("time", of_class(datetime.time), _time, _time_key)
MOMENT: Final = ScalarType("datetime", of_class(datetime.datetime), _moment, _moment_key)
DURATION: Final = ScalarType(
    "timedelta (in seconds)", of_class(datetime.timedelta), _duration, lambda value: value // _MICROSECOND
)
NULL: Final = ScalarType("null", lambda value: False, _no_literal, _itself, is_ordered=False)
_CONSTANT: Final = ScalarType("enum", of_class(enum.Enum), str, lambda value: value.name, is_ordered=False)

_ANY_SCALAR: Final = UnionType(
    (_CONSTANT, BOOL, LONG, DOUBLE, DECIMAL, TEXT, BYTES, UUID, DATE, TIME, MOMENT, DURATION)
)


def _java(value_class: type, parse: Callable[[str], Any], sort_key: Callable[[Any], Any]) -> ScalarType:
    names = field_names(value_class) or ()
    return ScalarType(value_class.__name__, of_class(value_class), parse, sort_key, field_names=names)


def _sql_days(text: str) -> int:
    return datetime.date.fromisoformat(text).toordinal() - _EPOCH.toordinal()


LOCAL_DATE: Final = _java(LocalDate, _date, _date_key)
LOCAL_TIME: Final = _java(LocalTime, _time, _local_time_key)
LOCAL_DATE_TIME: Final = _java(LocalDateTime, _local_moment, lambda value: (_date_key(value), _local_time_key(value)))
INSTANT: Final = _java(Instant, _moment, lambda value: value.epoch_second * 1_000_000_000 + value.nano)
JAVA_DATE: Final = _java(Date, _moment, lambda value: value.epoch_milli * 1_000_000)
SQL_DATE: Final = _java(SqlDate, _sql_days, lambda value: value.epoch_milli // _DAY_MS)
SQL_TIME: Final = _java(SqlTime, _time, lambda value: value.epoch_milli % _DAY_MS * 1_000_000)
SQL_TIMESTAMP: Final = _java(SqlTimestamp, _moment, _sql_timestamp_key)
