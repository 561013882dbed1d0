"""Shared options of the commands, and how their answers are printed.

An answer is plain data: dicts, lists, texts and numbers. `print_answer` prints it as one JSON document or for people.
Long answers are printed while they are read. Where reading shows a progress bar, `SpooledAnswers` keeps them in a file
until the bar is gone.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from statebackend.cli.printing import Printer, printer_for
from statebackend.savepoint.sizes import format_bytes, format_time
from statebackend.state.priority_queue import displayed_kind, displayed_state

if TYPE_CHECKING:
    from statebackend.checkpoint.ha.services import JobServices

Place: TypeAlias = Annotated[
    str, typer.Argument(metavar="PATH", help="A savepoint, a checkpoint, or a job directory (its newest checkpoint).")
]
OperatorUid: TypeAlias = Annotated[str, typer.Argument(metavar="OPERATOR", help="The uid of the operator.")]
StateName: TypeAlias = Annotated[
    str, typer.Argument(metavar="STATE", help="The name of the state, such as counts or 'event-time timers'.")
]
CheckpointId: TypeAlias = Annotated[
    int | None, typer.Option("--checkpoint", help="The id of a checkpoint of a job directory; default: the newest.")
]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
ZooKeeper: TypeAlias = Annotated[
    str | None,
    typer.Option("--zookeeper", metavar="HOSTS[/ROOT]", help="The ZooKeeper of the job: host:port,host:port/root."),
]

Moved: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--moved", metavar="OLD=NEW", help="A directory that a Flink checkpoint names, and its new location."),
]
ScratchDirectory: TypeAlias = Annotated[
    str | None,
    typer.Option("--scratch", metavar="DIR", help="A directory for sorting, with space for all entries."),
]
AllowLoss: TypeAlias = Annotated[
    bool, typer.Option("--allow-loss", help="Accept the loss of fields, states or operators.")
]


def moved_directories(moved: Sequence[str] | None) -> dict[str, str]:
    """Return the directories of ``--moved``: the new location of each old one.

    Raises:
        BadParameter: A value is not OLD=NEW.
    """
    pairs = [text.partition("=") for text in moved or ()]
    if not all(old and new for old, _, new in pairs):
        raise typer.BadParameter("--moved is OLD=NEW, such as --moved file:/old/checkpoints=/new/checkpoints")
    return {old: new for old, _, new in pairs}


def services_of(zookeeper: str | None, *, stands_by: bool = True) -> JobServices | None:
    """Return the high-availability services of ``--zookeeper``, or None for the default of the job.

    Args:
        zookeeper: Hosts and root, in the form of the option.
        stands_by: Whether to wait for leadership. Otherwise opening fails at once if another process leads the job.
    """
    if zookeeper is None:
        return None
    from statebackend.checkpoint.ha.zookeeper import ZooKeeperHighAvailability

    return ZooKeeperHighAvailability.at(zookeeper, stand_by_timeout_s=None if stands_by else 0.0)


_IN_MEMORY_BYTES = 1 << 20


class SpooledAnswers:
    """Answers as plain data in a temporary file, iterated in order. See `spooled_answers`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._count = 0

    def add(self, answer: dict[str, Any]) -> None:
        """Add an answer. Do not call this during an iteration."""
        self._file.write(json.dumps(answer).encode() + b"\n")
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._file.seek(0)
        return map(json.loads, self._file)


