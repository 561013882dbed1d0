"""The metadata of a savepoint describes the job, and does not depend on the directory in which it was taken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from statebackend import ExportedSubtask, StateTtlConfig, ValueStateDescriptor, export_tasks, finish_savepoint
from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    OpaqueStateHandle,
    OperatorState,
    SubtaskState,
    read_savepoint,
)
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.metadata import ReadSource, SavepointIdentity, SourcePositions
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory, write_source_progress


def subtask(number: int) -> SubtaskState:
    return SubtaskState(operator=OpaqueStateHandle("some format", b"subtask %d" % number))


CHECKPOINT = CheckpointMetadata(
    checkpoint_id=7,
    kind=CheckpointKind.CHECKPOINT,
    job_id="job",
    job_name="count",
    timestamp_ms=5,
    max_parallelism=8,
    operators=(
        OperatorState("first", "first", 8, tuple(subtask(number) for number in range(3))),
        OperatorState("second", "second", 8, (subtask(9),)),
    ),
    parent_checkpoint_id=6,
    parent_digest=checksum_of_bytes(b"the parent"),
    processing_time_ms=4,
    source_positions=SourcePositions(offsets=b"offsets", batch_id=7, sources=(ReadSource("rate", "clock", "0"),)),
    restored_from=SavepointIdentity("another job", 3, 2),
    sink_committables={"rows": b"staged"},
    sink_identities={"rows": "somewhere"},
    properties={"a": "b"},
)


def exported(uid: str, index: int, state: SubtaskState, rows: int) -> ExportedSubtask:
    return ExportedSubtask(uid, index, state, {"seen": rows, "never": 0}, {"split": rows + 1})


def test_a_savepoint_has_no_parent_no_uncommitted_output_and_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statebackend.savepoint.export.wall_clock", lambda: 99)
    target = create_savepoint_directory(tmp_path / "savepoint")
    progress = write_source_progress(target, {"offsets/0": b"log"})
    # Subtasks finish in any order.
    ended = [
        exported("first", 2, subtask(2), 4),
        exported("second", 0, subtask(9), 0),
        exported("first", 0, subtask(0), 1),
        exported("first", 1, subtask(1), 2),
    ]
    report = finish_savepoint(CHECKPOINT, ended, target, progress, 0.0)
    _, savepoint = read_savepoint(tmp_path / "savepoint")
    expected = evolve(
        CHECKPOINT,
        kind=CheckpointKind.SAVEPOINT,
        timestamp_ms=99,
        parent_checkpoint_id=None,
        parent_digest=None,
        sink_committables={},
        sink_identities={},
        source_progress_files=progress,
    )
    assert savepoint == expected
    assert report.rows == {"first": {"seen": 7, "never": 0}, "second": {"seen": 0, "never": 0}}
    assert report.operator_state_rows == {"first": {"split": 10}, "second": {"split": 1}}
    assert (report.epoch_id, report.size_bytes) == (7, savepoint.size_bytes)


class Scratch:
    """A scratch directory that counts its uses."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.used = 0

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        self.used += 1
        yield str(self.directory)


def test_each_subtask_gets_a_task_with_expiry_times_and_a_scratch_directory(tmp_path: Path) -> None:
    source, target = (CheckpointFileSystem.from_uri(tmp_path / name) for name in ("source", "target"))
    ttl = StateTtlConfig(100)
    registered = {
        "first": [ValueStateDescriptor("timed", int, ttl=ttl), ValueStateDescriptor("lasting", int)],
        "never run": [ValueStateDescriptor("timed", int, ttl=ttl)],
    }
    place = Scratch(tmp_path)
    tasks = export_tasks(CHECKPOINT, source, target, registered, 55, place)
    assert [(task.operator_uid, task.subtask_index, task.state) for task in tasks] == [
        ("first", 0, subtask(0)),
        ("first", 1, subtask(1)),
        ("first", 2, subtask(2)),
        ("second", 0, subtask(9)),
    ]
    assert [dict(task.ttl) for task in tasks] == [{"timed": ttl}] * 3 + [{}]
    for task in tasks:
        assert (task.source, task.target) == (source, target)
        assert (task.now_ms, task.max_parallelism, task.scratch_space) == (55, 8, place)
