"""Derives schemas from record classes, and creates records from the values of columns.

    bool  boolean      datetime   timestamp               X | None          the column of X, nullable
    int   bigint       date       date                    list[X]           array
    float double       time       time(6)                 tuple[X, ...]     array
    str   string       timedelta  interval day to second  dict[K, V]        map
    bytes binary       Decimal    decimal(38,18)          a record class    struct

    enum        the values if all are str (string) or all are int (bigint); otherwise the names of constants (string)
    Literal     the column type of its values, which must all have one type

``Annotated[Decimal, ColumnType("decimal(10,2)")]`` chooses another column type for a field.
`docs/records-and-schemas.md` has the table for users. Generated code, compiled once per class, creates the records.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import sys
import types
import typing
from collections import abc, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import repeat
from typing import Annotated, Any, Final, Literal, TypeVar, Union

import pyarrow as pa
from attrs import evolve, field, frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.declared_schema import (
    Column,
    DeclaredSchema,
    array_column,
    check_columns,
    map_column,
    missing_schema,
    parsed_schema,
    schema_of_struct_type,
    struct_column,
)
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.record_families import ABSENT, DeclaredField
from typeserializers.kernel.serializer_inference import DEFAULT_RULES, described
from typeserializers.records.record_serializer import only_sets_fields, reject_undecorated

__all__ = [
    "AS_RECORDS",
    "RecordType",
    "annotated_output",
    "columns_of_class",
    "constant_value",
    "is_record_class",
    "output_schema",
    "record_type",
    "returned_type",
]

Convert = Callable[[Any], Any]
"""Converts a value of a column, never None, to a value of the class. Raises `ValueError` for an invalid value."""


@frozen
class ColumnType:
    """Sets the column type of a field of a record class, in ``Annotated``.

    Args:
        ddl: The type, such as ``decimal(10,2)``, ``int``, ``float`` or ``timestamp_ntz``.

    Example:
        ```python
        amount: Annotated[Decimal, ColumnType("decimal(10,2)")]
        ```
    """

    ddl: str


@frozen
class RecordType:
    """A record class with its schema and the function that creates records."""

    record_class: type
    schema: DeclaredSchema = field(eq=False)
    """The schema, with one column per field."""
    make_all: Callable[[Sequence[Sequence[Any]]], list[Any]] = field(eq=False, repr=False)
    """Creates records from lists of values, one list per column. Raises errors of the class, or `ValueError`."""
    has_plain_values: bool = field(eq=False)
    """Whether each field holds the value of its column, and no value that the column can hold is rejected."""


def is_record_class(candidate: Any) -> bool:
    """Whether instances of a class are records with fields."""
    return DEFAULT_RULES.family_of(candidate) is not None


def record_type(record_class: Any, where: str) -> RecordType:
    """Return the schema of a record class and the function that creates its records.

    Raises `JobDefinitionError`, starting with ``where``, if it is not a record class, or if a field has no column type.
    """
    _reject_undecorated(record_class, where)
    if not is_record_class(record_class):
        raise JobDefinitionError(
            f"{where}: {format_value(record_class, 80)} is not a record class; pass an attrs class, a dataclass, a "
            f"NamedTuple, a pydantic model or a msgspec struct"
        )
    try:
        return _record_type(record_class)
    except _NoColumnError as error:
        raise JobDefinitionError(f"{where}: {error}") from None


AS_RECORDS: Final = "as_records()"


def columns_of_class(kind: RecordType, given: DeclaredSchema, where: str) -> list[str]:
    """Return the name of the column for each field of a class.

    Raises `JobDefinitionError` for a missing column, and for a column type that the field cannot hold without loss.
    """
    names = []
    for column in kind.schema.columns:
        place = f"{where}: {kind.record_class.__name__}.{column.name}"
        found = given.column(column.name)
        if found is None:
            raise JobDefinitionError(
                f"{place}: the stream has no column of that name, only {', '.join(given.names)}; rename the field or "
                f"the column"
            )
        if not _is_held_by(found.arrow_type, column.arrow_type):
            raise JobDefinitionError(
                f"{place} is {column.type_name} and the column is {found.type_name}; change the type of the field, or "
                f"cast the column before"
            )
        names.append(found.name)
    return names


def _is_held_by(given: pa.DataType, field_type: pa.DataType) -> bool:
    """Whether a field can hold every value of a column without loss."""
    types = pa.types
    if types.is_struct(field_type) and types.is_struct(given):
        return [one.name for one in given] == [one.name for one in field_type] and all(
            _is_held_by(one.type, other.type) for one, other in zip(given, field_type, strict=True)
        )
    if types.is_list(field_type) and types.is_list(given):
        return _is_held_by(given.value_type, field_type.value_type)
    if types.is_map(field_type) and types.is_map(given):
        return _is_held_by(given.key_type, field_type.key_type) and _is_held_by(given.item_type, field_type.item_type)
    if types.is_integer(field_type) and types.is_integer(given):
        return bool(given.bit_width <= field_type.bit_width)
    if types.is_decimal(field_type) and types.is_decimal(given):
        whole = given.precision - given.scale <= field_type.precision - field_type.scale
        return bool(whole and given.scale <= field_type.scale)
    if types.is_floating(field_type) and types.is_floating(given):
        return bool(given.bit_width <= field_type.bit_width)
    if types.is_timestamp(field_type) and types.is_timestamp(given):
        # The zone of the column is the session time zone, so only its presence is compared.
        return (given.tz is None) == (field_type.tz is None)
    return bool(types.is_null(given) or given == field_type)


def output_schema(declared: object, where: str, how: str) -> DeclaredSchema:
    """Return the schema of an operator's output from DDL, a record class or Spark's ``StructType``.

    In a `JobDefinitionError`, ``where`` names the output and ``how`` explains how to pass its schema.
    """
    if declared is None:
        raise missing_schema(where, how)
    if isinstance(declared, str):
        return parsed_schema(declared, where)
    _reject_undecorated(declared, where)
    if is_record_class(declared):
        return record_type(declared, where).schema
    if not hasattr(declared, "fields"):
        raise JobDefinitionError(
            f"{where}: schema must be DDL, a record class or a StructType, not {_described_schema(declared)}"
        )
    return schema_of_struct_type(declared, where)


def _described_schema(declared: object) -> str:
    return f"the class {declared.__name__}" if isinstance(declared, type) else type(declared).__name__


def annotated_output(function: object) -> type | None:
    """Return the record class that a function emits, as annotated: ``KeyedProcessFunction[str, Payment, Alert]``.

    None if the annotation is missing or is not a record class.
    """
    hint = _argument_of_output(type(function), {})
    if hint is None or not is_record_class(hint):
        # A function of windows or pairs that wraps a plain function.
        hint = returned_type(getattr(function, "function", None))
    return hint if is_record_class(hint) else None


def _argument_of_output(kind: type, bound: Mapping[Any, Any]) -> Any:
    """Return the argument of a class for the type variable ``O`` of its base classes."""
    for base in vars(kind).get("__orig_bases__", kind.__bases__):
        origin = typing.get_origin(base) or base
        if origin is typing.Generic or origin is object:
            continue
        parameters = getattr(origin, "__parameters__", ())
        arguments = dict(zip(parameters, (bound.get(one, one) for one in typing.get_args(base)), strict=False))
        # A class of the program may use the name for something else.
        is_own = origin.__module__.startswith("statebackend.")
        for parameter, argument in arguments.items():
            if is_own and parameter.__name__ == "O" and not isinstance(argument, TypeVar):
                return _resolved(argument, kind)
        found = _argument_of_output(origin, arguments)
        if found is not None:
            return found
    return None


def _resolved(hint: Any, kind: type) -> Any:
    """Resolve a quoted name in the module of a class. None if it does not exist."""
    if not isinstance(hint, typing.ForwardRef):
        return hint
    return getattr(sys.modules.get(kind.__module__), hint.__forward_arg__, None)


def returned_type(function: object) -> Any:
    """Return the annotated type of the values that a function returns or yields; None without an annotation."""
    hint = annotated_return(function)
    origin = typing.get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping):
        [hint, *_] = typing.get_args(hint)
    return hint


def annotated_return(function: object) -> Any:
    """Return the annotated type of what a function returns, without None; None without an annotation."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, type):
        return function
    if callable(function) and not inspect.isroutine(function):
        function = type(function).__call__
    try:
        hint = typing.get_type_hints(function, include_extras=True).get("return") if callable(function) else None
    except (NameError, TypeError):
        return None
    present = [one for one in _members(hint) if one is not type(None)]
    return present[0] if len(present) == 1 else hint


