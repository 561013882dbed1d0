"""Savepoints: checkpoints that belong to the user, in a self-contained directory.

A savepoint directory holds `_metadata` (kind SAVEPOINT) and all data files, by paths relative to the directory, so it
can be copied, moved and archived as a whole. While it is being written, it has a file `_in_progress` instead of
`_metadata`:

    create_savepoint_directory(uri)    rejects anything but an absent or empty directory
    fs.upload / fs.write_file ...      data files, by any number of tasks
    write_savepoint(fs, metadata)      checks that all files are there, writes `_metadata`, last

So a directory with `_metadata` is complete, and one without it can only be deleted.

Source positions (`source_progress`) are files below `source-progress/`, because the log of a file source grows with
every file that it reads.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping

from statebackend.checkpoint.errors import MissingFileError, SavepointError, SavepointExistsError, StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import is_uri
from statebackend.checkpoint.invariants import require
from statebackend.checkpoint.metadata import SOURCE_PROGRESS_DIRECTORY, CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.checkpoint.store.checkpoint_directories import (
    CHECKPOINTS_DIRECTORY,
    METADATA_FILE_NAME,
    SHARED_DIRECTORY,
    read_metadata,
    write_metadata,
)
from statebackend.checkpoint.store.job_directory import JOB_FILE_NAME

__all__ = [
    "SavedSourceProgress",
    "abandon_savepoint_directory",
    "check_savepoint_directory",
    "create_savepoint_directory",
    "not_a_savepoint",
    "read_savepoint",
    "release_savepoint_directory",
    "write_savepoint",
    "write_source_progress",
]

_IN_PROGRESS = "_in_progress"
_IN_PROGRESS_TEXT = "A savepoint is being written here. Without _metadata it is incomplete. Written by {writer}.\n"


def check_savepoint_directory(uri: str | os.PathLike[str]) -> CheckpointFileSystem:
    """Check the target of a savepoint before long work starts. Changes nothing.

    Raises:
        SavepointExistsError: The directory exists and is not empty.
        SavepointError: It is inside a job directory or an unfinished savepoint, which would remove it as an orphan.
    """
    fs = CheckpointFileSystem.from_uri(uri)
    present = _present(fs)
    if present:
        raise SavepointExistsError(_rejection(fs, present))
    _check_nobody_removes(fs, fs.local_path() or os.fspath(uri))
    return fs


def create_savepoint_directory(uri: str | os.PathLike[str]) -> CheckpointFileSystem:
    """Reserve an absent or empty directory for a savepoint; raises as `check_savepoint_directory`.

    Of several concurrent callers, one succeeds.
    """
    fs = check_savepoint_directory(uri)
    if not fs.create_file(_IN_PROGRESS, _IN_PROGRESS_TEXT.format(writer=uuid.uuid4().hex).encode()):
        raise SavepointExistsError(_rejection(fs, (_IN_PROGRESS,)))
    if fs.exists(METADATA_FILE_NAME):
        # Another process has written one there since the check.
        fs.delete(_IN_PROGRESS)
        raise SavepointExistsError(_rejection(fs, (METADATA_FILE_NAME,)))
    return fs


def abandon_savepoint_directory(fs: CheckpointFileSystem) -> None:
    """Empty a directory that `create_savepoint_directory` reserved, `_in_progress` last.

    Does nothing if the savepoint is complete.
    """
    if METADATA_FILE_NAME in (present := _present(fs)):
        return
    for path in present:
        if path != _IN_PROGRESS:
            fs.delete(path)
    for name in fs.list_directories():
        fs.delete_directory(name)
    fs.delete(_IN_PROGRESS)


def release_savepoint_directory(fs: CheckpointFileSystem) -> None:
    """End the reservation of a directory whose savepoint is complete."""
    fs.delete(_IN_PROGRESS)


def write_source_progress(fs: CheckpointFileSystem, progress: Mapping[str, bytes]) -> tuple[FileHandle, ...]:
    """Write source progress, by relative file name, as files of the savepoint at the root of `fs`, one by one."""
    return tuple(fs.write_file(f"{SOURCE_PROGRESS_DIRECTORY}/{name}", progress[name]) for name in sorted(progress))


class SavedSourceProgress(Mapping[str, bytes]):
    """The source progress of a savepoint: relative file name to content, which is read on access.

    Looking up a name raises `MissingFileError` or `CorruptFileError` if its file is not what was written.
    """

    def __init__(self, fs: CheckpointFileSystem, metadata: CheckpointMetadata) -> None:
        self._fs = fs
        self._files = {file.path.partition("/")[2]: file for file in metadata.source_progress_files}

    def __getitem__(self, name: str) -> bytes:
        return self._fs.read_file(self._files[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def write_savepoint(fs: CheckpointFileSystem, metadata: CheckpointMetadata) -> FileHandle:
    """Complete the savepoint at the root of `fs`; return the handle of its metadata file.

    All data files must exist. In a directory reserved by `create_savepoint_directory`, files of failed attempts are
    removed. In any other directory an unknown file raises `SavepointExistsError`, and nothing is changed.

    Raises:
        MissingFileError: A data file is missing.
        CorruptFileError: A data file has another size.
    """
    require(
        metadata.kind is CheckpointKind.SAVEPOINT,
        f"{metadata.kind.value} {metadata.checkpoint_id} is not a savepoint",
    )
    present = _present(fs)
    surplus = set(present) - {file.path for file in metadata.files} - {_IN_PROGRESS}
    if METADATA_FILE_NAME in present or (surplus and _IN_PROGRESS not in present):
        raise SavepointExistsError(_rejection(fs, sorted(surplus)))
    fs.verify_present(metadata.files)
    for path in surplus:
        fs.delete(path)
    handle = write_metadata(fs, "", metadata)
    fs.delete(_IN_PROGRESS)
    return handle


def read_savepoint(uri: str | os.PathLike[str]) -> tuple[CheckpointFileSystem, CheckpointMetadata]:
    """Open a savepoint: the file system its paths are relative to, and its metadata.

    Checks that every file exists with its size; checksums are checked when a file is read. Changes nothing. Raises
    `SavepointError` if the directory is not a finished savepoint, `MissingFileError`, `CorruptFileError` or
    `CorruptMetadataError`.
    """
    fs = CheckpointFileSystem.from_uri(uri)
    try:
        metadata = read_metadata(fs, "")
    except MissingFileError as error:
        raise not_a_savepoint(fs) from error
    if metadata.kind is not CheckpointKind.SAVEPOINT:
        raise SavepointError(
            f"{fs.uri} is {metadata.kind.value} {metadata.checkpoint_id} of job {metadata.job_name!r}, not a "
            "savepoint: its files are elsewhere in the job directory. Take a savepoint of that job."
        )
    fs.verify_present(metadata.files)
    return fs, metadata


def not_a_savepoint(fs: CheckpointFileSystem) -> SavepointError:
    """The error for a root without `_metadata`; it describes what the directory is instead."""
    absent = fs.why_absent()
    if absent is not None:
        return SavepointError(f"{fs.uri} {absent}: it has no state")
    if fs.exists(_IN_PROGRESS):
        why = "a savepoint was started there and not finished; take it again to another directory"
    elif fs.exists(JOB_FILE_NAME):
        why = "it is the directory of a job; take a savepoint of that"
    else:
        why = f"it has no file {METADATA_FILE_NAME}; give the savepoint's own directory"
    return SavepointError(f"{fs.uri} is not a savepoint: {why}.")


def _around(place: str) -> Iterator[tuple[CheckpointFileSystem, str]]:
    """The directories around a place, the outermost first, each with the name in it that leads to the place."""
    path, mark, options = place.partition("?") if is_uri(place) else (os.path.realpath(place), "", "")
    names = path.rstrip("/").split("/")
    # The scheme of a URI and the name of its bucket are not directories.
    for index in range(4 if is_uri(place) else 2, len(names)):
        yield CheckpointFileSystem.from_uri("/".join(names[:index]) + mark + options), names[index]


def _check_nobody_removes(fs: CheckpointFileSystem, place: str) -> None:
    """Raise `SavepointError` for a place among the files of a job or of a savepoint that is being written."""
    for around, name in _around(place):
        if name in (CHECKPOINTS_DIRECTORY, SHARED_DIRECTORY) and around.exists(JOB_FILE_NAME):
            whose = f"the job in {around.uri}"
        elif _is_unfinished(around):
            whose = f"the unfinished savepoint in {around.uri}"
        else:
            continue
        raise SavepointError(
            f"{fs.uri} is inside the directory of {whose}, which removes files that it does not know. Nothing was "
            f"changed; give a directory outside."
        )


def _is_unfinished(around: CheckpointFileSystem) -> bool:
    try:
        return around.exists(_IN_PROGRESS)
    except StorageError:
        # A writer of a directory may have no access to its parents.
        return False


def _present(fs: CheckpointFileSystem) -> tuple[str, ...]:
    """All files. The two that decide are looked up, because an object store may not list them yet."""
    listed = fs.list_files(include_temporary=True)
    unlisted = (name for name in (METADATA_FILE_NAME, _IN_PROGRESS) if name not in listed and fs.exists(name))
    return (*listed, *unlisted)


def _rejection(fs: CheckpointFileSystem, present: tuple[str, ...] | list[str]) -> str:
    instead = "give a directory that is empty or does not exist yet"
    if METADATA_FILE_NAME in present:
        what = "already is a checkpoint or savepoint"
    elif _IN_PROGRESS in present:
        what = "holds a savepoint that is being written or was not finished"
        instead = f"if it is no longer being written, remove it, or {instead}"
    else:
        what = f"is not empty (it holds {present[0]!r})"
    return f"{fs.uri} {what}. Nothing was changed; {instead}."
