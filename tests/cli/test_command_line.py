"""The command `statebackend`: its output for people and programs, and its exit status."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
import typer
from inspected_job import NOW_MS, SALES, run_job

from snapshots.errors import EndOfDataError
from statebackend import Savepoint, StateEntry, ValueStateDescriptor
from statebackend.cli import terminal as spooled_answers_module
from statebackend.cli.main import main
from statebackend.cli.printing import printer_for
from statebackend.cli.streams import DIFFERENT, MISUSED, NOT_READABLE, lenient_stream
from statebackend.cli.terminal import print_answer, print_difference, print_entries, print_schemas, spooled_answers
from statebackend.savepoint.errors import UnknownStateError
from statebackend.savepoint.inspection import entries_of, inspection
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.sizes import format_bytes, format_time
from statebackend.savepoint.stored_entries import EntryReader

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A savepoint, and the directory of its job."""
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


def test_inspect_shows_job_operators_entries_and_timers(
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
        [timers] = [one for name, one in states.items() if name.startswith("_timer_state/processing_")]
        assert (timers["kind"], timers["types"]["element"]) == ("priority_queue", "timer of str")
        assert operator["operator_states"] == [
            {"name": "handled", "mode": "split", "elements": 100},
            {"name": "names", "mode": "broadcast", "elements": 2},
        ]
        assert found["timers_due"][0]["processing_time_ms"] == NOW_MS + 1
        printed = lines(capsys, "inspect", place)
        assert any(re.match(r"by amount\tmap\t.*\t100\t", line) for line in printed)
        assert any(re.match(r"processing-time timers\ttimers\t", line) for line in printed)
        assert "_timer_state" not in "".join(printed)
        assert f"processing_time_ms\t{NOW_MS} ({format_time(NOW_MS)} UTC)" in printed
        assert f"next timers: event time none, processing time {format_time(NOW_MS + 1)} UTC" in printed
        assert "entries" not in answer(capsys, "inspect", place, "--no-counts")["operators"][0]["states"][0]


@pytest.mark.parametrize(("time_ms", "taken_at"), [(0, "1970-01-01T00:00:00.000+00:00"), (2**62, None)])
def test_a_savepoint_of_any_time_is_inspected(places: tuple[str, str], time_ms: int, taken_at: str | None) -> None:
    savepoint = Savepoint.open(places[0])
    metadata = attrs.evolve(savepoint.metadata, timestamp_ms=time_ms)
    found = inspection(Savepoint(RestoredState(metadata, savepoint.file_system)), now_ms=0, counts=False)
    assert (found["taken_at"], found["timestamp_ms"]) == (taken_at, time_ms)


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


def test_timers_are_named_for_people_and_found_by_either_name(
    places: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    place, stored = places[0], "_timer_state/processing_user-timers"
    for name in (stored, "processing-time timers"):
        assert len(answer(capsys, "show", place, "per shop", name)) == len(SALES)
    for command in ("schema", "du"):
        printed = "".join(lines(capsys, command, place))
        assert "processing-time timers" in printed
        assert "_timer_state" not in printed
        assert "priority_queue" not in printed
    with pytest.raises(UnknownStateError, match=r"'per shop' has no state 'other'; it has .* processing-time timers"):
        entries_of(Savepoint.open(place), "per shop", "other")
    assert stored in answer(capsys, "schema", place)["per shop"]["states"]


def test_a_timer_after_the_last_year_is_printed_in_milliseconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan().add_operator("o", "string").add_timers("o", [("a", 2**63 - 1)], time="event")
    place = SavepointWriter.new(tmp_path / "savepoint", max_parallelism=8).write(plan).uri
    assert f"next timers: event time {2**63 - 1} ms, processing time none" in lines(capsys, "inspect", place)


def test_a_state_that_is_named_as_timers_are_displayed_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan().add_operator("o", "string").add_timers("o", [("a", 5)], time="event")
    plan.add_state("o", ValueStateDescriptor("event-time timers", int), [("a", 7)])
    place = SavepointWriter.new(tmp_path / "savepoint", max_parallelism=8).write(plan).uri
    for name, value in (("event-time timers", 7), ("_timer_state/event_user-timers", 5)):
        assert [one["value"] for one in answer(capsys, "show", place, "o", name)] == [value]
    printed = lines(capsys, "schema", place)
    assert "  event-time timers (value) key: str, value: int64" in printed
    assert any(line.startswith("  _timer_state/event_user-timers (timers) ") for line in printed)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_entries_are_printed_while_they_are_read(count: int, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    reported: list[str] = []

    def entries() -> Iterator[dict[str, Any]]:
        for number in range(count):
            # The first entries are printed before the last ones are read.
            reported.append(capsys.readouterr().out)
            assert number < 1000 or any(reported)
            yield {"key": number, "value": "ä", **({"namespace": 1} if number >= 1500 else {})}

    print_entries(as_json, entries())
    text = "".join([*reported, capsys.readouterr().out])
    if as_json:
        found = json.loads(text)
        assert [one["key"] for one in found] == list(range(count))
        assert text == f"{json.dumps(found, ensure_ascii=False, indent=2)}\n"
        return
    if not count:
        assert text == "no entries\n"
        return
    rows = [line.split("\t") for line in text.splitlines()]
    assert [row[0] for row in rows if row[0] not in ("key", "value")] == list(map(str, range(count)))
    heads = [row for row in rows if row[-1] == "value"]
    assert heads == [["key", "value"], ["key", "namespace", "value"]][: 2 if count > 1500 else 1]


@pytest.mark.parametrize("count", [0, 1, 1000, 1001, 2500])
def test_differences_are_printed_one_by_one_and_as_one_document(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    reported: list[str] = []

    def differences() -> Iterator[dict[str, Any]]:
        for number in range(count):
            reported.append(capsys.readouterr().out)
            assert number < 1000 or any(reported)
            both = {"before": {"key": number, "value": "ä"}, "after": None}
            yield {"operator": "o", "state": "s", "change": "removed", **both}

    print_difference(True, [{"path": "a", "change": "added", "before": None, "after": {"b": 1}}], differences())
    text = "".join([*reported, capsys.readouterr().out])
    found = json.loads(text)
    assert text == f"{json.dumps(found, ensure_ascii=False, indent=2)}\n"
    assert [one["before"]["key"] for one in found["entries"]] == list(range(count))
    reported.clear()
    print_difference(False, [], differences())
    rows = "".join([*reported, capsys.readouterr().out]).splitlines()
    assert rows[1:] == [f"o\ts\tremoved\t{number}\tä\t" for number in range(count)]
    assert rows[0] == ("operator\tstate\tchange\tkey\tbefore\tafter" if count else "no difference")


def test_no_entry_is_read_after_the_limit(
    places: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, read = EntryReader.entries, list[StateEntry]()

    def noted(reader: EntryReader, batches: Any) -> Iterator[StateEntry]:
        for one in whole(reader, batches):
            read.append(one)
            yield one

    monkeypatch.setattr(EntryReader, "entries", noted)
    [wanted] = answer(capsys, "show", places[0], "per shop", "by amount", "--where", "user_key=50", "--limit", "1")
    assert (read[-1].user_key, wanted["user_key"]) == (50, 50)
    assert len(read) < len(SALES)


def test_spooled_answers_come_back_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooled_answers_module, "_IN_MEMORY_BYTES", 100)
    given = [{"n": number, "text": "\ud800ä\n", "none": None, "large": 2**70} for number in range(20)]
    with spooled_answers() as spooled:
        for one in given:
            spooled.add(one)
        assert len(spooled) == 20
        assert list(spooled) == list(spooled) == given


def test_an_empty_result_is_reported_in_words(places: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    show = ("show", places[0], "per shop", "by amount", "--where", "user_key>1000", "--where", "value=x")
    error = "state 'by amount' of operator 'per shop' has no entry that fits --where 'user_key>1000' --where 'value=x'"
    assert lines(capsys, *show) == [error]
    assert answer(capsys, *show) == []


def test_an_older_checkpoint_of_a_job_is_chosen_by_its_id(
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


def test_differences_are_printed_and_have_their_own_exit_status(
    places: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    savepoint, job = places
    assert lines(capsys, "diff", savepoint, job, "--entries") == ["no difference"]
    assert lines(capsys, "diff", savepoint, job) == ["no difference of schemas; --entries compares keys and values too"]
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
        (["inspect", "/nowhere/at/all"], NOT_READABLE, "/nowhere/at/all does not exist"),
        (["inspect", __file__], NOT_READABLE, "test_command_line.py is a file, and no directory"),
        (["inspect", str(REPOSITORY)], NOT_READABLE, "is not a savepoint: it has no file _metadata"),
        (
            ["show", "SAVEPOINT", "per shop", "totals", "--key", "a", "--key", "b"],
            MISUSED,
            "the key has one column .string., not 2",
        ),
        (["show", "SAVEPOINT", "per shop", "totals", "--key", "none"], NOT_READABLE, "has no entry of key 'none'"),
        (
            ["show", "SAVEPOINT", "per shop", "totals", "--key", "shop 3", "--where", "key=other"],
            NOT_READABLE,
            "no entry of key 'shop 3' that fits --where 'key=other'",
        ),
        (["show", "SAVEPOINT", "per shop", "names", "--key", "a"], MISUSED, "without keys"),
        (["show", "SAVEPOINT", "per shop", "totals", "--where", "value"], MISUSED, "is not a condition"),
        (["show", "MOMENTS", "one", "number", "--key", "0001-01-01T00:00+01:00"], MISUSED, "which is not a timestamp"),
        (["show", "MOMENTS", "one", "number", "--key", "2024-01-01T00:00Z"], NOT_READABLE, "has no entry of key"),
        (["show", "NUMBERS", "one", "number", "--key", "1_0"], MISUSED, "'1_0', which is not a bigint"),
        (["show", "NUMBERS", "one", "number", "--key", " 10"], MISUSED, "' 10', which is not a bigint"),
        (["show", "NUMBERS", "one", "number", "--key", "\u0661\u0660"], MISUSED, "which is not a bigint"),
        (["show", "NUMBERS", "one", "number", "--key", "+11"], NOT_READABLE, "has no entry of key '.11'"),
        (["show", "SAVEPOINT"], MISUSED, "Missing.*; see statebackend show --help"),
        (
            ["export", "SAVEPOINT", "per shop", "totals", "out"],
            MISUSED,
            "Missing option '--to'. Choose from: parquet, ",
        ),
        (["shew"], MISUSED, "No such command 'shew'.*; see statebackend --help"),
        (
            ["export", "SAVEPOINT", "per shop", "totals", __file__, "--to", "csv"],
            NOT_READABLE,
            "py exists.*--overwrite",
        ),
        (["export", "SAVEPOINT", "per shop", "totals", "-", "--to", "csv"], NOT_READABLE, "not the standard output"),
        (["report", "SAVEPOINT", __file__], NOT_READABLE, r"py exists\. .*--overwrite"),
        (["report", "SAVEPOINT", "/nowhere/page"], NOT_READABLE, "/nowhere: there is no directory to write page in"),
    ],
)
def test_errors_are_one_line_on_standard_error(
    places: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    moments = Plan().add_operator("one", "timestamp").add_state("one", ValueStateDescriptor("number", int), [])
    SavepointWriter.new(tmp_path / "moments", max_parallelism=8).write(moments)
    numbers = Plan().add_operator("one", "bigint").add_state("one", ValueStateDescriptor("number", int), [(10, 1)])
    SavepointWriter.new(tmp_path / "numbers", max_parallelism=8).write(numbers)
    given = {
        "SAVEPOINT": places[0],
        "MOMENTS": str(tmp_path / "moments"),
        "NUMBERS": str(tmp_path / "numbers"),
    }
    assert main([given.get(one, one) for one in arguments]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(message, captured.err)
    assert "Traceback" not in captured.err


def test_entries_of_one_namespace_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"key": ["a", "a", "b"], "namespace": ["eu", "us", "us"], "value": [1, 2, 3]})
    descriptor = ValueStateDescriptor("totals", int)
    plan = Plan().add_operator("shops", "string").add_state("shops", descriptor, table, namespace=str)
    SavepointWriter.new(tmp_path / "savepoint", max_parallelism=4).write(plan)
    show = ("show", str(tmp_path / "savepoint"), "shops", "totals", "--namespace")
    assert [one["value"] for one in answer(capsys, *show, "us")] == [2, 3]
    assert [one["value"] for one in answer(capsys, *show, "us", "--key", "a")] == [2]
    assert lines(capsys, *show, "as") == ["state 'totals' of operator 'shops' has no entry in the namespace as"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_terminal_control_characters_in_names_and_values_are_escaped(stream: type[io.StringIO]) -> None:
    hostile = "[red]a[/red]\x1b[2Jb\nc\x9bd"
    shown = "[red]a[/red]\\x1b[2Jb\\nc\\x9bd"
    target = stream()
    printer = printer_for(target)
    printer.line(hostile)
    printer.pairs({hostile: hostile})
    printer.table([hostile], [[hostile], [[hostile]]])
    found = target.getvalue()
    assert found.count(shown) == 5
    assert found.count(json.dumps([hostile], ensure_ascii=False).replace("\x9b", "\\x9b")) == 1
    assert all(one.isprintable() or one == "\n" for one in re.sub("\x1b\\[[0-9;]*m|\t", "", found))


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_zero_is_shown_and_missing_values_are_left_out(stream: type[io.StringIO]) -> None:
    target = stream()
    printer_for(target).pairs({"a": 0, "b": None, "c": "", "d": False, "e": [], "f": "text"})
    found = re.sub("\x1b\\[[0-9;]*m", "", target.getvalue())
    assert found.split() == ["a", "0", "d", "false", "e", "[]", "f", "text"]


def test_sizes_have_fitting_units() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1 << 20, 3 << 29, 5 << 30)] == [
        "0 B",
        "1,023 B",
        "1.0 MiB",
        "1.5 GiB",
        "5.0 GiB",
    ]


def test_without_its_packages_the_command_says_how_to_install_them(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('No module named typer', name='typer')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from statebackend.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (
        1,
        "error: the command line needs typer: pip install 'statebackend[cli]'",
    )


def test_a_closed_pipe_does_not_change_the_exit_status(tmp_path: Path) -> None:
    program = "import sys; from statebackend.cli import run; run('ends_with_2')"
    (tmp_path / "ends_with_2.py").write_text(
        "def main():\n    for _ in range(2):\n        print('x' * 100_000, flush=True)\n    return 2\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_command_does_not_report_it_as_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    program = "import sys; from statebackend.cli import run; run('ends_with_2')"
    (tmp_path / "ends_with_2.py").write_text(
        "import atexit, os, signal\n"
        f"atexit.register(os.kill, os.getpid(), {int(number)})\n"
        "def main():\n    print('whole')\n    return 2\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "whole\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("flush", [True, False])
def test_a_failed_write_is_reported_and_is_no_success(tmp_path: Path, flush: bool) -> None:
    program = "import sys; from statebackend.cli import run; run('prints_and_ends_with_0')"
    (tmp_path / "prints_and_ends_with_0.py").write_text(
        "import typer\n"
        "from statebackend.cli.main import main as run\n"
        "app = typer.Typer(add_completion=False)\n"
        "@app.command()\n"
        f"def answer(): print('x', flush={flush})\n"
        "def main(): return run([], app=app)\n"
    )
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"],
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == NOT_READABLE
    [line] = done.stderr.splitlines()
    assert "No space left on device" in line


def test_output_to_a_closed_stream_is_accepted() -> None:
    with lenient_stream(None) as stream:
        printer_for(stream).line("nobody reads this")


def test_truncated_state_is_not_an_interruption(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()

    @app.command()
    def read() -> None:
        raise EndOfDataError("the data is truncated")

    assert main([], app=app) == NOT_READABLE
    assert capsys.readouterr().err.strip() == "error: the data is truncated"


def test_a_command_without_enough_memory_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()

    @app.command()
    def run() -> None:
        raise MemoryError

    assert main([], app=app) == NOT_READABLE
    assert "raise the limit of memory, or use `inspect --no-counts`" in capsys.readouterr().err


def test_characters_outside_of_the_encoding_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"encoded": "\u00e9", "beyond": "\u20ac", "half": "\ud800"}
    with open(tmp_path / "shown", "w+", encoding="latin-1") as file, lenient_stream(file) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        print_entries(False, [{"key": text} for text in texts.values()])
        stream.flush()
        file.seek(0)
        assert file.read().splitlines() == ["key", "\u00e9", "\\u20ac", "\\ud800"]
        file.seek(0)
        print_answer(True, texts, print_schemas)
        stream.flush()
        file.seek(0)
        assert json.loads(file.read()) == texts
