"""A writer that is killed at any durable step, or interrupted, leaves no readable savepoint."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from statebackend import ListStateDescriptor, Savepoint, SplitListStateDescriptor, ValueStateDescriptor
from statebackend.checkpoint import SavepointError, SavepointExistsError
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.savepoint.rewrite import Plan, SavepointWriter

REPOSITORY = Path(__file__).resolve().parents[3]

_CALLS = ("fsync", "link", "replace", "unlink", "ftruncate")
"""The calls of `os` that change files at the target, or make changes durable."""

_KILLED = """
import os, signal, sys
sys.path[:0] = [{tests!r}, {repository!r}]
import test_interrupted_writing as tests

def kill():
    global calls
    calls -= 1
    if calls == 0:
        os.kill(os.getpid(), signal.SIGKILL)

calls = int(sys.argv[2])
tests.call_before_each(setattr, kill)
tests.target_of(sys.argv[1]).write(tests.plan_of())
"""


def call_before_each(replace: Callable[[object, str, object], object], call: Callable[[], object]) -> None:
    """Call ``call`` before each of `_CALLS`."""

    def calling(function: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            call()
            return function(*arguments, **options)

        return called

    for name in _CALLS:
        replace(os, name, calling(getattr(os, name)))


def files_in(directory: Path) -> list[str]:
    """The files without the random parts of their names."""
    paths = (str(one.relative_to(directory)) for one in directory.rglob("*") if not one.is_dir())
    return sorted(re.sub("-[0-9a-f]+(?=[.]parquet)", "", path) for path in paths)


def plan_of() -> Plan:
    plan = Plan().add_operator("one", "string").add_operator("two")
    plan.add_state("one", ValueStateDescriptor("number", int), [(f"key {number}", number) for number in range(100)])
    plan.add_state("one", ListStateDescriptor("list", int), [("a", [1, 2])])
    return plan.add_operator_state("two", SplitListStateDescriptor("elements", int), [1, 2, 3])


def target_of(path: str) -> SavepointWriter:
    return SavepointWriter.new(path, max_parallelism=8)


@pytest.mark.extended
def test_a_killed_writer_leaves_nothing_to_open_and_is_repeated(tmp_path: Path) -> None:
    script = _KILLED.format(tests=str(Path(__file__).parent), repository=str(REPOSITORY))
    (tmp_path / "scratch").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "scratch")}
    target_of(str(tmp_path / "whole")).write(plan_of())
    random = Random(29)
    kills = 0
    for turn in range(5):
        target = tmp_path / f"killed-{turn}"
        # The second writer also finds what the first has left.
        for _ in range(2):
            command = [sys.executable, "-c", script, str(target), str(random.randint(1, 30))]
            ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
            if (target / "_metadata").exists():
                break
            assert ended.returncode == -signal.SIGKILL, ended.stderr
            kills += 1
            with pytest.raises(SavepointError, match=r"not finished|is not a savepoint|it has no state"):
                Savepoint.open(target)
        else:
            target_of(str(target)).write(plan_of())
            assert files_in(target) == files_in(tmp_path / "whole")
        # If it is complete, at most the in-progress marker is left.
        assert Savepoint.open(target).statistics("one", "number").entries == 100
    assert kills >= 5
    # Each writer removes the scratch files of a killed one, so at most those of one writer exist.
    assert len(list((tmp_path / "scratch").glob("*/*"))) <= 1


def test_what_a_kill_leaves_at_any_step_is_cleared_by_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, left = tmp_path / "target", tmp_path / "left"
    left.mkdir()

    def keep() -> None:
        # A copy has the files that a kill would leave now, and nobody locks it.
        if target.exists():
            shutil.copytree(target, left / str(len(os.listdir(left))))

    with monkeypatch.context() as patched:
        call_before_each(patched.setattr, keep)
        target_of(str(target)).write(plan_of())
    states = [files_in(one) for one in left.iterdir()]
    assert len(states) > 20
    assert any("_in_progress" not in one for one in states)
    assert any("_in_progress" in one and len(one) > 3 for one in states)
    other = Plan().add_operator("three", "string").add_state("three", ValueStateDescriptor("number", int), [("a", 1)])
    target_of(str(tmp_path / "other")).write(other)
    for one in left.iterdir():
        if (one / "_metadata").exists():
            with pytest.raises(SavepointExistsError, match="already is a checkpoint or savepoint"):
                target_of(str(one)).write(plan_of())
            assert Savepoint.open(one).statistics("one", "number").entries == 100
            continue
        with pytest.raises(SavepointError, match=r"started there and not finished|is not a savepoint"):
            Savepoint.open(one)
        target_of(str(one)).write(other)
        assert files_in(one) == files_in(tmp_path / "other")
        assert Savepoint.open(one).statistics("three", "number").entries == 1


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
