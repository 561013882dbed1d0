"""Records are created as by their ``__init__``: directly if it only sets fields, by a call otherwise."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import attrs
import pytest

import typeserializers as ts
from typeserializers.records.record_serializer import settable_twin


@attrs.frozen
class Frozen:
    a: int
    b: str = "x"


@attrs.define
class Defined:
    a: int
    b: str = "x"


@attrs.frozen(slots=False)
class FrozenWithDict:
    a: int
    b: str = "x"


@dataclasses.dataclass(frozen=True)
class FrozenDataclass:
    a: int
    b: str = "x"


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlottedDataclass:
    a: int
    b: str = "x"


@dataclasses.dataclass
class PlainDataclass:
    a: int
    b: str = "x"


@attrs.define
class Child(Defined):
    c: float = 0.5


QUICK = [Frozen, Defined, FrozenWithDict, FrozenDataclass, FrozenSlottedDataclass, PlainDataclass, Child]


@pytest.mark.parametrize("record_class", QUICK)
def test_a_record_equals_that_of_its_constructor(record_class: Any) -> None:
    assert settable_twin(record_class) is not None
    serializer = ts.AttrsSerializer(record_class)
    value = record_class(5, "é")
    read = serializer.from_bytes(serializer.to_bytes(value))
    assert type(read) is record_class
    assert read == value
    assert repr(read) == repr(value)
    if getattr(record_class, "__hash__", None) is not None:
        assert hash(read) == hash(value)


@pytest.mark.parametrize("record_class", [Frozen, FrozenDataclass, FrozenSlottedDataclass, FrozenWithDict])
def test_a_frozen_record_stays_frozen(record_class: Any) -> None:
    serializer = ts.AttrsSerializer(record_class)
    read = serializer.from_bytes(serializer.to_bytes(record_class(5)))
    with pytest.raises((attrs.exceptions.FrozenInstanceError, dataclasses.FrozenInstanceError)):
        read.a = 6


made: list[str] = []


@attrs.frozen
class Validated:
    a: int = attrs.field(validator=attrs.validators.gt(0))


@attrs.frozen
class Converted:
    a: int = attrs.field(converter=abs)


@attrs.frozen
class Hooked:
    a: int

    def __attrs_post_init__(self) -> None:
        made.append("attrs")


@dataclasses.dataclass
class HookedDataclass:
    a: int

    def __post_init__(self) -> None:
        made.append("dataclass")


@attrs.define
class OwnInit:
    a: int

    def __init__(self, a: int) -> None:
        made.append("own")
        self.a = a


@attrs.frozen(cache_hash=True)
class CachedHash:
    a: int


class Registry:
    subclasses: ClassVar[list[str]] = []

    def __init_subclass__(cls) -> None:
        Registry.subclasses.append(cls.__name__)


@attrs.frozen
class Registered(Registry):
    a: int


@pytest.mark.parametrize(
    "record_class", [Validated, Converted, Hooked, HookedDataclass, OwnInit, CachedHash, Registered]
)
def test_a_class_whose_constructor_does_more_is_called(record_class: Any) -> None:
    before = list(Registry.subclasses)
    assert settable_twin(record_class) is None
    serializer = ts.AttrsSerializer(record_class)
    assert serializer.from_bytes(serializer.to_bytes(record_class(5))) == record_class(5)
    assert Registry.subclasses == before


def test_hooks_and_validators_run_when_a_record_is_read() -> None:
    made.clear()
    for record_class in (Hooked, HookedDataclass, OwnInit):
        serializer: ts.TypeSerializer[Any] = ts.AttrsSerializer(record_class)
        data = serializer.to_bytes(record_class(5))
        made.clear()
        serializer.from_bytes(data)
        assert len(made) == 1
    with pytest.raises(ts.MalformedDataError, match="must be > 0"):
        ts.AttrsSerializer(Validated).from_bytes(bytes(8))
