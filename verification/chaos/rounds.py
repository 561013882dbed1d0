"""Runs one job over the flights under strikes, and checks its output.

At the end of a round no strike is left, and the last driver ends with a savepoint. Then all rows and all entries of
state must equal the result of a plain Spark query over the same files. The job directory must contain no shared file
that no checkpoint needs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from attrs import define, field, frozen

from examples.data.staging import stage_flights
from examples.demonstration.comparison import DifferenceError, require_equal_rows, require_equal_states, written_rows
from examples.demonstration.spark_session import start_spark
from examples.flights.expected import IDENTITY, expected_rows, expected_states, running_totals
from examples.flights.flights_source import flights_table
from examples.flights.savepoint_contents import state_contents
from examples.flights.version_2 import UID
from statebackend.checkpoint import CheckpointFileSystem
from statebackend.checkpoint.store.checkpoint_directories import read_metadata
from verification.chaos.driven_job import CompletedEpoch, DrivenJob
from verification.chaos.strikes import Strike, Target
from verification.chaos.worlds import JobWorld

__all__ = ["Recovery", "Round", "require_no_leftovers"]

MAX_FAILED_STARTS = 5
"""A job does not recover if this many starts in a row complete no epoch without a strike."""


@frozen
class Recovery:
    """The result of a strike: the seconds to the next complete epoch; None if no epoch followed.

    ``starting_s`` is the part until Spark ran in a restarted driver; None if the driver was not restarted.
    """

    strike: Strike
    hit: Target
    seconds: float | None
    starting_s: float | None = None


@frozen
class _Pending:
    """A strike after which no epoch is complete yet; ``start`` is the number of the driver that was hit."""

    strike: Strike
    hit: Target
    struck_s: float
    start: int

    def recovery(self, epoch: CompletedEpoch, job: DrivenJob, start: int) -> Recovery | None:
        """Return the recovery if this epoch was completed after the strike, or None."""
        is_of_struck = start == self.start
        if epoch.heard_s <= self.struck_s or (is_of_struck and self.hit.ends_driver):
            return None
        starting_s = None if is_of_struck or job.spark_ran_s is None else job.spark_ran_s - self.struck_s
        return Recovery(self.strike, self.hit, epoch.heard_s - self.struck_s, starting_s)


@define
class Round:
    """One job in a world, over ``parts`` parts of the year, with its logs in ``root``; ``say`` prints a line."""

    root: Path
    world: JobWorld
    parts: int
    backend: str
    say: Callable[[str], None]
    recoveries: list[Recovery] = field(factory=list)
    _starts: int = 0

    def run(self, strikes: deque[Strike]) -> None:
        """Run the job to its end, and remove the strikes that it received from the queue.

        Raises `DifferenceError` if a driver makes no progress (`DrivenJob.next_epoch`), or if several starts in a row
        complete no epoch.
        """
        (self.root / "logs").mkdir(parents=True)
        (self.root / "scratch").mkdir()
        stage_flights(self.root / "incoming", 0, self.parts)
        pending: _Pending | None = None
        failed_starts = 0
        while True:
            job = self._start()
            completed = 0
            try:
                while (epoch := job.next_epoch()) is not None:
                    completed += 1
                    recovery = None if pending is None else pending.recovery(epoch, job, self._starts)
                    if recovery is not None:
                        self.recoveries.append(recovery)
                        pending = None
                    if pending is None and strikes and completed > strikes[0].after_epochs:
                        strike = strikes.popleft()
                        hit = job.strike(strike)
                        self.say(f"strike {strike.number}: {hit.description}, after {completed} epochs of the driver")
                        pending = _Pending(strike, hit, time.monotonic(), self._starts)
                        completed = 0
                if job.has_succeeded():
                    break
            finally:
                job.kill()
            is_struck = pending is not None and pending.start == self._starts
            failed_starts = 0 if completed or is_struck else failed_starts + 1
            if failed_starts >= MAX_FAILED_STARTS:
                raise DifferenceError(
                    f"the job did not recover: {failed_starts} starts in a row completed no epoch. "
                    f"Error of the last start: {job.failure}"
                )
        if pending is not None:
            # The strike came after the last record, or the job did not depend on its target.
            self.recoveries.append(Recovery(pending.strike, pending.hit, None))

    def compare(self) -> str:
        """Compare the output of the job with a plain query, and return a summary. Raises `DifferenceError`."""
        spark = start_spark(self.root / "logs" / "comparison.log")
        try:
            flights = flights_table(spark, self.root / "incoming", 0).persist()
            totals = running_totals(flights).persist()
            _, rows = expected_rows(totals)
            states = expected_states(flights, totals)
        finally:
            spark.stop()
        actual = written_rows(self._local_rows(), rows.schema)
        require_equal_rows("the rows of the job", rows, actual, IDENTITY)
        savepoint = self.world.path(f"savepoint-{self._starts}")
        contents = {state: state_contents(savepoint, UID, state) for state in states}
        require_equal_states("the job", states, contents)
        require_no_leftovers(self.world.path("job"))
        entries = sum(len(one) for one in contents.values())
        return f"equal: {len(actual):,} rows, {entries:,} entries of state; {self._starts} starts; no leftovers"

    def _local_rows(self) -> Path:
        """Copy the files of the rows to this machine, and return their directory."""
        rows, copied = CheckpointFileSystem.from_uri(self.world.path("rows")), self.root / "copied-rows"
        for path in (one for one in rows.list_files() if one.endswith(".parquet") and not one.startswith("_")):
            (copied / path).parent.mkdir(parents=True, exist_ok=True)
            (copied / path).write_bytes(rows.read_file(path))
        return copied

    def _start(self) -> DrivenJob:
        self._starts += 1
        arguments = [
            *("--input", str(self.root / "incoming")),
            *("--job-dir", self.world.path("job")),
            *("--rows", self.world.path("rows")),
            *("--savepoint", self.world.path(f"savepoint-{self._starts}")),
            *("--version", "2"),
            *("--backend", self.backend),
            *("--log", str(self.root / "logs" / f"spark-{self._starts}.log")),
        ]
        log = self.root / "logs" / f"driver-{self._starts}.log"
        return DrivenJob(arguments, self.world, self.root / "scratch", log)


def require_no_leftovers(job_directory: str) -> None:
    """Raise `DifferenceError` if a shared file of the job belongs to none of its checkpoints."""
    files = CheckpointFileSystem.from_uri(job_directory)
    complete = [path.rpartition("/")[0] for path in files.list_files("checkpoints") if path.endswith("/_metadata")]
    needed = {file.path for directory in complete for file in read_metadata(files, directory).files}
    found = set(files.list_files("shared"))
    if found - needed:
        raise DifferenceError(f"{len(found - needed)} files belong to no checkpoint, for example {min(found - needed)}")
