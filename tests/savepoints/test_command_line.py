"""The command `statebackend`: what it prints for people and for programs, and how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from looked_at_job import NOW_MS, SALES, run_job

from savepoints import Savepoint, command_line
from savepoints.command_line.conditions import parsed_condition
from savepoints.command_line.main import DIFFERENT, MISUSED, NOT_READABLE, main
from savepoints.command_line.printing import shown_bytes

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A savepoint, and the directory of the job that it was taken of."""
    directory = tmp_path_factory.mktemp("state")
    run_job("rocksdb", directory / "job").savepoint(directory / "savepoint")
    return str(directory / "savepoint"), str(directory / "job")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main([*arguments, "--json"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def lines(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> list[str]:
    assert main(list(arguments)) == status
    return capsys.readouterr().out.splitlines()


def test_inspecting_tells_job_operators_entries_and_timers(
    places: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for place, kind in zip(places, ("savepoint", "checkpoint"), strict=True):
        found = answer(capsys, "inspect", place, "--verify")
        assert (found["kind"], found["job_name"], found["max_parallelism"]) == (kind, "sales", 128)
        assert found["verified_files"] == found["files"] > 0
        assert found["processing_time_ms"] == NOW_MS
        [operator] = found["operators"]
        states = {one["name"]: one for one in operator["states"]}
        assert states["by amount"]["entries"] == len(SALES)
        assert states["by amount"]["types"] == {"key": "str", "user_key": "int64", "value": "str | None"}
        assert states["timed"]["types"]["value"] == "int64 with the time of its last access"
        assert operator["operator_states"] == [
            {"name": "handled", "mode": "split", "elements": 100},
            {"name": "names", "mode": "broadcast", "elements": 2},
        ]
        assert found["timers_due"][0]["processing_time_ms"] == NOW_MS + 1
        printed = lines(capsys, "inspect", place)
        assert any(re.match(r"by amount\tmap\t.*\t100\t", line) for line in printed)
        assert "entries" not in answer(capsys, "inspect", place, "--no-counts")["operators"][0]["states"][0]


def test_entries_are_shown_by_key_by_condition_and_up_to_a_limit(
    places: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    savepoint, job = places
    for place in places:
        [one] = answer(capsys, "show", place, "per shop", "totals", "--key", "shop 3")
        own = [sale["amount"] for sale in SALES if sale["shop"] == "shop 3"]
        assert one["value"] == {"sales": len(own), "turnover": float(sum(own)), "note": None}
    large = answer(capsys, "show", job, "per shop", "by amount", "--where", "user_key>=90", "--where", "value=even")
    assert sorted(one["user_key"] for one in large) == [90, 92, 94, 96, 98]
    assert len(answer(capsys, "show", savepoint, "per shop", "amounts", "--limit", "3")) == 3
    assert len(answer(capsys, "show", savepoint, "per shop", "handled")) == len(SALES)
    header, *rows = lines(capsys, "show", savepoint, "per shop", "names")
    assert (header, rows) == ("subtask\tkey\tvalue", ["0\tall\t1", "1\tall\t1"])


def test_an_older_checkpoint_of_a_job_is_asked_for_by_its_id(
    places: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, job = places
    older = Savepoint.open(job).metadata.parent_checkpoint_id
    count = len(answer(capsys, "show", job, "per shop", "by amount", "--checkpoint", str(older)))
    assert 0 < count < len(SALES)


def test_the_schema_names_fields_types_and_defaults(
    places: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "schema", places[0])["per shop"]["states"]["totals"]
    assert found["types"]["value"]["records"]["Totals"]["fields"] == {
        "sales": {"type": "int64"},
        "turnover": {"type": "float64"},
        "note": {"type": "str | None", "default": "None"},
    }
    assert "      note: str | None = None" in lines(capsys, "schema", places[0])


def test_what_differs_is_told_and_ends_with_a_status_of_its_own(
    places: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    savepoint, job = places
    assert lines(capsys, "diff", savepoint, job, "--entries") == ["no difference"]
    older = str(Path(job) / "checkpoints" / f"chk-{Savepoint.open(job).metadata.parent_checkpoint_id:012d}")
    assert answer(capsys, "diff", older, job) == {"schema": []}
    found = answer(capsys, "diff", older, job, "--entries", status=DIFFERENT)
    changes = [one for one in found["entries"] if one["state"] == "by amount"]
    assert {one["change"] for one in changes} == {"added"}
    last_ones = len(SALES) - len(answer(capsys, "show", older, "per shop", "by amount"))
    assert len(changes) == last_ones > 0
    changed = [one for one in found["entries"] if one["state"] == "totals" and one["change"] == "changed"]
    assert all(one["before"]["key"] == one["after"]["key"] for one in changed)
    backwards = answer(capsys, "diff", job, older, "--entries", status=DIFFERENT)
    assert {one["change"] for one in backwards["entries"] if one["state"] == "by amount"} == {"removed"}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["show", "SAVEPOINT", "per ship", "totals"], NOT_READABLE, "there are per shop"),
        (["show", "SAVEPOINT", "per shop", "total"], NOT_READABLE, "it has totals"),
        (["inspect", "/nowhere/at/all"], NOT_READABLE, "is not a savepoint"),
        (["show", "SAVEPOINT", "per shop", "totals", "--key", "a", "--key", "b"], MISUSED, "1 columns .string., not 2"),
        (["show", "SAVEPOINT", "per shop", "names", "--key", "a"], MISUSED, "without keys"),
        (["show", "SAVEPOINT", "per shop", "totals", "--where", "value"], MISUSED, "is no condition"),
        (["show", "SAVEPOINT"], MISUSED, "Missing"),
        (["shew"], MISUSED, "No such command"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line_of_the_error_output(
    places: tuple[str, str], capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    assert main([places[0] if one == "SAVEPOINT" else one for one in arguments]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(message, captured.err)
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("key=7", True),
        ('key="7"', False),
        ("key!=7", False),
        ("value.n>2", True),
        ("value.n>=3", True),
        ("value.n<3", False),
        ("value.n<=3", True),
        ("value.name=a b", True),
        ("value.none=null", True),
        ("value.name>3", False),
        ("value.missing=3", False),
        ("key.deeper=3", False),
    ],
)
def test_conditions_look_into_the_entry_and_never_fail(condition: str, holds: bool) -> None:
    found = {"key": 7, "value": {"n": 3, "name": "a b", "none": None}}
    assert parsed_condition(condition)(found) is holds


def test_sizes_are_shown_in_units_that_fit() -> None:
    assert [shown_bytes(size) for size in (0, 1023, 1 << 20, 3 << 29, 5 << 30)] == [
        "0 B",
        "1,023 B",
        "1.0 MiB",
        "1.5 GiB",
        "5.0 GiB",
    ]


def test_without_its_packages_the_command_says_how_to_install_them(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('No module named typer', name='typer')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from savepoints.command_line import run; run()"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (
        1,
        "error: the command line needs typer: pip install 'statebackend[cli]'",
    )


def test_a_reader_that_has_enough_ends_the_command_quietly(places: tuple[str, str]) -> None:
    command = [sys.executable, "-m", command_line.__name__, "show", places[0], "per shop", "by amount"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()
