"""The page about looking into state: its commands, statuses and example are those of the program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from looked_at_job import run_job

from savepoints.command_line.main import DIFFERENT, INTERRUPTED, MISUSED, NOT_READABLE, app

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "operating.md").read_text()


def test_every_command_is_on_the_page_and_every_other_is_not() -> None:
    registered = {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    assert set(re.findall(r"^\| `statebackend (\w+)", PAGE, re.MULTILINE)) == registered


def test_the_statuses_of_the_page_are_those_of_the_program() -> None:
    told = {int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert told == {0, DIFFERENT, NOT_READABLE, MISUSED, INTERRUPTED}


def test_the_example_runs(tmp_path: Path) -> None:
    run_job("heap").savepoint(tmp_path / "savepoint")
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    example = example.replace("/savepoints/flights-1", str(tmp_path / "savepoint"))
    example = example.replace('"aircraft", "legs", key="N14228"', '"per shop", "amounts", key="shop 3"')
    done = subprocess.run([sys.executable, "-c", example], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "shop 3 [9, 29, 49, 69, 89]"
