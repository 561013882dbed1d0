"""The report of a job as an HTML page, and as a fragment for notebooks; both from `JobMetrics` only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from statebackend.savepoint.html_pages import (
    Html,
    Section,
    Series,
    Table,
    Tile,
    document,
    element,
    figure,
    figures,
    fragment,
    growth_figures,
    line_plot,
    paragraph,
    sizes_section,
    spark_line,
    text,
    tiles,
)
from statebackend.savepoint.sizes import (
    NOTHING,
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_short_bytes,
    format_time,
)
from statebackend.state.priority_queue import displayed_state
from statebackend.streaming.metrics import EpochMetrics, JobMetrics, MetricValue

__all__ = ["EpochHistory", "job_fragment", "job_page"]

SHOWN_ROWS: Final = 100
"""The most rows of a table of epochs, which are those of the last ones."""

SHOWN_METRICS: Final = 1000
"""The most rows of the table of all metrics."""


class EpochHistory(tuple[EpochMetrics, ...]):
    """The last epochs of a run, oldest first; a notebook shows them as small plots."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        last = self[-1] if self else None
        of_last = "no epoch is complete yet" if last is None else f"the last is {last.epoch_id}"
        return fragment(
            f"{len(self):,} epochs, {of_last}", [("duration", *_durations(self)), ("written", *_written(self))]
        )


def _durations(epochs: Sequence[EpochMetrics]) -> tuple[str, Html]:
    shown = format_duration(epochs[-1].duration_s) if epochs else NOTHING
    return shown, spark_line([one.duration_s for one in epochs], title="Seconds of the last epochs")


def _written(epochs: Sequence[EpochMetrics]) -> tuple[str, Html]:
    shown = format_bytes(epochs[-1].bytes_written) if epochs else NOTHING
    return shown, spark_line([one.bytes_written for one in epochs], title="Bytes written by the last epochs")


def job_page(metrics: JobMetrics) -> str:
    """Return the page."""
    run = metrics.run
    facts = [
        ("runs", "on Spark" if run.engine == "spark" else "on the local runtime"),
        ("started", f"{format_time(run.started_ms)} UTC"),
        ("ended" if metrics.ended_ms is not None else "as of", f"{format_time(metrics.ended_ms or metrics.at_ms)} UTC"),
        ("parallelism", f"{run.parallelism} of {run.max_parallelism}"),
        ("continues from", "nothing" if run.restored_id is None else f"checkpoint {run.restored_id}"),
        ("run", run.run_id),
    ]
    body: list[Html | Section] = []
    if metrics.failure is not None:
        body.append(element("p", text(metrics.failure), {"class": "alarm", "role": "alert"}))
    body.append(tiles(_tiles(metrics)))
    body += [_epochs(metrics), _checkpoints(metrics)]
    newest = metrics.newest_checkpoint
    if newest is not None and newest.operators:
        body.append(sizes_section(newest, _growth(metrics)))
    body += [_subtasks(metrics), _time(metrics), _restored(metrics), _others(metrics), _all_metrics(metrics)]
    return document(
        run.job_name, kind="Report of a job", status=metrics.status, facts=facts, body=[one for one in body if one]
    )


def job_fragment(metrics: JobMetrics) -> str:
    """Return a fragment for a notebook: the job and its last epochs in a few lines."""
    epochs, totals, newest = metrics.epochs, metrics.totals, metrics.newest_checkpoint
    return fragment(
        f"{metrics.run.job_name} ({metrics.status})",
        [
            ("epochs", f"{totals.epochs:,}, {totals.failed_checkpoints:,} failed checkpoints", Html("")),
            ("last epoch", *_durations(epochs)),
            ("written by it", *_written(epochs)),
            (
                "state",
                NOTHING if newest is None else format_bytes(newest.size_bytes),
                spark_line([one.size_bytes for one in epochs], title="Bytes of state after the last epochs"),
            ),
            ("records", f"{totals.records_in:,}", Html("")),
        ],
    )


def _tiles(metrics: JobMetrics) -> list[Tile]:
    totals, epochs = metrics.totals, metrics.epochs
    newest = metrics.newest_checkpoint
    mean_s = totals.duration_s / totals.epochs if totals.epochs else None
    mean_checkpoint_s = totals.checkpoint_s / totals.epochs if totals.epochs else None
    failed = f"{totals.failed_checkpoints:,} failed" if totals.failed_checkpoints else "none failed"
    lag_ms = metrics.watermark_lag_ms
    shown = [
        Tile("Epochs", f"{totals.epochs:,}", f"{totals.epochs_without_records:,} without records"),
        Tile(
            "Mean epoch",
            format_duration(mean_s),
            f"last {format_duration(epochs[-1].duration_s)}" if epochs else "none yet",
        ),
        Tile("Records", format_count(totals.records_in), f"into all operators, {totals.late_records_dropped:,} late"),
        Tile(
            "State",
            NOTHING if newest is None else format_short_bytes(newest.size_bytes),
            "nothing stored yet" if newest is None else f"in {counted(newest.file_count, 'file')}",
        ),
        Tile("Written", format_short_bytes(totals.bytes_written), f"{format_count(totals.entries_written)} entries"),
        Tile("Mean checkpoint", format_duration(mean_checkpoint_s), failed),
    ]
    if metrics.run.engine == "spark":
        fetched = f"{totals.restores:,} restores from files"
        shown.append(Tile("Local opens", f"{totals.local_share:.0%}", fetched))
    if lag_ms is not None:
        shown.append(Tile("Watermark lag", format_duration(lag_ms / 1000), "the largest of all"))
    if metrics.restored:
        migrated = f"{counted(metrics.entries_migrated, 'entry', 'entries')} migrated"
        shown.append(Tile("Restored states", f"{len(metrics.restored)}", migrated))
    return shown


