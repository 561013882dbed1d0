"""A writer that is killed at any durable step, or interrupted, leaves no readable savepoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statebackend import ListStateDescriptor, Savepoint, SplitListStateDescriptor, ValueStateDescriptor
from statebackend.checkpoint import SavepointError, SavepointExistsError
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.savepoint.rewrite import Plan, SavepointWriter

REPOSITORY = Path(__file__).resolve().parents[3]

_KILLED = """
import os, signal, sys
sys.path[:0] = [{tests!r}, {repository!r}]
from statebackend.checkpoint.fs.local_storage import LocalStorage
from test_interrupted_writing import plan_of, target_of
steps = int(sys.argv[2])

def counted(method):
    def call(*arguments, **options):
        global steps
        result = method(*arguments, **options)
        steps -= 1
        if steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

for name in ("create", "put", "put_file", "delete"):
    setattr(LocalStorage, name, counted(getattr(LocalStorage, name)))
target_of(sys.argv[1]).write(plan_of())
"""


def plan_of() -> Plan:
    plan = Plan().add_operator("one", "string").add_operator("two")
    plan.add_state("one", ValueStateDescriptor("number", int), [(f"key {number}", number) for number in range(100)])
    plan.add_state("one", ListStateDescriptor("list", int), [("a", [1, 2])])
    return plan.add_operator_state("two", SplitListStateDescriptor("elements", int), [1, 2, 3])


def target_of(path: str) -> SavepointWriter:
    return SavepointWriter.new(path, max_parallelism=8)


@pytest.mark.extended
def test_a_kill_at_any_durable_step_leaves_nothing_to_open(tmp_path: Path) -> None:
    script = _KILLED.format(tests=str(Path(__file__).parent), repository=str(REPOSITORY))
    (tmp_path / "scratch").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "scratch")}
    states, left = [], []
    for step in range(1, 12):
        target = tmp_path / f"killed-{step}"
        command = [sys.executable, "-c", script, str(target), str(step)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        left.append(len(list((tmp_path / "scratch").glob("*/*"))))
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        is_complete = (target / "_metadata").exists()
        states.append(is_complete)
        if is_complete:
            # The savepoint is complete. At most the in-progress marker can be left.
            assert Savepoint.open(target).statistics("one", "number").entries == 100
            continue
        with pytest.raises(SavepointError, match=r"started there and not finished|is not a savepoint"):
            Savepoint.open(target)
        with pytest.raises(SavepointExistsError, match=r"was not finished.*remove it, or give a directory"):
            target_of(str(target)).write(plan_of())
    # The steps: reserve the directory, write three files, write the metadata, remove the marker.
    assert states == [False, False, False, False, True, True]
    # Each writer removes the scratch files of a killed one, so at most those of one writer exist.
    assert left == [1] * len(states) + [0]


def test_an_interrupt_leaves_nothing_at_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed = 0
    put_file = LocalStorage.put_file

    def interrupted(*arguments: object) -> object:
        nonlocal placed
        placed += 1
        if placed == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return put_file(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LocalStorage, "put_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        target_of(str(tmp_path / "new")).write(plan_of())
    assert placed == 2
    assert not any((tmp_path / "new").rglob("*"))
    monkeypatch.undo()
    target_of(str(tmp_path / "new")).write(plan_of())
    assert Savepoint.open(tmp_path / "new").statistics("one", "number").entries == 100


def test_the_scratch_directory_is_left_empty(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    writer = SavepointWriter.new(tmp_path / "new", max_parallelism=8, scratch_directory=str(tmp_path / "scratch"))
    writer.write(plan_of())
    assert list((tmp_path / "scratch").iterdir()) == []
