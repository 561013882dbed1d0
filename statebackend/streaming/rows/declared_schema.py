"""Schemas written as DDL, such as ``"tailnum string, day int"``, parsed without Spark.

    schema   := column ("," column)*  |  type              a bare type is one column called "value"
    column   := name [":"] type ["NOT" "NULL"] ["COMMENT" text]
    name     := letters, digits, _  |  `anything, a backtick doubled`
    type     := a name of `_SIMPLE`  |  decimal[(p[, s])]  |  time[(p)]  |  interval unit [to unit]
                |  array<type>  |  map<type, type>  |  struct<column, ...>

The types are the types of Spark that Arrow also has. A parsed schema uses Spark's simple strings as type names, so a
savepoint has the same types in every runtime. Instants are in UTC, because there is no session time zone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from attrs import evolve, field, frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import JobDefinitionError

__all__ = [
    "OF_OUTPUT_TAG",
    "OF_PROCESS",
    "Column",
    "DeclaredSchema",
    "array_column",
    "check_columns",
    "check_not_reserved",
    "column_type_name",
    "map_column",
    "meant_by",
    "missing_schema",
    "parsed_schema",
    "place_of_output",
    "schema_of_arrow",
    "schema_of_struct_type",
    "struct_column",
    "unknown_column",
    "unreadable_schema",
]

TIME_ZONE: Final = "UTC"
"""The time zone of instants without a session."""

_LARGEST_PRECISION: Final = 38
_TIME_PRECISION: Final = 6
_UNITS: Final = ("day", "hour", "minute", "second")
"""The units of an interval that Arrow can represent. Months have no fixed length, and pyarrow does not support them."""

_TOKEN: Final = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<word>\w+)|(?P<text>'[^']*'|\"[^\"]*\")|(?P<mark>[<>(),:]))"
)

_SIMPLE: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    **dict.fromkeys(("boolean",), ("boolean", pa.bool_())),
    **dict.fromkeys(("tinyint", "byte"), ("tinyint", pa.int8())),
    **dict.fromkeys(("smallint", "short"), ("smallint", pa.int16())),
    **dict.fromkeys(("int", "integer"), ("int", pa.int32())),
    **dict.fromkeys(("bigint", "long"), ("bigint", pa.int64())),
    **dict.fromkeys(("float", "real"), ("float", pa.float32())),
    **dict.fromkeys(("double",), ("double", pa.float64())),
    **dict.fromkeys(("string",), ("string", pa.string())),
    **dict.fromkeys(("binary",), ("binary", pa.binary())),
    **dict.fromkeys(("date",), ("date", pa.date32())),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), ("timestamp", pa.timestamp("us", TIME_ZONE))),
    **dict.fromkeys(("timestamp_ntz",), ("timestamp_ntz", pa.timestamp("us"))),
    **dict.fromkeys(("void",), ("void", pa.null())),
}


@frozen
class Column:
    """A column or struct field: its type in Spark (simple string) and in Arrow, and the fields of a struct."""

    name: str
    type_name: str
    arrow_type: pa.DataType = field(eq=False)
    nullable: bool = True
    fields: tuple[Column, ...] = ()

    @property
    def arrow_field(self) -> pa.Field:
        """The column in Arrow."""
        return pa.field(self.name, self.arrow_type, self.nullable)


@frozen
class DeclaredSchema:
    """The columns of a stream. ``record_class`` is the class of its records if they are not rows.

    ``row_base`` is the base class of its rows; None for `RecordRow`.
    """

    columns: tuple[Column, ...]
    record_class: type | None = None
    row_base: type[tuple[Any, ...]] | None = field(default=None, eq=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def type_names(self) -> Mapping[str, str]:
        """The types of the columns, by name."""
        return {column.name: column.type_name for column in self.columns}

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of emitted rows. A column with ``NOT NULL`` rejects None."""
        return pa.schema([column.arrow_field for column in self.columns])

    def column(self, name: str) -> Column | None:
        """Return the column with a name, or None. `meant_by` describes upper and lower case."""
        meant = meant_by(name, self.names)
        return next((column for column in self.columns if column.name == meant), None)

    def type_of(self, name: str) -> str | None:
        """Return the type of a column, or of a struct field by its path; None if it does not exist.

        As on Spark, a column with this name has priority over a struct field.
        """
        found = _found(self.columns, name)
        return None if found is None else found.type_name


def _found(columns: tuple[Column, ...], name: str) -> Column | None:
    meant = meant_by(name, [column.name for column in columns])
    for column in columns:
        if column.name == meant:
            return column
    for column in columns:
        if name.lower().startswith(f"{column.name}.".lower()):
            return _found(column.fields, name[len(column.name) + 1 :])
    return None


