"""The page about moving a Flink job: its commands and programs run in the shown order."""

from __future__ import annotations

import pathlib
import re
import shlex
from typing import Any

import pytest

from statebackend import MapStateDescriptor, ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.rewrite.flink_writer import write_flink_savepoint
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.state_location import find_state

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "move-a-flink-job.md").read_text()


def stored(place: str) -> dict[str, Any]:
    savepoint = Savepoint.open(place)
    return {entry.key: entry.value for entry in savepoint.read("totals", "total")}


def test_the_examples_of_the_page_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, own_registrations: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    plan = Plan().add_operator("totals", "string")
    plan.add_state("totals", ValueStateDescriptor("total", int), [("ann", 7), ("bob", 3), ("test", 1)])
    plan.add_state("totals", MapStateDescriptor("by shop", str, int), [("ann", "north", 7)])
    plan.add_timers("totals", [("bob", 1_000)], time="event")
    SavepointWriter.new("former", max_parallelism=128).write(plan)
    write_flink_savepoint(find_state("former"), "flink-savepoint")
    blocks = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)
    [job, start, change] = [text for language, text in blocks if language == "python"]
    (tmp_path / "payments.py").write_text(job)
    (tmp_path / "plan.py").write_text(change)
    for language, text in blocks:
        if language == "bash":
            commands = [line for line in text.splitlines() if line.startswith("statebackend ")]
            assert [main(shlex.split(command)[1:]) for command in commands] == [0] * len(commands), commands
        elif text == start:
            exec(compile(start, "move-a-flink-job.md", "exec"), {})
            assert "Row(account='ann', total=12)" in capsys.readouterr().out
    assert stored("our-savepoint") == {"ann": 7, "bob": 3, "test": 1}
    assert stored("changed-savepoint") == {"ann": 7, "bob": 3}
    assert stored("back-in-flink") == stored("our-savepoint")


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) < 150