def _ends(epochs: Sequence[EpochMetrics]) -> tuple[str, str]:
    return (f"epoch {epochs[0].epoch_id}", f"epoch {epochs[-1].epoch_id}") if epochs else ("", "")


def _epochs(metrics: JobMetrics) -> Section:
    epochs = metrics.epochs
    if not epochs:
        return Section("Epochs", [paragraph("No epoch is complete yet.")])
    ends = _ends(epochs)

    def plot(caption: str, of: Callable[[EpochMetrics], float | None], shown: Callable[[float], str]) -> Html:
        series = [Series(caption, [of(one) for one in epochs])]
        return figure(
            caption,
            line_plot(
                series, title=f"{caption} by epoch", shown=shown, ends=ends, is_binary=shown is format_short_bytes
            ),
        )

    rows = [
        (
            str(one.epoch_id),
            format_time(one.ended_ms),
            format_duration(one.duration_s),
            f"{one.records_in:,}",
            f"{one.entries_written:,}",
            format_bytes(one.bytes_written),
            format_duration(one.open_s),
            format_duration(one.process_s),
            format_duration(one.snapshot_s),
            f"{one.local_share:.0%}",
            f"{one.late_records_dropped:,}",
        )
        for one in reversed(epochs[-SHOWN_ROWS:])
    ]
    names = (
        *("epoch", "ended (UTC)", "duration", "records", "entries written", "bytes written"),
        *("open", "process", "snapshot", "local", "late"),
    )
    few = f"The last {len(rows)} of {metrics.totals.epochs:,} epochs" if len(rows) < metrics.totals.epochs else "Epochs"
    return Section(
        "Epochs",
        [
            figures(
                [
                    plot("Duration", lambda one: one.duration_s, format_duration),
                    plot("Records into operators", lambda one: one.records_in, format_count),
                    plot("Bytes written", lambda one: one.bytes_written, format_short_bytes),
                ],
                Table(few, names, rows, {0, *range(2, len(names))}),
            )
        ],
    )


def _checkpoints(metrics: JobMetrics) -> Section:
    epochs = metrics.epochs
    failed = Table(
        "Failed checkpoints",
        ("checkpoint", "at (UTC)", "why"),
        [
            (NOTHING if one.checkpoint_id is None else str(one.checkpoint_id), format_time(one.at_ms), one.reason)
            for one in reversed(metrics.failures)
        ],
        {0},
    ).html()
    if not epochs:
        return Section("Checkpoints", [paragraph("None is complete yet."), failed])
    ends = _ends(epochs)
    sizes = line_plot(
        [Series("State", [one.size_bytes for one in epochs])],
        title="Bytes of state by checkpoint",
        shown=format_short_bytes,
        ends=ends,
        is_binary=True,
    )
    durations = line_plot(
        [Series("Duration", [one.checkpoint_s for one in epochs])],
        title="Seconds of a checkpoint",
        shown=format_duration,
        ends=ends,
    )
    rows = [
        (
            str(one.epoch_id),
            format_bytes(one.size_bytes),
            format_bytes(one.bytes_written),
            format_duration(one.checkpoint_s),
        )
        for one in reversed(epochs[-SHOWN_ROWS:])
    ]
    table = Table("Checkpoints", ("checkpoint", "state", "written", "duration"), rows, {0, 1, 2, 3})
    return Section("Checkpoints", [figures([figure("Size", sizes), figure("Duration", durations)], table), failed])


def _growth(metrics: JobMetrics) -> list[Html]:
    epochs = metrics.epochs
    if not epochs:
        return []
    ends = _ends(epochs)
    uids = list(dict.fromkeys(uid for one in epochs for uid in one.operators))
    by_operator = [
        (uid, [one.operators[uid].size_bytes if uid in one.operators else None for one in epochs]) for uid in uids
    ]
    plots = [growth_figures(by_operator, ends, "Growth by operator")]
    by_state: dict[tuple[str, str], list[int | None]] = {}
    for place, epoch in enumerate(epochs):
        for uid, operator in epoch.state_metrics.items():
            for name, state in operator.states.items():
                by_state.setdefault((uid, name), [None] * len(epochs))[place] = state.size_bytes
    if by_state:
        named = [(f"{uid} / {name}", values) for (uid, name), values in by_state.items()]
        plots.append(growth_figures(named, ends, "Growth by state"))
    return [figures(plots)]


