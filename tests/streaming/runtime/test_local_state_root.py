"""Local state of jobs on the disk of a host: directories, and their removal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from open_descriptors import descriptors_below

from statebackend import ValueStateDescriptor
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.checkpoint.store.driver_lock import DriverLock
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.savepoint.export import ExportTask
from statebackend.state.private_directory import PrivateDirectoryError
from statebackend.state.state_backend import state_backend
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.runtime import local_state_root
from statebackend.streaming.runtime.local_state_root import (
    RETENTION_S,
    SWEEP_INTERVAL_S,
    LocalStateRoot,
    given_local_root,
)
from statebackend.testing.backends.harness import BackendHarness

SHORTLY_S = 600.0


class Host:
    """A host with jobs and one root."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "local"

    def job(self, name: str) -> LocalStateRoot:
        """The root for a new run of that job; its job directory is created."""
        with JobDirectory.open(str(self.directory / name), name, 16) as job_directory:
            return LocalStateRoot(
                path=str(self.root),
                is_given=True,
                job_id=job_directory.identity.job_id,
                job_directory=job_directory.file_system.uri,
                began_s=time.time() + SHORTLY_S,
            )

    def epoch(self, job: LocalStateRoot, parallelism: int = 2) -> None:
        """Do what the tasks of an epoch do."""
        for subtask in range(parallelism):
            with job.open(parallelism) as directory:
                Path(directory, "words", f"{subtask:05d}").mkdir(parents=True, exist_ok=True)

    def left(self) -> dict[str, set[str]]:
        """The directories of each job, by job id."""
        jobs = [job for job in self.root.iterdir() if job.is_dir()]
        return {job.name: {path.name for path in job.iterdir() if path.is_dir()} for job in jobs}

    def age(self, job: LocalStateRoot, seconds: float) -> None:
        """Set the last use of a job's local state to this many seconds ago."""
        then = time.time() - seconds
        os.utime(self.root / job.job_id / "JOB", (then, then))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_given_root_is_complete_except_for_variables_of_the_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert given_local_root("~/local") == str(tmp_path / "home" / "local")
    assert given_local_root("local/../state") == str(tmp_path / "state")
    assert given_local_root("$SPARK_LOCAL_DIRS/state") == "$SPARK_LOCAL_DIRS/state"


def test_a_job_reuses_its_directory(host: Host) -> None:
    for _ in range(2):
        with host.job("a").open(2) as directory:
            Path(directory, "file").touch()
    with host.job("a").open(2) as directory:
        assert sorted(os.listdir(directory)) == ["file", "lock"]
    assert (host.root.stat().st_mode & 0o777, Path(directory).stat().st_mode & 0o777) == (0o700, 0o700)


def test_unused_directories_of_other_parallelisms_are_removed(host: Host) -> None:
    job = host.job("a")
    for parallelism in (2, 3, 4):
        host.epoch(job, parallelism)
    assert host.left() == {job.job_id: {"00004"}}
    with job.open(4):
        host.epoch(job, 2)
        assert host.left() == {job.job_id: {"00004", "00002"}}
        with job.open(2), job.scratch():
            host.epoch(job, 4)
            assert len(host.left()[job.job_id]) == 3
    host.epoch(job, 4)
    assert host.left() == {job.job_id: {"00004"}}


def remove(host: Host) -> None:
    """The job directory is removed."""
    for path in sorted((host.directory / "other").rglob("*"), reverse=True):
        path.unlink()
    (host.directory / "other").rmdir()


def replace(host: Host) -> None:
    """The job directory belongs to another job."""
    remove(host)
    host.job("other")


@pytest.mark.parametrize("change", [remove, replace])
def test_state_of_a_job_without_job_directory_is_removed_at_the_next_start(
    host: Host, change: Callable[[Host], None]
) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    change(host)
    host.epoch(job)
    assert set(host.left()) == {job.job_id}


@pytest.mark.parametrize(("age_s", "is_kept"), [(RETENTION_S - SHORTLY_S, True), (RETENTION_S + SHORTLY_S, False)])
def test_state_of_another_job_is_kept_for_a_while(host: Host, age_s: float, is_kept: bool) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    host.age(other, age_s)
    host.epoch(job)
    assert set(host.left()) == {job.job_id, *([other.job_id] if is_kept else [])}


def test_state_of_an_idle_live_job_is_kept(host: Host) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    with JobDirectory.open(str(host.directory / "other"), "other", 16):
        host.age(other, 2 * RETENTION_S)
        host.epoch(job)
        assert set(host.left()) == {job.job_id, other.job_id}
    host.epoch(host.job("a"))
    host.epoch(evolve(job, began_s=time.time() + 2 * SHORTLY_S))
    assert set(host.left()) == {job.job_id}