@contextlib.contextmanager
def spooled_answers() -> Iterator[SpooledAnswers]:
    """Create an empty spool, deleted at the end of the context."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, prefix="statebackend-answers-") as file:
        yield SpooledAnswers(file)


def print_answer(as_json: bool, answer: Any, print_text: Callable[[Printer, Any], None]) -> None:
    """Print an answer as one JSON document, or for people with ``print_text``."""
    if as_json:
        print(_json_text(answer))
    else:
        print_text(printer_for(), answer)


def _json_text(answer: Any) -> str:
    text = json.dumps(answer, ensure_ascii=False, indent=2, allow_nan=False)
    if not text.isprintable():
        # JSON has line ends only between its parts.
        text = "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n"))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        # A lone surrogate, or a character that the encoding does not have.
        return json.dumps(answer, indent=2, allow_nan=False)
    return text


def _escaped(text: str) -> str:
    """Escape control and bidirectional characters as JSON does."""
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


_STATE_COLUMNS: Final = ("state", "kind", "types", "entries", "bytes", "key groups", "skew", "largest")


def print_inspection(printer: Printer, answer: dict[str, Any]) -> None:
    """Print the answer of `inspect`: general pairs, then a table of states per operator."""
    printer.line(f"{answer['kind']} {answer['checkpoint_id']} of job {answer['job_name']}")
    left_out = ("operators", "timers_due", "source", "sinks", "restored_from", "kind", "checkpoint_id", "job_name")
    pairs = {name: value for name, value in answer.items() if name not in left_out}
    pairs["size_bytes"] = format_bytes(answer["size_bytes"])
    for name in ("processing_time_ms", "watermark_ms"):
        if pairs.get(name) is not None:
            pairs[name] = f"{pairs[name]} ({_in_utc(pairs[name])})"
    source = answer["source"]
    if source is not None:
        pairs["source"] = f"batch {source['batch_id']} of {', '.join(source['sources'])}"
    pairs["sinks"] = ", ".join(answer["sinks"])
    pairs["restored_from"] = answer["restored_from"]
    printer.pairs(pairs)
    due = {one["operator_uid"]: one for one in answer["timers_due"]}
    for operator in answer["operators"]:
        uid = operator["uid"]
        printer.line("")
        size = format_bytes(operator["size_bytes"]) if operator["size_bytes"] else "no state"
        printer.line(f"operator {uid}: parallelism {operator['parallelism']}, {size}")
        timers = due.get(uid)
        if timers is not None:
            event, processing = (
                "none" if time_ms is None else _in_utc(time_ms)
                for time_ms in (timers["event_time_ms"], timers["processing_time_ms"])
            )
            printer.line(f"next timers: event time {event}, processing time {processing}")
        rows = [
            (
                displayed_state(one["name"]),
                displayed_kind(one["kind"]),
                ", ".join(f"{role} {name}" for role, name in one["types"].items()),
                one.get("entries"),
                None if "entry_bytes" not in one else format_bytes(one["entry_bytes"]),
                one.get("key_groups"),
                one.get("skew"),
                next(map(format_bytes, one.get("largest_entry_bytes", ())), None),
            )
            for one in operator["states"]
        ]
        # Operator state has an element count only.
        rows += [
            (one["name"], one["mode"], "", one["elements"], None, None, None, None)
            for one in operator["operator_states"]
        ]
        if rows:
            printer.table(_STATE_COLUMNS, rows)


def _in_utc(time_ms: int) -> str:
    formatted = format_time(time_ms)
    return formatted if formatted.endswith(" ms") else f"{formatted} UTC"


def print_entries(as_json: bool, answers: Iterable[dict[str, Any]], nothing: str = "no entries") -> None:
    """Print entries while they are read, as one JSON document or as tables. ``nothing`` is the text for no entries."""
    pieces = _in_pieces(answers)
    if as_json:
        _print_list(pieces)
    else:
        _print_table(printer_for(), pieces, nothing)


def _in_pieces(answers: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    source = iter(answers)
    return iter(lambda: list(islice(source, _AT_ONCE)), [])


def _print_list(pieces: Iterator[list[dict[str, Any]]], indent: str = "") -> None:
    is_started = False
    for piece in pieces:
        # Without the brackets of the list.
        text = _json_text(piece)[2:-2].replace("\n", f"\n{indent}")
        print(",\n" if is_started else "[\n", indent, text, sep="", end="")
        is_started = True
    print(f"\n{indent}]" if is_started else "[]")


def _print_table(printer: Printer, pieces: Iterator[list[dict[str, Any]]], nothing: str) -> None:
    """Print the columns that the entries have. A later entry with more columns starts a new table."""
    columns: list[str] = []
    for piece in pieces:
        known = len(columns)
        columns = [name for name in _ENTRY_COLUMNS if name in columns or any(name in one for one in piece)]
        rows = ([one.get(name) for name in columns] for one in piece)
        printer.table(columns, rows, continues=known == len(columns))
    if not columns:
        printer.line(nothing)


_AT_ONCE: Final = 1000

_ENTRY_COLUMNS: Final = ("subtask", "key", "namespace", "user_key", "value", "last_access_ms")


def print_schemas(printer: Printer, answer: dict[str, Any]) -> None:
    """Print the types of each operator's states, with their records."""
    for uid, operator in answer.items():
        printer.line(f"operator {uid}")
        for name, state in operator["states"].items():
            _print_schema(printer, name, state["kind"], state["types"])
        for name, state in operator["operator_states"].items():
            _print_schema(printer, name, f"{state['kind']}, without keys", state["types"])


def _print_schema(printer: Printer, name: str, kind: str, types: dict[str, Any]) -> None:
    shown = ", ".join(f"{role}: {one['type']}" for role, one in types.items())
    printer.line(f"  {name} ({kind}) {shown}")
    for one in types.values():
        for record, content in one.get("records", {}).items():
            printer.line(f"    {record}" + "".join(f" {value}" for value in content.get("constants", ())))
            for part, described in content["fields"].items():
                default = f" = {described['default']}" if "default" in described else ""
                former = "".join(f", formerly {name}" for name in described.get("former_names", ()))
                printer.line(f"      {part}: {described['type']}{default}{former}")
        if "unknown" in one:
            printer.line(f"    unknown here: {one['unknown']}")


def print_difference(
    as_json: bool, of_schemas: Sequence[dict[str, Any]], of_entries: Iterable[dict[str, Any]] | None
) -> None:
    """Print the changed paths of schemas, then the changed entries while they are read."""
    pieces = _in_pieces(of_entries or ())
    if as_json:
        print('{\n  "schema": ', _json_text(of_schemas).replace("\n", "\n  "), sep="", end="")
        if of_entries is not None:
            print(',\n  "entries": ', end="")
            _print_list(pieces, "  ")
        print("\n}" if of_entries is None else "}")
        return
    printer = printer_for()
    for one in of_schemas:
        printer.line(f"{one['change']}: {one['path']}")
        for name, sign in (("before", "-"), ("after", "+")):
            if one[name] is not None:
                printer.line(f"  {sign} {json.dumps(one[name], ensure_ascii=False)}")
    columns = ("operator", "state", "change", "key", "before", "after")
    continues = False
    for piece in pieces:
        printer.table(columns, (_changed(one) for one in piece), continues=continues)
        continues = True
    if not of_schemas and not continues:
        compared = "" if of_entries is not None else " of schemas; --entries compares keys and values too"
        printer.line(f"no difference{compared}")


def _changed(one: dict[str, Any]) -> tuple[Any, ...]:
    before, after = one["before"], one["after"]
    known = before or after
    place = [known[name] for name in ("key", "namespace", "user_key") if name in known]
    values = [None if side is None else side["value"] for side in (before, after)]
    return (
        one["operator"],
        displayed_state(one["state"]),
        one["change"],
        place[0] if len(place) == 1 else place,
        *values,
    )
