"""Pydantic models as records, and rejected ones."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Annotated, Any, Generic, Literal, TypeVar

import attrs
import pydantic
import pytest

import typeserializers as ts
from migration.schema_migration import MigrationError
from snapshots import MalformedDataError
from statebackend.testing.upgrades import migration_between

T = TypeVar("T")


class Kind(enum.Enum):
    CAT = "cat"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Owner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    age: Annotated[int, pydantic.Field(ge=0)]

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def is_adult(self) -> bool:
        return self.age >= 18

    @functools.cached_property
    def greeting(self) -> str:
        return f"{self.age}!"


class Box(pydantic.BaseModel, Generic[T]):
    content: T


class IntBox(Box[int]):
    pass


class Defaults(pydantic.BaseModel):
    factory: list[int] = pydantic.Field(default_factory=lambda: [1])
    shared: list[int] = [2]
    value: int = 3
    of_others: int = pydantic.Field(default_factory=lambda data: data["value"] + 1)


class Base(pydantic.BaseModel):
    x: int


class Derived(Base):
    __former_names__ = ("Older",)
    __schema_version__ = 2
    y: int = 0


class Even(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number


class Nested(pydantic.BaseModel):
    inside: list[Even] = []


def test_models_with_unions_constraints_and_derived_fields_round_trip() -> None:
    serializer = ts.serializer_for(Owner)
    for owner in (Owner(pet=Cat(), age=3), Owner(pet=Dog(name="Rex"), age=30)):
        assert owner.greeting
        again = serializer.from_bytes(serializer.to_bytes(owner))
        assert again == owner
        assert (again.is_adult, again.greeting) == (owner.is_adult, owner.greeting)


@pydantic.dataclasses.dataclass
class Leg:
    miles: Annotated[int, pydantic.Field(ge=0)]
    stops: list[str] = pydantic.Field(default_factory=list)
    carrier: str = pydantic.Field(default="UA", alias="airline")


def test_pydantic_dataclasses_are_records_with_their_validating_constructor() -> None:
    serializer = ts.AttrsSerializer(Leg)
    for leg in (Leg(miles=3), Leg(miles=0, stops=["a"], airline="AA")):
        assert serializer.from_bytes(serializer.to_bytes(leg)) == leg
    assert {part.name: part.former_names for part in serializer.fields}["carrier"] == ("airline",)
    fine = Leg(miles=3)
    fine.miles = -3
    with pytest.raises(MalformedDataError, match="greater than or equal to 0"):
        serializer.from_bytes(serializer.to_bytes(fine))


def test_pydantic_dataclasses_declare_fields_like_dataclasses() -> None:
    @pydantic.dataclasses.dataclass
    class Trip:
        distance: str = dataclasses.field(default="", metadata={**ts.former_names("miles"), **ts.converted_by(str)})

    old_class = attrs.make_class("Trip", {"miles": attrs.field(type=int)})
    old = ts.AttrsSerializer(old_class)
    converted = migration_between(old, ts.serializer_for(Trip)).to_bytes(old.to_bytes(old_class(3)))
    assert ts.serializer_for(Trip).from_bytes(converted) == Trip("3")


def test_read_values_are_validated() -> None:
    serializer = ts.serializer_for(Even)
    odd = Even.model_construct(number=3)
    with pytest.raises(MalformedDataError, match="odd"):
        serializer.from_bytes(serializer.to_bytes(odd))


def test_a_validator_that_rejects_old_data_is_reported_by_the_migration_with_path_and_value() -> None:
    old_even = attrs.make_class("Even", {"number": attrs.field(type=int), "gone": attrs.field(type=int, default=0)})
    old_nested = attrs.make_class("Nested", {"inside": attrs.field(type=list[old_even])})
    old = ts.AttrsSerializer(old_nested)
    migration = migration_between(old, ts.serializer_for(Nested))
    assert migration.to_bytes(old.to_bytes(old_nested([old_even(2)])))
    with pytest.raises(MigrationError, match=r"(?s)\.inside\[1\].*odd") as reported:
        migration.to_bytes(old.to_bytes(old_nested([old_even(2), old_even(3)])))
    assert "number=3" in str(reported.value)


def test_defaults_complete_old_records_and_are_never_shared() -> None:
    fields = {part.name: part for part in ts.AttrsSerializer(Defaults).fields}
    assert {name: part.has_default for name, part in fields.items()} == {
        "factory": True,
        "shared": True,
        "value": True,
        "of_others": False,
    }
    assert fields["factory"].make_default() == [1]
    assert fields["shared"].make_default() == [2]
    assert fields["shared"].make_default() is not fields["shared"].make_default()


def test_inherited_fields_and_class_level_evolution_settings_count() -> None:
    shape = ts.AttrsSerializer(Derived).shape
    assert [part.name for part in shape.fields] == ["x", "y"]
    assert (shape.name, shape.former_names, shape.schema_version) == ("Derived", ("Older",), 2)


def test_a_subclass_of_a_bound_generic_model_is_a_record() -> None:
    serializer = ts.serializer_for(IntBox)
    assert serializer.from_bytes(serializer.to_bytes(IntBox(content=7))) == IntBox(content=7)


def test_a_value_of_a_subclass_is_rejected_and_not_truncated() -> None:
    with pytest.raises(ts.SerializationError, match="is not a Base"):
        ts.serializer_for(Base).to_bytes(Derived(x=1, y=2))


def test_a_model_whose_names_are_defined_later_is_completed() -> None:
    class Later(pydantic.BaseModel):
        name: str
        inside: list[Later] = []

    serializer = ts.serializer_for(Later)
    value = Later(name="a", inside=[Later(name="b")])
    assert serializer.from_bytes(serializer.to_bytes(value)) == value


class Extra(pydantic.BaseModel, extra="allow"):
    x: int


class Private(pydantic.BaseModel):
    x: int
    _cache: int = 0


class EnumValues(pydantic.BaseModel, use_enum_values=True):
    kind: Kind


class OwnInit(pydantic.BaseModel):
    x: int

    def __init__(self, x: int, factor: int) -> None:
        super().__init__(x=x * factor)


class Unresolved(pydantic.BaseModel):
    x: NowhereDefined  # type: ignore[name-defined]  # noqa: F821


class Unknown(pydantic.BaseModel):
    secret: pydantic.SecretStr


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Extra, "extra='allow' what is not a field would be lost: declare a field for it"),
        (Private, r"private attributes \(_cache\) would be lost: make them fields"),
        (EnumValues, "use_enum_values its values are not of the types of its fields: leave it out"),
        (OwnInit, "its __init__ of its own .* put what it does into a model validator"),
        (Box, "its type parameters are unbound: name a subclass"),
        (Box[int], r"write a subclass, as in class BoxOfThese\(Box\[int\]\)"),
        (pydantic.RootModel[list[int]], "write a subclass"),
        (pydantic.BaseModel, "any model could be meant by BaseModel: name the model"),
        (Unresolved, "a type hint cannot be resolved .*NowhereDefined"),
        (Unknown, r"\.secret: no serializer is known for SecretStr"),
    ],
)
def test_a_model_that_would_lose_data_is_rejected_with_advice(model: Any, message: str) -> None:
    with pytest.raises(ts.UnknownTypeError, match=message):
        ts.serializer_for(list[model])
    with pytest.raises(ts.UnknownTypeError, match=message):
        ts.AttrsSerializer(model)