def test_state_in_use_by_a_task_is_kept_until_it_has_ended(host: Host) -> None:
    other, job = host.job("other"), host.job("a")
    with other.open(2):
        host.epoch(other, 3)
        host.age(other, 2 * RETENTION_S)
        host.epoch(job)
        assert host.left()[other.job_id] == {"00002"}
    host.epoch(evolve(job, began_s=time.time() + 2 * SHORTLY_S))
    assert set(host.left()) == {job.job_id}


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"job_directory": "nonsense://x"}', b"\xff"])
def test_without_a_known_job_directory_age_decides(host: Host, content: bytes | None) -> None:
    left = host.root / "01234567-89ab-4cde-8f01-23456789abcd"
    (left / "00002" / "words").mkdir(parents=True)
    if content is not None:
        (left / "JOB").write_bytes(content)
    host.root.chmod(0o700)
    job = host.job("a")
    host.epoch(job)
    assert left.exists()
    for path in left.glob("JOB"):
        path.unlink()
    os.utime(left, (1, 1))
    host.epoch(evolve(job, began_s=job.began_s + SHORTLY_S))
    assert not left.exists()


def test_foreign_directories_are_kept(host: Host) -> None:
    host.root.mkdir(mode=0o700)
    strange = host.root / "photos"
    strange.mkdir()
    os.utime(strange, (1, 1))
    (host.root / "notes").touch()
    host.epoch(host.job("a"))
    assert strange.exists()
    assert (host.root / "notes").exists()


def test_other_jobs_are_cleaned_up_after_a_start_and_periodically(host: Host) -> None:
    job, other = evolve(host.job("a"), began_s=time.time() - SHORTLY_S), host.job("other")
    host.epoch(job)
    host.epoch(evolve(other, began_s=0.0))
    remove(host)
    host.epoch(job)
    assert other.job_id in host.left()
    long_ago = time.time() - SWEEP_INTERVAL_S - SHORTLY_S
    os.utime(host.root / "swept", (long_ago, long_ago))
    host.epoch(evolve(job, began_s=0.0))
    assert other.job_id not in host.left()


def test_a_cleaned_up_host_is_reported_each_time(host: Host) -> None:
    job = evolve(host.job("a"), began_s=0.0)
    host.epoch(job)
    swept = host.root / "swept"
    long_ago = time.time() - 2 * SWEEP_INTERVAL_S
    os.utime(swept, (long_ago, long_ago))
    host.epoch(job)
    assert swept.stat().st_mtime > time.time() - SWEEP_INTERVAL_S


def test_a_host_is_cleaned_up_by_one_process_at_a_time(host: Host) -> None:
    other, job = host.job("other"), evolve(host.job("a"), began_s=0.0)
    host.epoch(other)
    host.age(other, RETENTION_S + SHORTLY_S)
    swept = host.root / "swept"
    long_ago = time.time() - 2 * SWEEP_INTERVAL_S
    os.utime(swept, (long_ago, long_ago))
    with open(swept, "rb") as looked_over:
        # Every process that checks the directories locks this file, even to read it.
        fcntl.flock(looked_over, fcntl.LOCK_SH)
        host.epoch(job)
        assert other.job_id in host.left()
    host.epoch(job)
    assert other.job_id not in host.left()


def test_a_job_keeps_its_own_state_when_its_job_directory_is_not_visible(host: Host) -> None:
    job = host.job("other")
    host.epoch(job)
    remove(host)
    with job.open(2):
        assert (host.root / job.job_id / "JOB").exists()
        assert host.left() == {job.job_id: {"00002"}}


def test_undeletable_directories_stay_recorded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    remove(host)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        host.epoch(job)
    assert (host.root / other.job_id / "JOB").exists()
    host.epoch(host.job("a"))
    assert other.job_id not in host.left()


def test_a_lock_file_of_a_dead_driver_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "driver.lock")
    assert not DriverLock.is_held(path)
    lock = DriverLock(path)
    assert DriverLock.is_held(path)
    lock.close()
    assert not DriverLock.is_held(path)


