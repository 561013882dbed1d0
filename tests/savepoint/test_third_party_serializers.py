"""State of a third-party serializer: every command, with and without the module of the serializer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebackend import ListStateDescriptor, Savepoint, ValueStateDescriptor
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.rewrite import Plan, SavepointWriter

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDE = (REPOSITORY / "docs" / "writing-a-serializer.md").read_text()
[POINTS] = [
    block
    for block in re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    if "class PointSerializer(" in block
]
WRITING = """
import sys
from points import Point, PointSerializer
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend import ListStateDescriptor, ValueStateDescriptor
corners = [("a", Point(1, 2)), ("b", Point(3, 4))]
plan = Plan().add_operator("shapes", "string")
plan = plan.add_state("shapes", ValueStateDescriptor("corner", PointSerializer()), corners)
plan = plan.add_state("shapes", ListStateDescriptor("path", PointSerializer()), [("a", [Point(1, 2), Point(3, 4)])])
SavepointWriter.new(sys.argv[1], max_parallelism=4).write(plan)
"""
READING = """
import json, sys
import pyarrow as pa
from points import PointSerializer
from operator import attrgetter
from statebackend import Savepoint
from statebackend.savepoint.tables import ColumnForms, ScalarForm, StructForm
opened = Savepoint.open(sys.argv[1])
corners, path = opened.read("shapes", "corner"), opened.read("shapes", "path")
plain = [sorted(one.to_arrow()["value"].to_pylist()) for one in (corners, path)]
number = ScalarForm(pa.int64())
point = StructForm((("x", attrgetter("x"), number), ("y", attrgetter("y"), number)))
forms = ColumnForms(added={PointSerializer: lambda serializer, forms: point})
typed = path.with_forms(forms).to_arrow()["value"].to_pylist()
print(json.dumps([[str(one.value) for one in corners], plain, corners.notes, typed, path.with_forms(forms).notes]))
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module of the guide, under a name that no other test of this process registers."""
    directory = tmp_path_factory.mktemp("modules")
    (directory / "points.py").write_text(POINTS.replace("my.project.", "my.shapes.").replace("my.old.", "my.older."))
    return directory


@pytest.fixture(scope="module")
def place(modules: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("state") / "savepoint")
    run(WRITING, path, modules=modules)
    return path


def run(program: str, *arguments: str, modules: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(modules)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COMMANDS = """
import contextlib, io, json, sys
from statebackend.cli.main import main
answers = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(arguments)
    answers.append([status, out.getvalue(), err.getvalue()])
