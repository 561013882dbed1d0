"""The job directory: the identity of one job, its lock, and the root of its files.

    job.json        the job that owns the directory; written once, never changed
    origin.json     the savepoint that the job started from; absent if there is none
    driver.lock     held by the one driver that may write, unless leadership is elsewhere
    high-availability.json    where leadership and pointers are, see `job_files`
    checkpoints/ shared/ set-aside/    see `completed_checkpoint_store`

A directory is created for a job, or opened by the same job; any other job is rejected before a file changes. A
directory with files but without `job.json` belongs to somebody else. Each opening is a *run* with its own id, which
fences off messages of earlier runs.

`origin.json` is written before the first epoch. If the job fails before its first checkpoint, the next start continues
from this savepoint, whether the program names it again or not.

`job.json` and `origin.json` are checksummed JSON with the fields of `JobIdentity` and `JobOrigin`.
"""

from __future__ import annotations

import time
import uuid
from types import TracebackType

from attrs import asdict, frozen

from snapshots.errors import shown
from statebackend.checkpoint.errors import InvariantViolationError, JobDirectoryMismatchError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, corrupt, read_checksummed_json
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import Leadership, LeadershipProvider
from statebackend.checkpoint.invariants import check_identifier, check_integer, check_uuid, require
from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.checkpoint.state_handles import MAX_MAX_PARALLELISM
from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME
from statebackend.checkpoint.store.driver_lock import LOCK_FILE_NAME, DriverLockFile
from statebackend.checkpoint.store.job_files import HIGH_AVAILABILITY_FILE_NAME, check_kept_in

__all__ = [
    "JOB_FILE_NAME",
    "ORIGIN_FILE_NAME",
    "JobDirectory",
    "JobIdentity",
    "JobOrigin",
    "read_origin",
    "write_origin",
]


ORIGIN_FILE_NAME = "origin.json"

_ORIGIN_FORMAT_VERSION = 2
_MAX_INTEGER = (1 << 63) - 1
_MAX_URI_LENGTH = 8192


@frozen(kw_only=True)
class JobOrigin:
    """The savepoint that a job started from.

    `savepoint_uri` is where it was then, as `CheckpointFileSystem.uri`. `savepoint_job_id`, `savepoint_id` and
    `savepoint_timestamp_ms` (since the Unix epoch) are those in its metadata, and tell it from all others.
    `with_source_progress` says whether the job reads on where the savepoint had read to, `begun_anew` which sources it
    reads from their beginning even so, by uid.
    """

    savepoint_uri: str
    savepoint_job_id: str
    savepoint_id: int
    savepoint_timestamp_ms: int
    with_source_progress: bool
    begun_anew: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        require(
            isinstance(self.savepoint_uri, str) and 0 < len(self.savepoint_uri) <= _MAX_URI_LENGTH,
            f"savepoint_uri must be a string of 1 to {_MAX_URI_LENGTH} characters, not {shown(self.savepoint_uri)}",
        )
        check_identifier("savepoint_job_id", self.savepoint_job_id)
        check_integer("savepoint_id", self.savepoint_id, 0, _MAX_INTEGER)
        check_integer("savepoint_timestamp_ms", self.savepoint_timestamp_ms, 0, _MAX_INTEGER)
        require(type(self.with_source_progress) is bool, "with_source_progress must be a bool")
        require(type(self.begun_anew) is tuple, "begun_anew must be a tuple of uids")
        for uid in self.begun_anew:
            check_identifier("a uid in begun_anew", uid)

    @property
    def savepoint_identity(self) -> SavepointIdentity:
        """The identity of the savepoint, wherever it is."""
        return SavepointIdentity(self.savepoint_job_id, self.savepoint_id, self.savepoint_timestamp_ms)


def write_origin(file_system: CheckpointFileSystem, origin: JobOrigin) -> None:
    """Make the job directory at the root of `file_system` remember its origin, durably."""
    file_system.write_file(ORIGIN_FILE_NAME, checksummed_json(asdict(origin), _ORIGIN_FORMAT_VERSION))


