"""The progress of long operations, on a terminal and in a log."""

from __future__ import annotations

import io

import pytest

from statebackend import Operation, Progress
from statebackend.savepoint.progress_display import ProgressBars, ProgressLines, shown_progress

HOSTILE = "a\n[bold]b[/]'\""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def reported(entries: int, *, state: str = "legs", subtask: int = 0, is_done: bool = False, **more: int) -> Progress:
    return Progress(
        operation=Operation.MIGRATION,
        operator_uid="aircraft",
        state_name=state,
        subtask_index=subtask,
        entries=entries,
        is_done=is_done,
        **more,
    )


def test_a_migration_reports_at_once_and_then_every_few_seconds_for_any_number_of_updates() -> None:
    lines: list[str] = []
    clock = Clock()
    show = ProgressLines(lines.append, clock, every_s=5.0)
    show(reported(0))
    for second in range(1, 13):
        clock.now_s = float(second)
        for subtask in (0, 1):
            show(reported(1000 * second, subtask=subtask, size_bytes=10, total_bytes=200))
    assert lines == [
        "operator 'aircraft', state 'legs': migrating, started",
        "operator 'aircraft', state 'legs': migrating, 9,000 entries, 20 B of 400 B (0 of 2 subtasks done)",
        "operator 'aircraft', state 'legs': migrating, 19,000 entries, 20 B of 400 B (0 of 2 subtasks done)",
    ]


def test_a_clock_that_goes_back_delays_a_line_and_drops_none() -> None:
    lines: list[str] = []
    clock = Clock()
    show = ProgressLines(lines.append, clock, every_s=5.0)
    clock.now_s = 1000.0
    show(reported(1))
    clock.now_s = 3.0
    show(reported(2))
    clock.now_s = 9.0
    show(reported(3))
    assert [line.rpartition(", ")[2] for line in lines] == ["1 entry", "3 entries"]


def test_a_thousand_restores_leave_nothing_and_short_ones_print_nothing() -> None:
    lines: list[str] = []
    show = ProgressLines(lines.append, Clock(), every_s=5.0)
    for number in range(1000):
        for is_done in (False, True):
            show(Progress(operation=Operation.RESTORE, operator_uid="a", state_name=f"state {number}", is_done=is_done))
    assert lines == []
    assert not show._sums


def test_a_terminal_has_a_bar_per_state_and_is_clean_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    # Do not depend on the terminal of the tests: bars need cursor movement, and are cut to the width.
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    show = shown_progress(terminal)
    assert isinstance(show, ProgressBars)
    show(reported(5, state=HOSTILE, size_bytes=50, total_bytes=100))
    show(reported(7, state="other"))
    show(reported(9, state=HOSTILE, is_done=True))
    assert show._bars is not None
    show(reported(9, state="other", is_done=True))
    assert show._bars is None
    assert "[bold]b" in terminal.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_lines_are_written_without_a_terminal_or_rich(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    lines: list[str] = []
    show = shown_progress(Terminal() if is_terminal else io.StringIO(), write_line=lines.append)
    show(reported(0, state=HOSTILE))
    assert len(lines) == 1
    assert "\n" not in lines[0]