assert "points" not in sys.modules
print(json.dumps(answers))
"""


def commands(modules: Path, *several: list[str]) -> list[tuple[int, str, str]]:
    """Exit status and output of commands, in a process that could import the module but need not."""
    return [tuple(one) for one in json.loads(run(COMMANDS, json.dumps(several), modules=modules))]


def test_with_its_module_values_are_objects_json_or_a_registered_form(modules: Path, place: str) -> None:
    objects, plain, notes, typed, typed_notes = json.loads(run(READING, place, modules=modules))
    assert len(objects) == 2
    assert "Point" in objects[0]
    assert [json.loads(one) for one in plain[0]] == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
    assert [json.loads(one) for one in plain[1][0]] == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
    assert "PointSerializer is not of this library" in notes["value"]
    assert typed == [[{"x": 1, "y": 2}, {"x": 3, "y": 4}]]
    assert typed_notes == {}


def test_without_its_module_everything_that_needs_no_value_works(modules: Path, place: str) -> None:
    inspected, *others = commands(
        modules, ["inspect", place, "--verify", "--json"], ["schema", place], ["du", place], ["diff", place, place]
    )
    states = {one["name"]: one for one in json.loads(inspected[1])["operators"][0]["states"]}
    assert (states["corner"]["entries"], states["path"]["entries"]) == (2, 1)
    assert "my.shapes.PointSerializerSnapshot" in states["corner"]["unknown"]
    assert [status for status, _, _ in others] == [0, 0, 0]
    assert "unknown here: " in others[0][1]


def rewritten(place: str, target: Path, plan: Plan) -> dict[str, pa.Table]:
    """The stored values of all states of a copy, which this process makes without the module."""
    SavepointWriter.copy_of(place, target).write(plan)
    assert "points" not in sys.modules
    savepoint = Savepoint.open(target)
    return {
        f"{uid} {name}": savepoint.read(uid, name).to_arrow().select(["key", "value"]).sort_by("key")
        for uid, operator in savepoint.operators.items()
        for name in operator.states
    }


def test_without_its_module_state_is_removed_renamed_and_redistributed_by_key(place: str, tmp_path: Path) -> None:
    first = rewritten(place, tmp_path / "first", Plan())
    corner, path = first["shapes corner"], first["shapes path"]
    only_a = corner.slice(0, 1)
    for number, (plan, expected) in enumerate(
        (
            (Plan().remove_state("shapes", "corner"), {"shapes path": path}),
            (Plan().rename_state("shapes", "corner", "point"), {"shapes point": corner, "shapes path": path}),
            (Plan().change_max_parallelism(9).change_parallelism(2), first),
            (Plan().keep_keys("shapes", lambda key: key == "a"), {"shapes corner": only_a, "shapes path": path}),
            (
                Plan().split_operator("shapes", ["x", "y"], lambda key: "x" if key == "a" else "y"),
                {"x corner": only_a, "x path": path, "y corner": corner.slice(1), "y path": path.slice(1)},
            ),
            (
                Plan().change_keys("shapes", lambda key: f"{key}!", "string"),
                {"shapes corner": keys_called(corner), "shapes path": keys_called(path)},
            ),
        )
    ):
        found = rewritten(place, tmp_path / str(number), plan)
        assert {name: table.to_pylist() for name, table in found.items()} == {
            name: table.to_pylist() for name, table in expected.items()
        }


def keys_called(table: pa.Table) -> pa.Table:
    return table.set_column(0, "key", pa.array([f"{key}!" for key in table["key"].to_pylist()]))


def test_without_its_module_no_plan_decodes_its_values(place: str, tmp_path: Path) -> None:
    for plan in (
        Plan().keep_entries("shapes", lambda entry: True),
        Plan().change_values("shapes", "corner", ValueStateDescriptor("corner", int), lambda point: 1),
        Plan().change_entries("shapes", "path", ListStateDescriptor("path", int), lambda entry: []),
        Plan().change_keys("shapes", lambda key: "same", "string", merge={"corner": lambda one, other: one}),
        Plan().merge_operators(["shapes"], "x", merge={"corner": lambda one, other: one}),
    ):
        with pytest.raises(PlanError, match=r"state '(corner|path)': .*my\.shapes\.PointSerializerSnapshot"):
            rewritten(place, tmp_path / "rejected", plan)
    assert not (tmp_path / "rejected").exists()


def test_without_its_module_values_are_stored_bytes_or_the_reason_is_given(
    modules: Path, place: str, tmp_path: Path
) -> None:
    exported = str(tmp_path / "out")
    *rejected, written = commands(
        modules,
        ["show", place, "shapes", "corner"],
        ["export", place, "shapes", "corner", "--to", "json", str(tmp_path / "out.json")],
        ["export", place, "shapes", "corner", "--to", "parquet", exported, "--json"],
    )
    for status, reported, reason in rejected:
        assert (status, reported) == (3, "")
        assert "my.shapes.PointSerializerSnapshot" in reason
        assert len(reason.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "bytes as they are stored" in json.loads(written[1])["notes"]["value"]
    table = pq.read_table(exported)
    assert (table.schema.field("key").type, table.schema.field("value").type) == (pa.string(), pa.binary())
    stored = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert stored == {"a": bytes([*[0] * 7, 1, *[0] * 7, 2]), "b": bytes([*[0] * 7, 3, *[0] * 7, 4])}