class _NoColumnError(Exception):
    """A field has no column type. The message starts with the path of the field."""


def _reject_undecorated(record_class: Any, where: str) -> None:
    try:
        reject_undecorated(record_class, DEFAULT_RULES, where)
    except TypeError as error:
        raise JobDefinitionError(str(error)) from None


@frozen
class _FieldType:
    """The column of a type hint. ``convert`` is None if values need no conversion."""

    column: Column
    convert: Convert | None = None


@lru_cache(maxsize=256)
def _record_type(record_class: type) -> RecordType:
    fields = _fields(record_class, record_class.__name__, (record_class,))
    columns = tuple(one.column for _, one in fields)
    is_plain = issubclass(record_class, tuple) or only_sets_fields(record_class)
    return RecordType(
        record_class,
        DeclaredSchema(columns),
        _maker(record_class, fields, "all"),
        has_plain_values=is_plain and all(one.convert is None for _, one in fields),
    )


def _fields(record_class: Any, path: str, enclosing: tuple[type, ...]) -> list[tuple[DeclaredField, _FieldType]]:
    """Return the fields of a class with their columns."""
    family = DEFAULT_RULES.family_of(record_class)
    assert family is not None
    rejection = family.rejection(record_class)
    if rejection is not None:
        raise _NoColumnError(f"{path}: {rejection}")
    try:
        declared = family.fields(record_class)
    except (NameError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise _NoColumnError(
            f"{path}: a type hint cannot be resolved ({reason}); define the types at the top of a module"
        ) from error
    made = []
    for one in declared:
        place = f"{path}.{one.name}"
        if not one.is_given:
            raise _NoColumnError(f"{place}: a field with init=False cannot be read; derive it in a property instead")
        if one.hint is ABSENT:
            raise _NoColumnError(f"{place}: the field has no type hint; give it one")
        made.append((one, _field_type(one.hint, one.name, place, enclosing)))
    names = [one.name for one in declared]
    try:
        check_columns(names, ", ".join(names), path)
    except JobDefinitionError as error:
        raise _NoColumnError(str(error)) from None
    return made


def _field_type(hint: Any, name: str, path: str, enclosing: tuple[type, ...]) -> _FieldType:
    chosen = None
    while True:
        if typing.get_origin(hint) is Annotated:
            hint, *extras = typing.get_args(hint)
            chosen = next((one for one in extras if isinstance(one, ColumnType)), chosen)
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif typing.get_origin(hint) is Final:
            [hint] = typing.get_args(hint)
        else:
            break
    members = _members(hint)
    if type(None) in members:
        present = [one for one in members if one is not type(None)]
        if len(present) == 1:
            inner = Annotated[present[0], chosen] if chosen is not None else present[0]
            made = _field_type(inner, name, path, enclosing)
            return evolve(made, column=evolve(made.column, nullable=True))
    if chosen is not None:
        return _FieldType(_chosen_column(hint, name, chosen, path))
    for make in _FIELD_TYPES:
        found = make(hint, name, path, enclosing)
        if found is not None:
            return evolve(found, column=evolve(found.column, name=name, nullable=False))
    raise _NoColumnError(f"{path}: {described(hint)} has no column type{_advice(hint)}")


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else ()


def _advice(hint: Any) -> str:
    origin = typing.get_origin(hint) or hint
    if _members(hint):
        return "; a column has one type, so make one field of each member, each optional"
    if isinstance(hint, TypeVar) or is_record_class(typing.get_origin(hint)):
        return "; a generic class has no columns, so use a subclass with types, such as class Prices(Box[float])"
    if origin in (set, frozenset, abc.Sequence, abc.Iterable, abc.Collection, abc.Set):
        return "; use list[X]"
    if origin in (abc.Mapping, abc.MutableMapping):
        return "; use dict[K, V]"
    if origin is tuple:
        return "; use a NamedTuple, or tuple[X, ...] for values of one type"
    if origin in (list, dict):
        return "; name the type of what it holds, as in list[int] or dict[str, int]"
    return "; use one of the types in docs/records-and-schemas.md"


_SCALARS: Final[Mapping[Any, str]] = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    bytes: "binary",
    datetime.date: "date",
    datetime.time: "time(6)",
    datetime.datetime: "timestamp",
    datetime.timedelta: "interval day to second",
    decimal.Decimal: "decimal(38,18)",
}
"""The column type of each Python type."""

