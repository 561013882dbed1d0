"""The directories of file sinks on a disk: each epoch becomes visible once, wherever its commit or rollback stops."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.connectors import ParquetSink, SinkEpoch, SinkError, SinkLineage, epoch_files

JOB = SinkLineage("sink", "job")


def epoch(epoch_id: int) -> SinkEpoch:
    return SinkEpoch(JOB, epoch_id, "a")


def staged(path: Path) -> list[str]:
    return sorted(entry.name for entry in (path / "_staging").iterdir())


def stage_by_hand(path: Path, epoch_id: int, attempt_id: str) -> bytes:
    directory = path / "_staging" / f"{epoch_id:012d}-{attempt_id}"
    directory.mkdir(parents=True)
    (directory / "part-0.parquet").write_bytes(attempt_id.encode())
    file = ["part-0.parquet", len(attempt_id), checksum_of_bytes(attempt_id.encode())]
    return json.dumps({"format": 1, "epoch": epoch_id, "attempt": attempt_id, "files": [file]}).encode()


def files_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ParquetSink("~/out").identity == ParquetSink(tmp_path / "out").identity
    assert ParquetSink("file:///~/out").identity == "ParquetSink('/~/out')"


def test_a_crash_between_checkpoint_and_rename_is_repaired_by_another_commit(tmp_path: Path) -> None:
    committable = stage_by_hand(tmp_path, 7, "job.a")
    leftovers = [stage_by_hand(tmp_path, 8, "job.a"), stage_by_hand(tmp_path, 9, "job.a")]
    assert len(leftovers) == 2

    sink = ParquetSink(tmp_path)
    sink.recover(JOB, 7)
    assert staged(tmp_path) == ["000000000007-job.a"]
    sink.commit(epoch(7), [committable])
    after_commit = files_below(tmp_path)
    assert after_commit["epoch=000000000007/part-0.parquet"] == b"job.a"
    for _ in range(2):
        ParquetSink(tmp_path).recover(JOB, 7)
        ParquetSink(tmp_path).commit(epoch(7), [committable])
    assert files_below(tmp_path) == after_commit


def test_an_unmarked_epoch_is_not_committed(tmp_path: Path) -> None:
    committable = stage_by_hand(tmp_path, 7, "job.a")
    (tmp_path / "epoch=000000000007").mkdir()
    with pytest.raises(SinkError, match="was not written by the attempt that completed epoch 7"):
        ParquetSink(tmp_path).commit(epoch(7), [committable])
    assert staged(tmp_path) == ["000000000007-job.a"]


def test_a_crash_while_epochs_are_rolled_back_keeps_the_first_of_them_without_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink(tmp_path)
    for epoch_id in range(1, 5):
        sink.commit(epoch(epoch_id), [stage_by_hand(tmp_path, epoch_id, "job.a")])
    rename, left = os.rename, 2

    def crashing(source: Any, target: Any, **directories: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("dead")
        rename(source, target, **directories)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", crashing)
        with pytest.raises(SinkError, match="dead"):
            sink.roll_back(JOB, 1)
    assert sorted(path.name for path in tmp_path.glob("epoch=*")) == ["epoch=000000000001", "epoch=000000000002"]
    sink.roll_back(JOB, 1)
    assert sorted(path.name for path in tmp_path.glob("epoch=*")) == ["epoch=000000000001"]


def test_abort_removes_only_the_attempt(tmp_path: Path) -> None:
    stage_by_hand(tmp_path, 1, "job.a")
    stage_by_hand(tmp_path, 1, "job.b")
    sink = ParquetSink(tmp_path)
    sink.abort(epoch(1))
    sink.abort(epoch(1))
    sink.abort(epoch(2))
    assert staged(tmp_path) == ["000000000001-job.b"]


def test_recovery_ignores_foreign_names(tmp_path: Path) -> None:
    (tmp_path / "_staging" / "notes").mkdir(parents=True)
    stage_by_hand(tmp_path, 1, "job.a")
    ParquetSink(tmp_path).recover(JOB, None)
    assert staged(tmp_path) == ["notes"]


def test_recovery_keeps_staged_files_of_another_job(tmp_path: Path) -> None:
    # This job started from a savepoint of the other job, which has not committed its last epoch yet.
    theirs = stage_by_hand(tmp_path, 8, "job.a")
    for attempt in ("job-2.a", "job2.a", "another.job.a"):
        stage_by_hand(tmp_path, 8, attempt)
    ParquetSink(tmp_path).recover(SinkLineage("sink", "job-2"), 7)
    assert staged(tmp_path) == ["000000000008-another.job.a", "000000000008-job.a", "000000000008-job2.a"]
    ParquetSink(tmp_path).recover(JOB, 8)
    ParquetSink(tmp_path).commit(epoch(8), [theirs])
    assert files_below(tmp_path)["epoch=000000000008/part-0.parquet"] == b"job.a"


def test_recovery_removes_what_is_staged_for_a_visible_epoch(tmp_path: Path) -> None:
    ParquetSink(tmp_path).commit(epoch(8), [stage_by_hand(tmp_path, 8, "job.a")])
    stage_by_hand(tmp_path, 8, "job.b")
    ParquetSink(tmp_path).recover(JOB, 8)
    assert staged(tmp_path) == []


def test_committables_of_two_attempts_are_rejected(tmp_path: Path) -> None:
    committables = [stage_by_hand(tmp_path, 1, attempt) for attempt in ("job.a", "job.b")]
    with pytest.raises(SinkError, match="not of one attempt"):
        ParquetSink(tmp_path).commit(epoch(1), committables)
    assert staged(tmp_path) == ["000000000001-job.a", "000000000001-job.b"]


def test_missing_rows_are_an_error(tmp_path: Path) -> None:
    committable = stage_by_hand(tmp_path, 1, "a")
    shutil.rmtree(tmp_path / "_staging")
    with pytest.raises(SinkError, match="rows of epoch 1 are gone"):
        ParquetSink(tmp_path).commit(epoch(1), [committable])


@pytest.mark.parametrize(
    "committable",
    [
        b"",
        b"[]",
        b'{"format":1,"epoch":1}',
        b'{"format":1,"epoch":1,"attempt":"a"}',
        b'{"format":1,"epoch":2,"attempt":"a","files":[]}',
        b'{"format":1,"epoch":1,"attempt":7,"files":[]}',
        b'{"format":1,"epoch":1,"attempt":"../../elsewhere","files":[]}',
        b'{"version":2,"epoch":1,"attempt":"a","files":[]}',
        b'{"format":2,"epoch":1,"attempt":"a","files":[]}',
    ],
)
def test_a_damaged_committable_is_rejected(tmp_path: Path, committable: bytes) -> None:
    stage_by_hand(tmp_path, 1, "a")
    before = files_below(tmp_path)
    with pytest.raises(SinkError):
        ParquetSink(tmp_path).commit(epoch(1), [committable])
    assert files_below(tmp_path) == before


def test_a_store_without_atomic_rename_is_rejected_at_once() -> None:
    with pytest.raises(ValueError, match="ForEachEpochSink"):
        ParquetSink("gs://bucket/out")


def test_staged_files_and_their_names_are_durable_before_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    synced_inodes: list[int] = []
    sync = os.fsync

    def sync_file(descriptor: int) -> None:
        synced_inodes.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(epoch_files, "sync_directory", synced.append)
    monkeypatch.setattr(epoch_files.os, "fsync", sync_file)
    root = tmp_path / "new" / "rows"
    ParquetSink(root).stage(epoch(7), 0, pa.table({"id": [1]}).to_reader())
    staged = root / "_staging" / "000000000007-job.a"
    assert set(synced) == {str(one) for one in (tmp_path, root.parent, root, staged.parent, staged)}
    [file] = staged.iterdir()
    assert file.stat().st_ino in synced_inodes


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (b'{"format": 2}', "newer version of statebackend: its format has version 2, and this version reads up to 1"),
        (b'{"version": 1}', "written by a pre-release"),
    ],
)
def test_an_epoch_of_another_version_is_not_taken_for_a_missing_one(tmp_path: Path, mark: bytes, message: str) -> None:
    sink = ParquetSink(tmp_path)
    committables = [[stage_by_hand(tmp_path, epoch_id, "job.a")] for epoch_id in range(3)]
    for epoch_id in range(3):
        sink.commit(epoch(epoch_id), committables[epoch_id])
    (tmp_path / "epoch=000000000001" / "_committable").write_bytes(mark)
    before = files_below(tmp_path)
    for use in (
        sink.files,
        lambda: sink.compact(keep=1, at_least=2),
        lambda: sink.commit(epoch(1), committables[1]),
        lambda: sink.roll_back(JOB, 0),
    ):
        with pytest.raises(SinkError, match=f"epoch=000000000001/_committable was .*{message}"):
            use()
    assert files_below(tmp_path) == before
