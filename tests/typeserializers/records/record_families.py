"""One record in every family, and the special types of each, at module level as in programs."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any, NamedTuple

import attrs
import msgspec
import pydantic

from typeserializers import AttrsSerializer, IntSerializer, former_names


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class OfAttrs:
    @attrs.frozen
    class Stop:
        name: str
        minutes: Annotated[int, IntSerializer()] = 0

    @attrs.define
    class Flight:
        number: int
        stops: list[OfAttrs.Stop] = attrs.field(factory=list)
        colour: Colour | None = None
        tags: dict[str, float] = attrs.field(factory=dict)
        either: int | str = 0


class OfDataclasses:
    @dataclasses.dataclass(frozen=True)
    class Stop:
        name: str
        minutes: Annotated[int, IntSerializer()] = 0

    @dataclasses.dataclass
    class Flight:
        number: int
        stops: list[OfDataclasses.Stop] = dataclasses.field(default_factory=list)
        colour: Colour | None = None
        tags: dict[str, float] = dataclasses.field(default_factory=dict)
        either: int | str = 0


class OfNamedTuples:
    class Stop(NamedTuple):
        name: str
        minutes: Annotated[int, IntSerializer()] = 0

    class Flight(NamedTuple):
        number: int
        stops: list[OfNamedTuples.Stop] = []  # noqa: RUF012  (what a NamedTuple has)
        colour: Colour | None = None
        tags: dict[str, float] = {}  # noqa: RUF012
        either: int | str = 0


class OfPydantic:
    class Stop(pydantic.BaseModel, frozen=True):
        name: str
        minutes: Annotated[int, IntSerializer()] = 0

    class Flight(pydantic.BaseModel):
        number: int
        stops: list[OfPydantic.Stop] = []
        colour: Colour | None = None
        tags: dict[str, float] = pydantic.Field(default_factory=dict)
        either: int | str = 0


class OfMsgspec:
    class Stop(msgspec.Struct, frozen=True):
        name: str
        minutes: Annotated[int, IntSerializer()] = 0

    class Flight(msgspec.Struct):
        number: int
        stops: list[OfMsgspec.Stop] = []
        colour: Colour | None = None
        tags: dict[str, float] = msgspec.field(default_factory=dict)
        either: int | str = 0


FAMILIES: dict[str, Any] = {
    "attrs": OfAttrs,
    "dataclasses": OfDataclasses,
    "named tuples": OfNamedTuples,
    "pydantic": OfPydantic,
    "msgspec": OfMsgspec,
}


def serializer_of(family: Any) -> AttrsSerializer[Any]:
    """The serializer of flights, as if each family had its own module with the same names."""
    classes = {record: record.__qualname__ for record in (family.Stop, family.Flight)}
    for record in classes:
        record.__qualname__ = record.__name__
    try:
        return AttrsSerializer(family.Flight)
    finally:
        for record, name in classes.items():
            record.__qualname__ = name


def flights(family: Any) -> list[Any]:
    """The same values in any family."""
    stop, flight = family.Stop, family.Flight
    return [
        flight(number=1),
        flight(number=2, stops=[stop(name="JFK", minutes=3), stop(name="é")], colour=Colour.GREEN, either="a"),
        flight(number=-(2**63), tags={"a": 0.5, "b": -1.0}, either=2**40),
    ]


class PydanticTree(pydantic.BaseModel):
    name: str
    children: list[PydanticTree] = []


class MsgspecTree(msgspec.Struct):
    name: str
    children: list[MsgspecTree] = []


class Cat(msgspec.Struct, tag=True, frozen=True):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog", array_like=True, frozen=True):
    name: str


class Owner(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    first_name: str
    pets: list[Cat | Dog] = []


class Words(pydantic.RootModel[list[str]]):
    pass


class Aliased(pydantic.BaseModel):
    flight_number: int = pydantic.Field(alias="flight-number")
    airport: Annotated[str, former_names("place")] = pydantic.Field(
        default="", validation_alias=pydantic.AliasChoices("airport", "last_airport", pydantic.AliasPath("a", 1))
    )
    swapped: int = pydantic.Field(default=0, alias="airport")


class Renamed(msgspec.Struct, rename="camel"):
    flight_number: int
    airport: str = msgspec.field(default="", name="place")
