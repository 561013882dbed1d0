"""The driver of a job without Spark: a job directory, Spark's log in it, and simulated acknowledgements of tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from pyspark.accumulators import Accumulator

from statebackend.checkpoint import (
    Acknowledgement,
    CheckpointFileSystem,
    DirectoryCheckpointStore,
    JobIdentity,
    KeyedStateHandle,
    SubtaskState,
)
from statebackend.checkpoint.metadata import ReadSource
from statebackend.checkpoint.store.checkpoint_directories import DirectoryPointers
from statebackend.checkpoint.store.driver_lock import DriverLock
from statebackend.savepoint.restored_state import RestoredState
from statebackend.spark import epoch_driver
from statebackend.spark.epoch_driver import EpochDriver, JobParts
from statebackend.spark.frame_sinks import FrameSinkAdapter
from statebackend.state.state_backend import state_backend
from statebackend.streaming.runtime.job_sinks import JobSinks

IDENTITY = JobIdentity("123e4567-e89b-12d3-a456-426614174000", "count", 4, 5)


class RecordingSink:
    """A sink that records its calls and can fail."""

    identity = "a sink"

    def __init__(self) -> None:
        self.reported: list[tuple[Any, ...]] = []
        self.fails_at: dict[str, BaseException] = {}

    def _note(self, *what: Any) -> None:
        self.reported.append(what)
        if what[0] in self.fails_at:
            raise self.fails_at[what[0]]

    def stage(self, frame: Any, epoch_id: int, attempt_id: str) -> bytes:
        self._note("stage", epoch_id, attempt_id)
        return f"rows of {epoch_id}".encode()

    def commit(self, epoch_id: int, committable: bytes) -> None:
        self._note("commit", epoch_id, committable)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        self._note("abort", epoch_id, attempt_id)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        self._note("recover", last_completed_epoch_id, job_id)


class Job:
    """A job directory, Spark's log in it, and the driver of one run at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fs = CheckpointFileSystem.from_uri(directory)
        self.sink = RecordingSink()
        self.acknowledge: Callable[[int], list[Acknowledgement]] = lambda epoch_id: [
            self.acknowledgement(epoch_id, index) for index in (0, 1)
        ]
        self.runs = 0
        self.planned_without_records: dict[int, bool] = {}
        """Whether each epoch was planned without records, by epoch id."""
        self.leadership = mock.MagicMock(spec=DriverLock)
        self.now_ms = 1000
        (directory / "spark" / "offsets").mkdir(parents=True)
        self.start()

    def start(self, is_forgotten: bool = False, **options: Any) -> EpochDriver:
        """Start a run, like the environment."""
        self.runs += 1
        store = DirectoryCheckpointStore(self.fs)
        latest = store.recover()
        operator = mock.MagicMock(uid="words")
        operator.node.name = "words"
        pipeline: Any = SimpleNamespace(
            time=SimpleNamespace(event_time=None),
            graph=None,
            operators={"words": operator},
            build=self.plan_of,
        )
        parts = JobParts(
            identity=IDENTITY,
            run_id=f"run-{self.runs}",
            pipeline=pipeline,
            sinks=JobSinks({"sink": FrameSinkAdapter(self.sink)}),
            backend=state_backend("heap"),
            parallelism=2,
            file_system=self.fs,
            driver_files=self.fs,
            leadership=self.leadership,
            store=store,
            spark_checkpoint_directory=str(self.directory / "spark"),
            local_root=mock.MagicMock(),
            sources=(ReadSource("words", "words", "0"),),
            **options,
        )
        restored = None if latest is None else RestoredState(latest, self.fs)
        context = mock.MagicMock()
        context.accumulator = lambda value, param: Accumulator(-3, value, param)
        self.driver = EpochDriver(parts, restored, context, self.empty_batch, lambda: self.now_ms)
        return self.driver

    def empty_batch(self) -> Any:
        # A mock of a context answers every question with a true value, also whether all tasks run on one host.
        return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=mock.MagicMock()))

    def plan_of(
        self, frame: Any, tasks: Any, placement: Any, processing_time_ms: int, *, is_without_records: bool = False
    ) -> Any:
        """Return a plan. Its tasks acknowledge while it is built."""
        epoch_id = tasks["words"].epoch.epoch_id
        self.planned_without_records[epoch_id] = is_without_records
        for one in self.acknowledge(epoch_id):
            tasks["words"].acknowledgements.send(epoch_id, one.encode())
        return mock.MagicMock(frames={"sink": frame})

    def plan(self, epoch_id: int, time_ms: int | None = None, offset: int | None = None) -> None:
        """Write the entry that Spark writes before a batch."""
        batch_ms, position = time_ms or 1000 + epoch_id, offset or epoch_id
        path = self.directory / "spark" / "offsets" / str(epoch_id)
        path.write_text(f'v1\n{{"batchTimestampMs":{batch_ms}}}\n{{"logOffset":{position}}}')

    def run(self, epoch_id: int, **planned: Any) -> None:
        self.plan(epoch_id, **planned)
        self.replay(epoch_id)

    def replay(self, epoch_id: int) -> None:
        self.driver.run(self.empty_batch(), epoch_id)

    def acknowledgement(self, epoch_id: int, index: int, **changes: Any) -> Acknowledgement:
        name = f"{self.runs}-{epoch_id}-{index}"
        file = self.fs.write_file(f"shared/{name}", b"state")
        content = {
            "job_id": IDENTITY.job_id,
            "run_id": f"run-{self.runs}",
            "checkpoint_id": epoch_id,
            "operator_uid": "words",
            "subtask_index": index,
            "attempt_id": "a",
            "digest": "digest",
            "state": SubtaskState(KeyedStateHandle(name, "heap", 2 * index, 2 * index + 1, b"", (file,))),
        }
        return Acknowledgement(**{**content, **changes})

    @property
    def latest(self) -> Any:
        return DirectoryPointers(self.fs).find().newest()

    def files(self) -> list[str]:
        return list(self.fs.list_files("shared"))


def job_without_spark(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job in the directory, whose driver uses a simulated Spark."""
    monkeypatch.setattr(epoch_driver, "operator_tasks", lambda parts: [])
    monkeypatch.setattr(epoch_driver, "RunBroadcast", mock.MagicMock())
    made = Job(directory)
    monkeypatch.setattr(epoch_driver, "configure_query", lambda session: None)
    monkeypatch.setattr(epoch_driver, "were_tasks_repeated", lambda context, attempt_ids: False)
    monkeypatch.setattr(epoch_driver, "restores_by_subtask", lambda *arguments, **options: ())
    monkeypatch.setattr(
        epoch_driver,
        "write_restore_plan",
        lambda fs, path, restore: {"words": fs.write_file(path, b"plan") and None},
    )
    return made
