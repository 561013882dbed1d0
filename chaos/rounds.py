"""Jobs, each over the same flights, struck until the strikes are spent; and what must hold in the end of each.

In the end of a round nothing strikes: the last driver ends by itself, with a savepoint. Then every row and every entry
of state must be what a plain Spark query over the same files says, and the job directory must hold no file that none of
its checkpoints needs.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from attrs import define, field, frozen

from chaos.driven_job import DrivenJob
from chaos.strikes import Strike, Target
from examples.data.staging import stage_flights
from examples.demonstration.comparison import DifferenceError, require_equal_rows, require_equal_states, written_rows
from examples.demonstration.spark_session import start_spark
from examples.flights.expected import IDENTITY, expected_rows, expected_states, running_totals
from examples.flights.flights_source import flights_table
from examples.flights.savepoint_contents import state_contents
from examples.flights.version_2 import UID
from savepoints import Savepoint

__all__ = ["Recovery", "Round", "require_no_leftovers"]

STARTS_IN_VAIN = 5
"""So many starts one after the other that complete no epoch, and were not struck, are a job that does not recover."""


@frozen
class Recovery:
    """What followed a strike: the seconds to the next epoch that was complete; 0.0 if none was left to come."""

    strike: Strike
    hit: Target
    seconds: float


@define
class Round:
    """One job in ``root``, over ``parts`` parts of the year; ``say`` is told what happens."""

    root: Path
    parts: int
    backend: str
    say: Callable[[str], None]
    recoveries: list[Recovery] = field(factory=list)
    _starts: int = 0

    def run(self, strikes: deque[Strike]) -> None:
        """Runs the job to its end, and takes the strikes that it has suffered; `DifferenceError` if it does not end."""
        (self.root / "logs").mkdir(parents=True)
        (self.root / "scratch").mkdir()
        stage_flights(self.root / "incoming", 0, self.parts)
        pending: tuple[Strike, Target, float] | None = None
        in_vain = 0
        while True:
            job = self._start()
            completed = 0
            try:
                while job.next_epoch() is not None:
                    completed += 1
                    if pending is not None:
                        self.recoveries.append(Recovery(pending[0], pending[1], time.monotonic() - pending[2]))
                        pending = None
                    if strikes and completed > strikes[0].after_epochs:
                        strike = strikes.popleft()
                        hit = job.strike(strike)
                        self.say(f"strike {strike.number}: {hit.value}, behind {completed} epochs of its driver")
                        pending = (strike, hit, time.monotonic())
                        completed = 0
                if job.wait() == 0:
                    break
            finally:
                job.kill()
            in_vain = 0 if completed or pending is not None else in_vain + 1
            if in_vain >= STARTS_IN_VAIN:
                raise DifferenceError(f"the job has not recovered; see {self.root / 'logs'}")
        if pending is not None:
            # It hit when all records were processed, or somebody whom nothing depended on.
            self.recoveries.append(Recovery(pending[0], pending[1], 0.0))

    def compare(self) -> str:
        """Compares what the job has left with a plain query; returns a line about it. Raises `DifferenceError`."""
        spark = start_spark(self.root / "logs" / "comparison.log")
        try:
            flights = flights_table(spark, self.root / "incoming", 0).persist()
            totals = running_totals(flights).persist()
            _, rows = expected_rows(totals)
            states = expected_states(flights, totals)
        finally:
            spark.stop()
        actual = written_rows(self.root / "rows", rows.schema)
        require_equal_rows("the rows of the job", rows, actual, IDENTITY)
        savepoint = self.root / f"savepoint-{self._starts}"
        contents = {state: state_contents(savepoint, UID, state) for state in states}
        require_equal_states("the job", states, contents)
        require_no_leftovers(self.root / "job")
        entries = sum(len(one) for one in contents.values())
        return f"equal: {len(actual):,} rows, {entries:,} entries of state; {self._starts} starts; nothing is left over"

    def _start(self) -> DrivenJob:
        self._starts += 1
        arguments = [
            *("--input", str(self.root / "incoming")),
            *("--job-dir", str(self.root / "job")),
            *("--rows", str(self.root / "rows")),
            *("--savepoint", str(self.root / f"savepoint-{self._starts}")),
            *("--version", "2"),
            *("--backend", self.backend),
            *("--log", str(self.root / "logs" / f"spark-{self._starts}.log")),
        ]
        environment = {**os.environ, "TMPDIR": str(self.root / "scratch")}
        return DrivenJob(arguments, self.root / "logs" / f"driver-{self._starts}.log", environment)


def require_no_leftovers(job_directory: Path) -> None:
    """Raises `DifferenceError` if a shared file of the job belongs to none of its checkpoints."""
    checkpoints = [Savepoint.open(path.parent) for path in job_directory.glob("checkpoints/*/_metadata")]
    needed = {file.path for checkpoint in checkpoints for file in checkpoint.metadata.files}
    found = {str(path.relative_to(job_directory)) for path in (job_directory / "shared").rglob("*") if path.is_file()}
    if found - needed:
        raise DifferenceError(f"{len(found - needed)} files belong to no checkpoint, one is {min(found - needed)}")
