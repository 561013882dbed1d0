"""The command `statebackend`, by `typer`; see the room for how each command ends."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final, TypeAlias

import typer

from checkpointing.errors import CheckpointError
from savepoints.command_line.answers import (
    difference_of_entries,
    difference_of_schemas,
    entry,
    inspection,
    limited,
    operator_element,
    schemas,
)
from savepoints.command_line.conditions import parsed_condition
from savepoints.command_line.printing import Printer, printer_for, shown_bytes
from savepoints.savepoint import Savepoint
from snapshots.errors import StateFormatError
from statebackend.api.errors import StateBackendError
from statebackend.api.key_columns import parsed_key
from statebackend.api.key_hash import KeyHashError

__all__ = ["DIFFERENT", "MISUSED", "NOT_READABLE", "main"]

DIFFERENT: Final = 1
NOT_READABLE: Final = 3
MISUSED: Final = 64
INTERRUPTED: Final = 130

UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""What `typer` raises for wrong use: of its own copy of `click`, or of `click` itself, as its release has it."""

app = typer.Typer(
    help="Look into the checkpoints and savepoints of jobs with state.", no_args_is_help=True, add_completion=False
)

Place: TypeAlias = Annotated[
    str, typer.Argument(metavar="PATH", help="A savepoint, a checkpoint, or the directory of a job (its newest one).")
]
CheckpointId: TypeAlias = Annotated[
    int | None, typer.Option("--checkpoint", help="Which checkpoint of a job directory, by its id.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@app.command()
def inspect(
    path: Place,
    checkpoint: CheckpointId = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file and compare it with its checksum.")] = False,
    counts: Annotated[
        bool, typer.Option("--counts/--no-counts", help="Read all keyed state once, to count its entries.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """What a checkpoint or savepoint is: its job, operators, states, entries, bytes, event time, source and sinks."""
    savepoint = Savepoint.open(path, checkpoint)
    verified = sum(1 for _ in savepoint.verify()) if verify else None
    answer = inspection(savepoint, now_ms=time.time_ns() // 1_000_000, counts=counts)
    if verified is not None:
        answer["verified_files"] = verified
    _tell(as_json, answer, _print_inspection)


@app.command()
def show(
    path: Place,
    operator: Annotated[str, typer.Argument(help="The uid of the operator.")],
    state: Annotated[str, typer.Argument(help="The name of the state.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Only this key; once for each column of a key of several.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", help="Only entries like this, as value.n>3 or namespace.start=0.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="At most so many entries.")] = None,
    checkpoint: CheckpointId = None,
    as_json: AsJson = False,
) -> None:
    """The entries of a state, decoded: records as objects, without the program's classes."""
    savepoint = Savepoint.open(path, checkpoint)
    try:
        conditions = [parsed_condition(text) for text in where or ()]
    except ValueError as error:
        raise typer.BadParameter(f"--where {error}") from error
    answers = (one for one in _entries(savepoint, operator, state, key) if all(holds(one) for holds in conditions))
    _tell(as_json, list(limited(answers, limit)), _print_entries)


@app.command()
def schema(path: Place, checkpoint: CheckpointId = None, as_json: AsJson = False) -> None:
    """The types of all states: records with their fields, former names and defaults."""
    _tell(as_json, schemas(Savepoint.open(path, checkpoint)), _print_schemas)


@app.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD")],
    new: Annotated[str, typer.Argument(metavar="NEW")],
    entries: Annotated[bool, typer.Option("--entries", help="Compare keys and values too.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="At most so many differing entries.")] = None,
    as_json: AsJson = False,
) -> None:
    """What changed from one checkpoint or savepoint to another; ends with 1 if anything did."""
    one, other = Savepoint.open(old), Savepoint.open(new)
    answer: dict[str, Any] = {"schema": difference_of_schemas(schemas(one), schemas(other))}
    if entries:
        answer["entries"] = list(limited(difference_of_entries(one, other), limit))
    _tell(as_json, answer, _print_difference)
    if any(answer.values()):
        raise typer.Exit(DIFFERENT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns how it ended. Nothing but the commands' own output goes to the standard output."""
    try:
        status = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except UsageError as error:
        print(f"error: {_said(error)}; see statebackend --help", file=sys.stderr)
        return MISUSED
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads the output has enough of it, as `head` has.
        sys.stderr.close()
        return 0
    except (CheckpointError, StateBackendError, StateFormatError, KeyHashError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return NOT_READABLE
    return status if isinstance(status, int) else 0


def _said(error: Exception) -> str:
    # Its text is made of the names of parameters and the reason.
    return str(getattr(error, "format_message", error.__str__)()).rstrip(".")


def _entries(savepoint: Savepoint, operator: str, state: str, key: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    stored = savepoint.operators.get(operator)
    if stored is not None and state in stored.operator_states and state not in stored.states:
        if key:
            raise typer.BadParameter(f"{state!r} is state without keys: leave out --key")
        return (operator_element(one) for one in savepoint.read_operator_state(operator, state))
    savepoint.schema(operator, state)
    if not key:
        return (entry(one) for one in savepoint.read(operator, state))
    try:
        wanted = parsed_key(savepoint.key_columns(operator), key)
    except ValueError as error:
        raise typer.BadParameter(f"--key: {error}") from error
    return (entry(one) for one in savepoint.read(operator, state, key=wanted))


def _tell(as_json: bool, answer: Any, tell: Callable[[Printer, Any], None]) -> None:
    if as_json:
        print(json.dumps(answer, ensure_ascii=False, indent=2, allow_nan=False))
    else:
        tell(printer_for(), answer)


_STATE_COLUMNS: Final = ("state", "kind", "types", "entries", "bytes", "key groups", "skew", "largest")


def _print_inspection(printer: Printer, answer: dict[str, Any]) -> None:
    printer.line(f"{answer['kind']} {answer['checkpoint_id']} of job {answer['job_name']}")
    left_out = ("operators", "timers_due", "source", "sinks", "restored_from", "kind", "checkpoint_id", "job_name")
    pairs = {name: value for name, value in answer.items() if name not in left_out}
    pairs["size_bytes"] = shown_bytes(answer["size_bytes"])
    source = answer["source"]
    if source is not None:
        pairs["source"] = f"batch {source['batch_id']} of {', '.join(source['sources'])}"
    pairs["sinks"] = ", ".join(answer["sinks"])
    pairs["restored_from"] = answer["restored_from"]
    printer.pairs("", pairs)
    due = {one["operator_uid"]: one for one in answer["timers_due"]}
    for operator in answer["operators"]:
        uid = operator["uid"]
        printer.line("")
        printer.line(f"operator {uid}: parallelism {operator['parallelism']}, {shown_bytes(operator['size_bytes'])}")
        timers = due.get(uid)
        if timers is not None:
            printer.line(f"next timers: event time {timers['event_time_ms']}, clock {timers['processing_time_ms']}")
        rows = [
            (
                one["name"],
                one["kind"],
                ", ".join(f"{role} {name}" for role, name in one["types"].items()),
                one.get("entries"),
                None if "entry_bytes" not in one else shown_bytes(one["entry_bytes"]),
                one.get("key_groups"),
                one.get("skew"),
                next(map(shown_bytes, one.get("largest_entry_bytes", ())), None),
            )
            for one in operator["states"]
        ]
        # What has no keys has an element count and nothing else of this.
        rows += [
            (one["name"], one["mode"], "", one["elements"], None, None, None, None)
            for one in operator["operator_states"]
        ]
        printer.table("", _STATE_COLUMNS, rows)


def _print_entries(printer: Printer, answers: list[dict[str, Any]]) -> None:
    columns = [name for name in _ENTRY_COLUMNS if any(name in one for one in answers)]
    printer.table("", columns or ["value"], ([one.get(name) for name in columns] for one in answers))


_ENTRY_COLUMNS: Final = ("subtask", "key", "namespace", "user_key", "value", "last_access_ms")


def _print_schemas(printer: Printer, answer: dict[str, Any]) -> None:
    for uid, operator in answer.items():
        printer.line(f"operator {uid}")
        for name, state in operator["states"].items():
            types = ", ".join(f"{role}: {one['type']}" for role, one in state["types"].items())
            printer.line(f"  {name} ({state['kind']}) {types}")
            for one in state["types"].values():
                for record, content in one.get("records", {}).items():
                    printer.line(f"    {record}" + "".join(f" {value}" for value in content.get("constants", ())))
                    for part, described in content["fields"].items():
                        default = f" = {described['default']}" if "default" in described else ""
                        former = "".join(f", formerly {name}" for name in described.get("former_names", ()))
                        printer.line(f"      {part}: {described['type']}{default}{former}")
                if "unknown" in one:
                    printer.line(f"    unknown here: {one['unknown']}")
        for name, mode in operator["operator_states"].items():
            printer.line(f"  {name} ({mode}, without keys)")


def _print_difference(printer: Printer, answer: dict[str, Any]) -> None:
    for one in answer["schema"]:
        printer.line(f"{one['change']}: {one['path']}")
        for name, sign in (("before", "-"), ("after", "+")):
            if one[name] is not None:
                printer.line(f"  {sign} {json.dumps(one[name], ensure_ascii=False)}")
    if answer.get("entries"):
        columns = ("operator", "state", "change", "key", "before", "after")
        printer.table("", columns, (_changed(one) for one in answer["entries"]))
    if not any(answer.values()):
        printer.line("no difference")


def _changed(one: dict[str, Any]) -> tuple[Any, ...]:
    before, after = one["before"], one["after"]
    known = before or after
    place = [known[name] for name in ("key", "namespace", "user_key") if name in known]
    values = [None if side is None else side["value"] for side in (before, after)]
    return (one["operator"], one["state"], one["change"], place[0] if len(place) == 1 else place, *values)