def test_the_root_may_name_environment_variables(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISKS", f"{host.root},{host.directory / 'second'}")
    for path in ("$DISKS/state", "${DISKS}/state"):
        with evolve(host.job("a"), path=path).open(2) as directory:
            assert Path(directory).parents[1] == host.root / "state"
    monkeypatch.delenv("DISKS")
    with (
        pytest.raises(JobDefinitionError, match=r"'\$DISKS/state'.*variable DISKS.*spark\.executorEnv\.DISKS"),
        evolve(host.job("a"), path="$DISKS/state").open(2),
    ):
        pass


@pytest.mark.parametrize("is_given", [False, True])
def test_a_root_that_is_a_link_is_rejected_by_name(host: Host, is_given: bool) -> None:
    (host.directory / "elsewhere").mkdir(mode=0o700)
    host.root.symlink_to(host.directory / "elsewhere")
    job = evolve(host.job("a"), is_given=is_given)
    for context in (job.open(2), job.scratch()):
        with pytest.raises(PrivateDirectoryError, match=f"{host.root}: it is a link"), context:
            pass
    assert list((host.directory / "elsewhere").iterdir()) == []


def test_a_root_named_by_the_user_keeps_its_mode_and_job_directories_are_private(host: Host) -> None:
    host.root.mkdir()
    host.root.chmod(0o755)
    job = host.job("a")
    host.epoch(job)
    assert host.root.stat().st_mode & 0o777 == 0o755
    assert (host.root / job.job_id).stat().st_mode & 0o777 == 0o700
    host.epoch(evolve(job, is_given=False))
    assert host.root.stat().st_mode & 0o777 == 0o700


def test_the_export_of_a_savepoint_uses_the_root_and_leaves_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = BackendHarness(str(host.directory / "harness"))
    backend = harness.open(state_backend("rocksdb"))
    state = backend.get_state(ValueStateDescriptor("count", int))
    harness.at(backend, 1)
    state.update(1)
    handle = harness.snapshot(backend).handle
    monkeypatch.setattr(tempfile, "tempdir", str(host.directory / "no temporary directory"))
    job = host.job("a")
    host.epoch(job)
    target = CheckpointFileSystem.from_uri(host.directory / "savepoint")
    task = ExportTask("words", 0, harness.max_parallelism, SubtaskState(handle), harness.file_system, target, {}, 0)
    with pytest.raises(FileNotFoundError):
        task.run()
    assert evolve(task, scratch_space=job).run().rows == {"count": 1}
    assert host.left() == {job.job_id: {"00002"}}
    harness.close()


def test_with_a_job_directory_on_another_host_age_decides(host: Host) -> None:
    remote, job = evolve(host.job("other"), job_directory="mock:///other"), host.job("a")
    host.epoch(remote)
    host.epoch(job)
    assert set(host.left()) == {job.job_id, remote.job_id}
    host.age(remote, RETENTION_S + SHORTLY_S)
    host.epoch(evolve(job, began_s=time.time() + 2 * SHORTLY_S))
    assert set(host.left()) == {job.job_id}


@pytest.mark.parametrize("step", ["use of the job", "lock of the parallelism"])
def test_a_job_that_restarts_during_its_clean_up_can_start(
    host: Host, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    remove(host)
    module, name, path = {
        "use of the job": (os, "utime", host.root / other.job_id / "JOB"),
        "lock of the parallelism": (local_state_root, "lock_directory", host.root / other.job_id / "00002"),
    }[step]
    real = getattr(module, name)

    def interrupted(of: str, *arguments: Any, **options: Any) -> Any:
        if of == str(path):
            monkeypatch.undo()
            host.epoch(job)
        return real(of, *arguments, **options)

    monkeypatch.setattr(module, name, interrupted)
    with other.open(2) as directory:
        assert getattr(module, name) is real
        assert json.loads((host.root / other.job_id / "JOB").read_bytes()) == {"job_directory": other.job_directory}
        assert os.listdir(directory) == ["lock"]
        assert host.left() == {job.job_id: {"00002"}, other.job_id: {"00002"}}


@pytest.mark.parametrize("step", ["lock_directory", "rmdir"])
def test_a_job_restarts_at_the_moment_of_its_clean_up(host: Host, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    host.age(other, 2 * RETENTION_S)
    path = host.root / other.job_id
    module = local_state_root if step == "lock_directory" else os
    real = getattr(module, step)

    def late(of: str, *arguments: Any, **options: Any) -> Any:
        if of == str(path):
            monkeypatch.undo()
            host.epoch(other)
        return real(of, *arguments, **options)

    monkeypatch.setattr(module, step, late)
    host.epoch(job)
    assert getattr(module, step) is real
    assert host.left()[other.job_id] == {"00002"}
    assert (path / "JOB").exists()


def test_concurrent_removals_by_two_tasks_both_succeed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    job = host.job("a")
    host.epoch(job, 3)
    real = os.rename

    def late(source: str, target: str) -> None:
        monkeypatch.undo()
        shutil.rmtree(source)
        real(source, target)

    monkeypatch.setattr(os, "rename", late)
    host.epoch(job, 2)
    assert os.rename is real
    assert host.left() == {job.job_id: {"00002"}}


def test_clean_up_leaks_no_descriptor(host: Host) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other, 3)
    host.epoch(job, 3)
    with other.open(3):
        host.epoch(job, 4)
    host.age(other, 2 * RETENTION_S)
    host.epoch(evolve(job, began_s=time.time() + 2 * SHORTLY_S), 5)
    assert set(host.left()) == {job.job_id}
    assert not descriptors_below(host.directory)


def test_a_forked_process_removes_nothing_of_its_parent(host: Host) -> None:
    context = host.job("a").scratch()
    directory = Path(context.__enter__())
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            context.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    assert directory.is_dir()
    context.__exit__(None, None, None)
    assert not directory.exists()
