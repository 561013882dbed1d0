"""Locks on open files: which processes hold them after a fork."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from open_descriptors import descriptors_below

from statebackend.checkpoint.errors import JobDirectoryError
from statebackend.checkpoint.fs.file_lock import FileLock
from statebackend.checkpoint.store.driver_lock import DriverLock
from statebackend.state.heap.heap_state_backend import HostLedger
from statebackend.state.private_directory import scratch_directory
from statebackend.state.rocksdb.local_directory import LocalStateDirectory
from statebackend.streaming.runtime.local_state_root import LocalStateRoot


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def exclusive(path: Path) -> FileLock:
    return FileLock(opened(path), fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_free(path: Path) -> bool:
    try:
        exclusive(path).release()
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def local_state_directory(directory: Path) -> Iterator[Path]:
    held = LocalStateDirectory(str(directory / "subtask"))
    yield directory / "subtask" / "lock"
    held.close()


@contextlib.contextmanager
def ledger(directory: Path) -> Iterator[Path]:
    held = HostLedger(lambda: str(directory / "ledger"))
    with held.counted():
        held.note(1)
    [path] = (directory / "ledger" / "heap-copies").glob(f"{os.getpid()}-*")
    yield path
    held.close()


@contextlib.contextmanager
def counting_ledger(directory: Path) -> Iterator[Path]:
    with HostLedger(lambda: str(directory / "ledger")).counted():
        yield directory / "ledger" / "heap-copies" / "lock"


@contextlib.contextmanager
def driver(directory: Path) -> Iterator[Path]:
    held = DriverLock(str(directory / "driver.lock"))
    yield directory / "driver.lock"
    held.close()


@contextlib.contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    with scratch_directory(str(directory)) as path:
        # The directory is deleted with the context, so a second link keeps the lock file visible.
        os.link(f"{path}/lock", directory / "lock of scratch")
        yield directory / "lock of scratch"


@contextlib.contextmanager
def task_of_a_job(directory: Path) -> Iterator[Path]:
    root = LocalStateRoot(path=str(directory), is_given=True, job_id="a", job_directory="mock:///a", began_s=0.0)
    with root.open(2) as path:
        yield Path(path, "lock")


@contextlib.contextmanager
def export_of_a_savepoint(directory: Path) -> Iterator[Path]:
    root = LocalStateRoot(path=str(directory), is_given=True, job_id="a", job_directory="mock:///a", began_s=0.0)
    with root.scratch() as path:
        os.link(f"{path}/lock", directory / "lock of scratch")
        yield directory / "lock of scratch"


HOLDERS = [local_state_directory, ledger, counting_ledger, driver, scratch, task_of_a_job, export_of_a_savepoint]
Holder = Callable[[Path], contextlib.AbstractContextManager[Path]]


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_released_lock_is_free_before_a_forked_child_has_closed_its_copy(tmp_path: Path, holder: Holder) -> None:
    with holder(tmp_path) as path:
        # A forked child that has not run yet has such copies.
        copies = [os.dup(descriptor) for descriptor in descriptors_below(tmp_path)]
        assert copies
        assert not is_free(path)
    assert is_free(path)
    for copy in copies:
        os.close(copy)


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_child_has_no_copy_and_does_not_affect_the_lock_of_the_parent(tmp_path: Path, holder: Holder) -> None:
    held = holder(tmp_path)
    path = held.__enter__()
    links = path.stat().st_nlink
    child = os.fork()
    if child == 0:
        # The child has no open file of its parent, and its exit does not release the lock of its parent.
        left = descriptors_below(tmp_path)
        with contextlib.suppress(BaseException):
            held.__exit__(None, None, None)
        os._exit(len(left))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.stat().st_nlink == links
    assert not is_free(path)
    held.__exit__(None, None, None)
    assert is_free(path)


def test_a_lock_is_released_once_and_then_has_no_file(tmp_path: Path) -> None:
    lock = exclusive(tmp_path / "file")
    assert lock.is_held
    assert not is_free(tmp_path / "file")
    lock.release()
    other = exclusive(tmp_path / "file")
    lock.release()
    assert not lock.is_held
    assert not is_free(tmp_path / "file")
    with pytest.raises(ValueError, match="was released"):
        _ = lock.descriptor
    other.release()


def test_a_rejected_lock_leaves_no_descriptor(tmp_path: Path) -> None:
    held = exclusive(tmp_path / "file")
    with pytest.raises(BlockingIOError):
        exclusive(tmp_path / "file")
    assert list(descriptors_below(tmp_path)) == [held.descriptor]
    held.release()
    assert not descriptors_below(tmp_path)


def test_a_lock_file_of_another_user_is_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str, *_arguments: object, **_options: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(JobDirectoryError, match=r"driver\.lock.*Let this user read and write there; then start again"):
        DriverLock(str(tmp_path / "driver.lock"))
