"""Types of stored values as data, and the Python classes of one version of them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from random import Random
from types import GenericAlias
from typing import Annotated, Any, Final, TypeAlias, Union

import attrs
from attrs import evolve, frozen

from typeserializers import IntSerializer, former_names

__all__ = [
    "REQUIRED",
    "Classes",
    "EnumType",
    "Field",
    "ListOf",
    "MapOf",
    "OptionalOf",
    "Record",
    "RecordValue",
    "Scalar",
    "TupleOf",
    "Type",
    "UnionOf",
    "format_type",
    "parts",
    "plain",
    "random_value",
    "with_parts",
]


@frozen
class Scalar:
    """``int32``, ``int``, ``float``, ``decimal``, ``str``, ``bytes`` or ``bool``."""

    kind: str


@frozen
class OptionalOf:
    """A value or None."""

    item: Type


@frozen
class ListOf:
    """A list."""

    item: Type


@frozen
class MapOf:
    """A dict."""

    key: Type
    value: Type


@frozen
class TupleOf:
    """A tuple of a fixed length."""

    items: tuple[Type, ...]


@frozen
class UnionOf:
    """A value of one of several scalar types."""

    members: tuple[Scalar, ...]


@frozen
class EnumType:
    """An enum: the value of each constant by its name. Of constants with equal values the first is canonical."""

    name: str
    constants: tuple[tuple[str, int], ...]

    def canonical(self, constant: str) -> str:
        """Return the name of the canonical constant with this value."""
        value = dict(self.constants)[constant]
        return next(name for name, other in self.constants if other == value)

    @property
    def names(self) -> list[str]:
        """The canonical names."""
        return sorted({self.canonical(name) for name, _ in self.constants})


REQUIRED: Final = object()
"""The default of a field that has no default."""


@frozen
class Field:
    """A field of a record. ``identity`` identifies it across versions, whatever its name."""

    name: str
    type: Type
    identity: int
    default: Any = REQUIRED
    former: tuple[str, ...] = ()


@frozen
class Record:
    """A record class."""

    name: str
    fields: tuple[Field, ...]
    former: tuple[str, ...] = ()
    family: str = "attrs"


Type: TypeAlias = Union[Scalar, OptionalOf, ListOf, MapOf, TupleOf, UnionOf, EnumType, Record]  # noqa: UP007

_SCALARS: Final[Mapping[str, Any]] = {
    "int32": Annotated[int, IntSerializer()],
    "int": int,
    "float": float,
    "decimal": Decimal,
    "str": str,
    "bytes": bytes,
    "bool": bool,
}


class Classes:
    """The Python classes of one version: type hints for types, and real values for plain ones.

    A plain value has a dict in place of a record, and the name of a constant in place of an enum.
    """

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def hint(self, given: Type) -> Any:
        """Return the type hint."""
        if isinstance(given, Scalar):
            return _SCALARS[given.kind]
        if isinstance(given, OptionalOf):
            return self.hint(given.item) | None if not _is_annotated(given.item) else Union[self.hint(given.item), None]  # noqa: UP007
        if isinstance(given, ListOf):
            return GenericAlias(list, (self.hint(given.item),))
        if isinstance(given, MapOf):
            return GenericAlias(dict, (self.hint(given.key), self.hint(given.value)))
        if isinstance(given, TupleOf):
            return GenericAlias(tuple, tuple(map(self.hint, given.items)))
        if isinstance(given, UnionOf):
            return Union[tuple(map(self.hint, given.members))]  # noqa: UP007
        # Defaults may be lists, which are not hashable.
        name = format_type(given)
        if name not in self._known:
            self._known[name] = self._enum(given) if isinstance(given, EnumType) else self._record(given)
        return self._known[name]

    def real(self, given: Type, value: Any) -> Any:
        """Return the value that a program would store."""
        if value is None or isinstance(given, (Scalar, UnionOf)):
            return value
        if isinstance(given, OptionalOf):
            return self.real(given.item, value)
        if isinstance(given, ListOf):
            return [self.real(given.item, item) for item in value]
        if isinstance(given, MapOf):
            return {self.real(given.key, key): self.real(given.value, item) for key, item in value.items()}
        if isinstance(given, TupleOf):
            return tuple(self.real(kind, item) for kind, item in zip(given.items, value, strict=True))
        if isinstance(given, EnumType):
            return self.hint(given)[value]
        return self.hint(given)(**{one.name: self.real(one.type, value[one.name]) for one in given.fields})

    def _enum(self, given: EnumType) -> Any:
        return enum.Enum(given.name, list(given.constants), module=__name__)

    def _record(self, given: Record) -> Any:
        return _FAMILIES[given.family](self, given)

    def default(self, one: Field) -> dict[str, Any]:
        """Return the default of a field as arguments of `attrs.field` and `dataclasses.field`."""
        if one.default is REQUIRED:
            return {}
        made = self.real(one.type, one.default)
        if isinstance(made, (list, dict)) or (made is not None and isinstance(_inner(one.type), Record)):
            return {"factory": lambda: self.real(one.type, one.default)}
        return {"default": made}


def _inner(given: Type) -> Type:
    return given.item if isinstance(given, OptionalOf) else given


def _is_annotated(given: Type) -> bool:
    return isinstance(given, Scalar) and given.kind == "int32"


def _attrs_class(classes: Classes, given: Record) -> Any:
    return attrs.make_class(
        given.name,
        {
            one.name: attrs.field(
                type=classes.hint(one.type),
                metadata=former_names(*one.former) if one.former else {},
                kw_only=True,
                **classes.default(one),
            )
            for one in given.fields
        },
        class_body={"__former_names__": given.former, "__module__": __name__},
    )


def _data_class(classes: Classes, given: Record) -> Any:
    fields = []
    for one in given.fields:
        arguments = classes.default(one)
        if "factory" in arguments:
            arguments = {"default_factory": arguments["factory"]}
        metadata = former_names(*one.former) if one.former else {}
        made: Any = dataclasses.field(metadata=metadata, kw_only=True, **arguments)
        fields.append((one.name, classes.hint(one.type), made))
    return dataclasses.make_dataclass(
        given.name, fields, namespace={"__former_names__": given.former, "__module__": __name__}
    )


_FAMILIES: Final[Mapping[str, Callable[[Classes, Record], Any]]] = {
    "attrs": _attrs_class,
    "dataclass": _data_class,
}


def plain(value: Any) -> Any:
    """Return a real or plain value in a form that can be compared: numbers with types, records as sorted items."""
    if isinstance(value, enum.Enum):
        return value.name
    if attrs.has(type(value)):
        return (
            "record",
            tuple(sorted((one.name, plain(getattr(value, one.name))) for one in attrs.fields(type(value)))),
        )
    if dataclasses.is_dataclass(value):
        return (
            "record",
            tuple(sorted((one.name, plain(getattr(value, one.name))) for one in dataclasses.fields(value))),
        )
    if isinstance(value, RecordValue):
        return ("record", tuple(sorted((name, plain(item)) for name, item in value.items())))
    if isinstance(value, dict):
        return ("map", tuple(sorted(((plain(key), plain(item)) for key, item in value.items()), key=repr)))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, tuple(map(plain, value)))
    if isinstance(value, (float, Decimal)):
        return type(value).__name__, repr(value)
    return value if isinstance(value, str) else (type(value).__name__, value)


class RecordValue(dict[str, Any]):
    """A plain record: its values by the names of its fields."""


def random_value(random: Random, given: Type) -> Any:
    """Return a random plain value of a type."""
    if isinstance(given, Scalar):
        return _VALUES[given.kind](random)
    if isinstance(given, OptionalOf):
        return None if random.random() < 0.4 else random_value(random, given.item)
    if isinstance(given, ListOf):
        return [random_value(random, given.item) for _ in range(random.choice((0, 1, 3)))]
    if isinstance(given, MapOf):
        return {
            random_value(random, given.key): random_value(random, given.value) for _ in range(random.choice((0, 1, 3)))
        }
    if isinstance(given, TupleOf):
        return tuple(random_value(random, item) for item in given.items)
    if isinstance(given, UnionOf):
        return random_value(random, random.choice(given.members))
    if isinstance(given, EnumType):
        return random.choice(given.names)
    return RecordValue({one.name: random_value(random, one.type) for one in given.fields})


_VALUES: Final[Mapping[str, Callable[[Random], Any]]] = {
    "int32": lambda random: random.choice((0, -1, 2**31 - 1, -(2**31), random.randrange(100))),
    "int": lambda random: random.choice((0, -1, 2**63 - 1, -(2**63), 2**53 + 1, random.randrange(100))),
    "float": lambda random: random.choice((0.0, -0.0, float("inf"), float("nan"), 5e-324, random.random())),
    "decimal": lambda random: random.choice((Decimal("0.10"), Decimal("-1E+3"), Decimal(2**70), Decimal("1.5"))),
    "str": lambda random: random.choice(("", "a", "ä€😀", "x\x00y", f"s{random.randrange(100)}")),
    "bytes": lambda random: random.choice((b"", b"ab", "ü".encode())),
    "bool": lambda random: random.random() < 0.5,
}


def format_type(given: Type) -> str:
    """Return a type as text."""
    if isinstance(given, Scalar):
        return given.kind
    if isinstance(given, OptionalOf):
        return f"{format_type(given.item)}?"
    if isinstance(given, ListOf):
        return f"list[{format_type(given.item)}]"
    if isinstance(given, MapOf):
        return f"dict[{format_type(given.key)}, {format_type(given.value)}]"
    if isinstance(given, TupleOf):
        return f"({', '.join(map(format_type, given.items))})"
    if isinstance(given, UnionOf):
        return " | ".join(map(format_type, given.members))
    if isinstance(given, EnumType):
        return f"{given.name}<{', '.join(f'{name}={value}' for name, value in given.constants)}>"
    return f"{given.family} {given.name}{_formerly(given.former)}{{{', '.join(map(_format_field, given.fields))}}}"


def _format_field(one: Field) -> str:
    default = "" if one.default is REQUIRED else f" = {one.default!r}"
    return f"{one.name}{_formerly(one.former)}: {format_type(one.type)}{default}"


def _formerly(names: tuple[str, ...]) -> str:
    return f" (formerly {', '.join(names)})" if names else ""


def parts(given: Type) -> Iterator[Type]:
    """Return the types directly inside a type."""
    if isinstance(given, (OptionalOf, ListOf)):
        yield given.item
    elif isinstance(given, MapOf):
        yield from (given.key, given.value)
    elif isinstance(given, TupleOf):
        yield from given.items
    elif isinstance(given, Record):
        yield from (one.type for one in given.fields)


def with_parts(given: Type, changed: list[Type]) -> Type:
    """Return the type with other types directly inside."""
    if isinstance(given, (OptionalOf, ListOf)):
        return evolve(given, item=changed[0])
    if isinstance(given, MapOf):
        return MapOf(*changed)
    if isinstance(given, TupleOf):
        return TupleOf(tuple(changed))
    assert isinstance(given, Record)
    fields = (_with_type(one, kind) for one, kind in zip(given.fields, changed, strict=True))
    return evolve(given, fields=tuple(fields))


def _with_type(one: Field, kind: Type) -> Field:
    # The old default may not be a value of the new type.
    stays = one.default is REQUIRED or kind == one.type
    return evolve(one, type=kind, default=one.default if stays else random_value(Random(0), kind))