def meant_by(name: str, names: Sequence[str]) -> str | None:
    """Return the column with exactly this name, or else one that differs only in upper and lower case.

    This is Spark's rule unless ``spark.sql.caseSensitive`` is on.
    """
    if name in names:
        return name
    return next((one for one in names if one.lower() == name.lower()), None)


def parsed_schema(ddl: str, where: str) -> DeclaredSchema:
    """Parse a DDL string; ``where`` starts the message of a `JobDefinitionError`."""
    try:
        return DeclaredSchema(_Parser(ddl).schema())
    except _SyntaxError as error:
        raise unreadable_schema(ddl, where, error) from None


def schema_of_arrow(schema: pa.Schema, where: str) -> DeclaredSchema:
    """Return the declared schema of Arrow columns. Raises `JobDefinitionError` for a type that it cannot have."""
    check_columns(schema.names, str(schema), where)
    try:
        ddl = ", ".join(map(_field_ddl, schema))
    except _UnknownArrowTypeError as error:
        raise JobDefinitionError(f"{where}: {error}; cast it to another one") from None
    return parsed_schema(ddl, where)


def column_type_name(field_: pa.Field) -> str:
    """Return the type of an Arrow field for messages, as DDL where DDL has it: ``decimal(10,2) NOT NULL``."""
    try:
        type_name = _type_ddl(field_.type, field_.name)
    except _UnknownArrowTypeError:
        type_name = str(field_.type)
    return f"{type_name}{'' if field_.nullable else ' NOT NULL'}"


class _UnknownArrowTypeError(ValueError):
    """DDL has no name for the type of an Arrow column."""


def _field_ddl(one: pa.Field) -> str:
    null = "" if one.nullable else " NOT NULL"
    return f"`{one.name.replace('`', '``')}` {_type_ddl(one.type, one.name)}{null}"


def _type_ddl(data_type: pa.DataType, name: str) -> str:
    if pa.types.is_dictionary(data_type):
        return _type_ddl(data_type.value_type, name)
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_struct(data_type):
        return f"struct<{', '.join(map(_field_ddl, data_type))}>"
    if pa.types.is_map(data_type):
        return f"map<{_type_ddl(data_type.key_type, name)}, {_type_ddl(data_type.item_type, name)}>"
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return f"array<{_type_ddl(data_type.value_type, name)}>"
    if pa.types.is_timestamp(data_type):
        return "timestamp_ntz" if data_type.tz is None else "timestamp"
    found = next((type_name for is_type, type_name in _OF_ARROW if is_type(data_type)), None)
    if found is None:
        raise _UnknownArrowTypeError(f"column {name!r} has the Arrow type {data_type}")
    return found


_OF_ARROW: Final[Sequence[tuple[Callable[[pa.DataType], bool], str]]] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "tinyint"),
    (lambda data_type: pa.types.is_int16(data_type) or pa.types.is_uint8(data_type), "smallint"),
    (lambda data_type: pa.types.is_int32(data_type) or pa.types.is_uint16(data_type), "int"),
    (lambda data_type: pa.types.is_int64(data_type) or pa.types.is_uint32(data_type), "bigint"),
    (lambda data_type: pa.types.is_float16(data_type) or pa.types.is_float32(data_type), "float"),
    (pa.types.is_float64, "double"),
    (lambda data_type: pa.types.is_string(data_type) or pa.types.is_large_string(data_type), "string"),
    (lambda data_type: pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type), "binary"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time(6)"),
    (pa.types.is_duration, "interval day to second"),
)


def unreadable_schema(ddl: str, where: str, why: object) -> JobDefinitionError:
    """Return the error for a DDL string that cannot be parsed; ``where`` starts the message."""
    return JobDefinitionError(
        f"{where}: the schema {format_value(ddl, 200)} cannot be read: {why}; "
        f"write it as 'name type, ...' with types such as "
        f"string, bigint, double, timestamp, decimal(10,2), array<int>, struct<a: int>"
    )


def schema_of_struct_type(struct: Any, where: str) -> DeclaredSchema:
    """Return Spark's ``StructType`` as a schema. Raises `JobDefinitionError` as `parsed_schema`."""
    check_columns([one.name for one in struct.fields], struct.simpleString(), where)
    return DeclaredSchema(_column_of("", struct, True, where).fields)


def check_columns(names: Sequence[str], schema: str, where: str, *, is_case_sensitive: bool = False) -> None:
    """Raise `JobDefinitionError` for a schema without columns or with equal names, ignoring case."""
    twice = _doubled(names if is_case_sensitive else map(str.lower, names))
    if twice is not None:
        raise unreadable_schema(schema, where, f"two columns are called {twice!r}")
    if not names:
        raise unreadable_schema(schema, where, "it is empty")


