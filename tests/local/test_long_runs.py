"""Memory of a run does not grow with the number of checkpoints, completed or failed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from counted_keys import Count
from retained_items import grown, retained_items

from statebackend import StateMetricsConfig
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.requests import CheckpointRequestKind
from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.store.completed_checkpoint_store import DirectoryCheckpointStore
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.local import LocalStreamEnvironment
from statebackend.local.checkpoints import SnapshotWork, SnapshotWriter
from statebackend.local.job_parts import CheckpointSettings
from statebackend.local.network.network import DownstreamFirst
from statebackend.local.network.subtasks import Mail
from statebackend.local.run import LocalRun
from statebackend.local.source import LocalSource

pytestmark = pytest.mark.slow

INTERVAL_MS = 100
TIMEOUT_MS = 50


class Circumstances:
    """In each round of three checkpoints, one completes, one loses an acknowledgement, and one cannot be written."""

    def __init__(self) -> None:
        self.number = 0
        self.now_ms = 0

    def clock(self) -> int:
        return self.now_ms

    def post(self, mail: Mail) -> Iterable[Mail]:
        is_lost = mail.name == "acknowledge" and self.number % 3 == 1 and str(mail.task) == "count[0]"
        return () if is_lost else (mail,)

    def next(self) -> None:
        self.number += 1


class FailingAtTimes(CheckpointFileSystem):
    """A file system that fails to write every third checkpoint."""

    def __init__(self, root: Path, circumstances: Circumstances) -> None:
        healthy = CheckpointFileSystem.from_uri(root)
        super().__init__(healthy.uri, healthy._storage)
        self.circumstances = circumstances

    def upload(self, *arguments: Any, **named: Any) -> Any:
        self._check()
        return super().upload(*arguments, **named)

    def write_file(self, *arguments: Any, **named: Any) -> Any:
        self._check()
        return super().write_file(*arguments, **named)

    def _check(self) -> None:
        if self.circumstances.number % 3 == 2:
            raise StorageError("the disk is full")


def one_checkpoint(run: LocalRun, circumstances: Circumstances) -> None:
    """Process records, take a periodic checkpoint, and handle its result."""
    [source] = run.job_network.sources.values()
    for key in "abcd":
        source.feed(partial(LocalSource.read, records=[{"k": key, "n": 1}]))
    for _ in range(2):
        while run.step() is not None:
            pass
        circumstances.now_ms += TIMEOUT_MS
    circumstances.next()


def test_a_run_holds_the_same_after_a_few_checkpoints_as_after_hundreds(tmp_path: Path) -> None:
    circumstances = Circumstances()
    results: list[Any] = []
    environment = LocalStreamEnvironment(backend="heap", max_parallelism=8, clock=lambda: 0)
    schema = "k string, n bigint"
    counted = environment.from_elements([], schema, uid="in").key_by("k").process(Count(), uid="count", schema=schema)
    counted.sink_to(lambda record: results.append(record) if len(results) < 5 else None)
    settings = CheckpointSettings(
        timeout_ms=TIMEOUT_MS, tolerable_failures=3, now_ms=circumstances.clock, post=circumstances.post
    )
    directory = JobDirectory.open(str(tmp_path / "job"), "job", 8)
    directory.file_system = FailingAtTimes(tmp_path / "job", circumstances)
    store = DirectoryCheckpointStore(directory.file_system)
    store.recover()
    opening = environment.run_in(directory, store, checkpoints=settings, scheduler=DownstreamFirst())
    with directory, opening as run:
        run.checkpoints.start(INTERVAL_MS)
        for _ in range(90):
            one_checkpoint(run, circumstances)
        before = retained_items(run)
        for _ in range(210):
            one_checkpoint(run, circumstances)
        after = retained_items(run)
        assert circumstances.number == 300
        assert run.checkpoints.coordinator.counts.failed == 200
        # A state has a few dozen files, and three checkpoints are retained.
        assert grown(before, after, by=60) == {}


def test_results_are_kept_for_their_callers(tmp_path: Path) -> None:
    circumstances = Circumstances()
    environment = LocalStreamEnvironment(clock=lambda: 0)
    elements = environment.from_elements([], "k string, n bigint")
    elements.key_by("k").process(Count(), uid="count", schema="k string, n bigint").sink_to([])
    with environment.opened_run(checkpoints=CheckpointSettings(now_ms=circumstances.clock)) as run:
        run.checkpoints.start(INTERVAL_MS)
        asked = run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        one_checkpoint(run, circumstances)
        one_checkpoint(run, circumstances)
        answer = run.checkpoints.take_answer(asked)
        assert answer is not None
        assert answer.failure is None
        assert run.checkpoints.take_answer(asked) is None


@pytest.mark.extended
def test_a_thousand_failed_periodic_checkpoints_leave_nothing(tmp_path: Path) -> None:
    circumstances = Circumstances()
    # No subtask can write any checkpoint. The second subtask declines a checkpoint that was already aborted.
    circumstances.number = 2
    environment = LocalStreamEnvironment(backend="heap", parallelism=2, max_parallelism=8, clock=lambda: 0)
    schema = "k string, n bigint"
    counted = environment.from_elements([], schema, uid="in").key_by("k").process(Count(), uid="count", schema=schema)
    counted.sink_to([])
    directory = JobDirectory.open(str(tmp_path / "job"), "job", 8)
    directory.file_system = FailingAtTimes(tmp_path / "job", circumstances)
    store = DirectoryCheckpointStore(directory.file_system)
    store.recover()
    settings = CheckpointSettings(tolerable_failures=2000, now_ms=circumstances.clock)
    opening = environment.run_in(directory, store, checkpoints=settings, scheduler=DownstreamFirst())
    with directory, opening as run:
        [source] = run.job_network.sources.values()
        source.feed(partial(LocalSource.read, records=[{"k": key, "n": 1} for key in "abcdefgh"]))
        run.checkpoints.start(1)
        sizes = []
        for circumstances.now_ms in range(1, 1002):
            while run.step() is not None:
                pass
            if circumstances.now_ms % 1000 == 1:
                sizes.append(retained_items(run.checkpoints))
        assert run.checkpoints.coordinator.counts.failed == 1001
        # The job fails by its number of consecutive failed checkpoints. A completed checkpoint resets that number.
        assert set(grown(*sizes, by=100)) == {"FailurePolicy._counted_ids"}
        asked = run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        while run.step() is not None:
            pass
        answer = run.checkpoints.take_answer(asked)
        assert answer is not None
        assert isinstance(answer.error, StorageError)


class Writing:
    """A snapshot that records whether it was written or cancelled."""

    def __init__(self, checkpoint_id: int) -> None:
        self.checkpoint_id = checkpoint_id
        self.task = TaskId("count", 0)
        self.reported: list[str] = []

    def write(self) -> None:
        self.reported.append("written")

    def cancel(self) -> None:
        self.reported.append("cancelled")

    def acknowledgement(self) -> Acknowledgement:
        raise NotImplementedError


def test_a_snapshot_written_on_the_run_thread_is_abandoned_once_and_released() -> None:
    mails: list[Mail] = []
    finished: list[SnapshotWork] = []
    writer = SnapshotWriter(mails.append, lambda work, error: finished.append(work))
    kept: list[Writing] = []
    for checkpoint_id in range(1000):
        works = [Writing(checkpoint_id), Writing(checkpoint_id)]
        for work in works:
            writer.submit(cast(Any, work))
        mails.pop(0).make()
        writer.cancel(checkpoint_id)
        mails.pop(0).make()
        assert [work.reported for work in works] == [["written"], ["cancelled"]]
        kept.append(works[0])
    assert finished == kept
    assert retained_items(writer)["SnapshotWriter._in_progress"] == 0


def test_a_job_has_metrics_of_each_epoch_and_their_sum() -> None:
    environment = LocalStreamEnvironment(epoch_size=1, metrics=StateMetricsConfig())
    elements = environment.from_elements([{"k": "a", "n": number} for number in range(8)], "k string, n bigint")
    elements.key_by("k").process(Count(), uid="count", schema="k string, n bigint").sink_to([])
    job = environment.execute()
    metrics = job.metrics()
    assert [one.state_metrics["count"].states["count"].writes for one in metrics.epochs] == [1] * 8
    assert metrics.totals.state_metrics["count"].states["count"].writes == 8
