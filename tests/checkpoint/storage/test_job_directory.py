from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import attrs
import pytest
from open_descriptors import descriptors_below

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CorruptJobIdentityError,
    InvariantViolationError,
    JobDirectory,
    JobDirectoryError,
    JobDirectoryLockedError,
    JobDirectoryMismatchError,
    JobIdentity,
    JobOrigin,
    StorageError,
)
from statebackend.checkpoint.errors import LeadershipLostError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json
from statebackend.checkpoint.store.driver_lock import DriverLock, DriverLockFile
from statebackend.checkpoint.store.job_directory import read_origin, write_origin
from statebackend.checkpoint.store.job_files import write_stored_in

HOLDER = """
import sys
from statebackend.checkpoint import JobDirectory
directory = JobDirectory.open(sys.argv[1], "flights", 128)
print("locked", flush=True)
sys.stdin.read()
"""


def start_holder(root) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout.readline() == "locked\n"
    return process


def test_a_new_directory_is_created_and_opened_again_by_the_same_job(tmp_path) -> None:
    root = tmp_path / "new" / "job"
    assert JobDirectory.inspect(str(root)) is None
    assert not root.exists()
    with JobDirectory.open(str(root), "flights", 128, now_ms=5) as first:
        assert JobDirectory.inspect(str(root)) == first.identity
        assert first.identity == JobIdentity(first.identity.job_id, "flights", 128, created_ms=5)
        assert first.file_system.local_path() == str(root)
    with JobDirectory.open(root.as_uri(), "flights", 128) as second:
        assert second.identity == first.identity
        assert second.run_id != first.run_id


def test_another_job_or_max_parallelism_is_rejected_and_nothing_is_touched(tmp_path) -> None:
    JobDirectory.open(str(tmp_path), "flights", 128).close()
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    with pytest.raises(JobDirectoryMismatchError, match=r"belongs to job 'flights', not to 'trains'"):
        JobDirectory.open(str(tmp_path), "trains", 128)
    with pytest.raises(JobDirectoryMismatchError, match=r"max_parallelism 128, not 256"):
        JobDirectory.open(str(tmp_path), "flights", 256)
    with pytest.raises(JobDirectoryMismatchError, match=r"max_parallelism 128, not 64"):
        JobDirectory.open(str(tmp_path), "flights", 64)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before


