"""Modules of a program that are registered again in the same process keep their classes."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from snapshots import SimpleTypeSerializerSnapshot, register_snapshot, snapshot_class_for
from snapshots.type_serializer_snapshot import defined_snapshot_classes
from statebackend.spark.tasks.program_pickles import ProgramModules

PROGRAM = """
@register_snapshot("tests.program.Named")
class Named(SimpleTypeSerializerSnapshot):
    pass

class Unnamed(SimpleTypeSerializerSnapshot):
    others = Named
"""


@pytest.mark.usefixtures("own_registrations")
def test_a_process_that_has_the_classes_of_a_program_keeps_them() -> None:
    program = ModuleType("a_program_without_a_file")
    classes: dict[str, Any] = program.__dict__
    classes.update(SimpleTypeSerializerSnapshot=SimpleTypeSerializerSnapshot, register_snapshot=register_snapshot)
    exec(PROGRAM, classes)
    named, unnamed = classes.pop("Named"), classes.pop("Unnamed")
    places = {"tests.program.Named": named, f"{program.__name__}:Named": named, f"{program.__name__}:Unnamed": unnamed}
    for _ in range(2):
        of_program = ProgramModules.of_this_process()
        assert {("tests.program.Named",), (f"{program.__name__}:Unnamed",)} <= {*of_program.pickles}
        assert (f"{program.__name__}:Named",) not in of_program.pickles
        of_program.install()
        assert {place: snapshot_class_for(place) for place in places} == places
        assert {place: defined_snapshot_classes()[place] for place in places if ":" in place}.items() <= places.items()
    assert program.__name__ not in sys.modules
