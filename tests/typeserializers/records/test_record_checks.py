"""Values that could not be read back, or would change, are rejected at registration."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import attrs
import pytest

import typeserializers as ts
from statebackend import ListStateDescriptor, MapStateDescriptor, StateRegistrationError, ValueStateDescriptor


@dataclasses.dataclass
class NeedsAnInitVar:
    x: int
    unit: dataclasses.InitVar[str]

    def __post_init__(self, unit: str) -> None:
        self.x += len(unit)


@dataclasses.dataclass
class HasAnInitVar:
    x: int
    unit: dataclasses.InitVar[str] = "m"


@dataclasses.dataclass(init=False)
class OwnInit:
    x: int
    y: int

    def __init__(self, both: int) -> None:
        self.x = self.y = both


@attrs.define(init=False)
class SwappedInit:
    x: int
    y: int

    def __init__(self, y: int, x: int) -> None:
        self.x, self.y = x, y


@attrs.define(init=False)
class AnyInit:
    x: int

    def __init__(self, *arguments: int) -> None:
        (self.x,) = arguments


@attrs.define(init=False)
class NoInit:
    x: int


@attrs.define(init=False)
class FaithfulInit:
    x: int
    y: int

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y


class Pair(NamedTuple):
    x: int
    y: int = 0


class Doubled(Pair):
    def __new__(cls, x: int, y: int = 0) -> Any:
        return super().__new__(cls, 2 * x, y)


class MorePair(Pair):
    z: int = 1


@dataclasses.dataclass
class Base:
    x: int


class Undecorated(Base):
    y: int = 0


class UndecoratedAttrs(FaithfulInit):
    z: int = 0


@attrs.define(init=False)
class AnyKeyword:
    x: int
    y: int = attrs.field(kw_only=True)

    def __init__(self, x: int, **others: int) -> None:
        self.x, self.y = x, sum(others.values())


@attrs.define
class KeywordOnly:
    x: int
    y: int = attrs.field(kw_only=True)
    _hidden: int = 0


@pytest.mark.parametrize(
    ("record_class", "message"),
    [
        (NeedsAnInitVar, r"NeedsAnInitVar cannot be created from its fields .*'unit'.* take x, .*default"),
        (OwnInit, r"OwnInit cannot be created from its fields"),
        (SwappedInit, r"does not take x in its place"),
        (AnyInit, r"does not take x in its place"),
        (AnyKeyword, r"does not take y in its place"),
        (NoInit, r"NoInit cannot be created from its fields"),
        (Doubled, r"NamedTuple with a __new__ of its own"),
        (MorePair, r"MorePair inherits from Pair .* repeat all fields"),
        (Undecorated, r"Undecorated inherits from Base .* decorate it"),
        (UndecoratedAttrs, r"UndecoratedAttrs inherits from FaithfulInit"),
    ],
)
def test_a_class_whose_objects_cannot_be_created_again_is_rejected(record_class: type, message: str) -> None:
    for name in (lambda: ts.AttrsSerializer(record_class), lambda: ts.serializer_for(list[record_class])):
        with pytest.raises(ts.UnknownTypeError, match=message):
            name()
    with pytest.raises(ts.UnknownTypeError, match=message):
        ts.PojoSerializer(record_class, name="a.Pojo")


@pytest.mark.parametrize(
    "value", [HasAnInitVar(1), FaithfulInit(1, 2), Pair(1, 2), Base(3), KeywordOnly(1, y=2, hidden=3)]
)
def test_a_class_created_from_its_fields_round_trips(value: Any) -> None:
    serializer = ts.serializer_for(type(value))
    assert serializer.from_bytes(serializer.to_bytes(value)) == value


def made(**fields: Any) -> type[Any]:
    return attrs.make_class("Made", fields)


def test_two_fields_that_claim_one_former_name_are_rejected() -> None:
    both = made(
        a=attrs.field(type=int, metadata=ts.former_names("x", "old")),
        b=attrs.field(type=int, metadata=ts.former_names("old")),
    )
    with pytest.raises(ts.UnknownTypeError, match="fields a and b both declare the former name old"):
        ts.AttrsSerializer(both)
    with pytest.raises(ts.UnknownTypeError, match="both declare"):
        ts.PojoSerializer(both, name="a.Pojo")
    swapped = made(
        a=attrs.field(type=int, metadata=ts.former_names("b", "b")),
        b=attrs.field(type=int, metadata=ts.former_names("a")),
    )
    assert ts.AttrsSerializer(swapped).from_bytes(bytes(16)) == swapped(0, 0)


def _failing() -> int:
    raise RuntimeError("no value today")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (attrs.field(type=int, default="5"), r"Made\.a: the default '5' is not of type int"),
        (attrs.field(type=int, default=2**63), r"Made\.a: the default 9223372036854775808 is not of type int"),
        (attrs.field(type=str, default=None), r"Made\.a: the default None is not of type str.*not optional"),
        (
            attrs.field(type=list[int], factory=lambda: ["x"]),
            r"Made\.a: the default \['x'\] is not of type list\[int",
        ),
        (attrs.field(type=int, factory=_failing), r"Made\.a: its factory failed \(RuntimeError: no value today\)"),
        (attrs.field(type=Annotated[int, ts.IntSerializer()], default=2**31), r"Made\.a: the default 2147483648"),
    ],
)
def test_an_invalid_default_is_rejected_with_class_and_field(field: Any, message: str) -> None:
    for name in (lambda: ts.AttrsSerializer(made(a=field)), lambda: ts.serializer_for(list[made(a=field)])):
        with pytest.raises(ts.UnknownTypeError, match=message):
            name()
    with pytest.raises(ts.UnknownTypeError, match=message):
        ts.PojoSerializer(made(a=field), name="a.Pojo")


@attrs.frozen
class Chain:
    x: int = 0
    next: Chain | None = attrs.field(factory=lambda: Chain(1, None))


def test_a_default_may_be_a_record_of_the_same_class() -> None:
    serializer = ts.serializer_for(Chain)
    assert serializer.from_bytes(serializer.to_bytes(Chain())) == Chain()


@attrs.frozen
class Measured:
    share: float = 0
    parts: list[float] = attrs.field(factory=lambda: [1, 2])


def test_an_integer_is_a_default_for_a_float() -> None:
    serializer = ts.serializer_for(Measured)
    assert serializer.from_bytes(serializer.to_bytes(Measured())) == Measured(0.0, [1.0, 2.0])


def nested(hint: Any, levels: int) -> Any:
    for _ in range(levels):
        hint = list[hint | None]
    return hint


@pytest.mark.parametrize("descriptor", [ValueStateDescriptor, ListStateDescriptor])
def test_a_type_nested_deeper_than_readable_is_rejected_at_registration(descriptor: Any) -> None:
    descriptor("deep", nested(int, 30))
    for levels in (31, 40):
        with pytest.raises(StateRegistrationError, match=r"but never read.*nested deeper than 64"):
            descriptor("deep", nested(int, levels))
    with pytest.raises(StateRegistrationError, match="but never read"):
        MapStateDescriptor("deep", int, nested(int, 40))
    with pytest.raises(ts.UnknownTypeError, match="nested deeper than 64 levels"):
        ts.serializer_for(nested(int, 70))


@attrs.frozen
class HasNothing:
    nothing: None
    number: int


def test_a_field_of_type_none_accepts_only_none() -> None:
    serializer = ts.AttrsSerializer(HasNothing)
    value = HasNothing(None, 5)
    assert serializer.from_bytes(serializer.to_bytes(value)) == value
    assert list(serializer.problems(value, "value")) == []
    wrong: Any = HasNothing(1, 5)  # type: ignore[arg-type]
    assert list(serializer.problems(wrong, "value")) == ["value.nothing: 1 is not None"]
    with pytest.raises(ts.SerializationError):
        serializer.to_bytes(wrong)