def _doubled(names: Iterable[str]) -> str | None:
    """Return a name that occurs twice."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _column_of(name: str, data_type: Any, nullable: bool, where: str) -> Column:
    """Convert a Spark type, recognised by its attributes. Field names may contain any characters."""
    if hasattr(data_type, "fields"):
        fields = tuple(_column_of(one.name, one.dataType, one.nullable, where) for one in data_type.fields)
        return evolve(struct_column(name, fields), nullable=nullable)
    if hasattr(data_type, "elementType"):
        element = _column_of("element", data_type.elementType, data_type.containsNull, where)
        return evolve(array_column(name, element), nullable=nullable)
    if hasattr(data_type, "keyType"):
        key = _column_of("key", data_type.keyType, False, where)
        value = _column_of("value", data_type.valueType, data_type.valueContainsNull, where)
        return evolve(map_column(name, key, value), nullable=nullable)
    [column] = parsed_schema(data_type.simpleString(), where).columns
    return evolve(column, name=name, nullable=nullable)


def struct_column(name: str, fields: tuple[Column, ...]) -> Column:
    """Return a column of structs."""
    shown_fields = ",".join(f"{one.name}:{one.type_name}" for one in fields)
    return Column(name, f"struct<{shown_fields}>", pa.struct([one.arrow_field for one in fields]), fields=fields)


def array_column(name: str, element: Column) -> Column:
    """Return a column of arrays."""
    arrow_type = pa.list_(pa.field("element", element.arrow_type, element.nullable))
    return Column(name, f"array<{element.type_name}>", arrow_type)


def map_column(name: str, key: Column, value: Column) -> Column:
    """Return a column of maps."""
    arrow_type = pa.map_(key.arrow_type, pa.field("value", value.arrow_type, value.nullable))
    return Column(name, f"map<{key.type_name},{value.type_name}>", arrow_type)


def missing_schema(where: str, how: str) -> JobDefinitionError:
    """Return the error for an output without a schema."""
    return JobDefinitionError(f"{where}: pass {how}")


def place_of_output(operator_uid: str, tag_name: str | None = None) -> str:
    """Return the name of an output for error messages. With a tag name it is a side output."""
    operator = f"operator {operator_uid!r}"
    return operator if tag_name is None else f"{operator}, side output {tag_name!r}"


OF_PROCESS: Final = "schema=RecordClass or schema='name type, ...' after its uid, the schema of its output"
OF_OUTPUT_TAG: Final = "OutputTag(name, RecordClass) or OutputTag(name, 'name type, ...'), the schema of its rows"
"""How programs pass the schemas of outputs and side outputs."""


RESERVED_PREFIX: Final = "__statebackend_"
"""The prefix of columns that a runtime adds."""


def check_not_reserved(columns: Iterable[str], operator_uid: str) -> None:
    """Raise `JobDefinitionError` if an operator's input has columns with reserved names."""
    reserved = [name for name in columns if name.startswith(RESERVED_PREFIX)]
    if reserved:
        raise JobDefinitionError(f"operator {operator_uid!r}: the column names {', '.join(reserved)} are reserved")


def unknown_column(operator_uid: str, given_to: str, name: str, columns: Iterable[str]) -> JobDefinitionError:
    """Return the error for an unknown column of an operator's input, passed to ``key_by`` or ``order_by``."""
    return JobDefinitionError(
        f"operator {operator_uid!r}: {given_to} does not fit the operator's input, which has the columns "
        f"{', '.join(columns)}: there is no column {name!r}"
    )


class _SyntaxError(Exception):
    """A syntax error. The caller adds the schema to the message."""


