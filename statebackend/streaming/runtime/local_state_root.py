"""The local state of the subtasks of a job on the disk of a host, and its cleanup.

    <root>/                             set by the program, or <temporary directory>/statebackend-<user id>
    <root>/swept                        modified at the last check for state of other jobs
    <root>/<job id>/JOB                 JSON: job_directory; modified at the last start of a task of the job
    <root>/<job id>/lock                shared by starting tasks, exclusive for cleanup
    <root>/<job id>/<parallelism>/      lock, shared by all tasks of the job with that parallelism
        <operator uid>/<subtask index>/     files of the backend
    <root>/<job id>/scratch-<32 hex>/   lock, held by the export of a savepoint

Checkpoints can restore everything here, so an early deletion costs time but loses no state. A starting task removes:

* unlocked directories of its own job: other parallelisms, and scratch directories of exports.
* unlocked directories of other jobs, if the job directory is deleted or belongs to another job, or if no task of the
  job has started here for `RETENTION_S` and no driver holds the lock of the job directory. This runs after the start
  of a job, and every hour.

So a job that restarts with the same parallelism within `RETENTION_S` finds its local state. All directories are private
(`statebackend.state.private_directory`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.fs.file_lock import FileLock, open_lock_file
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import is_uri, without_secrets
from statebackend.checkpoint.invariants import UUID_PATTERN, checked_segment
from statebackend.checkpoint.store.driver_lock import LOCK_FILE_NAME, DriverLock
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.state.private_directory import (
    LOCK_NAME,
    PrivateDirectoryError,
    lock_directory,
    make_given_directory,
    make_private_directory,
    private_opener,
)
from statebackend.streaming.errors import JobDefinitionError

RETENTION_S: Final = 3 * 24 * 3600.0
"""Seconds until unused local state of another job is removed while its job directory exists."""

SWEEP_INTERVAL_S: Final = 3600.0
"""Seconds between two checks of a host for state that other jobs left."""

_JOB_FILE: Final = "JOB"
_SWEPT_FILE: Final = "swept"
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


@frozen(kw_only=True)
class LocalStateRoot:
    """The root directory of local state; pickled for the tasks of a run.

    ``path`` may contain environment variables of the worker, ``$NAME`` or ``${NAME}``. If a value contains commas, its
    first part is used. ``is_given`` is True if the user set the path. ``job_directory`` is a path or URI. ``began_s``
    is the start of the run, in seconds since 1970.
    """

    path: str
    is_given: bool
    job_id: str
    job_directory: str
    began_s: float

    @contextlib.contextmanager
    def open(self, parallelism: int) -> Iterator[str]:
        """Lock and return the directory of the job's subtasks at a parallelism, and clean up others.

        Raises `PrivateDirectoryError` if a directory belongs or may belong to another user, `JobDefinitionError` for an
        environment variable that is not set.
        """
        name = f"{parallelism:05d}"
        with self._group(name) as (directory, _):
            _remove_groups(os.path.dirname(directory), besides=name)
            self._sweep(os.path.dirname(os.path.dirname(directory)))
            yield directory

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """Return a new directory on the same disk, which is removed after the context. Raises as `open`."""
        with self._group(f"scratch-{uuid.uuid4().hex}") as (directory, lock):
            try:
                yield directory
            finally:
                # A child that was forked within the context does not own it.
                if lock.is_held:
                    shutil.rmtree(directory, ignore_errors=True)

    @contextlib.contextmanager
    def _group(self, name: str) -> Iterator[tuple[str, FileLock]]:
        root = expanded(self.path)
        (make_given_directory if self.is_given else make_private_directory)(root)
        job = os.path.join(root, checked_segment(self.job_id))
        directory = os.path.join(job, checked_segment(name))
        # This lock protects the directory from other jobs until a directory inside it is locked.
        begins = lock_directory(job, is_shared=True)
        assert begins is not None
        try:
            self._note_use(job)
            lock = lock_directory(directory, is_shared=True)
            assert lock is not None
        finally:
            begins.release()
        try:
            yield directory, lock
        finally:
            lock.release()

    def _note_use(self, job: str) -> None:
        path = os.path.join(job, _JOB_FILE)
        try:
            os.utime(path)
        except FileNotFoundError:
            temporary = f"{path}-{uuid.uuid4().hex}"
            with open(temporary, "w", encoding="utf-8", opener=private_opener) as file:
                json.dump({"job_directory": self.job_directory}, file)
            os.replace(temporary, path)

    def _sweep(self, root: str) -> None:
        """Remove unused state of other jobs, unless another process did so during this run or is doing it now."""
        path = os.path.join(root, _SWEPT_FILE)
        due_s = max(self.began_s, time.time() - SWEEP_INTERVAL_S)
        if _modified_s(path) >= due_s:
            return
        descriptor = open_lock_file(path)
        try:
            lock = FileLock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            for name in os.listdir(root):
                if name != self.job_id and UUID_PATTERN.fullmatch(name):
                    _remove_left_job(os.path.join(root, name), name)
            os.utime(descriptor)
        finally:
            lock.release()


def given_local_root(path: str) -> str:
    """Return the user's path as an absolute path. A path that starts with an environment variable is not changed.

    Raises `JobDefinitionError` for a URI.
    """
    if is_uri(path):
        raise JobDefinitionError(
            f"local_state_directory is {without_secrets(path)!r}; give a path on the local disk of the executors"
        )
    return path if path.startswith("$") else os.path.abspath(os.path.expanduser(path))


def expanded(path: str) -> str:
    """Return a path with the values of its environment variables. Raises `JobDefinitionError` if one is not set."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = os.environ.get(name, "").partition(",")[0]
        if not found:
            raise JobDefinitionError(
                f"local_state_directory is {path!r}, and there is no environment variable {name} where the task runs: "
                f"set it for executors with spark.executorEnv.{name}, or name a directory"
            )
        return found

    return _VARIABLE.sub(value, path)


