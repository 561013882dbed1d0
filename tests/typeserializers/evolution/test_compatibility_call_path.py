"""The call path from snapshot bytes to a compatibility result is short, and nothing is checked twice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import attrs

import typeserializers as ts
from migration import SchemaMigration
from snapshots import resolve_compatibility, snapshot_from_bytes, snapshot_to_bytes

ROOT = Path(ts.__file__).parent.parent
MOST_FILES = 9


@attrs.frozen
class Flight:
    number: int
    delay: float
    carrier: str
    cancelled: bool
    gate: Annotated[int, ts.IntSerializer()]
    legs: list[str]


@attrs.frozen
class EvolvedFlight:
    number: int
    minutes_late: float = attrs.field(metadata=ts.former_names("delay"))
    carrier: str
    cancelled: bool
    gate: int
    legs: list[str | None]
    terminal: str = "A"


@contextmanager
def files_run() -> Iterator[dict[str, set[str]]]:
    """The files of this library with calls in the block, and the function names."""
    found: dict[str, set[str]] = {}

    def called(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_absolute() and path.is_relative_to(ROOT):
            name = path.relative_to(ROOT)
            if name.parts[0] not in (".venv", "build"):
                found.setdefault(str(name), set()).add(frame.f_code.co_name)

    before: Callable[..., Any] | None = sys.getprofile()
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(before)


def test_the_path_from_snapshot_bytes_to_a_record_result_has_few_files() -> None:
    legs = {"legs": ts.StringSerializer()}
    old = ts.AttrsSerializer(Flight, name="way.Flight", field_serializers=legs)
    new = ts.AttrsSerializer(EvolvedFlight, name="way.Flight", field_serializers=legs)
    data = snapshot_to_bytes(old.snapshot_configuration())
    with files_run() as found:
        compatibility = resolve_compatibility(snapshot_from_bytes(data), new)
    assert {issue.rule for issue in compatibility.issues} == {"field-renamed", "field-widened", "field-added"}
    found.pop(str(Path(__file__).relative_to(ROOT)), None)
    assert len(found) <= MOST_FILES, sorted(found)


def test_after_a_result_nothing_is_checked_again() -> None:
    old, new = ts.AttrsSerializer(Flight, name="way.Flight"), ts.AttrsSerializer(EvolvedFlight, name="way.Flight")
    snapshot = snapshot_from_bytes(snapshot_to_bytes(old.snapshot_configuration()))
    compatibility = resolve_compatibility(snapshot, new)
    data = old.to_bytes(Flight(1, 2.0, "AA", False, 3, ["JFK"]))
    with files_run() as found:
        migration = SchemaMigration.of_compatibility(snapshot, new, compatibility)
        assert migration.to_value(data) == EvolvedFlight(1, 2.0, "AA", False, 3, ["JFK"])
        assert migration.to_bytes(data) == new.to_bytes(migration.to_value(data))
    evolution_files = [
        name for name in found if name.startswith("typeserializers/evolution/") and name.endswith("_evolution.py")
    ]
    assert not evolution_files
    assert not {"resolve_compatibility", "adopt"} & found["snapshots/type_serializer_snapshot.py"]
