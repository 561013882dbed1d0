"""Services of a job: how a driver leads it, and where completed checkpoints are recorded. One fences the other.

    DirectoryServices               the lock file, or a given leadership provider, and the job directory itself
    ObjectStoreHighAvailability     see `object_store`
    ZooKeeperHighAvailability       see `zookeeper`

A start first reads without leading, then leads, which may mean standing by, and then takes over. *Driver files* are
files that a driver changes in place without a check of its leadership: Spark's source log, the open no-data epoch, a
started rollback. Where a driver may outlive its leadership, each driver has its own (`driver_files`). They are in the
job directory, or in a `driver_directory` of their own on a disk.
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
    """What is noted of a job: `file_system` is rooted at its directory, `driver_files` at what a driver changes."""

    file_system: CheckpointFileSystem
    pointers: CheckpointPointers
    driver_files: CheckpointFileSystem


@runtime_checkable
class JobServices(LeadershipProvider, Protocol):
    """Those of the jobs of a program. Methods raise `StorageError` where nothing can be found out."""

    def with_driver_directory(self, driver_directory: str) -> JobServices:
        """The same with driver files below that directory of a disk, which all drivers of the job reach."""

    def kept_in(self, job_name: str) -> str | None:
        """Where the checkpoints of the job are noted; None: in its directory."""

    def looking(
        self, file_system: CheckpointFileSystem, identity: JobIdentity | None
    ) -> AbstractContextManager[JobRecords]:
        """What is noted of the job of a directory, to be looked at in the context; None for one that is no job yet.

        Another driver may be leading it, and changing what is there.
        """

    def take_over(self, directory: JobDirectory) -> JobRecords:
        """What is noted of the job that this driver leads now, for it to go on with.

        `directory` was opened with the leadership of these services. Raises `JobDirectoryMismatchError` if what is
        noted is of another directory, `LeadershipLostError`.
        """


@frozen
class DirectoryServices:
    """All is noted in the job directory; a `JobServices`. By default its lock file says who leads."""

    leadership: LeadershipProvider = field(factory=DriverLockFile)
    driver_directory: str | None = None

    def with_driver_directory(self, driver_directory: str) -> DirectoryServices:
        """See `JobServices`."""
        return evolve(self, driver_directory=driver_directory)

    def kept_in(self, job_name: str) -> str | None:
        """In the directory."""
        return None

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> Leadership:
        """As the given leadership does."""
        return self.leadership.lead(file_system, job_name)

    @contextmanager
    def looking(self, file_system: CheckpointFileSystem, identity: JobIdentity | None) -> Iterator[JobRecords]:
        """What is in the directory."""
        root = driver_root(file_system, self.driver_directory, None if identity is None else identity.job_id)
        yield JobRecords(file_system, DirectoryPointers(file_system), root)

    def take_over(self, directory: JobDirectory) -> JobRecords:
        """What is in the directory."""
        file_system = directory.file_system
        pointers = DirectoryPointers(file_system, directory.leadership)
        return JobRecords(
            file_system, pointers, driver_root(file_system, self.driver_directory, directory.identity.job_id)
        )