_CHOICES: Final[Mapping[Any, tuple[str, ...]]] = {
    int: ("tinyint", "smallint", "int", "bigint", "decimal"),
    float: ("float", "double"),
    datetime.datetime: ("timestamp", "timestamp_ntz"),
    decimal.Decimal: ("decimal",),
}
"""The types that ``ColumnType`` may set instead."""


def _chosen_column(hint: Any, name: str, chosen: ColumnType, path: str) -> Column:
    try:
        columns = parsed_schema(chosen.ddl, f"{path}: {chosen}").columns
    except JobDefinitionError as error:
        raise _NoColumnError(str(error)) from None
    known = (*_CHOICES.get(hint, ()), *([_SCALARS[hint]] if hint in _SCALARS else []))
    column = columns[0]
    if len(columns) != 1 or column.name != "value" or column.type_name.partition("(")[0] not in known:
        possible = f"choose one of {', '.join(known)}" if known else "leave it out"
        raise _NoColumnError(f"{path}: {chosen} is not a column for {described(hint)}; {possible}")
    return evolve(column, name=name, nullable=False)


def _scalar(hint: Any, name: str, path: str, enclosing: tuple[type, ...]) -> _FieldType | None:
    try:
        type_name = _SCALARS.get(hint)
    except TypeError:
        return None
    return None if type_name is None else _FieldType(parsed_schema(type_name, path).columns[0])


