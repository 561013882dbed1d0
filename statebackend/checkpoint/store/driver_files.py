"""Driver files: files that only the driver changes. Each driver has its own directory of them.

    drivers/<32 hex>/spark/...            the layout of a job directory that only one driver can write to
    drivers/<32 hex>/no-data-epoch.json ...

They are in the job directory. If the job directory is not on a disk, Spark needs them elsewhere: in a directory that
the program names, below the id of the job.

A driver that was paused while another one became the leader may continue in the middle of a write, and a file system
does not ask who leads. So each leader copies the files of the previous driver into a new directory and uses the copy.
Later writes of the previous driver change files that are no longer read. The store of the leadership records which
directory is valid.

The previous driver may still write while its files are copied. Spark writes each file of its log once, under a unique
name, in an order in which every prefix is valid: offsets of a source, plan of the batch, commit. So a copy that equals
a second listing is a valid state of the log, as after a crash. A driver that lost the leadership finishes at most one
batch, so two listings soon agree.
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

DRIVERS_DIRECTORY: Final = "drivers"

_IN_A_JOB_DIRECTORY: Final = ("spark", "spark-rewritten")
_FILES: Final = (NO_DATA_EPOCH_FILE_NAME, ROLL_BACK_FILE_NAME)
_TRIES: Final = 100
_OF_NO_JOB: Final = "of-no-job"


def driver_root(
    file_system: CheckpointFileSystem, driver_directory: str | None, job_id: str | None
) -> CheckpointFileSystem:
    """Return the root of the driver files of a job. ``job_id`` is None for a job that does not exist yet.

    The root is the job directory at the root of `file_system`, or the directory of the job id in `driver_directory`,
    which several jobs may share.
    """
    if driver_directory is None:
        return file_system
    return CheckpointFileSystem.from_uri(driver_directory).inside(checked_segment(job_id or _OF_NO_JOB))


def driver_files_of(file_system: CheckpointFileSystem, directory: str) -> CheckpointFileSystem:
    """Return the driver files in a directory below the root of `file_system`; "" is the root itself."""
    return file_system.inside(directory) if directory else file_system


def copy_driver_files(file_system: CheckpointFileSystem, source_directory: str, target_directory: str) -> None:
    """Copy the driver files from one directory of a job directory to another one, which has no other writer.

    Files are linked where possible, because they are never changed in place.

    Raises:
        JobDirectoryMismatchError: The previous files are on a disk and missing. The job would read its sources again.
        StorageError: The previous files change all the time.
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
                # A missing directory is not an empty log.
                check_driver_files(file_system, source_directory)
            return
        # Copied in this call, or in an earlier one that failed.
        for path in there - found.keys():
            target.delete(path)
            copied.pop(path, None)
        for path, content in found.items():
            if copied.get(path) != content and _copy(source, target, path):
                copied[path] = content
    raise StorageError(
        f"{source.location('')} changes all the time: the driver that led the job before is still writing. Stop it, "
        f"and start again"
    )


def check_driver_files(file_system: CheckpointFileSystem, directory: str) -> None:
    """Raise `JobDirectoryMismatchError` if the driver files of a previous driver are not on this disk.

    ``directory`` is "" for a job that never had a driver directory.
    """
    if not directory:
        return
    local_path = file_system.local_path(directory)
    if local_path is None or not os.path.isdir(local_path):
        raise JobDirectoryMismatchError(
            f"the files of the previous driver (Spark's log of the sources, the open epoch) are not in "
            f"{file_system.location(directory)}: pass the directory that the job used before "
            f"(spark_log_directory; on the command line --driver-directory), or start from a savepoint in a new job "
            f"directory"
        )


def delete_driver_files(file_system: CheckpointFileSystem, names: Iterable[str]) -> None:
    """Delete the directories of previous drivers. A driver that still writes may leave files for the next call."""
    for name in names:
        with contextlib.suppress(CheckpointError):
            file_system.delete_directory(f"{DRIVERS_DIRECTORY}/{name}")


def _listed(source: CheckpointFileSystem, *, is_whole: bool) -> dict[str, object]:
    """The version of each file: its content if it may be replaced, otherwise size and modification time."""
    paths = (
        list(source.list_files()) if is_whole else [p for name in _IN_A_JOB_DIRECTORY for p in source.list_files(name)]
    )
    found: dict[str, object] = {}
    for path in paths if is_whole else [*paths, *filter(source.exists, _FILES)]:
        # Hidden files are unfinished writes of Spark, and checksums that it does not need.
        if not path.rpartition("/")[2].startswith("."):
            try:
                found[path] = source.read_file(path) if path in _FILES else _state(source, path)
            except MissingFileError:
                continue
    return found


def _state(source: CheckpointFileSystem, path: str) -> tuple[int, int]:
    """Size and modification time: a rearranged log may replace a file by one of the same size."""
    size_bytes, local_path, time_ns = source.size(path), source.local_path(path), 0
    if local_path is not None:
        # The next listing notices a file that was deleted meanwhile.
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
