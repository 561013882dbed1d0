"""The command `export`: writes a state to one file for other programs.

| Format | Content |
|---|---|
| `parquet` | typed columns, compressed with zstd |
| `arrow` | typed columns, as an Arrow IPC file |
| `csv` | one line per entry, in UTF-8: texts unquoted where possible, null empty, everything else JSON |
| `json` | one JSON object per line, converted by `plain_values` |

The file appears when it is complete. Memory holds one batch.

A spreadsheet runs a CSV cell as a formula if it begins with one of ``= + - @``, a tab or a line end. With
``escape_formulas`` such a text begins with an apostrophe, which other programs have to remove. Without it,
`ExportedState.formula_cells` counts these cells. Numbers are not formulas.
"""

from __future__ import annotations

import contextlib
import enum
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Annotated, Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from attrs import asdict, frozen

from statebackend.cli.inspect_commands import chosen_entries
from statebackend.cli.opening import open_with_progress
from statebackend.cli.printing import Printer
from statebackend.cli.terminal import (
    AsJson,
    CheckpointId,
    Moved,
    OperatorUid,
    Overwrite,
    Place,
    StateName,
    ZooKeeper,
    print_answer,
)
from statebackend.savepoint.atomic_files import atomic_file, check_place
from statebackend.savepoint.sizes import counted, format_bytes
from statebackend.savepoint.value_forms import ColumnForms

__all__ = ["EXPORT_FORMATS", "ExportedState", "TableOfState", "export_state"]


class TableOfState(Protocol):
    """The exported table: `StateEntries` or `OperatorStateElements`."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the columns."""

    @property
    def notes(self) -> Mapping[str, str]:
        """Paths of substitutes, with their descriptions."""

    def to_arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as columns."""

    def plain(self) -> Iterator[Mapping[str, Any]]:
        """Yield the rows as plain data, by column name."""


@frozen
class ExportedState:
    """A written file: its entries, its size, and its substitutes."""

    path: str
    entries: int
    size_bytes: int
    notes: Mapping[str, str]
    formula_cells: int = 0
    """The CSV cells that a spreadsheet would run as a formula."""


def export_state(
    entries: TableOfState,
    file_format: str,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    escape_formulas: bool = False,
) -> ExportedState:
    """Write the entries to a local file in one of `EXPORT_FORMATS`. ``escape_formulas`` is for CSV.

    Raises errors of `atomic_file` and of reading. On an error an existing file is unchanged.
    """
    csv = _CsvWriter(escape_formulas)
    write = csv.write if file_format == "csv" else _WRITERS[file_format]
    target = check_place(path, overwrite=overwrite)
    with atomic_file(path, overwrite=overwrite, has_state=True) as file:
        count = write(entries, file)
        file.flush()
        size_bytes = file.tell()
    notes = entries.notes if file_format in _TABULAR else {}
    return ExportedState(target, count, size_bytes, notes, csv.formula_cells)


def _parquet(entries: TableOfState, file: IO[bytes]) -> int:
    with pq.ParquetWriter(file, entries.arrow_schema, compression="zstd") as writer:
        return _written(writer.write_batch, entries)


def _arrow(entries: TableOfState, file: IO[bytes]) -> int:
    with pa.ipc.new_file(file, entries.arrow_schema) as writer:
        return _written(writer.write_batch, entries)


def _written(write: Callable[[pa.RecordBatch], Any], entries: TableOfState) -> int:
    count = 0
    for batch in entries.to_arrow_batches():
        write(batch)
        count += batch.num_rows
    return count


def _json(entries: TableOfState, file: IO[bytes]) -> int:
    count = 0
    with _text(file) as text:
        for entry in entries.plain():
            text.write(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


class _CsvWriter:
    """Writes a CSV file and counts the cells that a spreadsheet would run."""

    def __init__(self, escape_formulas: bool) -> None:
        self._escape_formulas = escape_formulas
        self.formula_cells = 0

    def write(self, entries: TableOfState, file: IO[bytes]) -> int:
        names = entries.arrow_schema.names
        count = 0
        with _text(file) as text:
            text.write(_line(names))
            for entry in entries.plain():
                text.write(_line([self._cell(entry.get(name)) for name in names]))
                count += 1
        return count

    def _cell(self, value: Any) -> str:
        if not isinstance(value, str):
            return "" if value is None else json.dumps(value, ensure_ascii=False)
        if _FORMULA.match(value) is None or _NUMBER.fullmatch(value) is not None:
            return value
        if self._escape_formulas:
            return f"'{value}"
        self.formula_cells += 1
        return value


@contextlib.contextmanager
def _text(file: IO[bytes]) -> Iterator[io.TextIOWrapper]:
    # UTF-8 cannot encode a lone surrogate; write Python's escape, which is also that of JSON.
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    yield text
    text.detach()


def _line(cells: Sequence[str]) -> str:
    return ",".join(map(_quoted, cells)) + "\n"


def _quoted(cell: str) -> str:
    # Python's csv module does not quote a carriage return, and reads it as a line end.
    return '"' + cell.replace('"', '""') + '"' if _QUOTED.search(cell) else cell


_QUOTED: Final = re.compile('[",\r\n]')

_FORMULA: Final = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?inf")

_TABULAR: Final = ("parquet", "arrow")

_WRITERS: Final[Mapping[str, Callable[[TableOfState, IO[bytes]], int]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "json": _json,
}

EXPORT_FORMATS: Final = ("parquet", "arrow", "csv", "json")


FileFormat = enum.Enum("FileFormat", {name: name for name in EXPORT_FORMATS})  # type: ignore[misc]


def export(
    path: Place,
    operator: OperatorUid,
    state: StateName,
    output: Annotated[str, typer.Argument(metavar="OUT", help="The file to write.")],
    to: Annotated[FileFormat, typer.Option("--to", help="The format of the file.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Only this key; for a key of several columns, once for each.")
    ] = None,
    as_text: Annotated[
        bool, typer.Option("--as-text", help="Decimals, unbounded numbers and Java's times as text, so that all fit.")
    ] = False,
    escape_formulas: Annotated[
        bool,
        typer.Option("--escape-formulas", help="For CSV: put an apostrophe before texts that a spreadsheet would run."),
    ] = False,
    overwrite: Overwrite = False,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    as_json: AsJson = False,
) -> None:
    """Write the entries of a state to a Parquet, Arrow, CSV or JSON file."""
    if escape_formulas and to.value != "csv":
        raise typer.BadParameter("--escape-formulas is for --to csv")
    with open_with_progress(path, checkpoint, zookeeper, moved) as savepoint:
        entries = chosen_entries(savepoint, operator, state, key).with_forms(ColumnForms(as_text=as_text))
        written = export_state(entries, to.value, output, overwrite=overwrite, escape_formulas=escape_formulas)
    if written.formula_cells:
        cells = counted(written.formula_cells, "cell")
        print(f"warning: a spreadsheet would run {cells} as formulas; use --escape-formulas", file=sys.stderr)
    print_answer(as_json, asdict(written), _print_export)


def _print_export(printer: Printer, answer: dict[str, Any]) -> None:
    printer.line(
        f"{answer['path']}: {counted(answer['entries'], 'entry', 'entries')}, {format_bytes(answer['size_bytes'])}"
    )
    for path, note in answer["notes"].items():
        printer.line(f"  {path}: {note}")
