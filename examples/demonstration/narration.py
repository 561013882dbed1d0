"""The output of a demonstration: plain text, the same on a terminal and in a log file."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterable

from examples.demonstration.text_table import text_table
from statebackend.spark import RestoredStateReport
from statebackend.state.priority_queue import TIMER_STATES

INDENT = "   "
WIDTH = 110

_CHANGES = (
    ("renamed", "field-renamed"),
    ("added", "field-added"),
    ("widened", "field-widened"),
    ("lost", "field-removed"),
)


class Narrator:
    """Prints steps, sentences, tables, and epochs as they complete, several on a line."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._is_in_line = False

    def step(self, title: str) -> None:
        """Begin a step, with the time since the beginning."""
        self._end_line()
        self._print(f"\n{title}   [{self.elapsed_s:.0f} s]")

    def say(self, text: str) -> None:
        """Print one event, or some lines about it."""
        self._end_line()
        for line in text.split("\n"):
            for part in _wrapped(line):
                self._print(f"{INDENT}{part}".rstrip())

    def lines(self, lines: Iterable[str]) -> None:
        """Print lines unchanged, such as the output of a command."""
        self._end_line()
        for line in lines:
            self._print(f"{INDENT}{line}".rstrip().replace("\t", "  "))

    def epoch(self, epoch_id: int) -> None:
        """Print a completed epoch."""
        self._write(f" {epoch_id}" if self._is_in_line else f"{INDENT}epochs {epoch_id}")
        self._is_in_line = True

    def relay(self, line: str) -> None:
        """Print a line of a driver process: an epoch, or a sentence."""
        word, _, rest = line.partition(" ")
        if word == "epoch" and rest.isdecimal():
            self.epoch(int(rest))
        else:
            self.say(f"driver: {line}")

    def table(self, headings: Iterable[str], rows: Iterable[Iterable[str]], right: Iterable[int] = ()) -> None:
        """Print a table."""
        self._end_line()
        for line in text_table(list(headings), [list(row) for row in rows], list(right)):
            self._print(f"{INDENT}{line}")

    def end(self) -> None:
        """End the line of epochs."""
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
    """Print each restored state, its compatibility result, the changes of its fields, and the migrated entries.

    States of timers do not change in an upgrade; one line counts them.
    """
    rows = []
    untouched = 0
    for state in report:
        changes = [f"{what:8}{issue.path}: {issue.reason}" for what, rule in _CHANGES for issue in state.issues(rule)]
        if not changes and state.state_name.startswith(TIMER_STATES):
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
    narrator.table(("state", "compatibility", "changes", "migrated", "time"), rows, right=(3, 4))
    if untouched:
        narrator.say(f"and {untouched} states of pending timers, as they are")


def _wrapped(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent + "  ", break_on_hyphens=False) or [""]
