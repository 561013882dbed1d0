"""The export of a state to a file: its content, and its atomic creation."""

from __future__ import annotations

import csv
import decimal
import errno
import io
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from inspected_job import SALES, run_job

from statebackend import Savepoint, StateEntries, StateEntry, ValueStateDescriptor
from statebackend.cli.export_command import EXPORT_FORMATS, export_state
from statebackend.cli.main import main
from statebackend.cli.streams import DIFFERENT, MISUSED, NOT_READABLE
from statebackend.savepoint.atomic_files import atomic_file
from statebackend.savepoint.errors import ExportExistsError
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from typeserializers import BigIntSerializer

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("state") / "savepoint"
    run_job("heap").savepoint(path)
    return str(path)


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "parquet": lambda path: pq.read_table(path).to_pylist(),
    "arrow": lambda path: pa.ipc.open_file(path).read_all().to_pylist(),
    "csv": lambda path: list(csv.DictReader(io.StringIO(path.read_text()))),
    "json": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
}


@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_every_state_is_exported_with_all_its_entries(place: str, tmp_path: Path, file_format: str) -> None:
    opened = Savepoint.open(place)
    for number, (operator, state) in enumerate(opened.states):
        path = tmp_path / f"{number}.{file_format}"
        written = export_state(opened.read(operator, state), file_format, path)
        rows = READERS[file_format](path)
        assert (written.entries, written.size_bytes) == (len(rows), path.stat().st_size)
        assert len(rows) == len(list(opened.read(operator, state)))
    assert len(list(tmp_path.iterdir())) == len(opened.states)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_the_file_is_synced_before_it_gets_its_name(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str, overwrite: bool
) -> None:
    path, synced = tmp_path / "state", list[tuple[int, bool]]()
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((os.fstat(file).st_size, path.exists())))
    opened = Savepoint.open(place)
    written = export_state(opened.read(*next(iter(opened.states))), file_format, path, overwrite=overwrite)
    assert synced == [(written.size_bytes, False)]


def test_values_are_typed_objects_or_json_depending_on_the_format(place: str, tmp_path: Path) -> None:
    entries = Savepoint.open(place).read("per shop", "totals", key="shop 3")
    value = {"sales": 5, "turnover": 245.0, "note": None}
    [one] = entries
    for file_format, shown in (("parquet", value), ("arrow", value), ("json", value), ("csv", json.dumps(value))):
        export_state(entries, file_format, tmp_path / file_format)
        [row] = READERS[file_format](tmp_path / file_format)
        assert (row["key"], row["value"]) == ("shop 3", shown), file_format
        assert int(row["key_group"]) == one.key_group


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("in the middle")])
@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_an_interrupted_export_leaves_nothing_and_keeps_the_old_file(
    place: str, tmp_path: Path, file_format: str, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(entries: StateEntries, **bounds: Any) -> Iterator[Any]:
        yield from whole(entries)
        raise failure

    name = "to_arrow_batches" if file_format in ("parquet", "arrow") else "__iter__"
    whole: Callable[[StateEntries], Iterator[Any]] = getattr(StateEntries, name)
    monkeypatch.setattr(StateEntries, name, fails)
    kept = tmp_path / "kept"
    kept.write_text("what was there")
    entries = Savepoint.open(place).read("per shop", "totals")
    for path, overwrite in ((kept, True), (tmp_path / "new", False)):
        with pytest.raises(type(failure)):
            export_state(entries, file_format, path, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "what was there"


def test_an_existing_file_is_replaced_only_on_request(place: str, tmp_path: Path) -> None:
    entries = Savepoint.open(place).read("per shop", "totals")
    path = tmp_path / "totals.json"
    export_state(entries, "json", path)
    with pytest.raises(ExportExistsError, match=r"totals\.json exists"):
        export_state(entries, "json", path)
    before = path.stat().st_ino
    export_state(entries, "json", path, overwrite=True)
    assert path.stat().st_ino != before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_directory_is_named_and_no_temporary_file_left(place: str, tmp_path: Path) -> None:
    entries = Savepoint.open(place).read("per shop", "totals")
    for wrong, error in (
        (tmp_path / "missing" / "totals.json", f"there is no directory to write totals.json in: '{tmp_path}/missing'"),
        (tmp_path, "the path is a directory"),
        (Path(os.devnull), "the path is not a regular file"),
    ):
        with pytest.raises(OSError, match=re.escape(error)) as raised:
            export_state(entries, "json", wrong, overwrite=True)
        assert ".part" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed_and_stays(place: str, tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to("file")
    entries = Savepoint.open(place).read("per shop", "totals")
    with pytest.raises(ExportExistsError):
        export_state(entries, "json", link)
    export_state(entries, "json", link, overwrite=True)
    assert link.is_symlink()
    assert len(file.read_text().splitlines()) == len(list(entries))


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_created_meanwhile_is_not_replaced(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def reject(*_: object) -> None:
        raise PermissionError(errno.EPERM, "there are no links")

    if not has_links:
        monkeypatch.setattr(os, "link", reject)
    path, whole = tmp_path / "totals.json", StateEntries.__iter__

    def slow(entries: StateEntries) -> Iterator[StateEntry]:
        path.write_text("somebody else's")
        return whole(entries)

    monkeypatch.setattr(StateEntries, "__iter__", slow)
    with pytest.raises(ExportExistsError, match="meanwhile"):
        export_state(Savepoint.open(place).read("per shop", "totals"), "json", path)
    assert path.read_text() == "somebody else's"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400])
def test_a_replacement_keeps_the_permissions_of_the_old_file(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    with atomic_file(path, overwrite=True) as file:
        file.write(b"secret")
        [temporary] = set(tmp_path.iterdir()) - {path}
        assert stat.S_IMODE(temporary.stat().st_mode) == mode
    assert (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) == (mode, b"secret")


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])
def test_a_file_can_have_the_longest_allowed_name(tmp_path: Path, name: str) -> None:
    with atomic_file(tmp_path / name, overwrite=False) as file:
        file.write(b"all of it")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"all of it")]


