"""High availability of a job on an object store: a lease names the leader, one object the completed checkpoints.

    driver-lease.json                          the leader, see `driver_lease`
    checkpoints/chk-<id>-<32 hex>/_metadata    written first, under a unique name
    completed-checkpoints.json                 all pointers; a checkpoint is complete once this object names it

`docs/formats-checkpoint.md` lists the fields of both JSON files.

* **Correctness never depends on a listing.** Recovery reads the object and the files it names by key. Listings may be
  out of date; they only find files to delete, and what they miss is deleted later.
* **Every change is a compare and set** on the version that this driver wrote last. A new leader starts with such a
  write (`take_over`), so the previous leader can change nothing afterwards and notices when it tries.
* **A lost answer** leaves open whether a change took effect. All contents differ, so a driver that reads its own
  content has written it. If it cannot read it, the checkpoint is uncertain: none of its files is deleted.
* A withdrawal removes the pointer before the files, so a crash leaves no pointer without files.

`take_over` runs when a driver becomes leader:

1. It holds the lease. On first use it imports the checkpoints of the directory and writes `high-availability.json`.
2. It copies the driver files of the previous leader to its own directory (`driver_files`).
3. One write records that directory and makes the object its own. Then it removes the other directories.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from attrs import evolve, field, frozen

from statebackend.checkpoint.errors import (
    CheckpointError,
    CorruptFileError,
    CorruptJobIdentityError,
    CorruptMetadataError,
    InvariantViolationError,
    JobDirectoryError,
    JobDirectoryMismatchError,
    LeadershipLostError,
    MissingFileError,
    StorageError,
    UncertainCheckpointError,
)
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, parse_checksummed_json
from statebackend.checkpoint.fs.conditional_objects import ConditionalObjects
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.retries import monotonic_ms
from statebackend.checkpoint.ha.services import DirectoryServices, JobRecords, JobServices
from statebackend.checkpoint.invariants import MAX_ID, check_identifier, check_integer, checked_relative_path, require
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.checkpoint.store.checkpoint_directories import (
    CheckpointPointer,
    DirectoryPointers,
    FoundCheckpoints,
    RetainedCheckpoint,
    delete_pointed_metadata,
    read_metadata,
    read_pointed_metadata,
    unnamed_directories,
    write_pointed_metadata,
)
from statebackend.checkpoint.store.driver_files import (
    DRIVERS_DIRECTORY,
    check_driver_files,
    copy_driver_files,
    delete_driver_files,
    driver_files_of,
    driver_root,
)
from statebackend.checkpoint.store.driver_lease import DEFAULT_LEASE_MS, DriverLease, ObjectStoreLease
from statebackend.checkpoint.store.job_directory import JobDirectory, JobIdentity
from statebackend.checkpoint.store.job_files import read_stored_in, write_stored_in

__all__ = [
    "COMPLETED_FILE_NAME",
    "CompletedRecord",
    "ObjectPointers",
    "ObjectStoreHighAvailability",
    "default_services",
]


COMPLETED_FILE_NAME: Final = "completed-checkpoints.json"

_FORMAT_VERSION: Final = 1


@frozen(kw_only=True)
class CompletedRecord:
    """The content of the object. Ids of completed checkpoints strictly increase; none is above `greatest_id`."""

    job_id: str
    leader: str = ""
    revision: int = 0
    greatest_id: int = -1
    completed: tuple[CheckpointPointer, ...] = ()
    set_aside: tuple[CheckpointPointer, ...] = field(default=())
    driver_files: str = ""

    def __attrs_post_init__(self) -> None:
        check_identifier("job_id", self.job_id)
        require(isinstance(self.leader, str) and len(self.leader) <= 64, "leader must be a short text")
        check_integer("revision", self.revision, 0, MAX_ID)
        check_integer("greatest_id", self.greatest_id, -1, MAX_ID)
        ids = [one.checkpoint_id for one in self.completed]
        require(ids == sorted(set(ids)), f"the ids of the completed checkpoints do not increase: {ids}")
        greatest = max([*ids, *(one.checkpoint_id for one in self.set_aside)], default=-1)
        require(greatest <= self.greatest_id, f"greatest_id {self.greatest_id} is below the id {greatest}")
        require(isinstance(self.driver_files, str), "driver_files must be a text")
        if self.driver_files:
            checked_relative_path(self.driver_files)

    @property
    def by_id(self) -> dict[int, CheckpointPointer]:
        """The completed checkpoints."""
        return {one.checkpoint_id: one for one in self.completed}

    def to_bytes(self) -> bytes:
        """The content of the object."""
        content = {
            "job_id": self.job_id,
            "leader": self.leader,
            "revision": self.revision,
            "greatest_id": self.greatest_id,
            "completed": _listed(self.completed),
            "set_aside": _listed(self.set_aside),
            "driver_files": self.driver_files,
        }
        return checksummed_json(content, _FORMAT_VERSION)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> CompletedRecord:
        """Parse the content. Raises `CorruptJobIdentityError` with the origin of the bytes."""
        content = parse_checksummed_json(data, where, _FORMAT_VERSION)
        try:
            completed, set_aside = _pointers(content.pop("completed")), _pointers(content.pop("set_aside"))
            return cls(completed=completed, set_aside=set_aside, **content)
        except (InvariantViolationError, KeyError, TypeError, ValueError) as error:
            raise CorruptJobIdentityError(
                f"{where} is not valid: {error}. Restore it from a backup, or start from a savepoint in a new job "
                f"directory."
            ) from error


def _listed(pointers: Iterable[CheckpointPointer]) -> list[list[Any]]:
    return [
        [one.checkpoint_id, one.metadata_file.path, one.metadata_file.size_bytes, one.metadata_file.checksum]
        for one in pointers
    ]


def _pointers(listed: Any) -> tuple[CheckpointPointer, ...]:
    require(isinstance(listed, list), "the checkpoints are not a list")
    return tuple(CheckpointPointer(one, FileHandle(path, size, checksum)) for one, path, size, checksum in listed)


T = TypeVar("T")

_TRIES: Final = 10

_Change = Callable[[CompletedRecord], CompletedRecord]


class ObjectPointers:
    """The `CheckpointPointers` of job `job_id`, whose directory is the root of `file_system`.

    Read-only before `take_over`. Not thread-safe.
    """

    def __init__(self, file_system: CheckpointFileSystem, objects: ConditionalObjects, job_id: str) -> None:
        self._fs = file_system
        self._objects = objects
        self._record = CompletedRecord(job_id=job_id)
        self._version: str | None = None
        self._leader: str | None = None
        self._attempts = 0

    @property
    def place(self) -> str:
        """The object."""
        return self._fs.location(COMPLETED_FILE_NAME)

    @property
    def driver_files(self) -> str:
        """The directory of the driver files of the last writer of the object; after `find` or `take_over`."""
        return self._record.driver_files

    def check_there(self) -> None:
        """Read the object. Raises `JobDirectoryMismatchError` if it does not exist."""
        self._look()
        if self._version is None:
            raise JobDirectoryMismatchError(
                f"{self.place}, the record of completed checkpoints, does not exist. Restore it from a backup, or "
                f"start a new job directory from a savepoint"
            )

    def take_over(self, leader: str, begin: _Change) -> None:
        """Become the only writer of the object. `leader` is a new token; `begin` creates the first record.

        `begin` may be called several times. Raises `JobDirectoryMismatchError` if the object belongs to another job.
        """
        for _ in range(_TRIES):
            self._look()
            # A write of a previous driver that still runs makes this one fail; the next round reads it.
            record = evolve(begin(self._record), leader=leader, revision=self._record.revision + 1)
            if self._write(record):
                self._leader = leader
                return
        raise StorageError(f"another driver writes {self.place} all the time; stop it, and start again")

    def find(self) -> FoundCheckpoints:
        """Read the object and the files that it names. Changes nothing.

        Reads again if the leader dropped checkpoints meanwhile. Raises `LeadershipLostError` if this driver led the job
        and lost the leadership.
        """
        for _ in range(_TRIES):
            record = self._look()
            if self._leader is not None:
                self._check_leading()
            found = self._found(record)
            if not found.unreadable or self._look().revision == record.revision:
                break
        return found

    def publish(self, metadata: CheckpointMetadata) -> FileHandle:
        """Write the metadata under a unique name, then add it to the object."""
        self._check_leading()
        pointer = write_pointed_metadata(self._fs, metadata)
        try:
            self._change(lambda record: _with(record, pointer))
        except LeadershipLostError:
            raise
        except StorageError as error:
            raise UncertainCheckpointError(
                f"whether checkpoint {pointer.checkpoint_id} is complete is unknown; the next start finds out, and "
                f"nothing is lost. {error}"
            ) from error
        return pointer.metadata_file

    def withdraw(self, checkpoint_id: int) -> None:
        """Remove the checkpoint from the object, then delete its metadata file."""
        pointer = self._record.by_id.get(checkpoint_id)
        self._change(lambda record: _without(record, checkpoint_id))
        if pointer is not None:
            delete_pointed_metadata(self._fs, pointer)

    def set_aside(self, checkpoint_id: int) -> None:
        """Set a checkpoint aside; its files stay in place."""
        pointer = self._record.by_id[checkpoint_id]

        def change(record: CompletedRecord) -> CompletedRecord:
            others = tuple(one for one in record.set_aside if one != pointer)
            return evolve(_without(record, checkpoint_id), set_aside=(*others, pointer))

        self._change(change)

    def set_aside_places(self) -> tuple[str, ...]:
        """The directories of checkpoints that were set aside and exist."""
        there = (one for one in self._record.set_aside if self._fs.exists(one.metadata_file.path))
        return tuple(self._fs.location(one.directory) for one in there)

    def files_set_aside(self) -> frozenset[str]:
        """The files that their metadata names. Without its metadata file, a checkpoint protects no file."""
        paths: set[str] = set()
        for pointer in self._record.set_aside:
            # Unreadable metadata, often the reason to set it aside, does not list its files.
            with contextlib.suppress(MissingFileError, CorruptFileError):
                paths.update(file.path for file in read_metadata(self._fs, pointer.directory).files)
        return frozenset(paths)

    def _change(self, change: _Change) -> None:
        """Write a changed record. Raises `LeadershipLostError` if another driver wrote, `StorageError` if unknown."""
        for _ in range(_TRIES):
            self._check_leading()
            changed = change(self._record)
            if changed == self._record:
                return
            # After a write with unknown outcome, the next one must have another content.
            self._attempts += 1
            if self._write(evolve(changed, revision=changed.revision + self._attempts)):
                self._attempts = 0
                return
            self._look()
        raise StorageError(f"{self.place} could not be written: its versions change without another writer")

    def _write(self, record: CompletedRecord) -> bool:
        written = self._objects.write(COMPLETED_FILE_NAME, record.to_bytes(), self._version)
        if written is None:
            return False
        self._record, self._version = record, written
        return True

    def _look(self) -> CompletedRecord:
        found = self._objects.read(COMPLETED_FILE_NAME)
        if found is None:
            record, version = CompletedRecord(job_id=self._record.job_id), None
        else:
            record, version = CompletedRecord.from_bytes(found.content, self.place), found.version
        if record.job_id != self._record.job_id:
            raise JobDirectoryMismatchError(
                f"{self.place} belongs to job {record.job_id}, and {self._fs.location('job.json')} to job "
                f"{self._record.job_id}: the directory mixes two jobs. Restore the original files from a backup"
            )
        self._record, self._version = record, version
        return record

    def _check_leading(self) -> None:
        if self._leader is None:
            raise LeadershipLostError(f"this driver does not lead the job of {self.place}: it opened it read-only")
        if self._record.leader != self._leader:
            raise LeadershipLostError(
                f"another driver has acquired {self.place}, so this driver completes no more checkpoints: it was "
                f"paused or disconnected for too long. Stop it; the other driver continues"
            )

    def _found(self, record: CompletedRecord) -> FoundCheckpoints:
        retained: dict[int, RetainedCheckpoint] = {}
        unreadable: dict[int, CorruptMetadataError] = {}
        for pointer in record.completed:
            found = read_pointed_metadata(self._fs, pointer, self.place)
            if isinstance(found, RetainedCheckpoint):
                retained[pointer.checkpoint_id] = found
            else:
                unreadable[pointer.checkpoint_id] = found
        greatest = record.greatest_id if record.greatest_id >= 0 else None
        unfinished: list[str] = []
        # If listing fails, orphans are deleted another time.
        with contextlib.suppress(CheckpointError):
            unfinished += (name for name, _ in unnamed_directories(self._fs, (*record.completed, *record.set_aside)))
        return FoundCheckpoints(self._fs, self.place, retained, unreadable, unfinished, greatest)


def _with(record: CompletedRecord, pointer: CheckpointPointer) -> CompletedRecord:
    if pointer in record.completed:
        return record
    greatest_id = max(record.greatest_id, pointer.checkpoint_id)
    return evolve(record, completed=(*record.completed, pointer), greatest_id=greatest_id)


def _without(record: CompletedRecord, checkpoint_id: int) -> CompletedRecord:
    return evolve(record, completed=tuple(one for one in record.completed if one.checkpoint_id != checkpoint_id))


STORED_IN: Final = "object:completed-checkpoints.json"


@frozen(kw_only=True)
class ObjectStoreHighAvailability:
    """Leads jobs whose directories are on a store with conditional writes, such as S3; a `JobServices`.

    After a driver was killed, the next one waits for ``lease_ms`` milliseconds. If another driver leads, a start raises
    an error, or waits if it ``is_stand_by``. Drivers of one job may differ in both. ``monotonic_ms`` is the clock that
    measures whether the lease of another driver has expired.

    Raises `InvariantViolationError` for a duration out of range. Its methods raise `StorageError` if boto3 is not
    installed, and `JobDirectoryError` for a store without conditional writes.
    """

    lease_ms: int = DEFAULT_LEASE_MS
    is_stand_by: bool = False
    driver_directory: str | None = field(default=None)
    monotonic_ms: Callable[[], int] = field(default=monotonic_ms, repr=False)

    def __attrs_post_init__(self) -> None:
        self._lease()

    def with_driver_directory(self, driver_directory: str) -> ObjectStoreHighAvailability:
        """See `JobServices`."""
        return evolve(self, driver_directory=driver_directory)

    def stored_in(self, job_name: str) -> str | None:
        """The object in the directory."""
        return STORED_IN

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> DriverLease:
        """Acquire the lease; see `LeadershipProvider`."""
        return self._lease().lead(file_system, job_name)

    @contextlib.contextmanager
    def read_only(self, file_system: CheckpointFileSystem, identity: JobIdentity | None) -> Iterator[JobRecords]:
        """See `JobServices`. A directory that never had a lease is read as a plain directory."""
        if identity is None or read_stored_in(file_system) is None:
            with DirectoryServices(driver_directory=self.driver_directory).read_only(file_system, identity) as records:
                yield records
            return
        pointers = ObjectPointers(file_system, _objects(file_system), identity.job_id)
        pointers.check_there()
        root = driver_root(file_system, self.driver_directory, identity.job_id)
        yield JobRecords(file_system, pointers, driver_files_of(root, pointers.driver_files))

    def take_over(self, directory: JobDirectory) -> JobRecords:
        """Take over the records; see `JobServices` and the steps in the module docstring."""
        leadership, file_system = directory.leadership, directory.file_system
        if not isinstance(leadership, DriverLease):
            raise InvariantViolationError("the job directory was opened with another leadership")
        root = driver_root(file_system, self.driver_directory, directory.identity.job_id)
        has_driver_files = root.local_path() is not None
        own = f"{DRIVERS_DIRECTORY}/{leadership.token}" if has_driver_files else ""
        others = root.list_directories(DRIVERS_DIRECTORY) if has_driver_files else ()
        is_first = read_stored_in(file_system) is None

        def begin(record: CompletedRecord) -> CompletedRecord:
            # Check after the record was read: a paused driver must not take the record from the new leader.
            leadership.check()
            started = _found_in_directory(file_system, record) if is_first else record
            check_driver_files(root, started.driver_files)
            if has_driver_files:
                copy_driver_files(root, started.driver_files, own)
            return evolve(started, driver_files=own)

        pointers = ObjectPointers(file_system, _objects(file_system), directory.identity.job_id)
        if not is_first:
            pointers.check_there()
        pointers.take_over(leadership.token, begin)
        if is_first:
            write_stored_in(file_system, STORED_IN)
        delete_driver_files(root, others)
        return JobRecords(file_system, pointers, driver_files_of(root, own))

    def _lease(self) -> ObjectStoreLease:
        return ObjectStoreLease(lease_ms=self.lease_ms, is_stand_by=self.is_stand_by, monotonic_ms=self.monotonic_ms)


def _objects(file_system: CheckpointFileSystem) -> ConditionalObjects:
    objects = file_system.conditional
    if objects is None:
        raise JobDirectoryError(f"{file_system.uri} has no conditional writes; use the lock file, or ZooKeeper")
    return objects


def _found_in_directory(file_system: CheckpointFileSystem, record: CompletedRecord) -> CompletedRecord:
    """The record for a directory without one, from the checkpoints in it."""
    found = DirectoryPointers(file_system).find()
    pointers = tuple(
        CheckpointPointer(checkpoint_id, found.retained[checkpoint_id].metadata_file)
        for checkpoint_id in sorted(found.retained)
    )
    found.check_newest()
    greatest_id = -1 if found.greatest_id is None else found.greatest_id
    return evolve(record, completed=pointers, greatest_id=max(record.greatest_id, greatest_id))


def default_services(job_dir: str) -> JobServices:
    """The lock file for a directory on a disk; a lease for a store with conditional writes.

    Raises `StorageError` for an unknown kind of URI.
    """
    file_system = CheckpointFileSystem.from_uri(job_dir)
    return ObjectStoreHighAvailability() if file_system.has_conditional_writes else DirectoryServices()
