"""Runs a job of a demonstration over all available input, and reports its epochs as they complete."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from statebackend.spark import SavepointReport, SparkJob, SparkStreamEnvironment
from statebackend.state.priority_queue import displayed_state

PROCESS_WHAT_ARRIVES = {"processingTime": "0 seconds"}


def run_to_savepoint(
    env: SparkStreamEnvironment,
    name: str,
    savepoint: Path | str,
    say: Callable[[str], None],
    epoch: Callable[[int], None],
) -> SavepointReport:
    """Run a new or existing job over all available input, and stop it with a savepoint."""
    job = env.execute(name, trigger=PROCESS_WHAT_ARRIVES)
    before = job.last_completed_epoch
    say("starting from nothing" if before is None else f"continuing after epoch {before}")
    try:
        with epochs_reported(job, epoch):
            job.process_all_available()
    except BaseException:
        job.stop()
        raise
    report = job.stop_with_savepoint(savepoint)
    rows = "; ".join(
        f"{uid}: " + ", ".join(f"{displayed_state(state)} {count:,}" for state, count in states.items() if count)
        for uid, states in report.rows.items()
        if any(states.values())
    )
    say(
        f"savepoint of epoch {report.epoch_id} in {report.duration_s:.1f} s, {report.size_bytes / 1e3:,.0f} kB; "
        f"entries of {rows}"
    )
    return report


@contextmanager
def epochs_reported(job: SparkJob, report: Callable[[int], None]) -> Iterator[None]:
    """Within the block, call ``report`` from another thread with each completed epoch."""
    is_over = threading.Event()

    def watch() -> None:
        reported = 0
        is_last_look = False
        while not is_last_look:
            is_last_look = is_over.wait(0.05)
            completed = job.epochs
            for epoch in completed[reported:]:
                report(epoch.epoch_id)
            reported = len(completed)

    watcher = threading.Thread(target=watch, name="epochs", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def print_line(line: str) -> None:
    """Print a line at once, for a reader of a pipe."""
    print(line, flush=True)