def test_the_command_exports_and_prints_what_it_wrote(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "sales.parquet")
    assert main(["export", place, "per shop", "by amount", "--to", "parquet", out, "--json"]) == 0
    reported = capsys.readouterr()
    assert (json.loads(reported.out)["entries"], reported.err) == (len(SALES), "")
    assert pq.read_table(out).num_rows == len(SALES)
    assert main(["export", place, "per shop", "by amount", "--to", "csv", out, "--key", "shop 3"]) == NOT_READABLE
    assert "exists" in capsys.readouterr().err
    assert main(["export", place, "per shop", "names", "--to", "csv", out, "--key", "all"]) == MISUSED
    assert "without keys" in capsys.readouterr().err
    assert main(["export", place, "per shop", "totals", "--to", "excel", out]) == MISUSED


@pytest.mark.parametrize("asked", ["SIGINT", "SIGTERM"])
def test_an_interrupted_or_terminated_command_leaves_nothing_and_reports_it(
    place: str, tmp_path: Path, asked: str
) -> None:
    program = (
        "import os, signal\n"
        "from statebackend import StateEntries\n"
        "from statebackend.cli import run\n"
        "whole = StateEntries.to_arrow_batches\n"
        "def interrupted(entries, **bounds):\n"
        "    for batch in whole(entries, **bounds):\n"
        "        yield batch\n"
        f"        os.kill(os.getpid(), signal.{asked})\n"
        "StateEntries.to_arrow_batches = interrupted\n"
        "run()\n"
    )
    arguments = ["export", place, "per shop", "totals", "--to", "parquet", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file_format", EXPORT_FORMATS)
def test_operator_state_is_exported_with_its_subtasks(
    place: str, tmp_path: Path, file_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for state, columns in (("handled", ["subtask", "value"]), ("names", ["subtask", "key", "value"])):
        path = tmp_path / state
        assert main(["export", place, "per shop", state, str(path), "--to", file_format, "--json"]) == 0
        rows = READERS[file_format](path)
        expected = list(Savepoint.open(place).read_operator_state("per shop", state).plain())
        assert [list(row) for row in rows] == [columns] * len(expected)
        assert [{name: str(value) for name, value in row.items()} for row in rows] == [
            {name: str(value) for name, value in one.items()} for one in expected
        ]
        assert json.loads(capsys.readouterr().out)["entries"] == len(expected) > 0
    assert main(["export", place, "per shop", "names", str(path), "--to", file_format, "--key", "all"]) == MISUSED


def test_every_text_of_a_csv_table_round_trips(tmp_path: Path) -> None:
    texts = ["a\rb", "a\r\nb", "a\nb", 'a "b"', "a,b", '"', ",", "", " a ", "\r"]
    plan = Plan().add_operator("one", "int").add_state("one", ValueStateDescriptor("text", str), enumerate(texts))
    SavepointWriter.new(tmp_path / "savepoint", max_parallelism=8).write(plan)
    export_state(Savepoint.open(tmp_path / "savepoint").read("one", "text"), "csv", tmp_path / "table")
    with open(tmp_path / "table", newline="") as file:
        rows = {int(row["key"]): row["value"] for row in csv.DictReader(file)}
    assert rows == dict(enumerate(texts))


@pytest.mark.parametrize(("exponent", "sign"), [(4299, 1), (4300, 1), (5000, -1)])
def test_a_number_of_any_size_is_shown_exported_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], exponent: int, sign: int
) -> None:
    number = sign * 10**exponent
    descriptor = ValueStateDescriptor("number", BigIntSerializer())
    for name, value in (("one", number), ("other", number + 1)):
        plan = Plan().add_operator("one", "string").add_state("one", descriptor, [("a", value)])
        SavepointWriter.new(tmp_path / name, max_parallelism=8).write(plan)
    place, digits = str(tmp_path / "one"), str(decimal.Decimal(number))
    assert main(["show", place, "one", "number"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"a\t{digits}"
    for file_format in EXPORT_FORMATS:
        table = str(tmp_path / file_format)
        assert main(["export", place, "one", "number", table, "--to", file_format, "--as-text"]) == 0
        [row] = READERS[file_format](tmp_path / file_format)
        assert str(decimal.Decimal(row["value"])) == digits
    assert main(["diff", place, str(tmp_path / "other"), "--entries"]) == DIFFERENT
