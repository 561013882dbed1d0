"""An exclusive lock on a job directory: `driver.lock`, held by at most one driver process. A `Leadership`.

The kernel (`flock`) releases the lock when the holder closes it or dies, so nothing needs cleanup or a timeout. The
content of the file (one line of JSON: pid, host, start time) is only for the error message of a second driver. The file
is never removed, because two processes could then lock two files of one name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time

from attrs import frozen

from statebackend.checkpoint.errors import JobDirectoryError, JobDirectoryLockedError, LeadershipLostError, fix_of
from statebackend.checkpoint.fs.file_lock import FileLock, open_lock_file
from statebackend.checkpoint.fs.file_modes import take_file_mode
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import LossListener

__all__ = ["LOCK_FILE_NAME", "DriverLock", "DriverLockFile"]

LOCK_FILE_NAME = "driver.lock"

_MAX_HOLDER_BYTES = 4096


class DriverLock:
    """The lock on `path`, held from construction until `close` or the end of the process.

    Raises `JobDirectoryLockedError` naming the holder when another driver has it, `JobDirectoryError`
    when the file system has no locks.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock: FileLock | None = None
        try:
            descriptor = open_lock_file(path)
        except OSError as error:
            fix = fix_of(str(error))
            raise JobDirectoryError(f"cannot open the lock file {path}: {error}{f'. {fix}' if fix else ''}") from error
        try:
            lock = FileLock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(path)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise JobDirectoryLockedError(
                    f"{os.path.dirname(path)} is in use by another driver: {holder}. Stop that driver, or "
                    "use another job directory; the lock ends with the process that holds it."
                ) from None
            raise _not_locked(path, error) from error
        try:
            self._write_holder(descriptor)
            take_file_mode(descriptor)
        except OSError as error:
            lock.release()
            raise _not_locked(path, error) from error
        self._lock = lock

    @staticmethod
    def is_held(path: str) -> bool:
        """Whether a process holds the lock now. A driver that locks at the same moment may be rejected."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            FileLock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB).release()
        except OSError:
            return True
        return False

    def check(self) -> None:
        """Raise `LeadershipLostError` if the lock was released. A live process cannot lose it otherwise."""
        if self._lock is None or not self._lock.is_held:
            raise LeadershipLostError(
                f"this driver has released {self.path} and completes no more checkpoints; start the job again"
            )

    def at_loss(self, listener: LossListener) -> None:
        """Never calls the listener: the lock ends with the process, or by `close`."""

    def close(self) -> None:
        """Release the lock. May be called again."""
        if self._lock is not None:
            self._lock.release()

    @staticmethod
    def _write_holder(descriptor: int) -> None:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(holder) + "\n").encode(), 0)


@frozen
class DriverLockFile:
    """Leadership by a lock file, in the job directory or at `lock_path`; a `LeadershipProvider` that never waits.

    If the job directory is not on a local disk, `lock_path` is required: a local file that all drivers of the job use.
    """

    lock_path: str | None = None

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> DriverLock:
        """Take the lock. Raises as `DriverLock`, and `JobDirectoryError` where no lock file is known."""
        return DriverLock(self.lock_path or _default_lock_path(file_system))


def _default_lock_path(file_system: CheckpointFileSystem) -> str:
    if file_system.local_path() is None:
        raise JobDirectoryError(
            f"{file_system.uri} is not on a local disk and cannot be locked: pass lock_path, a local file "
            "that every driver of this job uses (DirectoryServices(DriverLockFile(lock_path)))."
        )
    file_system.make_root()
    path = file_system.local_path(LOCK_FILE_NAME)
    assert path is not None
    return path


def _read_holder(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            holder = json.loads(os.pread(descriptor, _MAX_HOLDER_BYTES, 0))
        finally:
            os.close(descriptor)
        return f"process {holder['pid']} on host {holder['host']}, since {holder['started']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "a process that has not written its name yet"


def _not_locked(path: str, error: OSError) -> JobDirectoryError:
    return JobDirectoryError(
        f"cannot lock {path}: {error}. The job directory needs a file system with flock; "
        "put it, or its lock file, on a local disk."
    )