def _enum(hint: Any, name: str, path: str, enclosing: tuple[type, ...]) -> _FieldType | None:
    if not isinstance(hint, type) or not issubclass(hint, enum.Enum):
        return None
    if issubclass(hint, enum.Flag):
        raise _NoColumnError(f"{path}: {described(hint)} is a Flag, which has no column type; use its value as an int")
    constants = {constant_value(one): one for one in hint}
    kind = int if all(type(value) is int for value in constants) else str

    def convert(value: Any) -> Any:
        found = constants.get(value)
        if found is None:
            raise ValueError(f"{format_value(value, 80)} is not a constant of {hint.__name__}")
        return found

    return _FieldType(parsed_schema(_SCALARS[kind], path).columns[0], convert)


@lru_cache(maxsize=256)
def _has_plain_values(kind: type[enum.Enum]) -> bool:
    """Whether a column stores the values of the constants: all are strings, or all are integers."""
    values = [one.value for one in kind]
    return all(type(one) is str for one in values) or all(type(one) is int for one in values)


def constant_value(constant: enum.Enum) -> Any:
    """Return the column value for a constant of an enum."""
    return constant.value if _has_plain_values(type(constant)) else constant.name


def _literal(hint: Any, name: str, path: str, enclosing: tuple[type, ...]) -> _FieldType | None:
    if typing.get_origin(hint) is not Literal:
        return None
    values = typing.get_args(hint)
    present = [value for value in values if value is not None]
    kinds = set(map(type, present))
    if len(kinds) != 1:
        raise _NoColumnError(f"{path}: {hint} has values of several types, and a column has one type")
    [kind] = kinds
    made = _field_type(kind, name, path, enclosing)
    accepted = frozenset(present)
    of_value = made.convert

    def convert(value: Any) -> Any:
        converted = value if of_value is None else of_value(value)
        if converted not in accepted:
            raise ValueError(f"{format_value(value, 80)} is not a value of {hint}")
        return converted

    return _FieldType(made.column, convert)


def _array(hint: Any, name: str, path: str, enclosing: tuple[type, ...]) -> _FieldType | None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if not (origin is list and arguments) and not (origin is tuple and arguments[1:] == (Ellipsis,)):
        return None
    element = _field_type(arguments[0], "element", f"{path}[]", enclosing)
    convert = _each(element, f"{path}[]")
    column = array_column(name, element.column)
    if origin is list:
        return _FieldType(column, convert)
    return _FieldType(column, tuple if convert is None else lambda items: tuple(convert(items)))


def _map(hint: Any, name: str, path: str, enclosing: tuple[type, ...]) -> _FieldType | None:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is not dict or not arguments:
        return None
    key = _field_type(arguments[0], "key", f"{path}{{key}}", enclosing)
    value = _field_type(arguments[1], "value", f"{path}{{value}}", enclosing)
    if key.column.nullable:
        raise _NoColumnError(f"{path}{{key}}: a key of a map cannot be None")
    column = map_column(name, key.column, value.column)
    keys, values = _each(key, f"{path}{{key}}"), _each(value, f"{path}{{value}}")
    if keys is None and values is None:
        return _FieldType(column)

    def convert(entries: Any) -> Any:
        made_keys = entries if keys is None else keys(entries)
        made_values = entries.values() if values is None else values(entries.values())
        return dict(zip(made_keys, made_values, strict=True))

    return _FieldType(column, convert)


def _each(one: _FieldType, path: str) -> Convert | None:
    """Return a function that converts each item of a list; None if no conversion is needed."""
    convert = one.convert
    if one.column.nullable:
        if convert is None:
            return None
        return lambda items: [None if item is None else convert(item) for item in items]

    def converted(items: Iterable[Any]) -> list[Any]:
        values = list(items)
        if None in values:
            raise ValueError(f"{path} is null, and its type is not optional")
        return values if convert is None else list(map(convert, values))

    return converted


