"""Services of a job: how a driver leads it, and where completed checkpoints are recorded. One fences the other.

    DirectoryServices               the lock file, or a given leadership provider, and the job directory itself
    ObjectStoreHighAvailability     see `object_store`
    ZooKeeperHighAvailability       see `zookeeper`

A start first reads without leading, then leads, perhaps after waiting as a standby, and then takes over. *Driver
files* are files that a driver changes in place without a check of its leadership: Spark's source log, the open no-data
epoch, a started rollback. If a driver may outlive its leadership, each driver has its own files (`driver_files`). They
are in the job directory, or in a `driver_directory` on a disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable

from attrs import evolve, field, frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import Leadership, LeadershipProvider
from statebackend.checkpoint.store.checkpoint_directories import DirectoryPointers
from statebackend.checkpoint.store.completed_checkpoint_store import CheckpointPointers
from statebackend.checkpoint.store.driver_files import driver_root
from statebackend.checkpoint.store.driver_lock import DriverLockFile
from statebackend.checkpoint.store.job_directory import JobDirectory, JobIdentity

__all__ = ["DirectoryServices", "JobRecords", "JobServices"]


@frozen
class JobRecords:
    """The records of a job: its directory, the pointers to its checkpoints, and its driver files."""

    file_system: CheckpointFileSystem
    pointers: CheckpointPointers
    driver_files: CheckpointFileSystem


@runtime_checkable
class JobServices(LeadershipProvider, Protocol):
    """The services of the jobs of a program. Methods raise `StorageError` if the storage does not answer."""

    def with_driver_directory(self, driver_directory: str) -> JobServices:
        """Return a copy with driver files in a directory of a disk that all drivers of the job can reach."""

    def stored_in(self, job_name: str) -> str | None:
        """The place of the checkpoint pointers of the job; None for its directory."""

    def read_only(
        self, file_system: CheckpointFileSystem, identity: JobIdentity | None
    ) -> AbstractContextManager[JobRecords]:
        """The records of the job of a directory, read-only within the context.

        `identity` is None before the first start. Another driver may lead the job and change its records meanwhile.
        """

    def take_over(self, directory: JobDirectory) -> JobRecords:
        """Take over the records of the job that this driver leads.

        `directory` was opened with the leadership of these services. Raises `JobDirectoryMismatchError` if the records
        belong to another directory, and `LeadershipLostError`.
        """


@frozen
class DirectoryServices:
    """A `JobServices` that keeps all records in the job directory. By default its lock file decides who leads."""

    leadership: LeadershipProvider = field(factory=DriverLockFile)
    driver_directory: str | None = None

    def with_driver_directory(self, driver_directory: str) -> DirectoryServices:
        """See `JobServices`."""
        return evolve(self, driver_directory=driver_directory)

    def stored_in(self, job_name: str) -> str | None:
        """None: the pointers are in the directory."""
        return None

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> Leadership:
        """Lead the job with the given leadership provider."""
        return self.leadership.lead(file_system, job_name)

    @contextmanager
    def read_only(self, file_system: CheckpointFileSystem, identity: JobIdentity | None) -> Iterator[JobRecords]:
        """The records of the directory."""
        root = driver_root(file_system, self.driver_directory, None if identity is None else identity.job_id)
        yield JobRecords(file_system, DirectoryPointers(file_system), root)

    def take_over(self, directory: JobDirectory) -> JobRecords:
        file_system = directory.file_system
        pointers = DirectoryPointers(file_system, directory.leadership)
        return JobRecords(
            file_system, pointers, driver_root(file_system, self.driver_directory, directory.identity.job_id)
        )
