"""Answers for people: tables where the output is a terminal, plain lines of tab-separated cells where it is not.

Names and values are anybody's. What a terminal would obey instead of showing it (control characters, line ends in the
middle of a line, the markup of the library that draws the tables) is shown as it is, by its escape.
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

__all__ = ["Printer", "indented_lines", "printer_for", "shown_cell"]


class Printer(Protocol):
    """What prints the parts of an answer, one after the other."""

    def pairs(self, pairs: Mapping[str, Any]) -> None:
        """Names and values, those without a value left out."""

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, goes_on: bool = False) -> None:
        """Rows under their columns; with ``goes_on``, more rows of the table before."""

    def line(self, text: str, style: str = "") -> None:
        """One line, in a colour where there are colours."""


def printer_for(stream: TextIO | None = None) -> Printer:
    """Tables for a terminal, lines for everything else."""
    target = stream or sys.stdout
    return _Tables(Console(file=target)) if target.isatty() else _Lines(target)


def shown_cell(value: Any) -> str:
    """A cell of a table: texts as they are, in one line, and everything else as JSON."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(value.replace("\\", "\\\\"))


def indented_lines(text: str) -> str:
    """A text of several lines; all but the first are indented, so that none looks like another message."""
    return "\n  ".join(map(printable, text.split("\n")))


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def pairs(self, pairs: Mapping[str, Any]) -> None:
        for name, value in pairs.items():
            if value not in (None, ""):
                print(f"{shown_cell(name)}\t{shown_cell(value)}", file=self._stream)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, goes_on: bool = False) -> None:
        for row in chain([] if goes_on else [columns], rows):
            print("\t".join(map(shown_cell, row)), file=self._stream)

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

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, goes_on: bool = False) -> None:
        # One that is drawn has its widths, so more rows are drawn as another one.
        table = Table()
        for column in _texts(columns):
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*_texts(row))
        self._console.print(table)

    def line(self, text: str, style: str = "") -> None:
        self._console.print(Text(printable(text), style))


def _texts(cells: Iterable[Any]) -> Iterable[Text]:
    # A text is drawn as it is; a plain string would be read as markup.
    return (Text(shown_cell(cell)) for cell in cells)
