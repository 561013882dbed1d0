"""The start of a job, the same in both runtimes.

1. Find the checkpoint or savepoint to restore (`starting_point`), and check that the same runtime wrote it.
2. Check it against the job (`statebackend.streaming.compatibility_check`). Nothing is written before this.
3. Become the leader of the job; a standby waits here. If another driver was active meanwhile, repeat 1 and 2.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Generic, TypeVar

from attrs import frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import raising_root_cause
from statebackend.checkpoint.ha.services import JobRecords, JobServices
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.runtime.starting_point import StartingPoint

T = TypeVar("T")


@frozen
class LockedStart(Generic[T]):
    """A job that this driver leads, with its records, its starting point, and the result of the compatibility check."""

    directory: JobDirectory
    records: JobRecords
    point: StartingPoint
    compatibility: T


class Engine(enum.Enum):
    """The runtime of a job. Each stores source positions differently, so a job directory belongs to one runtime."""

    SPARK = "a job on Spark"
    LOCAL = "a job of the local runtime"


def check_written_by(newest: CheckpointMetadata | None, engine: Engine, file_system: CheckpointFileSystem) -> None:
    """Raise `JobRestoreError` if the other runtime wrote the job directory.

    ``newest`` is the newest checkpoint of the directory, None without one.
    """
    is_spark = file_system.exists("spark/metadata") or (newest is not None and newest.source_positions is not None)
    if newest is None and not is_spark:
        return
    written_by = Engine.SPARK if is_spark else Engine.LOCAL
    if written_by is not engine:
        raise JobRestoreError(
            f"the job directory {file_system.uri} was written by {written_by.value}, and {engine.value} cannot "
            f"continue it, because it cannot read the positions of its sources. Take a savepoint there, and start a "
            f"new job directory from it"
        )


def read_starting_point(
    job_dir: str, services: JobServices, find: Callable[[JobRecords], StartingPoint]
) -> StartingPoint:
    """Return the starting point without becoming the leader. Raises the errors of ``find``."""
    with services.read_only(CheckpointFileSystem.from_uri(job_dir), JobDirectory.inspect(job_dir)) as records:
        return find(records)


def locked_start(
    job_dir: str,
    name: str,
    max_parallelism: int,
    services: JobServices,
    find: Callable[[JobRecords], StartingPoint],
    check: Callable[[JobRecords, StartingPoint], T],
) -> LockedStart[T]:
    """Find the starting point, check it, become the leader of the job, and find it again.

    A job that another driver has advanced meanwhile continues from its newest checkpoint. The caller closes the
    returned directory.

    Args:
        job_dir: The path or URI of the job directory.
        name: The name of the job.
        max_parallelism: The maximum parallelism of the job.
        services: Elect the leader and store the records of the job.
        find: Returns the starting point. Changes nothing.
        check: Checks the starting point and returns the result, or raises. Changes nothing.

    Raises:
        JobDirectoryError: The directory belongs to another job or driver.
        StorageError: The store cannot be reached.
    """
    JobDirectory.check(job_dir, name, max_parallelism)
    with services.read_only(CheckpointFileSystem.from_uri(job_dir), JobDirectory.inspect(job_dir)) as records:
        point = find(records)
        compatibility = check(records, point)
    directory = JobDirectory.open(
        job_dir, name, max_parallelism, leadership=services, stored_in=services.stored_in(name), origin=point.origin
    )
    try:
        # If another leader takes over now, later errors are only consequences of that.
        with raising_root_cause(directory.leadership):
            records = services.take_over(directory)
            found = find(records)
            if found.identity != point.identity:
                compatibility = check(records, found)
        return LockedStart(directory, records, found, compatibility)
    except BaseException:
        directory.close()
        raise
