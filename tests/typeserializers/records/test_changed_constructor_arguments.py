"""A class whose constructor changes its arguments is rejected; one that keeps them is not."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import attrs
import msgspec
import pydantic
import pytest

import typeserializers as ts
from statebackend import ValueStateDescriptor


@dataclasses.dataclass
class OwnInit:
    a: int

    def __init__(self, a: int) -> None:
        self.a = a * 2


@attrs.define(init=False)
class AttrsOwnInit:
    a: int

    def __init__(self, a: int) -> None:
        self.__attrs_init__(a * 2)  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class PostInit:
    name: str
    a: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", self.a + 1)


@attrs.define
class AttrsPostInit:
    a: float | None

    def __attrs_post_init__(self) -> None:
        self.a = -self.a if self.a else self.a


@attrs.frozen
class Converted:
    name: str = attrs.field(converter=lambda name: name + "!")


@dataclasses.dataclass
class Growing:
    items: list[int]

    def __post_init__(self) -> None:
        self.items.append(1)


class Struct(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        self.a *= 2


class Model(pydantic.BaseModel):
    a: Annotated[int, pydantic.AfterValidator(lambda a: a * 2)]


@pydantic.dataclasses.dataclass
class PydanticDataclass:
    a: Annotated[int, pydantic.AfterValidator(lambda a: a * 2)]


@dataclasses.dataclass
class New:
    a: int

    def __new__(cls, a: int) -> Any:
        made = object.__new__(cls)
        made.a = 2 * a
        return made

    def __init__(self, a: int) -> None:
        pass


@pytest.mark.parametrize(
    "record_class",
    [
        OwnInit,
        AttrsOwnInit,
        PostInit,
        AttrsPostInit,
        Converted,
        Growing,
        Struct,
        Model,
        PydanticDataclass,
        New,
    ],
)
def test_a_class_that_changes_its_own_fields_again_is_rejected(record_class: type) -> None:
    for make in (
        lambda: ts.serializer_for(record_class),
        lambda: ts.serializer_for(dict[str, record_class]),
        lambda: ts.AttrsSerializer(record_class),
        lambda: ts.PojoSerializer(record_class, name="a.Pojo"),
        lambda: ValueStateDescriptor("state", record_class),
    ):
        with pytest.raises(
            ts.UnknownTypeError, match=rf"\.(a|name|items): the constructor of {record_class.__name__} .*would change"
        ):
            make()


@dataclasses.dataclass
class Normalized:
    name: str
    tags: tuple[str, str] = ("a", "b")

    def __post_init__(self) -> None:
        self.name = self.name.strip().lower()
        self.tags = tuple(sorted(self.tags))  # type: ignore[assignment]


@attrs.frozen
class Checked:
    percent: int = attrs.field(converter=int)

    def __attrs_post_init__(self) -> None:
        if not 10_000 < self.percent < 20_000:
            raise ValueError("out of range")


class Stripped(pydantic.BaseModel):
    name: Annotated[str, pydantic.StringConstraints(strip_whitespace=True)]


@pytest.mark.parametrize("value", [Normalized(" A ", ("z", "b")), Checked(15_000), Stripped(name=" a ")])
def test_a_class_that_keeps_its_fields_is_read_back(value: Any) -> None:
    serializer = ts.serializer_for(type(value))
    assert serializer.from_bytes(serializer.to_bytes(value)) == value
