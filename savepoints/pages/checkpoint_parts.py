"""The parts of a page that are about checkpoints, the same of a job that runs and of one that lies in its directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from savepoints.pages.document import Section, Table, figure, figures
from savepoints.pages.markup import Html
from savepoints.pages.plots import MOST_SERIES, Series, bar_plot, line_plot
from savepoints.reading.checkpoint_figures import CheckpointFigures, OperatorFigures
from savepoints.shown_sizes import short_bytes, shown_bytes

__all__ = ["growth_figures", "sizes_section"]


def sizes_section(newest: CheckpointFigures, growth: Sequence[Html] = ()) -> Section:
    """The state in the newest checkpoint: by operator and state, and over subtasks; behind plots of how it grew."""
    operators = [
        (
            one.uid,
            one.name,
            str(one.parallelism),
            shown_bytes(one.size_bytes),
            shown_bytes(max(one.bytes_by_subtask)),
            f"{one.skew:.2f}",
        )
        for one in newest.operators
    ]
    names = ("operator", "name", "subtasks", "state", "largest subtask", "skew")
    states = [
        (one.uid, state, shown_bytes(size_bytes), _share(size_bytes, newest.size_bytes))
        for one in newest.operators
        for state, size_bytes in _largest_first(one)
    ]
    subtasks = [
        (one.uid, str(index), shown_bytes(size_bytes))
        for one in newest.operators
        for index, size_bytes in enumerate(one.bytes_by_subtask)
    ]
    spread = [
        figure(
            f"Subtasks of {one.uid}: skew {one.skew:.2f}",
            bar_plot(
                one.bytes_by_subtask,
                title=f"Bytes of state by subtask of operator {one.uid}",
                shown=short_bytes,
                ends=("subtask 0", f"subtask {one.parallelism - 1}"),
                is_binary=True,
            ),
        )
        for one in newest.operators[:MOST_SERIES]
    ]
    title = f"State in checkpoint {newest.checkpoint_id}"
    return Section(
        title,
        [
            *growth,
            Table("Operators", names, operators, {2, 3, 4, 5}).html(),
            Table("Keyed states, by their files", ("operator", "state", "files", "share"), states, {2, 3}).html(),
            figures(spread, Table("Sizes of subtasks", ("operator", "subtask", "state"), subtasks, {1, 2})),
        ],
    )


def growth_figures(sizes: Iterable[tuple[str, Sequence[int | None]]], ends: tuple[str, str], caption: str) -> Html:
    """One plot of how sizes grew, by name; the largest at last first."""
    ordered = sorted(sizes, key=lambda one: -(one[1][-1] or 0) if one[1] else 0)
    left_out = len(ordered) - MOST_SERIES
    more = f" (the largest {MOST_SERIES}; {left_out} are left out)" if left_out > 0 else ""
    series = [Series(name, values) for name, values in ordered]
    plot = line_plot(series, title=caption, shown=short_bytes, ends=ends, is_binary=True)
    return figure(caption + more, plot)


def _largest_first(operator: OperatorFigures) -> list[tuple[str, int]]:
    return sorted(operator.bytes_by_state.items(), key=lambda one: -one[1])


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"
