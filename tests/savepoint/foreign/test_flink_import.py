"""Flink's savepoints are imported with every entry, timer and element, and a job continues from them."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest
from golden_savepoints import GOLDEN, NAMES, expected_of, found_in, wanted_of

from statebackend.cli.job_loading import load_job
from statebackend.cli.main import main
from statebackend.cli.streams import MISUSED
from statebackend.savepoint.foreign.flink_files import FlinkFiles
from statebackend.savepoint.savepoint import Savepoint
from statebackend.state.key_groups import key_group_hasher

pytestmark = pytest.mark.slow

PLAN = """
from statebackend.savepoint.rewrite import Plan

uids = ["golden-keyed", "golden-op", "golden-longkey", "golden-window"]

def plan(savepoint):
    return Plan()
"""

KILLED_AT_A_LINK = """
def killing(*arguments, **options):
    global CALLS
    CALLS -= 1
    if CALLS == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return link(*arguments, **options)

os.link = killing
"""

JOB = """
from statebackend import KeyedProcessFunction, ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment
from typeserializers import ConvertingSerializer, IntSerializer, LongSerializer, StringSerializer

RECORDS, FOUND, FIRED = [], [], []
COUNT = ConvertingSerializer(LongSerializer(), {IntSerializer(): int})

class Count(KeyedProcessFunction):
    def open(self, context):
        # Flink stored an int.
        self.count = context.get_state(ValueStateDescriptor("lk-count", COUNT))
        self.list = context.get_list_state(ListStateDescriptor("lk-list", IntSerializer()))
        self.map = context.get_map_state(MapStateDescriptor("lk-map", LongSerializer(), StringSerializer()))

    def process_element(self, record, context):
        self.count.update((self.count.value() or 0) + 1)
        FOUND.append((record.number, self.count.value(), list(self.list.get()), dict(self.map.items())))
        return ()

    def on_timer(self, timestamp, context):
        FIRED.append((context.current_key, timestamp))
        return ()

def build():
    env = LocalStreamEnvironment(max_parallelism=64)
    records = env.from_elements(RECORDS, "number long", uid="numbers")
    records.key_by("number").process(Count(), uid="golden-longkey", schema="number long").sink_to([])
    return env
"""


@pytest.fixture
def plan(tmp_path: pathlib.Path, own_registrations: None) -> str:
    (tmp_path / "plan.py").write_text(PLAN)
    return str(tmp_path / "plan.py")


@pytest.mark.extended_after(2)
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_timer_and_element_is_imported(
    name: str, plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, target = expected_of(name), tmp_path / "imported"
    assert main(["import", str(GOLDEN / name / "savepoint"), str(target), "--plan", plan, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["startingOffsets"] for one in answer["sources"].values()] in ([], [None])
    savepoint = Savepoint.open(target)
    assert not isinstance(savepoint.file_system, FlinkFiles)
    assert found_in(savepoint, expected) == wanted_of(expected)
    assert len(list(savepoint.verify())) == len(savepoint.metadata.files)
    group_of = key_group_hasher(["string"], savepoint.metadata.max_parallelism)
    for state in ("count", "map", "_timer_state/event_user-timers"):
        entries = list(savepoint.read("golden-keyed", state))
        assert entries
        assert all(entry.key_group == group_of(entry.key) for entry in entries)


def imported(name: str, target: pathlib.Path, *options: str) -> int:
    return main(["import", str(GOLDEN / name / "savepoint"), str(target), "--job", "imported_job:build", *options])


@pytest.fixture
def job(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, own_registrations: None) -> Any:
    (tmp_path / "imported_job.py").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_job", raising=False)
    load_job("imported_job:build")
    return sys.modules["imported_job"]


def test_a_check_of_a_flink_savepoint_advises_the_options_of_an_import(
    job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(GOLDEN / NAMES[0] / "savepoint"), "--job", "imported_job:build"]) == 1
    printed = capsys.readouterr().out
    assert "unless --allow-loss leaves the listed state out" in printed
    assert "allow_non_restored_state" not in printed


@pytest.mark.parametrize("name", NAMES)
def test_a_job_continues_from_the_import(
    name: str, job: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "imported"
    assert imported(name, target) == 1
    printed = capsys.readouterr().out
    assert "unless --allow-loss leaves the listed state out" in printed
    assert (
        "Plan().rename_operator, docs/changing-state.md); or pass --allow-loss, which leaves its state out" in printed
    )
    assert "allow_non_restored_state" not in printed
    assert not target.exists() or not list(target.iterdir())
    assert imported(name, target, "--allow-loss", "--json") == 0
    operators = json.loads(capsys.readouterr().out)["operators"]
    states = expected_of(name)["keyedOperators"]["golden-longkey"]["states"]
    assert {state: operators["golden-longkey"]["rows"][state] for state in ("lk-count", "lk-list")} == {
        "lk-count": len(states["lk-count"]["entries"]),
        "lk-list": len(states["lk-list"]["entries"]),
    }
    counts, lists, maps = (
        {entry["key"]: entry["value"] for entry in states[state]["entries"]}
        for state in ("lk-count", "lk-list", "lk-map")
    )
    job.RECORDS[:] = [{"number": key} for key in (*counts, 123456)]
    environment = job.build()
    environment.execute(from_savepoint=target)
    assert sorted(job.FOUND) == sorted(
        (key, counts.get(key, 0) + 1, lists.get(key, []), dict(maps[key]["entries"]) if key in maps else {})
        for key in (*counts, 123456)
    )


JOB_OF_TTL = """
from statebackend import KeyedProcessFunction, MapStateDescriptor, StateTtlConfig
from statebackend.local import LocalStreamEnvironment

