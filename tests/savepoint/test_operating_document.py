"""The pages about the command line: their commands, exit statuses and examples are correct."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from statebackend.cli.main import COMMANDS, main
from statebackend.cli.streams import DIFFERENT, INTERRUPTED, LOSES, MISUSED, NOT_READABLE, REJECTED

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND_LINE = (REPOSITORY / "docs" / "command-line.md").read_text()
ON_CALL = (REPOSITORY / "docs" / "on-call.md").read_text()
LOCKFILE = (REPOSITORY / "docs" / "lockfile-in-ci.md").read_text()


def test_the_page_lists_exactly_the_commands() -> None:
    registered = set(COMMANDS)
    assert set(re.findall(r"^\| `statebackend ([\w-]+)", COMMAND_LINE, re.MULTILINE)) == registered


def test_the_statuses_of_the_page_are_correct() -> None:
    reported = {int(number) for number in re.findall(r"^\| (\d+) \|", COMMAND_LINE, re.MULTILINE)}
    assert reported == {0, DIFFERENT, REJECTED, LOSES, NOT_READABLE, MISUSED, INTERRUPTED}


@pytest.mark.usefixtures("own_registrations")
def test_the_commands_of_the_pages_print_what_the_pages_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, deployed, fixed, proof = re.findall(r"```python\n(.*?)```", ON_CALL, re.DOTALL)
    why, stored, compatibilities, values, lock = re.findall(r"```console\n(.*?)```", ON_CALL + LOCKFILE, re.DOTALL)
    head, decorator, rest = program.partition("@attrs.frozen\n")
    record, functions, _ = re.split(r"(?=^class AddUp|^def chain)", decorator + rest, flags=re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))

    def is_now(changed: str) -> None:
        as_before = "" if "class AddUp" in changed else functions
        (tmp_path / "sales.py").write_text(head + changed + as_before + program[program.index("def chain") :])
        # Drop the imported module, because the file has changed.
        sys.modules.pop("sales", None)
        importlib.invalidate_caches()

    def check_output(console: str, *statuses: int) -> None:
        reported, ended = [], []
        for line in console.splitlines():
            if line.startswith("$ statebackend "):
                reported.append(line)
                command = line.removeprefix("$ statebackend ").replace("/savepoints", f"{tmp_path}/savepoints")
                ended.append(main(shlex.split(command)))
                reported += capsys.readouterr().out.replace(f"{tmp_path}/savepoints", "/savepoints").splitlines()
        assert reported == console.splitlines()
        assert tuple(ended) == statuses

    is_now(record)
    sales = [("north", 19.99), ("south", 5.5), ("north", 0.01)]
    importlib.import_module("sales").build(sales).execute("sales").savepoint(tmp_path / "savepoints" / "monday")
    is_now(deployed)
    check_output(why, REJECTED)
    check_output(stored, 0, 0)
    is_now(fixed)
    check_output(compatibilities, 0)
    exec(proof.replace("/savepoints", f"{tmp_path}/savepoints"), {})
    check_output(values, 0)
    check_output(lock, 0, 0)
