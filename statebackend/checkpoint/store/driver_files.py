"""Driver files: what a driver changes in place, each in a directory of its own, and how the next takes them over.

    drivers/<32 hex>/spark/...            as they are in a job directory that only one driver can write to
    drivers/<32 hex>/time-epoch.json ...

These are in the job directory; or, where the program names a directory of a disk for them, in that, below the id of the
job, as they must be for Spark where the job directory is on no disk.

A driver that was paused for so long that another one leads may wake up in the middle of a write, and no file system
asks who leads. What it writes is therefore where nobody looks any more: the next leader copies the files of the one
before it, and goes on with the copy. Which directory counts is noted where leadership is.

The former driver may still be writing while its files are copied. Spark writes each file of its log once, under a name
of its own, and in an order in which every beginning makes sense (what a source has seen, then the plan of the batch,
then that it is done). So a copy that agrees with a second listing of the whole is a state in which the log has been, as
after a crash. A driver that does not lead finishes one batch at the most, so the second listing soon agrees.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Final

from statebackend.checkpoint.errors import CheckpointError, JobDirectoryMismatchError, MissingFileError, StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import checked_segment
from statebackend.checkpoint.store.job_files import NO_DATA_EPOCH_FILE_NAME, ROLL_BACK_FILE_NAME

__all__ = [
    "DRIVERS_DIRECTORY",
    "check_driver_files",
    "copy_driver_files",
    "delete_driver_files",
    "driver_files_of",
    "driver_root",
]

DRIVERS_DIRECTORY: Final = "drivers"

_IN_A_JOB_DIRECTORY: Final = ("spark", "spark-rearranged")
_FILES: Final = (NO_DATA_EPOCH_FILE_NAME, ROLL_BACK_FILE_NAME)
_TRIES: Final = 100
_OF_NO_JOB: Final = "of-no-job"


def driver_root(
    file_system: CheckpointFileSystem, driver_directory: str | None, job_id: str | None
) -> CheckpointFileSystem:
    """Below which the driver files of a job are; None is a job that is none yet, and has none.

    They are in the job directory at the root of `file_system`, or in `driver_directory` below the id of the job:
    another one may have the same.
    """
    if driver_directory is None:
        return file_system
    return CheckpointFileSystem.from_uri(driver_directory).inside(checked_segment(job_id or _OF_NO_JOB))


def driver_files_of(file_system: CheckpointFileSystem, directory: str) -> CheckpointFileSystem:
    """Those in a directory below the root of `file_system`; "" is that itself."""
    return file_system.inside(directory) if directory else file_system


def copy_driver_files(file_system: CheckpointFileSystem, source_directory: str, target_directory: str) -> None:
    """Copy the driver files in one directory of a job directory to another, which nobody else writes to.

    Files are linked where that can be: nobody changes one in place. Raises `JobDirectoryMismatchError` if the former
    are on a disk and not there, since to go on without them would be to read the sources again, and `StorageError` if
    they do not stand still.
    """
    if file_system.local_path() is not None:
        check_driver_files(file_system, source_directory)
    source = driver_files_of(file_system, source_directory)
    target = driver_files_of(file_system, target_directory)
    target.make_root()
    copied: dict[str, object] = {}
    for _ in range(_TRIES):
        found = _listed(source, is_whole=source_directory != "")
        there = set(target.list_files())
        if found == copied and copied.keys() == there:
            if file_system.local_path() is not None:
                # What has gone as a whole is not a log without files.
                check_driver_files(file_system, source_directory)
            return
        # Of this round, or of a take-over that another driver's write has made begin again.
        for path in there - found.keys():
            target.delete(path)
            copied.pop(path, None)
        for path, content in found.items():
            if copied.get(path) != content and _copy(source, target, path):
                copied[path] = content
    raise StorageError(
        f"{source.location('')} does not stand still: the driver that led the job before is still writing. Stop it, "
        f"and start again"
    )


def check_driver_files(file_system: CheckpointFileSystem, directory: str) -> None:
    """Raise `JobDirectoryMismatchError` if the driver files of a former driver are on no disk, or not on this one.

    "" is of a job that has had none of its own.
    """
    if not directory:
        return
    local_path = file_system.local_path(directory)
    if local_path is None or not os.path.isdir(local_path):
        raise JobDirectoryMismatchError(
            f"what the driver before has changed (Spark's log of the sources, the epoch that was open) is in a "
            f"directory of its own, and not in {file_system.location(directory)}: give the one that the job has had "
            f"(spark_log_directory; on the command line --driver-directory), or start from a savepoint in a new job "
            f"directory"
        )


def delete_driver_files(file_system: CheckpointFileSystem, names: Iterable[str]) -> None:
    """Delete the directories of former drivers of those names.

    Such a driver may be writing there still; what is left goes at the next take-over.
    """
    for name in names:
        with contextlib.suppress(CheckpointError):
            file_system.delete_directory(f"{DRIVERS_DIRECTORY}/{name}")


def _listed(source: CheckpointFileSystem, *, is_whole: bool) -> dict[str, object]:
    """The state of each file: its content if it may be replaced, otherwise its size and time."""
    paths = (
        list(source.list_files()) if is_whole else [p for name in _IN_A_JOB_DIRECTORY for p in source.list_files(name)]
    )
    found: dict[str, object] = {}
    for path in paths if is_whole else [*paths, *filter(source.exists, _FILES)]:
        # Hidden are what Spark has not written whole, and checksums that it does without.
        if not path.rpartition("/")[2].startswith("."):
            try:
                found[path] = source.read_file(path) if path in _FILES else _state(source, path)
            except MissingFileError:
                continue
    return found


def _state(source: CheckpointFileSystem, path: str) -> tuple[int, int]:
    """Of a file that another one of the same size may have taken the place of, as when a log is rearranged."""
    size_bytes, local_path, time_ns = source.size(path), source.local_path(path), 0
    if local_path is not None:
        # One that has gone this moment is missed by the next look.
        with contextlib.suppress(OSError):
            time_ns = os.stat(local_path).st_mtime_ns
    return size_bytes, time_ns


def _copy(source: CheckpointFileSystem, target: CheckpointFileSystem, path: str) -> bool:
    """Copy a file unless it has disappeared; returns whether it existed."""
    try:
        local_path = source.local_path(path)
        if local_path is not None:
            target.upload(local_path, path)
        else:
            target.write_file(path, source.read_file(path))
    except MissingFileError:
        return False
    return True