def _remove_left_job(job: str, job_id: str) -> None:
    if not _is_left(job, job_id) or not _remove_groups(job):
        return
    try:
        lock = lock_directory(job)
    except PrivateDirectoryError:
        return
    if lock is None:
        # A task is starting here now.
        return
    try:
        with os.scandir(job) as found:
            entries = list(found)
        if any(entry.is_dir(follow_symlinks=False) for entry in entries):
            # Another run has started since, and needs the file that names its job.
            return
        # Remove the lock file last. A task that finds none creates the directory and the lock file again.
        for entry in sorted(entries, key=lambda entry: entry.name == LOCK_NAME):
            os.unlink(entry.path)
        # The directory stays if a task has created a lock file in it by now.
        with contextlib.suppress(OSError):
            os.rmdir(job)
    finally:
        lock.release()


def _is_left(job: str, job_id: str) -> bool:
    job_directory = _job_directory(job)
    if job_directory is not None and _is_gone(job_directory, job_id):
        return True
    used_s = _modified_s(os.path.join(job, _JOB_FILE)) or _modified_s(job)
    if used_s >= time.time() - RETENTION_S:
        return False
    lock = None if job_directory is None else job_directory.local_path(LOCK_FILE_NAME)
    return lock is None or not DriverLock.is_held(lock)


def _remove_groups(job: str, besides: str = "") -> bool:
    """Remove the unlocked directories of a job, except ``besides``. Returns whether all others were removed."""
    with os.scandir(job) as found:
        names = [entry.name for entry in found if entry.name != besides and entry.is_dir(follow_symlinks=False)]
    return sum(not _remove_group(job, name) for name in names) == 0


def _remove_group(job: str, name: str) -> bool:
    directory, removed = os.path.join(job, name), os.path.join(job, f"removed-{uuid.uuid4().hex}")
    try:
        lock = lock_directory(directory)
    except PrivateDirectoryError:
        return False
    if lock is None:
        return False
    # Rename first: a task that waits for the lock creates the directory again, without waiting for the deletion.
    try:
        # Another task may have removed the directory and its lock file.
        with contextlib.suppress(FileNotFoundError):
            os.rename(directory, removed)
    finally:
        lock.release()
    shutil.rmtree(removed, ignore_errors=True)
    return not os.path.lexists(removed)


def _job_directory(job: str) -> CheckpointFileSystem | None:
    """The job directory that this local state belongs to; None if it is unknown."""
    try:
        with open(os.path.join(job, _JOB_FILE), encoding="utf-8") as file:
            return CheckpointFileSystem.from_uri(str(json.load(file)["job_directory"]))
    except (CheckpointError, OSError, ValueError, KeyError, TypeError):
        return None


def _is_gone(job_directory: CheckpointFileSystem, job_id: str) -> bool:
    """Whether a job directory on a local disk is empty, absent, or another job's. False if this cannot be checked."""
    if job_directory.local_path() is None:
        return False
    try:
        identity = JobDirectory.inspect(job_directory.uri)
    except (CheckpointError, OSError):
        return False
    return identity is None or identity.job_id != job_id


def _modified_s(path: str) -> float:
    """Return the modification time of a file in seconds since 1970, or 0 if it does not exist."""
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:
        return 0.0
