"""Two-phase sinks of the local runtime: staged at the barrier, committed once when the checkpoint is complete."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_run_steps import RECORD, Clock, Count, opened, play, steps

from statebackend import JobDefinitionError, JobRestoreError
from statebackend.checkpoint.coordinator.requests import CheckpointLimits, CheckpointRequestKind
from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.store.completed_checkpoint_store import DirectoryCheckpointStore
from statebackend.local import LocalStreamEnvironment
from statebackend.local.job_parts import CheckpointSettings
from statebackend.local.sinks import LocalSinks
from statebackend.streaming.runtime.job_sinks import SinkAdapter, decode_committables
from statebackend.streaming.sink import SinkEpoch, SinkLineage


class Files:
    """A sink of files. Staged files are hidden, and a commit renames them."""

    def __init__(self, directory: Path, commits_before_it_dies: int | None = None) -> None:
        self.identity = str(directory)
        self._directory = directory
        self._commits_left = commits_before_it_dies
        directory.mkdir(parents=True, exist_ok=True)

    def stage_records(self, records: Sequence[Any], epoch_id: int, attempt_id: str) -> bytes:
        name = f"{epoch_id}-{attempt_id}"
        (self._directory / f".{name}").write_text(json.dumps([list(record) for record in records]))
        return name.encode()

    def commit(self, epoch_id: int, committable: bytes) -> None:
        if self._commits_left is not None:
            self._commits_left -= 1
            if self._commits_left < 0:
                raise StorageError("dead")
        staged = self._directory / f".{committable.decode()}"
        if staged.exists():
            staged.rename(self._directory / str(epoch_id))
        assert (self._directory / str(epoch_id)).exists()

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        (self._directory / f".{epoch_id}-{attempt_id}").unlink(missing_ok=True)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        for path in self._directory.glob(".*"):
            path.unlink()

    def committed(self) -> list[tuple[Any, ...]]:
        files = sorted(self._directory.glob("[0-9]*"), key=lambda path: int(path.name))
        return [tuple(record) for file in files for record in json.loads(file.read_text())]


def environment_of(sink: Any, plain: list[Any], parallelism: int = 2) -> LocalStreamEnvironment:
    environment = LocalStreamEnvironment(parallelism=parallelism, max_parallelism=8, clock=lambda: 0)
    counted = environment.from_elements([], RECORD, uid="in").key_by("k").process(Count(), uid="count", schema=RECORD)
    counted.sink_to(sink, uid="files")
    counted.sink_to(plain, uid="plain")
    return environment


@pytest.mark.parametrize("crashing", ["store", "sink"])
def test_a_crash_at_any_write_or_commit_leaves_each_record_committed_once(tmp_path: Path, crashing: str) -> None:
    keys = ["ab", "bc", "aa"]
    for budget in range(100):
        root, target, has_died = tmp_path / str(budget), tmp_path / f"out-{budget}", False
        sink = Files(target, budget if crashing == "sink" else None)
        writes = budget if crashing == "store" else None
        directory, opening = opened(root, environment_of(sink, []), budget, CheckpointSettings(), writes)
        with directory, opening as run:
            try:
                for piece in keys:
                    play(run, piece)
                    run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
            except StorageError:
                has_died = True
        sink = Files(target)
        directory, opening = opened(root, environment_of(sink, [], 3), budget, CheckpointSettings(), None)
        with directory, opening as run:
            known = 0 if run.restored_id is None else run.restored_id + 1
            play(run, "".join(keys[known:]))
            run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
        expected = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]
        assert sorted(sink.committed()) == expected, (budget, known)
        assert not list(target.glob(".*"))
        if not has_died:
            return
    pytest.fail("the run never came to its end")


def test_output_of_a_failed_checkpoint_is_committed_with_the_next(tmp_path: Path) -> None:
    clock, sink, plain = Clock(), Files(tmp_path / "out"), list[Any]()
    settings_of = CheckpointSettings(
        timeout_ms=10,
        tolerable_failures=1,
        now_ms=clock,
        post=lambda mail: () if mail.name == "acknowledge" and mail.checkpoint_id == 0 else (mail,),
        limits=CheckpointLimits(max_concurrent_checkpoints=2),
    )
    directory, opening = opened(tmp_path / "job", environment_of(sink, plain), None, settings_of, None)
    with directory, opening as run:
        play(run, "ab")
        run.checkpoints.request(CheckpointRequestKind.ON_DEMAND)
        steps(run)
        assert sink.committed() == []
        clock.now_ms = 10
        steps(run)
        play(run, "a")
        assert run.take_checkpoint(CheckpointRequestKind.ON_DEMAND) == 1
        assert sorted(sink.committed()) == [("a", 1), ("a", 2), ("b", 1)]
        assert sorted(plain) == [("a", 1), ("a", 2), ("b", 1)]
        # The output is committed under the id with which it was staged.
        assert (tmp_path / "out" / "0").exists()
        assert run.parts.store.latest().sink_identities == {"files": str(tmp_path / "out")}


def test_uncommitted_output_is_given_to_no_other_sink(tmp_path: Path) -> None:
    sink = Files(tmp_path / "out", 0)
    directory, opening = opened(tmp_path / "job", environment_of(sink, []), None, CheckpointSettings(), None)
    with directory, opening as run:
        play(run, "a")
        with pytest.raises(StorageError):
            run.take_checkpoint(CheckpointRequestKind.ON_DEMAND)
    other = environment_of(Files(tmp_path / "other"), [])
    directory, opening = opened(tmp_path / "job", other, None, CheckpointSettings(), None)
    with directory, pytest.raises(JobRestoreError, match="staged by another sink"), opening:
        pass


def test_a_job_with_periodic_checkpoints_commits_each_record_once(tmp_path: Path) -> None:
    sink = Files(tmp_path / "out")
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job", checkpoint_interval=1)
    stream = environment.from_elements([("a", number) for number in range(5000)], RECORD)
    stream.key_by("k").process(Count(), uid="count", schema=RECORD).sink_to(sink, uid="files")
    environment.execute("job")
    assert sink.committed() == [("a", number) for number in range(1, 5001)]


def test_output_after_a_barrier_is_not_part_of_its_checkpoint(tmp_path: Path) -> None:
    graph = environment_of(Files(tmp_path / "out"), []).from_elements([], uid="unread").graph.job()
    sinks = LocalSinks(graph)
    for checkpoint_id in (1, 2):
        sinks.stage([[("a", checkpoint_id)]], SinkEpoch(SinkLineage("files", "job"), checkpoint_id, "a"))
    staged = {uid: decode_committables(one) for uid, one in sinks.committables(1).items()}
    assert {uid: [one.epoch_id for one in epochs] for uid, epochs in staged.items()} == {"files": [1]}
    sinks.commit_staged(1)
    assert Files(tmp_path / "out").committed() == [("a", 1)]
    sinks.commit_staged(2)
    assert Files(tmp_path / "out").committed() == [("a", 1), ("a", 2)]


def test_two_sinks_for_one_target_are_rejected_before_anything_changes(tmp_path: Path) -> None:
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    stream = environment.from_elements([("a", 1)], RECORD).key_by("k").process(Count(), uid="count", schema=RECORD)
    stream.sink_to(Files(tmp_path / "out"), uid="first")
    stream.sink_to(Files(tmp_path / "out"), uid="second")
    with pytest.raises(JobDefinitionError, match="write to the same place"):
        environment.execute("job")
    assert not (tmp_path / "job").exists()


class Noting:
    """A sink without identity that records its commits."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._staged: dict[int, list[Any]] = {}

    def stage_records(self, records: Sequence[Any], epoch_id: int, attempt_id: str) -> bytes:
        self._staged[epoch_id] = list(records)
        return b"staged"

    def commit(self, epoch_id: int, committable: bytes) -> None:
        self.rows += self._staged.pop(epoch_id)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        self._staged.pop(epoch_id, None)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        self._staged.clear()


class NamedKind(Noting):
    identity = "noting"


@pytest.mark.parametrize("kind", [Noting, NamedKind])
def test_a_job_may_have_two_sinks_of_a_class_without_identity(tmp_path: Path, kind: type[Noting]) -> None:
    first, second = kind(), kind()
    environment = LocalStreamEnvironment(job_dir=tmp_path / "job")
    stream = environment.from_elements([("a", 1), ("a", 2)], RECORD)
    counted = stream.key_by("k").process(Count(), uid="count", schema=RECORD)
    counted.sink_to(first, uid="first")
    counted.sink_to(second, uid="second")
    environment.execute("job")
    assert [tuple(row) for row in first.rows] == [("a", 1), ("a", 2)]
    assert second.rows == first.rows
    newest = DirectoryCheckpointStore(CheckpointFileSystem.from_uri(tmp_path / "job")).recover()
    assert newest is not None
    assert newest.sink_identities == dict.fromkeys(("first", "second"), SinkAdapter(first).identity)
