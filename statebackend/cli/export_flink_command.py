"""The command `export-flink`: writes a canonical Flink savepoint from stored state."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from statebackend.cli.opening import show_progress
from statebackend.cli.printing import Printer
from statebackend.cli.terminal import AsJson, CheckpointId, Place, ZooKeeper, print_answer, services_of
from statebackend.savepoint.rewrite.flink_writer import write_flink_savepoint
from statebackend.savepoint.sizes import counted
from statebackend.savepoint.state_location import find_state


def export_flink(
    path: Place,
    new: Annotated[str, typer.Argument(metavar="DEST", help="Where the savepoint is to be: absent or empty.")],
    checkpoint: CheckpointId = None,
    scratch: Annotated[
        str | None, typer.Option("--scratch", metavar="DIR", help="Where to sort; it needs space for all entries.")
    ] = None,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """Write a canonical Flink savepoint. Operators get the ids of their uids, keys the key groups of Flink."""
    restored = find_state(path, checkpoint, services_of(zookeeper))
    with show_progress() as progress:
        rows = write_flink_savepoint(restored, new, scratch_directory=scratch, progress=progress)
    print_answer(as_json, {"uri": new, "rows": rows}, _print_exported)


def _print_exported(printer: Printer, answer: dict[str, Any]) -> None:
    printer.line(f"{answer['uri']}: written")
    for uid, states in answer["rows"].items():
        for name, rows in states.items():
            printer.line(f"  operator {uid}, state {name}: {counted(rows, 'row')} written")
