"""Our savepoints are exported to Flink's format. An export and an import return the same content."""

from __future__ import annotations

import datetime
import json
import pathlib
import shutil

import attrs
import pytest
from golden_savepoints import GOLDEN, NAMES, expected_of, found_in, wanted_of

from snapshots import snapshot_to_bytes
from statebackend import MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle, OpaqueStateHandle
from statebackend.cli.main import main
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.foreign.flink_files import FlinkFiles
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.rewrite.flink_writer import FlinkKeyPlacement, write_flink_savepoint
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.state_location import find_state
from typeserializers import LongSerializer, MapSerializer, NullableSerializer, StringSerializer, TtlSerializer

pytestmark = pytest.mark.slow

PLAN = """
from statebackend.savepoint.rewrite import Plan

uids = ["golden-keyed", "golden-op", "golden-longkey", "golden-window"]

def plan(savepoint):
    return Plan()
"""


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("name", NAMES)
def test_an_import_and_an_export_return_the_same_content(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], own_registrations: None
) -> None:
    original, ours, exported = (str(path) for path in (GOLDEN / name / "savepoint", tmp_path / "ours", tmp_path / "f"))
    (tmp_path / "plan.py").write_text(PLAN)
    assert main(["import", original, ours, "--plan", str(tmp_path / "plan.py")]) == 0
    capsys.readouterr()
    assert main(["export-flink", ours, exported, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    expected, old, new = expected_of(name), Savepoint.open(original), Savepoint.open(exported)
    assert isinstance(new.file_system, FlinkFiles)
    assert not (tmp_path / "f" / "_in_progress").exists()
    assert found_in(new, expected) == wanted_of(expected)
    for uid, operator in expected["keyedOperators"].items():
        assert rows[uid]["_timer_state/event_user-timers" if uid == "golden-keyed" else next(iter(operator["states"]))]
        for state in old.operators[uid].states:
            # The rows are in Flink's key groups, in the order of their keys.
            assert list(map(str, new.read(uid, state))) == list(map(str, old.read(uid, state)))


def test_a_repeated_export_clears_what_a_killed_one_has_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, own_registrations: None
) -> None:
    original, ours, left = (str(path) for path in (GOLDEN / NAMES[0] / "savepoint", tmp_path / "ours", tmp_path / "l"))
    (tmp_path / "plan.py").write_text(PLAN)
    assert main(["import", original, ours, "--plan", str(tmp_path / "plan.py")]) == 0
    write = CheckpointFileSystem.write_file

    def copied(fs: CheckpointFileSystem, path: str, data: bytes) -> object:
        # A kill before the metadata leaves these files, and releases the lock.
        shutil.copytree(tmp_path / "whole", left)
        return write(fs, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFileSystem, "write_file", copied)
        assert main(["export-flink", ours, str(tmp_path / "whole")]) == 0
    files = len(list((tmp_path / "whole").iterdir()))
    assert len(list(pathlib.Path(left).glob("flink-*"))) == files - 1
    assert main(["export-flink", ours, left]) == 0
    assert len(list(pathlib.Path(left).iterdir())) == files
    assert found_in(Savepoint.open(left), expected_of(NAMES[0])) == wanted_of(expected_of(NAMES[0]))


@attrs.frozen
class Visit:
    day: datetime.date


def test_types_without_flink_equivalent_are_listed(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, exported = tmp_path / "ours", tmp_path / "exported"
    plan = Plan().add_operator("moments", "timestamp").add_state("moments", ValueStateDescriptor("count", int), [])
    plan.add_operator("pickles", "string")
    plan.add_state("pickles", ValueStateDescriptor("any", datetime.date), [])
    plan.add_state("pickles", MapStateDescriptor("maps", str, list[tuple[int, datetime.date]]), [])
    plan.add_state("pickles", ValueStateDescriptor("records", list[Visit]), [])
    SavepointWriter.new(ours, max_parallelism=4).write(plan)
    assert main(["export-flink", str(ours), str(exported)]) == 3
    error = capsys.readouterr().err
    assert (
        "state 'maps' has a type that Flink does not have: statebackend.PythonDateSerializerSnapshot at [][1]\n"
        in error
    )
    assert (
        "state 'records' has a type that Flink does not have: statebackend.PythonDateSerializerSnapshot at [].day\n"
        in error
    )
    assert "operator 'moments': a key of type timestamp is not a key of Flink" in error
    for state, place in (("any", ""), ("maps", " at [][1]"), ("records", " at [].day")):
        unknown = f"statebackend.PythonDateSerializerSnapshot{place}\n"
        assert f"state {state!r} has a type that Flink does not have: {unknown}" in error
    assert not (exported / "_metadata").exists()


def test_values_of_a_map_with_ttl_are_nullable_only_here(tmp_path: pathlib.Path) -> None:
    ttl, texts = StateTtlConfig("1 hour"), [("k", "a", "x"), ("k", "b", None)]
    plan = Plan().add_operator("maps", "string")
    plan.add_state("maps", MapStateDescriptor("texts", str, str, ttl=ttl), texts)
    plan.add_state("maps", MapStateDescriptor("numbers", str, int, ttl=ttl), [("k", "a", 5)])
    plan.add_state("maps", MapStateDescriptor("optional", str, int | None), [("k", "a", 5), ("k", "b", None)])
    SavepointWriter.new(tmp_path / "ours", max_parallelism=4).write(plan)
    write_flink_savepoint(find_state(tmp_path / "ours"), tmp_path / "exported")
    exported = Savepoint.open(tmp_path / "exported")
    for name, entries in {
        "texts": texts,
        "numbers": [("k", "a", 5)],
        "optional": [("k", "a", 5), ("k", "b", None)],
    }.items():
        found = list(exported.read("maps", name))
        assert [(one.key, one.user_key, one.value) for one in found] == entries
        ours = Savepoint.open(tmp_path / "ours").read("maps", name)
        assert [one.last_access_ms for one in found] == [one.last_access_ms for one in ours]
    [data] = (data for path in (tmp_path / "exported").glob("flink-*") if b"optional" in (data := path.read_bytes()))
    text, long = StringSerializer(), LongSerializer()
    for values in (TtlSerializer(text), TtlSerializer(long), NullableSerializer(long)):
        assert snapshot_to_bytes(MapSerializer(text, values).snapshot_configuration()) in data
    # Flink marks null in the map, and again in the value.
    assert b"\0\0\0\x0a\0\0" + long.to_bytes(5) in data


def test_null_with_ttl_that_flink_cannot_store_is_an_error(tmp_path: pathlib.Path) -> None:
    maps = MapStateDescriptor("maps", str, int, ttl=StateTtlConfig("1 hour"))
    plan = Plan().add_operator("maps", "string").add_state("maps", maps, [("k", "a", None)])
    SavepointWriter.new(tmp_path / "ours", max_parallelism=4).write(plan)
    with pytest.raises(
        SavepointError, match=r"'maps' is a map with a time-to-live and has the value None.*keep_entries"
    ):
        write_flink_savepoint(find_state(tmp_path / "ours"), tmp_path / "exported")
    assert not list((tmp_path / "exported").glob("*"))


@pytest.mark.parametrize(
    ("columns", "key", "groups"),
    [
        (["string"], "", (94, 31198)),
        (["string"], "key-7", (74, 15562)),
        (["string"], "K\u00f6ln \u2713 \U0001f600", (42, 4394)),
        (["bigint"], 0, (94, 31198)),
        (["bigint"], -1, (94, 31198)),
        (["bigint"], 1234567890123, (92, 32092)),
        (["bigint"], -(1 << 63), (108, 10348)),
        (["int"], -1, (80, 15184)),
        (["int"], 77, (53, 31669)),
        (["int"], -(1 << 31), (108, 10348)),
        (["smallint"], -5, (80, 12112)),
        (["tinyint"], -128, (75, 4811)),
        (["boolean"], True, (77, 11725)),
        (["boolean"], False, (3, 32003)),
        (["string", "bigint"], ("a", 5), (80, 31952)),
        (["int", "boolean"], (-3, True), (124, 29820)),
    ],
)
def test_key_groups_are_those_of_the_real_engine(columns: list[str], key: object, groups: tuple[int, int]) -> None:
    assert tuple(FlinkKeyPlacement(columns, highest).of_key(key) for highest in (128, 32768)) == groups


def test_content_that_flink_cannot_store_is_an_error(tmp_path: pathlib.Path) -> None:
    plan = Plan().add_operator("counts", "string").add_state("counts", ValueStateDescriptor("n", int), [("a", 1)])
    SavepointWriter.new(tmp_path / "ours", max_parallelism=4).write(plan)
    restored = find_state(tmp_path / "ours")
    [operator] = restored.metadata.operators
    in_flight = OpaqueStateHandle("channels", b"", (FileHandle("channel", 9, "xxh3:" + 32 * "0"),))
    subtask = attrs.evolve(operator.subtasks[0], input_channels=in_flight)
    changed = attrs.evolve(operator, subtasks=(subtask, *operator.subtasks[1:]))
    for metadata, reason in (
        (attrs.evolve(restored.metadata, operators=(changed,)), "'counts' has records in flight"),
        (attrs.evolve(restored.metadata, sink_committables={"orders": b"x"}), "output to commit .orders."),
    ):
        with pytest.raises(PlanError, match=f"{reason}, which would be lost"):
            write_flink_savepoint(attrs.evolve(restored, metadata=metadata), tmp_path / "exported")
        assert not list((tmp_path / "exported").glob("*"))
