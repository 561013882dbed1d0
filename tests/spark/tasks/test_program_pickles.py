"""Pickles of a program contain its classes for processes that do not have them."""

from __future__ import annotations

import enum
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from snapshots import SimpleTypeSerializerSnapshot, snapshot_class_for
from statebackend.spark.tasks.program_pickles import pickled, unpickled

PROGRAM = """
class Snapshot(SimpleTypeSerializerSnapshot):
    text = "something"

class Function:
    class Snapshot(SimpleTypeSerializerSnapshot):
        text = "inside"

    class State:
        pass

class Color(enum.Enum):
    RED = 1
    CRIMSON = 1
    BLUE = 2

class Level(enum.IntEnum):
    LOW = 1
    NONE = 1

class Access(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3

class Planet(enum.Enum):
    EARTH = (5.9, 6.3)
    TERRA = (5.9, 6.3)

    def __init__(self, mass, radius):
        self.mass, self.like = mass, type(self)

class Paper(Size, enum.Enum):
    A4 = 210, 297
    LINE = 5

class Label(str, enum.Enum):
    A = "a", "first"

    def __new__(cls, value, text):
        made = str.__new__(cls, value)
        made._value_, made.text = value, text
        return made
"""


@dataclass(frozen=True)
class Size:
    width: int
    height: int = 1


@pytest.fixture
def program(own_registrations: None) -> Iterator[dict[str, Any]]:
    """The definitions of a script without a file, which no process can import."""
    module = ModuleType("a_script_without_a_file")
    module.__dict__.update(SimpleTypeSerializerSnapshot=SimpleTypeSerializerSnapshot, enum=enum, Size=Size)
    exec(PROGRAM, module.__dict__)
    yield module.__dict__
    module.__dict__.clear()


@pytest.mark.parametrize("place", ["Snapshot", "Function.Snapshot"])
def test_a_snapshot_class_is_found_by_its_path_although_other_classes_are_pickled_by_value(
    program: dict[str, Any], place: str
) -> None:
    known = [program["Snapshot"], program["Function"].Snapshot][place.count(".")]
    for _ in range(2):
        assert unpickled(pickled(known)) is known
        assert snapshot_class_for(f"a_script_without_a_file:{place}") is known
        assert program["Snapshot"].text == "something"


def test_a_nested_class_is_unpickled_with_its_full_name(program: dict[str, Any]) -> None:
    data = pickled(program["Function"])
    program.clear()
    gc.collect()
    made = unpickled(data)
    assert (made.State.__qualname__, made.Snapshot.__qualname__) == ("Function.State", "Function.Snapshot")
    assert snapshot_class_for("a_script_without_a_file:Function.Snapshot") is made.Snapshot
    assert made.Snapshot.text == "inside"


@pytest.mark.parametrize("name", ["Color", "Level", "Access"])
def test_an_enum_keeps_its_aliases(program: dict[str, Any], name: str) -> None:
    members = {member: one.value for member, one in program[name].__members__.items()}
    data = pickled(program[name])
    assert unpickled(data) is program[name]
    program.clear()
    gc.collect()
    made = unpickled(data)
    assert {member: one.value for member, one in made.__members__.items()} == members
    assert [one.name for one in made] == list(dict.fromkeys(one.name for one in made.__members__.values()))[: len(made)]


def test_constants_of_an_enum_keep_their_attributes(program: dict[str, Any]) -> None:
    data = pickled((program["Planet"].TERRA, program["Label"].A))
    program.clear()
    gc.collect()
    planet, label = unpickled(data)
    assert (planet.name, planet.mass, planet.like) == ("EARTH", 5.9, type(planet))
    assert (label, label.text, type(label)("a")) == ("a", "first", label)


def test_an_enum_that_inherits_from_a_dataclass_keeps_its_fields(program: dict[str, Any]) -> None:
    data = pickled(list(program["Paper"]))
    program.clear()
    gc.collect()
    assert [(one.name, one.width, one.height) for one in unpickled(data)] == [("A4", 210, 297), ("LINE", 5, 1)]
