"""What lies on the local disk of a host for jobs: which directory, and what is removed when."""

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
        """The root as a new run of that job sees it; its job directory is made."""
        with JobDirectory.open(str(self.directory / name), name, 16) as job_directory:
            return LocalStateRoot(
                path=str(self.root),
                is_given=True,
                job_id=job_directory.identity.job_id,
                job_directory=job_directory.file_system.uri,
                began_s=time.time() + SHORTLY_S,
            )

    def epoch(self, job: LocalStateRoot, parallelism: int = 2) -> None:
        """What the tasks of an epoch do."""
        for subtask in range(parallelism):
            with job.open(parallelism) as directory:
                Path(directory, "words", f"{subtask:05d}").mkdir(parents=True, exist_ok=True)

    def left(self) -> dict[str, set[str]]:
        """The directories of each job, by the id of the job."""
        jobs = [job for job in self.root.iterdir() if job.is_dir()]
        return {job.name: {path.name for path in job.iterdir() if path.is_dir()} for job in jobs}

    def age(self, job: LocalStateRoot, seconds: float) -> None:
        """Lets the last use of a job's local state be that long ago."""
        then = time.time() - seconds
        os.utime(self.root / job.job_id / "JOB", (then, then))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_given_root_is_whole_but_for_variables_of_the_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert given_local_root("~/local") == str(tmp_path / "home" / "local")
    assert given_local_root("local/../state") == str(tmp_path / "state")
    assert given_local_root("$SPARK_LOCAL_DIRS/state") == "$SPARK_LOCAL_DIRS/state"


def test_a_job_finds_its_directory_again(host: Host) -> None:
    for _ in range(2):
        with host.job("a").open(2) as directory:
            Path(directory, "file").touch()
    with host.job("a").open(2) as directory:
        assert sorted(os.listdir(directory)) == ["file", "lock"]
    assert (host.root.stat().st_mode & 0o777, Path(directory).stat().st_mode & 0o777) == (0o700, 0o700)


def test_other_parallelisms_of_the_job_are_removed_and_those_in_use_are_not(host: Host) -> None:
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
    """The job directory is another job's."""
    remove(host)
    host.job("other")


@pytest.mark.parametrize("change", [remove, replace])
def test_what_a_job_without_job_directory_has_left_is_removed_at_the_next_start(
    host: Host, change: Callable[[Host], None]
) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    change(host)
    host.epoch(job)
    assert set(host.left()) == {job.job_id}


@pytest.mark.parametrize(("age_s", "is_kept"), [(RETENTION_S - SHORTLY_S, True), (RETENTION_S + SHORTLY_S, False)])
def test_what_another_job_has_left_is_kept_for_a_while(host: Host, age_s: float, is_kept: bool) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    host.age(other, age_s)
    host.epoch(job)
    assert set(host.left()) == {job.job_id, *([other.job_id] if is_kept else [])}


def test_what_a_live_job_has_is_kept_however_long_it_was_idle(host: Host) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    with JobDirectory.open(str(host.directory / "other"), "other", 16):
        host.age(other, 2 * RETENTION_S)
        host.epoch(job)
        assert set(host.left()) == {job.job_id, other.job_id}
    host.epoch(host.job("a"))
    host.epoch(evolve(job, began_s=time.time() + 2 * SHORTLY_S))
    assert set(host.left()) == {job.job_id}


def test_what_a_task_is_working_on_is_kept_and_removed_once_it_has_ended(host: Host) -> None:
    other, job = host.job("other"), host.job("a")
    with other.open(2):
        host.epoch(other, 3)
        host.age(other, 2 * RETENTION_S)
        host.epoch(job)
        assert host.left()[other.job_id] == {"00002"}
    host.epoch(evolve(job, began_s=time.time() + 2 * SHORTLY_S))
    assert set(host.left()) == {job.job_id}


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"job_directory": "nonsense://x"}', b"\xff"])
def test_where_the_job_directory_is_not_known_age_decides(host: Host, content: bytes | None) -> None:
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


def test_what_is_no_jobs_is_left_alone(host: Host) -> None:
    host.root.mkdir(mode=0o700)
    strange = host.root / "photos"
    strange.mkdir()
    os.utime(strange, (1, 1))
    (host.root / "notes").touch()
    host.epoch(host.job("a"))
    assert strange.exists()
    assert (host.root / "notes").exists()


