"""How the demonstration talks: plain text, the same on a terminal and in a log file."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterable

from examples.demonstration.text_table import text_table
from statebackend.spark import RestoredStateReport

INDENT = "   "
WIDTH = 110

_CHANGES = (
    ("renamed", "field-renamed"),
    ("added", "field-added"),
    ("widened", "field-widened"),
    ("lost", "field-removed"),
)


class Narrator:
    """Prints steps, sentences, tables, and epochs as they complete, one behind the other on a line."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._is_in_line = False

    def step(self, title: str) -> None:
        """Begins a step, with the time since the beginning."""
        self._end_line()
        self._print(f"\n{title}   [{self.elapsed_s:.0f} s]")

    def say(self, text: str) -> None:
        """One thing that happens, or some lines about it."""
        self._end_line()
        for line in text.split("\n"):
            for part in _wrapped(line):
                self._print(f"{INDENT}{part}".rstrip())

    def lines(self, lines: Iterable[str]) -> None:
        """Lines as they are, such as those that a command has printed."""
        self._end_line()
        for line in lines:
            self._print(f"{INDENT}{line}".rstrip().replace("\t", "  "))

    def epoch(self, epoch_id: int) -> None:
        """An epoch has completed."""
        self._write(f" {epoch_id}" if self._is_in_line else f"{INDENT}epochs {epoch_id}")
        self._is_in_line = True

    def relay(self, line: str) -> None:
        """A line of a driver process: an epoch, or a sentence."""
        word, _, rest = line.partition(" ")
        if word == "epoch" and rest.isdecimal():
            self.epoch(int(rest))
        else:
            self.say(f"driver: {line}")

    def table(self, headings: Iterable[str], rows: Iterable[Iterable[str]], right: Iterable[int] = ()) -> None:
        """A table."""
        self._end_line()
        for line in text_table(list(headings), [list(row) for row in rows], list(right)):
            self._print(f"{INDENT}{line}")

    def end(self) -> None:
        """Ends the line that epochs are on."""
        self._end_line()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started

    def _end_line(self) -> None:
        if self._is_in_line:
            self._is_in_line = False
            self._print("")

    def _print(self, line: str) -> None:
        self._write(line + "\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def restore_table(narrator: Narrator, report: Iterable[RestoredStateReport]) -> None:
    """Each restored state, its compatibility result, what becomes of its fields, and what the migration did.

    States of timers, which no upgrade changes, are summed up in a line.
    """
    rows = []
    untouched = 0
    for state in report:
        changes = [f"{what:8}{issue.path}: {issue.reason}" for what, rule in _CHANGES for issue in state.issues(rule)]
        if not changes and state.state_name.startswith("_"):
            untouched += 1
            continue
        rows.append(
            (
                state.state_name,
                state.compatibility.kind.label.removeprefix("compatible "),
                "\n".join(changes) or "nothing",
                f"{state.entries_migrated:,}",
                f"{state.duration_s:.2f} s",
            )
        )
    narrator.table(("state", "verdict", "what changes", "migrated", "time"), rows, right=(3, 4))
    if untouched:
        narrator.say(f"and {untouched} states of pending timers, as they are")


def _wrapped(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent + "  ", break_on_hyphens=False) or [""]
