"""Prints answers for people: tables on a terminal, tab-separated lines elsewhere.

Names and values may come from anyone. Control characters, line ends and rich's markup are escaped, so a terminal shows
them and does not obey them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from snapshots.errors import printable


class Printer(Protocol):
    """Prints the parts of an answer in sequence."""

    def pairs(self, pairs: Mapping[str, Any]) -> None:
        """Print names and values; omit those without a value."""

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, continues: bool = False) -> None:
        """Print rows under their columns. With ``continues``, continue the previous table."""

    def line(self, text: str, style: str = "") -> None:
        """Print one line, in a colour if the output has colours."""


def printer_for(stream: TextIO | None = None) -> Printer:
    """Return tables for a terminal, lines for anything else."""
    target = stream or sys.stdout
    return _Tables(Console(file=target)) if target.isatty() else _Lines(target)


def format_cell(value: Any) -> str:
    """Format a cell: a text in one line, anything else as JSON."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(value.replace("\\", "\\\\"))


def indented_lines(text: str) -> str:
    """Indent all lines but the first, so that no line looks like a separate message."""
    return "\n  ".join(map(printable, text.split("\n")))


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def pairs(self, pairs: Mapping[str, Any]) -> None:
        for name, value in pairs.items():
            if value not in (None, ""):
                print(f"{format_cell(name)}\t{format_cell(value)}", file=self._stream)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, continues: bool = False) -> None:
        for row in chain([] if continues else [columns], rows):
            print("\t".join(map(format_cell, row)), file=self._stream)

    def line(self, text: str, style: str = "") -> None:
        print(printable(text), file=self._stream)


class _Tables:
    def __init__(self, console: Console) -> None:
        self._console = console

    def pairs(self, pairs: Mapping[str, Any]) -> None:
        table = Table(show_header=False, box=None)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in pairs.items():
            if value not in (None, ""):
                table.add_row(*_texts((name, value)))
        self._console.print(table)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, continues: bool = False) -> None:
        # A printed table has fixed widths, so further rows are another table.
        table = Table()
        for column in _texts(columns):
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*_texts(row))
        self._console.print(table)

    def line(self, text: str, style: str = "") -> None:
        self._console.print(Text(printable(text), style))


def _texts(cells: Iterable[Any]) -> Iterable[Text]:
    # A plain string would be parsed as markup.
    return (Text(format_cell(cell)) for cell in cells)