def _struct(hint: Any, name: str, path: str, enclosing: tuple[type, ...]) -> _FieldType | None:
    try:
        reject_undecorated(hint, DEFAULT_RULES, path)
    except TypeError as error:
        raise _NoColumnError(str(error)) from None
    if not is_record_class(hint):
        return None
    if hint in enclosing:
        raise _NoColumnError(
            f"{path}: {hint.__name__} contains itself, and a column cannot; use the id of the other one"
        )
    fields = _fields(hint, path, (*enclosing, hint))
    columns = tuple(one.column for _, one in fields)
    return _FieldType(struct_column(name, columns), _maker(hint, fields, "one", path))


_FIELD_TYPES: Final = (_scalar, _enum, _literal, _array, _map, _struct)


def _maker(
    record_class: Any, fields: Sequence[tuple[DeclaredField, _FieldType]], of: Literal["all", "one"], path: str = ""
) -> Callable[[Any], Any]:
    """Compile the function that creates records: all from columns, or one from the values of a struct."""
    family = DEFAULT_RULES.family_of(record_class)
    assert family is not None
    function = GeneratedFunction("records_of_values" if of == "all" else "record_of_values", "values")
    make, is_null = function.bind("make", family.maker(record_class) or record_class), function.bind("null", _is_null)
    variables, expressions, positional, named = [], [], [], []
    for declared, one in fields:
        variable = value = function.fresh("v")
        variables.append(variable)
        if one.convert is not None:
            value = f"{function.bind('convert', one.convert)}({variable})"
        if one.column.nullable and one.convert is not None:
            value = f"(None if {variable} is None else {value})"
        elif not one.column.nullable and of == "one":
            place = function.bind("path", f"{path}.{declared.name}")
            value = f"({is_null}({place}) if {variable} is None else {value})"
        expressions.append(value)
        if declared.keyword_only:
            named.append(f"{declared.argument or declared.name}={value}")
        else:
            positional.append(value)
    call = f"{make}({', '.join([*positional, *named])})"
    names = f"{', '.join(variables)},"
    if of == "all" and issubclass(record_class, tuple) and all(one.convert is None for _, one in fields):
        # Skips the constructor of a NamedTuple, which a class cannot override.
        new = function.bind("new", partial(tuple.__new__, record_class))
        return function.compile([f"return list(map({new}, zip(*values)))"])
    attributes = [declared.name for declared, _ in fields]
    # A frozen constructor calls `object.__setattr__` for each field. Assigning by column takes half the time.
    is_assigned = family.is_frozen(record_class) and family.maker(record_class) is None
    if of == "all" and is_assigned and only_sets_fields(record_class):
        if all(isinstance(getattr(record_class, name, None), types.MemberDescriptorType) for name in attributes):
            return partial(_with_slots, record_class, attributes, [one.convert for _, one in fields])
        if not any(hasattr(inspect.getattr_static(record_class, name, None), "__set__") for name in attributes):
            entries = ", ".join(f"{name!r}: {value}" for name, value in zip(attributes, expressions, strict=True))
            make_all, of_class = function.bind("make_all", _with_dicts), function.bind("record_class", record_class)
            return function.compile([f"return {make_all}({of_class}, [{{{entries}}} for {names} in zip(*values)])"])
    if of == "all":
        return function.compile([f"return [{call} for {names} in zip(*values)]"])
    return function.compile([f"{names} = values", f"return {call}"])


def _with_slots(
    record_class: Any, slots: Sequence[str], conversions: Sequence[Convert | None], values: Sequence[Sequence[Any]]
) -> list[Any]:
    """Create objects and assign their slots, column by column. Nulls were checked before."""
    columns = [
        column if convert is None else [None if value is None else convert(value) for value in column]
        for convert, column in zip(conversions, values, strict=True)
    ]
    if not hasattr(record_class, slots[0]):
        # A class that is defined in the main script has no slots on workers.
        return _with_dicts(record_class, [dict(zip(slots, row, strict=True)) for row in zip(*columns, strict=True)])
    made = list(map(object.__new__, repeat(record_class, len(columns[0]))))
    for slot, column in zip(slots, columns, strict=True):
        deque(map(getattr(record_class, slot).__set__, made, column), maxlen=0)
    return made


def _with_dicts(record_class: Any, dicts: Sequence[dict[str, Any]]) -> list[Any]:
    """Create objects with these attributes."""
    made = list(map(object.__new__, repeat(record_class, len(dicts))))
    [descriptor] = [vars(kind)["__dict__"] for kind in record_class.__mro__ if "__dict__" in vars(kind)][-1:]
    deque(map(descriptor.__set__, made, dicts), maxlen=0)
    return made


def _is_null(path: str) -> Any:
    raise ValueError(f"{path} is null, and its type is not optional")
