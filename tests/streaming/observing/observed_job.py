"""A local job whose state is migrated in its second run, and a recorder for events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from statebackend import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle, SubtaskState
from statebackend.local import LocalJob, LocalStreamEnvironment
from statebackend.streaming.metrics import RECORDS_IN, ObservedRun
from statebackend.streaming.observing.job_events import JobListener, JobListeners
from statebackend.streaming.observing.job_recorder import JobRecorder, LiveMetrics

HOSTILE = "</script><b>'\"&\n\\"
SCHEMA = "k string, n bigint"

RUN = ObservedRun(
    job_name=HOSTILE,
    job_id="job",
    run_id="run",
    engine="local",
    parallelism=2,
    max_parallelism=8,
    started_ms=1_700_000_000_000,
)


@attrs.frozen
class Visit:
    number: int


@attrs.frozen
class LongerVisit:
    number: int
    minutes: float = 0.0


class CountVisits(KeyedProcessFunction[str, Any, Any]):
    def __init__(self, visit: type[Any], fails_at: int | None) -> None:
        self.visit = visit
        self.fails_at = fails_at

    def open(self, context: RuntimeContext) -> None:
        self.last = context.get_state(ValueStateDescriptor("last visit", self.visit))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        if value.n == self.fails_at:
            raise ValueError(HOSTILE)
        self.last.update(self.visit(value.n))
        yield context.current_key, value.n


class TrackingEvent(JobListener):
    """Records events; ``kinds`` are the names of the events, and ``reported`` has the progress."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.reported: list[Any] = []

    def note(self, event: Any) -> None:
        self.events.append(event)

    started = restored = migrated = epoch_completed = checkpoint_completed = note
    checkpoint_failed = savepoint_written = terminated = note

    def progress(self, progress: Any) -> None:
        self.reported.append(progress)

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


def visits_environment(
    directory: Path, visit: type[Any] = Visit, fails_at: int | None = None, **options: Any
) -> LocalStreamEnvironment:
    environment = LocalStreamEnvironment(job_dir=directory, parallelism=2, max_parallelism=8, epoch_size=4, **options)
    rows = [{"k": key, "n": number} for number, key in enumerate("abcdefgh")]
    counted = environment.from_elements(rows, SCHEMA, uid="visits").key_by("k")
    counted.process(CountVisits(visit, fails_at), uid="count", schema=SCHEMA).sink_to([])
    return environment


def migrated_job(directory: Path, *listeners: JobListener, **options: Any) -> LocalJob:
    """A job that continues from state of an older schema."""
    visits_environment(directory).execute("visits")
    LongerVisit.__qualname__ = LongerVisit.__name__ = "Visit"
    environment = visits_environment(directory, LongerVisit, **options)
    for listener in listeners:
        environment.add_listener(listener)
    return environment.execute("visits")


def recorder_by_hand(*listeners: JobListener, **options: Any) -> JobRecorder:
    return JobRecorder(RUN, LiveMetrics, JobListeners(listeners), keeps_subtasks_open=True, **options)


def acknowledged(epoch_id: int, index: int, *, records: int = 10, size_bytes: int = 100, uid: str = "count") -> Any:
    """An acknowledgement of a subtask with state of this size."""
    file = FileHandle(f"shared/{epoch_id}-{index}", size_bytes, f"xxh3:{0:032x}")
    return Acknowledgement(
        job_id="job",
        run_id="run",
        checkpoint_id=epoch_id,
        operator_uid=uid,
        subtask_index=index,
        attempt_id="0",
        digest="d",
        state=SubtaskState(KeyedStateHandle(f"{epoch_id}-{index}", "heap", index, index, b"", (file,))),
        metrics={RECORDS_IN: records, "entries_written": records, "bytes_written": size_bytes},
    )