def _subtasks(metrics: JobMetrics) -> Section:
    epochs = [one for one in metrics.epochs if one.operators]
    if not epochs:
        return Section("Skew over subtasks", [paragraph("No subtask has reported yet.")])
    last = epochs[-1]
    rows = [
        (
            uid,
            str(one.subtasks),
            f"{one.records_in:,}",
            f"{one.records_skew:.2f}",
            format_bytes(one.size_bytes),
            f"{one.size_skew:.2f}",
        )
        for uid, one in last.operators.items()
    ]
    names = ("operator", "subtasks", "records", "skew of records", "state", "skew of state")
    uids = list(last.operators)
    plots = [
        figure(
            caption,
            line_plot(
                [Series(uid, [skew_of(one, uid) for one in epochs]) for uid in uids],
                title=f"{caption}: the largest subtask divided by the mean",
                shown=lambda value: f"{value:.2f}",
                ends=_ends(epochs),
            ),
        )
        for caption, skew_of in (
            ("Skew of records", _records_skew),
            ("Skew of state", _size_skew),
        )
    ]
    explanation = paragraph("The largest subtask divided by the mean: 1.00 if all are equal.")
    table = Table(f"Operators in epoch {last.epoch_id}", names, rows, {1, 2, 3, 4, 5})
    return Section("Skew over subtasks", [explanation, figures(plots, table)])


def _records_skew(epoch: EpochMetrics, uid: str) -> float | None:
    return epoch.operators[uid].records_skew if uid in epoch.operators else None


def _size_skew(epoch: EpochMetrics, uid: str) -> float | None:
    return epoch.operators[uid].size_skew if uid in epoch.operators else None


def _time(metrics: JobMetrics) -> Section:
    if not metrics.time:
        return Section("Event time", [paragraph("The job has no event time.")])
    rows = [
        (
            name,
            format_time(one.watermark_ms),
            NOTHING if one.lag_ms is None else format_duration(one.lag_ms / 1000),
        )
        for name, one in metrics.time.items()
    ]
    table = Table("Sources and operators", ("name", "watermark (UTC)", "lag"), rows, {2})
    lags = [None if one.watermark_lag_ms is None else one.watermark_lag_ms / 1000 for one in metrics.epochs]
    if all(one is None for one in lags):
        return Section("Event time", [table.html()])
    plot = line_plot(
        [Series("Lag", lags)], title="Watermark lag by epoch", shown=format_duration, ends=_ends(metrics.epochs)
    )
    return Section("Event time", [figures([figure("Largest watermark lag", plot)]), table.html()])


def _restored(metrics: JobMetrics) -> Section:
    rows = [
        (
            one.operator_uid,
            displayed_state(one.state_name) + (" (operator state)" if one.is_operator_state else ""),
            one.compatibility,
            "; ".join(one.issues) or NOTHING,
            f"{one.entries_migrated:,}",
            format_duration(one.duration_s),
        )
        for one in metrics.restored
    ]
    if not rows:
        return Section(
            "Restored state", [paragraph("The run restored no state, or no operator has registered it yet.")]
        )
    names = ("operator", "state", "compatibility", "issues", "entries migrated", "slowest subtask")
    return Section("Restored state", [Table("Compatibility results", names, rows, {4, 5}).html()])


def _others(metrics: JobMetrics) -> Section:
    savepoints = Table(
        "Savepoints",
        ("epoch", "size", "duration", "path"),
        [
            (str(one.epoch_id), format_bytes(one.size_bytes), format_duration(one.duration_s), one.path)
            for one in reversed(metrics.savepoints)
        ],
        {0, 1, 2},
    ).html()
    if not metrics.barriers:
        return Section("Savepoints", [savepoints])
    barriers = Table(
        "Barriers, the longest of each",
        ("operator", "snapshots", "unaligned", "start delay", "alignment", "capture", "overtaken"),
        [
            (
                uid,
                f"{one.snapshots:,}",
                f"{one.unaligned_snapshots:,}",
                format_duration(one.longest_start_delay_ms / 1000),
                format_duration(one.longest_alignment_ms / 1000),
                format_duration(one.longest_capture_ms / 1000),
                format_bytes(one.in_flight_bytes),
            )
            for uid, one in metrics.barriers.items()
        ],
        set(range(1, 7)),
    ).html()
    return Section("Savepoints and barriers", [savepoints, barriers])


def _all_metrics(metrics: JobMetrics) -> Section:
    rows = [
        (
            one.metric.full_name,
            ", ".join(f"{label} {value}" for label, value in one.labels.items()) or NOTHING,
            _number(one),
            one.metric.unit,
            one.metric.description,
        )
        for one in islice(metrics.values(), SHOWN_METRICS)
    ]
    table = Table("All metrics", ("metric", "of", "value", "unit", "description"), rows, {2})
    return Section("Metrics", [table.html()])


def _number(one: MetricValue) -> str:
    if not math.isfinite(one.value):
        return NOTHING
    shown: Callable[[float], str] = {"bytes": format_bytes, "s": format_duration}.get(one.metric.unit, "{:,g}".format)
    return f"{one.value:,}" if isinstance(one.value, int) and one.metric.unit != "bytes" else shown(one.value)
