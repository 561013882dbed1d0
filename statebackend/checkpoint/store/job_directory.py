"""The job directory: the identity of one job, its lock, and the root of its files.

    job.json        the job that owns the directory; written once, never changed
    origin.json     the savepoint that the job started from; absent if there is none
    driver.lock     held by the one driver that may write, unless leadership is elsewhere
    high-availability.json    where leadership and pointers are, see `job_files`
    checkpoints/ shared/ set-aside/    see `completed_checkpoint_store`

A directory is created for a job, and opened by the same job only; any other job is rejected before a file changes. A
directory with files but without `job.json` is not a job directory. Each opening is a *run* with its own id, so that
messages of earlier runs are recognised and ignored.

`origin.json` is written before the first epoch. If the job fails before its first checkpoint, the next start continues
from this savepoint, whether the program names it again or not.

`job.json` and `origin.json` are checksummed JSON with the fields of `JobIdentity` and `JobOrigin`.
"""

from __future__ import annotations

import time
import uuid
from types import TracebackType
from typing import Any

from attrs import asdict, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import JobDirectoryMismatchError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, read_record
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import Leadership, LeadershipProvider
from statebackend.checkpoint.invariants import check_identifier, check_integer, check_uuid, require
from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.checkpoint.state_handles import MAX_MAX_PARALLELISM
from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME
from statebackend.checkpoint.store.driver_lock import LOCK_FILE_NAME, DriverLockFile
from statebackend.checkpoint.store.job_files import HIGH_AVAILABILITY_FILE_NAME, check_stored_in

ORIGIN_FILE_NAME = "origin.json"

_ORIGIN_FORMAT_VERSION = 1
_MAX_INTEGER = (1 << 63) - 1
_MAX_URI_LENGTH = 8192


@frozen(kw_only=True)
class JobOrigin:
    """The savepoint that a job started from.

    Attributes:
        savepoint_uri: Its location at that time, as `CheckpointFileSystem.uri`.
        savepoint_job_id: Job id in its metadata. With the next two it identifies the savepoint.
        savepoint_id: Checkpoint id in its metadata.
        savepoint_timestamp_ms: Timestamp in its metadata, since the Unix epoch.
        with_source_progress: Whether the job continues at the source positions of the savepoint.
        restarted_sources: Uids of sources that the job reads from their beginning nevertheless.
    """

    savepoint_uri: str
    savepoint_job_id: str
    savepoint_id: int
    savepoint_timestamp_ms: int
    with_source_progress: bool
    restarted_sources: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        require(
            isinstance(self.savepoint_uri, str) and 0 < len(self.savepoint_uri) <= _MAX_URI_LENGTH,
            f"savepoint_uri must be a string of 1 to {_MAX_URI_LENGTH} characters, not "
            f"{format_value(self.savepoint_uri)}",
        )
        check_identifier("savepoint_job_id", self.savepoint_job_id)
        check_integer("savepoint_id", self.savepoint_id, 0, _MAX_INTEGER)
        check_integer("savepoint_timestamp_ms", self.savepoint_timestamp_ms, 0, _MAX_INTEGER)
        require(type(self.with_source_progress) is bool, "with_source_progress must be a bool")
        require(type(self.restarted_sources) is tuple, "restarted_sources must be a tuple of uids")
        for uid in self.restarted_sources:
            check_identifier("a uid in restarted_sources", uid)

    @property
    def savepoint_identity(self) -> SavepointIdentity:
        """The identity of the savepoint, wherever it is."""
        return SavepointIdentity(self.savepoint_job_id, self.savepoint_id, self.savepoint_timestamp_ms)


def write_origin(file_system: CheckpointFileSystem, origin: JobOrigin) -> None:
    """Write the origin of the job directory at the root of `file_system`, durably."""
    file_system.write_file(ORIGIN_FILE_NAME, checksummed_json(asdict(origin), _ORIGIN_FORMAT_VERSION))


def read_origin(file_system: CheckpointFileSystem) -> JobOrigin | None:
    """The origin of the job directory at the root of `file_system`. Raises `CorruptJobIdentityError`."""

    def made(restarted_sources: list[str], **fields: Any) -> JobOrigin:
        return JobOrigin(restarted_sources=tuple(restarted_sources), **fields)

    return read_record(file_system, ORIGIN_FILE_NAME, _ORIGIN_FORMAT_VERSION, made)


JOB_FILE_NAME = "job.json"
IMPORTED_DIRECTORY = "imported"
"""A savepoint that the start of a new job has made of another engine's state. It may be there before the job is."""

_FORMAT_VERSION = 1


@frozen
class JobIdentity:
    """The job of a job directory. `job_id` is a random UUID, `created_ms` counts from the Unix epoch."""

    job_id: str
    job_name: str
    max_parallelism: int
    created_ms: int

    def __attrs_post_init__(self) -> None:
        check_uuid("job_id", self.job_id)
        check_identifier("job_name", self.job_name)
        check_integer("max_parallelism", self.max_parallelism, 1, MAX_MAX_PARALLELISM)
        check_integer("created_ms", self.created_ms, 0, (1 << 63) - 1)