class _Parser:
    """A recursive descent parser over the tokens."""

    def __init__(self, ddl: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position, end = 0, len(ddl.rstrip())
        while position < end:
            match = _TOKEN.match(ddl, position)
            if match is None:
                raise _SyntaxError(f"{format_value(ddl[position:], 20)} is not expected there")
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind].replace("``", "`") if kind == "quoted" else match[kind]))
            position = match.end()
        self._next = 0

    def schema(self) -> tuple[Column, ...]:
        """Parse the whole text."""
        if not self._tokens:
            raise _SyntaxError("it is empty")
        kind, first = self._tokens[0]
        is_type = kind == "word" and (
            len(self._tokens) == 1
            or self._tokens[1][1] in ("<", "(")
            or (first.lower() == "interval" and self._tokens[1][1].lower() in _UNITS)
        )
        if is_type:
            columns: tuple[Column, ...] = (self._typed("value"),)
        else:
            columns = self._columns()
        if self._next < len(self._tokens):
            raise _SyntaxError(f"{self._tokens[self._next][1]!r} is not expected there")
        return columns

    def _columns(self) -> tuple[Column, ...]:
        columns = [self._column()]
        while self._takes("mark", ","):
            columns.append(self._column())
        twice = _doubled(column.name.lower() for column in columns)
        if twice is not None:
            raise _SyntaxError(f"two columns are called {twice!r}")
        return tuple(columns)

    def _column(self) -> Column:
        kind, name = self._take("the name of a column")
        if kind not in ("word", "quoted"):
            raise _SyntaxError(f"{name!r} is not a name of a column")
        self._takes("mark", ":")
        column = self._typed(name)
        nullable = True
        if self._takes("word", "not"):
            self._expect("word", "null")
            nullable = False
        if self._takes("word", "comment"):
            self._take("a comment")
        return Column(name, column.type_name, column.arrow_type, nullable, column.fields)

    def _typed(self, name: str) -> Column:
        _, word = self._take(f"the type of {name!r}")
        type_name = word.lower()
        if type_name in _SIMPLE:
            return Column(name, *_SIMPLE[type_name])
        make = self._MAKERS.get(type_name)
        if make is None:
            raise _SyntaxError(f"{word!r} is not a type that is known here")
        return make(self, name, type_name)

    def _decimal(self, name: str, type_name: str) -> Column:
        precision, scale = 10, 0
        if self._takes("mark", "("):
            precision = self._number()
            scale = self._number() if self._takes("mark", ",") else 0
            self._expect("mark", ")")
        if not 1 <= precision <= _LARGEST_PRECISION or scale > precision:
            raise _SyntaxError(f"decimal({precision},{scale}) is not a type")
        return Column(name, f"decimal({precision},{scale})", pa.decimal128(precision, scale))

    def _time(self, name: str, type_name: str) -> Column:
        precision = _TIME_PRECISION
        if self._takes("mark", "("):
            precision = self._number()
            self._expect("mark", ")")
        if precision > _TIME_PRECISION:
            raise _SyntaxError(f"time({precision}) is not a type")
        return Column(name, f"time({precision})", pa.time64("ns"))

    def _interval(self, name: str, type_name: str) -> Column:
        units = [self._unit()]
        if self._takes("word", "to"):
            units.append(self._unit())
        if list(map(_UNITS.index, units)) != sorted(set(map(_UNITS.index, units))):
            raise _SyntaxError(f"interval {' to '.join(units)} is not a type")
        return Column(name, f"interval {' to '.join(units)}", pa.duration("us"))

    def _unit(self) -> str:
        _, word = self._take("the unit of an interval")
        if word.lower() not in _UNITS:
            raise _SyntaxError(f"an interval of {word} is not a type that is known here; use {', '.join(_UNITS)}")
        return word.lower()

    def _array(self, name: str, type_name: str) -> Column:
        self._expect("mark", "<")
        element = self._typed("element")
        self._expect("mark", ">")
        return array_column(name, element)

    def _map(self, name: str, type_name: str) -> Column:
        self._expect("mark", "<")
        key = self._typed("key")
        self._expect("mark", ",")
        value = self._typed("value")
        self._expect("mark", ">")
        return map_column(name, key, value)

    def _struct(self, name: str, type_name: str) -> Column:
        self._expect("mark", "<")
        fields: tuple[Column, ...] = ()
        if not self._takes("mark", ">"):
            fields = self._columns()
            self._expect("mark", ">")
        return struct_column(name, fields)

    def _take(self, expected: str) -> tuple[str, str]:
        if self._next == len(self._tokens):
            raise _SyntaxError(f"{expected} is missing at the end")
        self._next += 1
        return self._tokens[self._next - 1]

    def _takes(self, kind: str, text: str) -> bool:
        if self._next == len(self._tokens):
            return False
        found_kind, found = self._tokens[self._next]
        is_there = found_kind == kind and found.lower() == text
        self._next += is_there
        return is_there

    def _expect(self, kind: str, text: str) -> None:
        if not self._takes(kind, text):
            raise _SyntaxError(f"{text!r} is missing")

    def _number(self) -> int:
        _, text = self._take("a number")
        if not (text.isascii() and text.isdecimal()):
            raise _SyntaxError(f"{text!r} is not a number")
        return int(text)

    _MAKERS: Final[Mapping[str, Callable[[Any, str, str], Column]]] = {
        **dict.fromkeys(("decimal", "dec", "numeric"), _decimal),
        "time": _time,
        "interval": _interval,
        "array": _array,
        "map": _map,
        "struct": _struct,
    }
