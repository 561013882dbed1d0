"""Finds what a job restores, has it checked, and leads the job; the same in both runtimes.

1. Find what to restore (`starting_point`), and check that the same runtime wrote it.
2. Check it against the job (`statebackend.streaming.compatibility_check`). Nothing is written before.
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

__all__ = ["Engine", "LockedStart", "check_written_by", "locked_start", "looked_up"]

T = TypeVar("T")


@frozen
class LockedStart(Generic[T]):
    """A job that this driver leads, what is noted of it, what it continues from, and what the judge said of that."""

    directory: JobDirectory
    records: JobRecords
    point: StartingPoint
    compatibility: T


class Engine(enum.Enum):
    """What runs a job. Each has its own idea of how far the source is read, so a job directory belongs to one."""

    SPARK = "a job on Spark"
    IN_PROCESS = "a job in one process"


def check_written_by(newest: CheckpointMetadata | None, engine: Engine, file_system: CheckpointFileSystem) -> None:
    """Raises `JobRestoreError` if the job directory is one of the other engine, whose source position is another.

    ``newest`` is the checkpoint of the directory to continue from, if it has one.
    """
    is_spark = file_system.exists("spark/metadata") or (newest is not None and newest.source_positions is not None)
    if newest is None and not is_spark:
        return
    written_by = Engine.SPARK if is_spark else Engine.IN_PROCESS
    if written_by is not engine:
        raise JobRestoreError(
            f"the job directory {file_system.uri} is that of {written_by.value}, and {engine.value} cannot continue "
            f"it: how far its source is read would be lost. Take a savepoint there, and begin a new job directory "
            f"from it"
        )


def looked_up(job_dir: str, services: JobServices, find: Callable[[JobRecords], StartingPoint]) -> StartingPoint:
    """What a start would continue from, found without leading the job; raises what ``find`` raises."""
    with services.read_only(CheckpointFileSystem.from_uri(job_dir), JobDirectory.inspect(job_dir)) as records:
        return find(records)


def locked_start(
    job_dir: str,
    name: str,
    max_parallelism: int,
    services: JobServices,
    find: Callable[[JobRecords], StartingPoint],
    judge: Callable[[JobRecords, StartingPoint], T],
) -> LockedStart[T]:
    """Finds what to continue from, lets it be judged, leads the job by ``services``, and finds it again.

    ``find`` and ``judge`` touch nothing, and raise for what cannot be. The caller closes the directory that is
    returned. What another driver has done in between, as while this one stood by, is continued.

    Raises `JobDirectoryError` for a directory of another job or driver, `StorageError` where nothing can be found out.
    """
    JobDirectory.check(job_dir, name, max_parallelism)
    with services.read_only(CheckpointFileSystem.from_uri(job_dir), JobDirectory.inspect(job_dir)) as records:
        point = find(records)
        compatibility = judge(records, point)
    directory = JobDirectory.open(
        job_dir, name, max_parallelism, leadership=services, kept_in=services.kept_in(name), origin=point.origin
    )
    try:
        # Whoever was overtaken meanwhile may find anything.
        with raising_root_cause(directory.leadership):
            records = services.take_over(directory)
            found = find(records)
            if found.identity != point.identity:
                compatibility = judge(records, found)
        return LockedStart(directory, records, found, compatibility)
    except BaseException:
        directory.close()
        raise