def test_other_jobs_are_looked_at_after_a_start_and_from_time_to_time(host: Host) -> None:
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


def test_a_host_that_was_looked_over_says_so_each_time(host: Host) -> None:
    job = evolve(host.job("a"), began_s=0.0)
    host.epoch(job)
    swept = host.root / "swept"
    long_ago = time.time() - 2 * SWEEP_INTERVAL_S
    os.utime(swept, (long_ago, long_ago))
    host.epoch(job)
    assert swept.stat().st_mtime > time.time() - SWEEP_INTERVAL_S


def test_a_host_is_looked_over_by_one_at_a_time(host: Host) -> None:
    other, job = host.job("other"), evolve(host.job("a"), began_s=0.0)
    host.epoch(other)
    host.age(other, RETENTION_S + SHORTLY_S)
    swept = host.root / "swept"
    long_ago = time.time() - 2 * SWEEP_INTERVAL_S
    os.utime(swept, (long_ago, long_ago))
    with open(swept, "rb") as looked_over:
        # Whoever is at it holds the file, be it only to read.
        fcntl.flock(looked_over, fcntl.LOCK_SH)
        host.epoch(job)
        assert other.job_id in host.left()
    host.epoch(job)
    assert other.job_id not in host.left()


def test_a_job_does_not_clear_away_its_own_when_its_job_directory_cannot_be_seen(host: Host) -> None:
    job = host.job("other")
    host.epoch(job)
    remove(host)
    with job.open(2):
        assert (host.root / job.job_id / "JOB").exists()
        assert host.left() == {job.job_id: {"00002"}}


def test_what_could_not_be_removed_stays_known(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other)
    remove(host)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        host.epoch(job)
    assert (host.root / other.job_id / "JOB").exists()
    host.epoch(host.job("a"))
    assert other.job_id not in host.left()


def test_a_lock_file_of_a_driver_that_is_gone_is_not_held(tmp_path: Path) -> None:
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


def test_a_root_that_the_user_named_keeps_its_mode_and_the_jobs_in_it_are_private(host: Host) -> None:
    host.root.mkdir()
    host.root.chmod(0o755)
    job = host.job("a")
    host.epoch(job)
    assert host.root.stat().st_mode & 0o777 == 0o755
    assert (host.root / job.job_id).stat().st_mode & 0o777 == 0o700
    host.epoch(evolve(job, is_given=False))
    assert host.root.stat().st_mode & 0o777 == 0o700


def test_the_export_of_a_savepoint_works_in_the_root_and_leaves_nothing_there(
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


def test_where_the_job_directory_is_on_another_host_age_decides(host: Host) -> None:
    remote, job = evolve(host.job("other"), job_directory="mock:///other"), host.job("a")
    host.epoch(remote)
    host.epoch(job)
    assert set(host.left()) == {job.job_id, remote.job_id}
    host.age(remote, RETENTION_S + SHORTLY_S)
    host.epoch(evolve(job, began_s=time.time() + 2 * SHORTLY_S))
    assert set(host.left()) == {job.job_id}


@pytest.mark.parametrize("step", ["use of the job", "lock of the parallelism"])
def test_a_job_that_begins_again_while_what_it_has_left_is_removed_is_let_begin(
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
def test_a_job_begins_again_at_the_moment_in_which_what_it_has_left_is_removed(
    host: Host, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
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


def test_what_two_tasks_remove_at_once_is_gone_to_both(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_descriptor_is_left_open_by_what_is_cleared_up(host: Host) -> None:
    other, job = host.job("other"), host.job("a")
    host.epoch(other, 3)
    host.epoch(job, 3)
    with other.open(3):
        host.epoch(job, 4)
    host.age(other, 2 * RETENTION_S)
    host.epoch(evolve(job, began_s=time.time() + 2 * SHORTLY_S), 5)
    assert set(host.left()) == {job.job_id}
    assert not descriptors_below(host.directory)


def test_a_process_that_was_forked_off_removes_nothing_that_its_parent_works_with(host: Host) -> None:
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
