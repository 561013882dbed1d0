"""Small schemas that describe huge types: every command reads them with little time and memory.

The limits are generous. Work that doubles at every level of a type takes years.
"""

from __future__ import annotations

import functools
import operator
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from snapshots import MalformedDataError, resolve_compatibility
from statebackend import ValueStateDescriptor
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from typeserializers import (
    AttrsSerializer,
    AvroSerializer,
    IntSerializer,
    ListSerializer,
    LongSerializer,
    StringSerializer,
    TtlSerializer,
    TypeSerializer,
    serializer_for,
)

SECONDS = 60
MEMORY_BYTES = 4 << 30


def records_with_the_next_twice(leaf: str, count: int = 40) -> dict[str, Any]:
    """An Avro schema of records. Each of them contains the next one twice."""
    schema: dict[str, Any] = {"type": "record", "name": f"R{count}", "fields": [{"name": "value", "type": leaf}]}
    for number in range(count - 1, 0, -1):
        fields = [{"name": "one", "type": schema}, {"name": "other", "type": f"R{number + 1}"}]
        schema = {"type": "record", "name": f"R{number}", "fields": fields}
    return schema


def nested(depth: int, wrap: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
    serializer: TypeSerializer[Any] = LongSerializer()
    for _ in range(depth):
        serializer = wrap(serializer)
    return serializer


TYPES: dict[str, Callable[[], TypeSerializer[Any]]] = {
    "avro": lambda: AvroSerializer(records_with_the_next_twice("long")),
    "ttl": lambda: nested(58, TtlSerializer),
}


def write_savepoint(directory: Path, type_name: str) -> None:
    state = ValueStateDescriptor("nested", TYPES[type_name]())
    plan = Plan().add_operator("operator", key="string").add_state("operator", state, [])
    SavepointWriter.new(directory, max_parallelism=4).write(plan)


def limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def run_limited(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        preexec_fn=limit_resources,
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_limited("-c", "from statebackend.cli import run; run()", *arguments)


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.extended
def test_every_command_reads_a_small_schema_of_a_huge_type(tmp_path: Path, type_name: str) -> None:
    savepoint = str(tmp_path / "savepoint")
    module, write = Path(__file__).stem, f"write_savepoint(Path({savepoint!r}), {type_name!r})"
    path = str(Path(__file__).parent)
    written = run_limited("-c", f"import sys; sys.path.append({path!r}); from {module} import *; {write}")
    assert written.returncode == 0, written.stderr
    for command in (
        ["inspect", savepoint],
        ["schema", savepoint],
        ["show", savepoint, "operator", "nested"],
        ["diff", savepoint, savepoint],
    ):
        shown = run_command(*command)
        assert shown.returncode == 0, (command, shown.stderr)


def test_a_record_without_bytes_that_has_too_many_parts_is_rejected() -> None:
    with pytest.raises(MalformedDataError, match="records without bytes"):
        AvroSerializer(records_with_the_next_twice("null")).from_bytes(b"")


def test_issues_about_a_record_that_occurs_often_are_reported_once_in_full() -> None:
    old = AvroSerializer(records_with_the_next_twice("long")).snapshot_configuration()
    widened = resolve_compatibility(old, AvroSerializer(records_with_the_next_twice("double")))
    assert widened.is_after_migration
    assert len(widened.issues) == 40
    changed = resolve_compatibility(old, AvroSerializer(records_with_the_next_twice("string")))
    assert changed.is_incompatible
    assert len(changed.issues) == 40


def test_a_change_deep_inside_lists_of_records_is_resolved_in_little_time() -> None:
    def make(leaf: TypeSerializer[Any]) -> TypeSerializer[Any]:
        serializer = leaf
        for number in range(25):
            record = attrs.make_class(f"Record{number}", {"part": attrs.field(type=object)}, frozen=True)
            serializer = ListSerializer(AttrsSerializer(record, field_serializers={"part": serializer}))
        return serializer

    old = make(StringSerializer()).snapshot_configuration()
    result = resolve_compatibility(old, make(LongSerializer()))
    assert result.is_incompatible
    assert [issue.rule for issue in result.issues] == ["field-type-changed"]
    assert resolve_compatibility(make(IntSerializer()).snapshot_configuration(), make(LongSerializer())).issues


def nested_records(field_names: Sequence[str], depth: int) -> type:
    """A record class whose fields have the same record class, and so on."""
    field_type: type = int
    for level in range(depth):
        field_type = attrs.make_class(f"R{level}", {name: attrs.field(type=field_type) for name in field_names})
    return field_type


def test_renames_at_every_level_of_a_record_are_advised_in_little_time() -> None:
    old = AttrsSerializer(nested_records(("latitude", "longitude"), 9)).snapshot_configuration()
    compatibility = resolve_compatibility(old, AttrsSerializer(nested_records(("x", "y"), 9)))
    assert [issue.rule for issue in compatibility.issues] == 2 * ["field-added-without-default"] + 2 * ["field-removed"]


def test_the_paths_of_nested_unions_are_short() -> None:
    old_type: Any = int | str | bytes
    new_type: Any = int | str
    for _ in range(5):
        old_type, new_type = tuple[old_type, old_type] | int, tuple[new_type, new_type] | int
    compatibility = resolve_compatibility(serializer_for(old_type).snapshot_configuration(), serializer_for(new_type))
    assert compatibility.is_incompatible
    assert max(len(issue.path) for issue in compatibility.issues) < 1_000


def union_of_records(width: int, depth: int, leaf: type) -> TypeSerializer[Any]:
    """A union of records. The first of them has a field with another such union, and so on."""
    field_type: Any = leaf
    for level in range(depth):
        names = [f"Level{level}Member{number}" for number in range(width)]
        first = attrs.make_class(names[0], {"part": attrs.field(type=field_type)}, frozen=True)
        others = [attrs.make_class(name, {"part": attrs.field(type=int)}, frozen=True) for name in names[1:]]
        field_type = functools.reduce(operator.or_, others, first)
    return serializer_for(field_type)


def calls_to_resolve(old_serializer: TypeSerializer[Any], new: TypeSerializer[Any]) -> int:
    """How many functions of Python are called to resolve the compatibility of two serializers."""
    old, calls = old_serializer.snapshot_configuration(), 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        resolve_compatibility(old, new)
    finally:
        sys.setprofile(None)
    return calls


def calls_for_unions(width: int, depth: int) -> int:
    """The calls for a union of records, and a wider one."""
    return calls_to_resolve(union_of_records(width, depth, int), union_of_records(width, depth, float))


@pytest.mark.parametrize(
    ("smaller", "twice_as_large"), [((60, 1), (120, 1)), ((10, 5), (10, 10))], ids=["width", "depth"]
)
def test_the_work_for_a_union_grows_with_its_size(smaller: tuple[int, int], twice_as_large: tuple[int, int]) -> None:
    assert calls_for_unions(*twice_as_large) < 2.6 * calls_for_unions(*smaller)


def test_the_work_for_a_record_grows_with_the_number_of_its_new_fields() -> None:
    def calls(width: int) -> int:
        old, new = (serializer_for(nested_records([f"{letter}{n}" for n in range(width)], 1)) for letter in "ab")
        return calls_to_resolve(old, new)

    assert calls(400) < 2.6 * calls(200)
