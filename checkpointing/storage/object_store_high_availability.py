"""High availability of a job on an object store alone: a lease says who leads, one object what is complete.

What happens when a driver comes to lead (`take_over`), each step either done or not:

1. It has the lease (`driver_lease`). A directory that is led so for the first time is taken over with the checkpoints
   that are in it, and says from then on where they are noted (`high_availability_file`).
2. The driver files of the leader before are copied to a directory of this driver (`driver_files`), if there are any.
3. One write notes that directory, and makes it the leader's object (`object_pointers`): whoever led before changes
   nothing from here on. What is left of the other directories goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from attrs import evolve, field, frozen

from checkpointing.errors import InvariantViolationError, JobDirectoryError
from checkpointing.storage.checkpoint_directories import DirectoryPointers
from checkpointing.storage.completed_record import CompletedRecord
from checkpointing.storage.conditional_objects import ConditionalObjects
from checkpointing.storage.driver_files import (
    DRIVERS_DIRECTORY,
    check_driver_files,
    copy_driver_files,
    delete_driver_files,
    driver_files_of,
    driver_root,
)
from checkpointing.storage.driver_lease import DEFAULT_LEASE_MS, DriverLease, ObjectStoreLease
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.high_availability_file import read_kept_in, write_kept_in
from checkpointing.storage.job_directory import JobDirectory, JobIdentity
from checkpointing.storage.job_services import DirectoryServices, JobRecords
from checkpointing.storage.object_pointers import ObjectPointers
from checkpointing.storage.pointed_metadata import CheckpointPointer
from checkpointing.storage.steady_clock import steady_ms

__all__ = ["ObjectStoreHighAvailability"]

KEPT_IN: Final = "object:completed-checkpoints.json"


@frozen(kw_only=True)
class ObjectStoreHighAvailability:
    """Leads jobs whose directories are on a store with conditional writes, such as S3; a `JobServices`.

    A driver that is killed keeps the next one waiting for ``lease_ms`` milliseconds. A driver that finds another one
    leading is refused, or waits for as long as that takes if it ``is_stand_by``. All drivers of a job may differ in
    both. ``monotonic_ms`` is the clock by which a lease runs out that another driver holds and does not renew.

    Raises `InvariantViolationError` for a length out of range and, where it is used, `StorageError` if boto3 is not
    installed, `JobDirectoryError` for a store without conditional writes.
    """

    lease_ms: int = DEFAULT_LEASE_MS
    is_stand_by: bool = False
    driver_directory: str | None = field(default=None)
    monotonic_ms: Callable[[], int] = field(default=steady_ms, repr=False)

    def __attrs_post_init__(self) -> None:
        self._lease()

    def with_driver_directory(self, driver_directory: str) -> ObjectStoreHighAvailability:
        """See `JobServices`."""
        return evolve(self, driver_directory=driver_directory)

    def kept_in(self, job_name: str) -> str | None:
        """In an object of the directory."""
        return KEPT_IN

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> DriverLease:
        """Take the lease; see `LeadershipProvider`."""
        return self._lease().lead(file_system, job_name)

    @contextlib.contextmanager
    def looking(self, file_system: CheckpointFileSystem, identity: JobIdentity | None) -> Iterator[JobRecords]:
        """See `JobServices`. A directory that was never led so is looked at as it is."""
        if identity is None or read_kept_in(file_system) is None:
            with DirectoryServices(driver_directory=self.driver_directory).looking(file_system, identity) as records:
                yield records
            return
        pointers = ObjectPointers(file_system, _objects(file_system), identity.job_id)
        pointers.check_there()
        root = driver_root(file_system, self.driver_directory, identity.job_id)
        yield JobRecords(file_system, pointers, driver_files_of(root, pointers.driver_files))

    def take_over(self, directory: JobDirectory) -> JobRecords:
        """See `JobServices` and the module."""
        leadership, file_system = directory.leadership, directory.file_system
        if not isinstance(leadership, DriverLease):
            raise InvariantViolationError("the job directory was opened with another leadership")
        root = driver_root(file_system, self.driver_directory, directory.identity.job_id)
        has_driver_files = root.local_path() is not None
        own = f"{DRIVERS_DIRECTORY}/{leadership.token}" if has_driver_files else ""
        others = root.list_directories(DRIVERS_DIRECTORY) if has_driver_files else ()
        is_first = read_kept_in(file_system) is None

        def begin(record: CompletedRecord) -> CompletedRecord:
            # Behind the reading of the record: who was paused, and finds it written by the leader that has overtaken
            # him, is not to take it from that one.
            leadership.check()
            begun = _found_in_directory(file_system, record) if is_first else record
            check_driver_files(root, begun.driver_files)
            if has_driver_files:
                copy_driver_files(root, begun.driver_files, own)
            return evolve(begun, driver_files=own)

        pointers = ObjectPointers(file_system, _objects(file_system), directory.identity.job_id)
        if not is_first:
            pointers.check_there()
        pointers.take_over(leadership.token, begin)
        if is_first:
            write_kept_in(file_system, KEPT_IN)
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
    """The record of a directory that has none, or was begun to be taken over and has gone on as it was since."""
    found = DirectoryPointers(file_system).find()
    pointers = tuple(
        CheckpointPointer(checkpoint_id, found.retained[checkpoint_id].metadata_file)
        for checkpoint_id in sorted(found.retained)
    )
    found.check_newest()
    greatest_id = -1 if found.greatest_id is None else found.greatest_id
    return evolve(record, completed=pointers, greatest_id=max(record.greatest_id, greatest_id))