class Timed(KeyedProcessFunction):
    timed = MapStateDescriptor("ttl-map", str, int, ttl=StateTtlConfig("100000 days"))

    def process_element(self, record, context):
        return ()

    def on_timer(self, timestamp, context):
        return ()

def build():
    env = LocalStreamEnvironment()
    records = env.from_elements([], "text string", uid="texts")
    records.key_by("text").process(Timed(), uid="golden-keyed", schema="text string").sink_to([])
    return env
"""


@pytest.mark.parametrize("ttl", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_map_with_ttl_is_imported_for_a_job(
    name: str, ttl: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, own_registrations: None
) -> None:
    text = JOB_OF_TTL if ttl else JOB_OF_TTL.replace(', ttl=StateTtlConfig("100000 days")', "")
    (tmp_path / "imported_job.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_job", raising=False)
    assert imported(name, tmp_path / "ours", "--allow-loss") == 0
    old = expected_of(name)["keyedOperators"]["golden-keyed"]["states"]["ttl-map"]["entries"]
    wanted = {
        (one["key"], user_key): (value["value"], value["timestamp"])
        for one in old
        for user_key, value in one["value"]["entries"]
    }
    found = Savepoint.open(tmp_path / "ours").read("golden-keyed", "ttl-map")
    assert {(one.key, one.user_key): (one.value, one.last_access_ms) for one in found} == {
        address: (value, time_ms if ttl else None) for address, (value, time_ms) in wanted.items()
    }


def test_an_import_needs_an_empty_directory_and_leaves_nothing_after_an_error(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, target = tmp_path / "damaged", tmp_path / "imported"
    shutil.copytree(GOLDEN / "hashmap-canonical" / "savepoint", damaged)
    largest = max(damaged.iterdir(), key=lambda file: file.stat().st_size)
    data = largest.read_bytes()
    largest.write_bytes(data[: len(data) - 9] + bytes(9))
    assert main(["import", str(damaged), str(target), "--plan", plan]) == 3
    assert str(largest) in capsys.readouterr().err
    assert not target.exists() or not list(target.iterdir())
    target.mkdir(exist_ok=True)
    (target / "file").touch()
    assert main(["import", str(GOLDEN / "hashmap-canonical" / "savepoint"), str(target), "--plan", plan]) == 3
    assert "not empty" in capsys.readouterr().err
    assert [file.name for file in target.iterdir()] == ["file"]


def test_an_import_with_a_plan_leaves_out_what_the_job_does_not_have(
    plan: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in JOB.splitlines() if "self.list =" not in line]
    (tmp_path / "smaller_job.py").write_text("\n".join(lines).replace("list(self.list.get())", "[]"))
    monkeypatch.chdir(tmp_path)
    source, target = str(GOLDEN / "hashmap-canonical" / "savepoint"), tmp_path / "imported"
    options = ["--plan", plan, "--job", "smaller_job:build", "--allow-loss", "--json"]
    assert main(["import", source, str(target), *options]) == 0
    [(uid, operator)] = json.loads(capsys.readouterr().out)["operators"].items()
    assert uid == "golden-longkey"
    assert {"lk-count", "lk-map"} <= set(operator["rows"])
    assert "lk-list" not in operator["rows"]
    assert {name for _, name in Savepoint.open(target).states} <= set(operator["rows"])
    # A start rejects state that the job does not have.
    sys.modules["smaller_job"].build().execute(from_savepoint=target)


def test_a_key_that_ends_before_its_value_is_an_error_with_state_and_file(
    plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, target = tmp_path / "damaged", tmp_path / "imported"
    shutil.copytree(GOLDEN / "hashmap-canonical" / "savepoint", damaged)
    file = damaged / "b92923ea-83b4-4cf0-a1dc-8f7d62b51988"
    data = bytearray(file.read_bytes())
    data[18638] ^= 0xFF
    file.write_bytes(data)
    assert main(["import", str(damaged), str(target), "--plan", plan]) == 3
    assert f"error: state 'list': an entry cannot be read from {file}: a number of" in capsys.readouterr().err
    assert not target.exists() or not list(target.iterdir())


def test_a_killed_import_leaves_no_savepoint(plan: str, tmp_path: pathlib.Path) -> None:
    killing, target = tmp_path / "killing.py", tmp_path / "imported"
    # Other operators are complete when this function kills the process.
    change = 'Plan().keep_keys("golden-window", lambda key: os.kill(os.getpid(), signal.SIGKILL))'
    killing.write_text("import os, signal\n" + PLAN.replace("Plan()", change))
    source = str(GOLDEN / "hashmap-canonical" / "savepoint")
    command = [sys.executable, "-m", "statebackend", "import", source, str(target), "--plan", str(killing)]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    assert not target.exists()
    assert main(["import", source, str(target), "--plan", plan]) == 0
    assert Savepoint.open(target).states


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("calls", [1, 4, 9])
def test_a_repeated_import_clears_what_a_killed_one_has_written(calls: int, plan: str, tmp_path: pathlib.Path) -> None:
    killing, target = tmp_path / "killing.py", tmp_path / "imported"
    killing.write_text(f"import os, signal\nCALLS, link = {calls}, os.link" + KILLED_AT_A_LINK + PLAN)
    source = str(GOLDEN / "hashmap-canonical" / "savepoint")
    command = [sys.executable, "-m", "statebackend", "import", source, str(target), "--plan"]
    assert subprocess.run([*command, str(killing)], capture_output=True).returncode == -signal.SIGKILL
    # The first link is the marker itself, under its temporary name.
    assert [path.name for path in target.glob("_*")] == ["_in_progress"] * (calls > 1)
    assert len([path for path in target.rglob("*") if path.is_file()]) >= max(1, calls - 1)
    (target / "notes.txt").touch()
    assert main([*command[3:], plan]) == 3
    (target / "notes.txt").unlink()
    assert main([*command[3:], plan]) == 0
    assert main(["import", source, str(tmp_path / "whole"), "--plan", plan]) == 0
    expected = Savepoint.open(tmp_path / "whole")
    imported = Savepoint.open(target)
    assert {one: list(map(str, imported.read(*one))) for one in imported.states} == {
        one: list(map(str, expected.read(*one))) for one in expected.states
    }
    files = [path for path in target.rglob("*") if path.is_file()]
    assert len(files) == len([path for path in (tmp_path / "whole").rglob("*") if path.is_file()])


def test_only_state_of_flink_is_imported(plan: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["import", str(GOLDEN / "hashmap-canonical" / "savepoint"), str(first), "--plan", plan]) == 0
    assert main(["import", str(first), str(second), "--plan", plan]) == 3
    assert "is not a savepoint or checkpoint of Flink" in capsys.readouterr().err
    assert main(["import", str(first), str(second)]) == MISUSED
