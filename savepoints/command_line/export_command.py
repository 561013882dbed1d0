"""The command that gives a state to other programs, as one file."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer
from attrs import asdict

from savepoints.command_line.command_arguments import (
    AsJson,
    CheckpointId,
    OperatorUid,
    Overwrite,
    Place,
    StateName,
    ZooKeeper,
)
from savepoints.command_line.entries_of import entries_of
from savepoints.command_line.opening import opened_with_progress
from savepoints.command_line.printing import Printer
from savepoints.command_line.telling import tell
from savepoints.shown_sizes import counted, shown_bytes
from savepoints.table_export import EXPORT_FORMATS, export_state
from savepoints.tabular.known_forms import ColumnForms

__all__ = ["EXPORT_COMMANDS"]

FileFormat = enum.Enum("FileFormat", {name: name for name in EXPORT_FORMATS})  # type: ignore[misc]


def export(
    path: Place,
    operator: OperatorUid,
    state: StateName,
    output: Annotated[str, typer.Argument(metavar="OUT", help="The file to write.")],
    to: Annotated[FileFormat, typer.Option("--to", help="What the file is to be.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Only this key; once for each column of a key of several.")
    ] = None,
    as_text: Annotated[
        bool, typer.Option("--as-text", help="Decimals, unbounded numbers and Java's times as text, so that all fit.")
    ] = False,
    escape_formulas: Annotated[
        bool,
        typer.Option("--escape-formulas", help="Of CSV: texts that a spreadsheet would run begin with an apostrophe."),
    ] = False,
    overwrite: Overwrite = False,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    as_json: AsJson = False,
) -> None:
    """Writes the entries of a state to a file: typed columns in Parquet or Arrow, lines in CSV or JSON."""
    if escape_formulas and to.value != "csv":
        raise typer.BadParameter("--escape-formulas is for --to csv")
    with opened_with_progress(path, checkpoint, zookeeper) as savepoint:
        entries = entries_of(savepoint, operator, state, key).with_forms(ColumnForms(as_text=as_text))
        written = export_state(entries, to.value, output, overwrite=overwrite, escape_formulas=escape_formulas)
    if written.formula_cells:
        cells = counted(written.formula_cells, "cell")
        print(f"warning: a spreadsheet would run {cells} as formulas; use --escape-formulas", file=sys.stderr)
    tell(as_json, asdict(written), _tell_export)


def _tell_export(printer: Printer, answer: dict[str, Any]) -> None:
    printer.line(
        f"{answer['path']}: {counted(answer['entries'], 'entry', 'entries')}, {shown_bytes(answer['size_bytes'])}"
    )
    for path, note in answer["notes"].items():
        printer.line(f"  {path}: {note}")


EXPORT_COMMANDS: Final[Sequence[Callable[..., None]]] = (export,)