def read_origin(file_system: CheckpointFileSystem) -> JobOrigin | None:
    """The origin of the job directory at the root of `file_system`. Raises `CorruptJobIdentityError`."""
    if not file_system.exists(ORIGIN_FILE_NAME):
        return None
    content = read_checksummed_json(file_system, ORIGIN_FILE_NAME, _ORIGIN_FORMAT_VERSION)
    try:
        return JobOrigin(**{**content, "begun_anew": tuple(content["begun_anew"])})
    except (InvariantViolationError, KeyError, TypeError) as error:
        corrupt(file_system, ORIGIN_FILE_NAME, f"is not valid: {error}")


JOB_FILE_NAME = "job.json"

_FORMAT_VERSION = 1


@frozen
class JobIdentity:
    """Who a job directory belongs to. `job_id` is a random UUID, `created_ms` counts from the Unix epoch."""

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

    `file_system` is rooted at the directory, `identity` tells whose it is, `run_id` is new in each opening.
    `leadership` is what the store of its checkpoints asks before it completes one.
    """

    def __init__(self, file_system: CheckpointFileSystem, identity: JobIdentity, leadership: Leadership) -> None:
        self.file_system = file_system
        self.identity = identity
        self.run_id = uuid.uuid4().hex
        self.leadership = leadership

    @staticmethod
    def inspect(uri: str) -> JobIdentity | None:
        """Whose directory it is, None if it is empty or absent. Touches nothing and needs no lock.

        Raises `CorruptJobIdentityError`, or `JobDirectoryMismatchError` if it holds other files.
        """
        return _read_identity(CheckpointFileSystem.from_uri(uri))

    @staticmethod
    def check(uri: str, job_name: str, max_parallelism: int) -> None:
        """Raise `JobDirectoryMismatchError` as `open` would. Touches nothing and needs no lock."""
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
        kept_in: str | None = None,
        now_ms: int | None = None,
        origin: JobOrigin | None = None,
    ) -> JobDirectory:
        """Open the job's directory, or create it where there is none.

        `origin` is what a new directory starts from; one that exists keeps what it has. It is on the disk
        before the directory belongs to the job, so no crash leaves a job that has forgotten its beginning.
        `leadership` is how the driver comes to lead the job; by default it is the lock file, of which `lock_path` says
        where it is (see `DriverLockFile`). `kept_in` is where its checkpoints are noted, None for the directory; see
        `high_availability_file`. Raises `JobDirectoryMismatchError` (nothing is touched),
        `CorruptJobIdentityError`, and what the leadership raises: `JobDirectoryLockedError` names the holder.
        """
        file_system = CheckpointFileSystem.from_uri(uri)
        wanted = _new_identity(job_name, max_parallelism, now_ms)
        _check_same_job(_read_identity(file_system), wanted, file_system)
        check_kept_in(file_system, kept_in)
        led = (leadership or DriverLockFile(lock_path)).lead(file_system, job_name)
        try:
            # Another driver may have created the job, and led it for long, between the first look and now.
            identity = _read_identity(file_system)
            _check_same_job(identity, wanted, file_system)
            check_kept_in(file_system, kept_in)
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
        """Release the directory; again is fine."""
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
            "job directory, or the job's former name."
        )
    if found.max_parallelism != wanted.max_parallelism:
        raise JobDirectoryMismatchError(
            f"{file_system.uri} was laid out for max_parallelism {found.max_parallelism}, not "
            f"{wanted.max_parallelism}; it cannot change, since it decides which key group a key belongs to. "
            f"Start job {wanted.job_name!r} with max_parallelism={found.max_parallelism}."
        )


def _read_identity(file_system: CheckpointFileSystem) -> JobIdentity | None:
    if file_system.exists(JOB_FILE_NAME):
        return _decode(file_system)
    known = (LOCK_FILE_NAME, LEASE_FILE_NAME, ORIGIN_FILE_NAME, HIGH_AVAILABILITY_FILE_NAME)
    strangers = [path for path in file_system.list_files() if path not in known]
    if strangers:
        raise JobDirectoryMismatchError(
            f"{file_system.uri} has no {JOB_FILE_NAME} but is not empty (it holds {strangers[0]!r}), so it "
            "is not a job directory. Use an empty or a new directory."
        )
    return None


def _decode(file_system: CheckpointFileSystem) -> JobIdentity:
    content = read_checksummed_json(file_system, JOB_FILE_NAME, _FORMAT_VERSION)
    try:
        return JobIdentity(**content)
    except (InvariantViolationError, TypeError) as error:
        corrupt(file_system, JOB_FILE_NAME, f"is not valid: {error}")
