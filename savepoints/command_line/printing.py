"""Answers for people: tables where the output is a terminal, plain lines of tab-separated cells where it is not."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.table import Table

__all__ = ["Printer", "printer_for", "shown_bytes", "shown_cell"]


class Printer(Protocol):
    """What prints the parts of an answer, one after the other."""

    def pairs(self, title: str, pairs: Mapping[str, Any]) -> None:
        """Names and values, those without a value left out."""

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Rows under their columns."""

    def line(self, text: str) -> None:
        """One line."""


def printer_for(stream: TextIO | None = None) -> Printer:
    """Tables for a terminal, lines for everything else."""
    target = stream or sys.stdout
    return _Tables(Console(file=target)) if target.isatty() else _Lines(target)


def shown_cell(value: Any) -> str:
    """A cell of a table: texts as they are, without line ends, and everything else as JSON."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def shown_bytes(size_bytes: int) -> str:
    """A size for people: ``1,234 B``, ``1.2 MiB``."""
    size = float(size_bytes)
    if size < 1 << 20:
        return f"{size_bytes:,} B"
    for unit in ("MiB", "GiB"):
        size /= 1 << (20 if unit == "MiB" else 10)
        if size < 1024 or unit == "GiB":
            return f"{size:,.1f} {unit}"
    raise AssertionError("unreachable")


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def pairs(self, title: str, pairs: Mapping[str, Any]) -> None:
        for name, value in pairs.items():
            if value not in (None, ""):
                self.line(f"{name}\t{shown_cell(value)}")

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self.line("\t".join(columns))
        for row in rows:
            self.line("\t".join(shown_cell(cell) for cell in row))

    def line(self, text: str) -> None:
        print(text, file=self._stream)


class _Tables:
    def __init__(self, console: Console) -> None:
        self._console = console

    def pairs(self, title: str, pairs: Mapping[str, Any]) -> None:
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in pairs.items():
            if value not in (None, ""):
                table.add_row(name, shown_cell(value))
        self._console.print(table, markup=False)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            # What is stored may hold what a terminal would take for markup.
            table.add_row(*(_escaped(shown_cell(cell)) for cell in row))
        self._console.print(table)

    def line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def _escaped(text: str) -> str:
    printable = "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)
    return printable.replace("[", "\\[")