class JobDirectory:
    """An open job directory, held by its lock until `close` or the end of the process.

    `file_system` is rooted at the directory, `identity` is its job, `run_id` is new in each opening. The store of its
    checkpoints checks `leadership` before it completes one.
    """

    def __init__(self, file_system: CheckpointFileSystem, identity: JobIdentity, leadership: Leadership) -> None:
        self.file_system = file_system
        self.identity = identity
        self.run_id = uuid.uuid4().hex
        self.leadership = leadership

    @staticmethod
    def inspect(uri: str) -> JobIdentity | None:
        """Return the job of a directory, None if it is empty or absent. Changes nothing and needs no lock.

        Raises `CorruptJobIdentityError`, or `JobDirectoryMismatchError` if it holds other files.
        """
        return _read_identity(CheckpointFileSystem.from_uri(uri))

    @staticmethod
    def check(uri: str, job_name: str, max_parallelism: int) -> None:
        """Raise `JobDirectoryMismatchError` as `open` would. Changes nothing and needs no lock."""
        file_system = CheckpointFileSystem.from_uri(uri)
        _check_same_job(_read_identity(file_system), _new_identity(job_name, max_parallelism, None), file_system)

    @classmethod
    def open(
        cls,
        uri: str,
        job_name: str,
        max_parallelism: int,
        *,
        lock_path: str | None = None,
        leadership: LeadershipProvider | None = None,
        stored_in: str | None = None,
        now_ms: int | None = None,
        origin: JobOrigin | None = None,
    ) -> JobDirectory:
        """Open the job's directory, or create it.

        Args:
            uri: The directory.
            job_name: Name of the job; must be that of an existing directory.
            max_parallelism: Number of key groups; must be that of an existing directory.
            lock_path: The lock file, see `DriverLockFile`; used without `leadership`.
            leadership: How the driver becomes the leader; by default the lock file.
            stored_in: Where the pointers to checkpoints are; None for the directory. See `job_files`.
            now_ms: Creation time of a new directory.
            origin: Savepoint that a new directory starts from. It is written before the directory belongs to the job,
                so a crash never leaves a job without its origin.

        Raises:
            JobDirectoryMismatchError: The directory belongs to another job; nothing is changed.
            CorruptJobIdentityError: A file of the directory is damaged.
            JobDirectoryLockedError: Another driver leads the job; the message names it.
        """
        file_system = CheckpointFileSystem.from_uri(uri)
        wanted = _new_identity(job_name, max_parallelism, now_ms)
        _check_same_job(_read_identity(file_system), wanted, file_system)
        check_stored_in(file_system, stored_in)
        led = (leadership or DriverLockFile(lock_path)).lead(file_system, job_name)
        try:
            # Another driver may have created and led the job since the first check.
            identity = _read_identity(file_system)
            _check_same_job(identity, wanted, file_system)
            check_stored_in(file_system, stored_in)
            if identity is None:
                led.check()
                if origin is not None:
                    write_origin(file_system, origin)
                file_system.write_file(JOB_FILE_NAME, checksummed_json(asdict(wanted), _FORMAT_VERSION))
                identity = wanted
            return cls(file_system, identity, led)
        except BaseException:
            led.close()
            raise

    def close(self) -> None:
        """Release the directory. May be called again."""
        self.leadership.close()

    def __enter__(self) -> JobDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _new_identity(job_name: str, max_parallelism: int, now_ms: int | None) -> JobIdentity:
    return JobIdentity(
        job_id=str(uuid.uuid4()),
        job_name=job_name,
        max_parallelism=max_parallelism,
        created_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
    )


def _check_same_job(found: JobIdentity | None, wanted: JobIdentity, file_system: CheckpointFileSystem) -> None:
    if found is None:
        return
    if found.job_name != wanted.job_name:
        raise JobDirectoryMismatchError(
            f"{file_system.uri} belongs to job {found.job_name!r}, not to {wanted.job_name!r}. Use another "
            "job directory, or the job's previous name."
        )
    if found.max_parallelism != wanted.max_parallelism:
        raise JobDirectoryMismatchError(
            f"{file_system.uri} was laid out for max_parallelism {found.max_parallelism}, not "
            f"{wanted.max_parallelism}; it cannot change, since it decides which key group a key belongs to. "
            f"Start job {wanted.job_name!r} with max_parallelism={found.max_parallelism}."
        )


def _read_identity(file_system: CheckpointFileSystem) -> JobIdentity | None:
    identity = read_record(file_system, JOB_FILE_NAME, _FORMAT_VERSION, JobIdentity)
    if identity is not None:
        return identity
    known = (LOCK_FILE_NAME, LEASE_FILE_NAME, ORIGIN_FILE_NAME, HIGH_AVAILABILITY_FILE_NAME)
    imported = f"{IMPORTED_DIRECTORY}/"
    unknown = [path for path in file_system.list_files() if path not in known and not path.startswith(imported)]
    if unknown:
        raise JobDirectoryMismatchError(
            f"{file_system.uri} has no {JOB_FILE_NAME} but is not empty (it holds {unknown[0]!r}), so it "
            "is not a job directory. Use an empty or a new directory."
        )
    return None