def test_a_foreign_directory_is_rejected_and_not_changed(tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for call in (
        lambda: JobDirectory.inspect(str(tmp_path)),
        lambda: JobDirectory.open(str(tmp_path), "flights", 1),
    ):
        with pytest.raises(JobDirectoryMismatchError, match=r"not empty \(it holds 'thesis.txt'\)"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_crash_before_the_identity_was_written_is_survived(tmp_path) -> None:
    (tmp_path / "driver.lock").write_text("")
    (tmp_path / ".tmp-0123").write_text("{")
    assert JobDirectory.inspect(str(tmp_path)) is None
    JobDirectory.open(str(tmp_path), "flights", 1).close()


@pytest.mark.parametrize("max_parallelism", [0, -1, 40_000, True, "8"])
def test_an_invalid_max_parallelism_is_rejected_before_anything_exists(tmp_path, max_parallelism) -> None:
    with pytest.raises(InvariantViolationError, match="max_parallelism"):
        JobDirectory.open(str(tmp_path / "job"), "flights", max_parallelism)
    assert not (tmp_path / "job").exists()


def test_every_change_of_the_identity_is_detected(tmp_path) -> None:
    JobDirectory.open(str(tmp_path), "flights", 128, now_ms=5).close()
    path = tmp_path / "job.json"
    good = path.read_bytes()
    identity = JobDirectory.inspect(str(tmp_path))
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        # One white-space character may change into another one, with the same meaning.
        with contextlib.suppress(CorruptJobIdentityError):
            assert JobDirectory.inspect(str(tmp_path)) == identity
    for length in range(len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(CorruptJobIdentityError, match=r"job\.json"):
            JobDirectory.inspect(str(tmp_path))
    path.write_bytes(b"[" * 60_000)
    with pytest.raises(CorruptJobIdentityError, match=r"job\.json"):
        JobDirectory.open(str(tmp_path), "flights", 128)


def test_a_newer_identity_is_reported_as_newer(tmp_path) -> None:
    JobDirectory.open(str(tmp_path), "flights", 128).close()
    (tmp_path / "job.json").write_bytes(checksummed_json({"more": "x"}, 2))
    with pytest.raises(CorruptJobIdentityError, match="newer version of statebackend: its format has version 2"):
        JobDirectory.inspect(str(tmp_path))


def test_the_second_of_two_processes_gets_the_name_of_the_holder(tmp_path) -> None:
    holder = start_holder(tmp_path)
    try:
        with pytest.raises(JobDirectoryLockedError, match=rf"process {holder.pid} on host .*, since 20\d\d-"):
            JobDirectory.open(str(tmp_path), "flights", 128)
        assert JobDirectory.inspect(str(tmp_path)) is not None
    finally:
        holder.communicate()
    JobDirectory.open(str(tmp_path), "flights", 128).close()


def test_a_killed_holder_frees_the_directory(tmp_path) -> None:
    holder = start_holder(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert holder.returncode == -signal.SIGKILL
    JobDirectory.open(str(tmp_path), "flights", 128).close()


def test_one_process_cannot_open_it_twice_and_closing_twice_is_allowed(tmp_path) -> None:
    first = JobDirectory.open(str(tmp_path), "flights", 128)
    with pytest.raises(JobDirectoryLockedError, match=f"process {os.getpid()} "):
        JobDirectory.open(str(tmp_path), "flights", 128)
    first.close()
    second = JobDirectory.open(str(tmp_path), "flights", 128)
    first.close()
    with pytest.raises(JobDirectoryLockedError):
        JobDirectory.open(str(tmp_path), "flights", 128)
    second.close()


def test_neither_a_forked_nor_a_started_child_keeps_the_lock(tmp_path) -> None:
    directory = JobDirectory.open(str(tmp_path), "flights", 128)
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    ready_read, ready_write = os.pipe()
    end_read, end_write = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.close(end_write)
        os.write(ready_write, b"x")
        os.read(end_read, 1)
        os._exit(0)
    try:
        os.close(end_read)
        assert os.read(ready_read, 1) == b"x"
        # The child has closed its copy, and the parent still holds the lock.
        with pytest.raises(JobDirectoryLockedError):
            JobDirectory.open(str(tmp_path), "flights", 128)
        directory.close()
        JobDirectory.open(str(tmp_path), "flights", 128).close()
    finally:
        os.close(end_write)
        os.waitpid(forked, 0)
        started.communicate(b"\n")
        os.close(ready_read)
        os.close(ready_write)


def test_a_store_without_locks_needs_a_lock_path(tmp_path) -> None:
    with pytest.raises(JobDirectoryError, match="lock_path"):
        JobDirectory.open("mock:///job", "flights", 128)
    with JobDirectory.open("mock:///job", "flights", 128, lock_path=str(tmp_path / "lock")) as directory:
        assert directory.file_system.exists("job.json")
        with pytest.raises(JobDirectoryLockedError):
            JobDirectory.open("mock:///job", "flights", 128, lock_path=str(tmp_path / "lock"))


def test_a_lock_file_that_cannot_be_opened_is_named_in_the_error(tmp_path) -> None:
    (tmp_path / "job.json").unlink(missing_ok=True)
    (tmp_path / "driver.lock").mkdir()
    with pytest.raises(JobDirectoryError, match=r"driver\.lock"):
        JobDirectory.open(str(tmp_path), "flights", 128)


def test_checking_detects_another_job_without_changing_the_directory(tmp_path) -> None:
    uri = str(tmp_path / "job")
    JobDirectory.check(uri, "ours", 16)
    assert not (tmp_path / "job").exists()
    JobDirectory.open(uri, "ours", 16).close()
    JobDirectory.check(uri, "ours", 16)
    with pytest.raises(JobDirectoryMismatchError, match="belongs to job 'ours'"):
        JobDirectory.check(uri, "theirs", 16)
    with pytest.raises(JobDirectoryMismatchError, match="max_parallelism 16"):
        JobDirectory.check(uri, "ours", 32)


ORIGIN = JobOrigin(
    savepoint_uri="/savepoints/1",
    savepoint_job_id="job",
    savepoint_id=7,
    savepoint_timestamp_ms=1_700_000_000_007,
    with_source_progress=True,
)


def test_a_new_directory_keeps_its_origin_and_another_opening_changes_nothing(tmp_path) -> None:
    uri = str(tmp_path / "job")
    assert read_origin(CheckpointFileSystem.from_uri(uri)) is None
    assert not (tmp_path / "job").exists()
    JobDirectory.open(uri, "flights", 128, origin=ORIGIN).close()
    assert read_origin(CheckpointFileSystem.from_uri(uri)) == ORIGIN
    JobDirectory.open(uri, "flights", 128, origin=attrs.evolve(ORIGIN, savepoint_id=8)).close()
    JobDirectory.open(uri, "flights", 128).close()
    assert read_origin(CheckpointFileSystem.from_uri(uri)) == ORIGIN


def test_a_crash_between_origin_and_identity_leaves_a_directory_with_its_origin(tmp_path, monkeypatch) -> None:
    uri = str(tmp_path)
    write_file = CheckpointFileSystem.write_file

    def crash(fs: CheckpointFileSystem, path: str, data: bytes) -> object:
        if path == "job.json":
            raise StorageError("power is gone")
        return write_file(fs, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFileSystem, "write_file", crash)
        with pytest.raises(StorageError, match="power is gone"):
            JobDirectory.open(uri, "flights", 128, origin=ORIGIN)
    assert JobDirectory.inspect(uri) is None
    assert read_origin(CheckpointFileSystem.from_uri(uri)) == ORIGIN
    # The failed attempt has released its lock too.
    JobDirectory.open(uri, "flights", 128).close()
    assert read_origin(CheckpointFileSystem.from_uri(uri)) == ORIGIN


def test_every_change_of_the_origin_is_detected(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    write_origin(fs, ORIGIN)
    path = tmp_path / "origin.json"
    good = path.read_bytes()
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with contextlib.suppress(CorruptJobIdentityError):
            assert read_origin(fs) == ORIGIN
    for wrong in (
        {"savepoint_uri": ""},
        {"savepoint_uri": "/" * 8193},
        {"savepoint_uri": 5},
        {"savepoint_id": -1},
        {"savepoint_job_id": ""},
        {"savepoint_timestamp_ms": -1},
        {"with_source_progress": 1},
        {"restarted_sources": [""]},
        {"restarted_sources": 5},
        {"another": 1},
    ):
        path.write_bytes(checksummed_json({**attrs.asdict(ORIGIN), **wrong}, 1))
        with pytest.raises(CorruptJobIdentityError, match=r"origin\.json is not valid"):
            read_origin(fs)
    longest = attrs.evolve(ORIGIN, savepoint_uri="/" * 8192, savepoint_timestamp_ms=0)
    write_origin(fs, longest)
    assert read_origin(fs) == longest
    path.write_bytes(checksummed_json({"more": "x"}, 3))
    with pytest.raises(CorruptJobIdentityError, match="newer version of statebackend: its format has version 3"):
        read_origin(fs)
    path.write_bytes(good + b" " * (64 << 10))
    with pytest.raises(CorruptJobIdentityError, match="too large"):
        read_origin(fs)


@attrs.frozen
class LeadershipAfter:
    """Leadership by a lock file that is released after an event, as for a standby driver."""

    happens: Callable[[], None]

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> DriverLock:
        self.happens()
        return DriverLockFile().lead(file_system, job_name)


@pytest.mark.parametrize(
    ("job_name", "max_parallelism", "match"), [("theirs", 128, "belongs to job"), ("flights", 64, "max_parallelism 64")]
)
def test_an_identity_that_appears_before_the_lock_is_taken_is_checked_and_the_lock_released(
    tmp_path, job_name, max_parallelism, match
) -> None:
    def somebody_was_faster() -> None:
        JobDirectory.open(str(tmp_path), job_name, max_parallelism).close()

    with pytest.raises(JobDirectoryMismatchError, match=match):
        JobDirectory.open(str(tmp_path), "flights", 128, leadership=LeadershipAfter(somebody_was_faster))
    assert JobDirectory.inspect(str(tmp_path)).job_name == job_name
    JobDirectory.open(str(tmp_path), job_name, max_parallelism).close()


def test_a_checkpoint_location_that_is_written_before_the_lock_is_taken_is_checked(tmp_path) -> None:
    def somebody_was_faster() -> None:
        with JobDirectory.open(str(tmp_path), "flights", 128) as directory:
            write_stored_in(directory.file_system, "elsewhere")

    with pytest.raises(JobDirectoryMismatchError, match="are recorded in elsewhere"):
        JobDirectory.open(str(tmp_path), "flights", 128, leadership=LeadershipAfter(somebody_was_faster))


@attrs.frozen
class LeadershipLostAtOnce:
    """Leadership that is lost before the first write."""

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> DriverLock:
        lock = DriverLockFile().lead(file_system, job_name)
        lock.close()
        return lock


def test_a_driver_that_lost_leadership_creates_no_job(tmp_path) -> None:
    with pytest.raises(LeadershipLostError):
        JobDirectory.open(str(tmp_path), "flights", 128, leadership=LeadershipLostAtOnce())
    assert JobDirectory.inspect(str(tmp_path)) is None


def test_the_same_job_that_appears_before_the_lock_is_taken_keeps_its_identity(tmp_path) -> None:
    theirs = []

    def somebody_was_faster() -> None:
        with JobDirectory.open(str(tmp_path), "flights", 128) as directory:
            theirs.append(directory.identity)

    with JobDirectory.open(str(tmp_path), "flights", 128, leadership=LeadershipAfter(somebody_was_faster)) as directory:
        assert [directory.identity] == theirs


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": ""},
        {"job_id": "job"},
        {"job_id": "/tmp/123e4567-e89b-12d3-a456-426614174000"},
        {"job_id": "../123e4567-e89b-12d3-a456-426614174000"},
        {"job_id": "123E4567-e89b-12d3-a456-426614174000"},
        {"job_id": "123e4567-e89b-12d3-a456-426614174000\n"},
        {"job_id": 7},
        {"job_name": ""},
        {"job_name": "x" * 1025},
        {"job_name": "\udc80"},
        {"job_name": 7},
        {"max_parallelism": 0},
        {"created_ms": -1},
    ],
)
def test_an_invalid_identity_is_rejected(changes) -> None:
    good = {
        "job_id": "123e4567-e89b-12d3-a456-426614174000",
        "job_name": "flights",
        "max_parallelism": 128,
        "created_ms": 5,
    }
    JobIdentity(**good)
    with pytest.raises(InvariantViolationError):
        JobIdentity(**{**good, **changes})


def test_a_probed_rejected_or_closed_lock_leaves_no_descriptor_open(tmp_path) -> None:
    path = str(tmp_path / "driver.lock")
    lock = DriverLock(path)
    assert len(descriptors_below(tmp_path)) == 1
    with pytest.raises(JobDirectoryLockedError):
        DriverLock(path)
    assert DriverLock.is_held(path)
    assert len(descriptors_below(tmp_path)) == 1
    lock.close()
    lock.close()
    assert not DriverLock.is_held(path)
    assert not descriptors_below(tmp_path)


def test_a_closed_lock_is_free_before_a_forked_child_has_closed_its_copy(tmp_path) -> None:
    path = str(tmp_path / "driver.lock")
    lock = DriverLock(path)
    [descriptor] = descriptors_below(tmp_path)
    # A forked child that has not run yet has such a copy.
    copy = os.dup(descriptor)
    lock.close()
    assert not DriverLock.is_held(path)
    DriverLock(path).close()
    os.close(copy)


def test_the_holder_name_replaces_a_longer_one_and_may_be_missing(tmp_path) -> None:
    path = tmp_path / "driver.lock"
    path.write_text("x" * 10_000)
    lock = DriverLock(str(path))
    assert sorted(json.loads(path.read_text())) == ["host", "pid", "started"]
    for content in ("", "{", "[]", '{"pid": 1}', "[" * 4096):
        path.write_text(content)
        with pytest.raises(JobDirectoryLockedError, match="a process that has not written its name yet"):
            DriverLock(str(path))
    lock.close()


def test_a_disk_without_locks_is_not_reported_as_another_driver(tmp_path, monkeypatch) -> None:
    def reject(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("statebackend.checkpoint.fs.file_lock.fcntl.flock", reject)
    with pytest.raises(JobDirectoryError, match="needs a file system with flock"):
        DriverLock(str(tmp_path / "driver.lock"))
    assert not descriptors_below(tmp_path)
