"""Savepoints: checkpoints that belong to the user, in a directory that stands alone.

A savepoint directory holds `_metadata` (kind SAVEPOINT) and every data file it refers to, by paths
relative to the directory, so it can be copied, moved and archived as a whole. While it is being written
there is a file `_in_progress` instead of `_metadata`:

    create_savepoint_directory(uri)    refuses anything but an absent or empty directory
    fs.upload / fs.write_file ...      data files, by any number of tasks
    write_savepoint(fs, metadata)      checks that all files are there, writes `_metadata`, last

A directory with `_metadata` is therefore complete, and one without can only be deleted.

How far the source was read (`source_progress`) is files too, below `source-progress/`: the log of a file source grows
with every file ever read. Savepoints of older releases have it in their metadata.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from checkpointing.errors import MissingFileError, SavepointError, SavepointExistsError
from checkpointing.handles.invariants import require
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import SOURCE_PROGRESS_DIRECTORY, CheckpointKind, CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.metadata_file import METADATA_FILE_NAME, read_metadata, write_metadata

__all__ = [
    "SavedSourceProgress",
    "create_savepoint_directory",
    "read_savepoint",
    "write_savepoint",
    "write_source_progress",
]

_IN_PROGRESS = "_in_progress"
_IN_PROGRESS_TEXT = b"A savepoint is being written here. Without _metadata it is incomplete.\n"


def create_savepoint_directory(uri: str | os.PathLike[str]) -> CheckpointFileSystem:
    """Reserve an absent or empty directory for a savepoint; `SavepointExistsError` for any other."""
    fs = CheckpointFileSystem.from_uri(uri)
    present = _present(fs)
    if present:
        raise SavepointExistsError(_refusal(fs, present))
    fs.write_file(_IN_PROGRESS, _IN_PROGRESS_TEXT)
    return fs


def write_source_progress(fs: CheckpointFileSystem, progress: Mapping[str, bytes]) -> tuple[FileHandle, ...]:
    """Write source progress, by relative file name, as files of the savepoint at the root of `fs`, one by one."""
    return tuple(fs.write_file(f"{SOURCE_PROGRESS_DIRECTORY}/{name}", progress[name]) for name in sorted(progress))


class SavedSourceProgress(Mapping[str, bytes]):
    """The source progress of a savepoint: relative file name to content, which is read when it is asked for.

    Looking up a name raises `MissingFileError` or `CorruptFileError` if its file is not what was written.
    """

    def __init__(self, fs: CheckpointFileSystem, metadata: CheckpointMetadata) -> None:
        self._fs = fs
        self._content = metadata.source_progress
        self._files = {file.path.partition("/")[2]: file for file in metadata.source_progress_files}

    def __getitem__(self, name: str) -> bytes:
        return self._fs.read_file(self._files[name]) if name in self._files else self._content[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files or self._content)

    def __len__(self) -> int:
        return len(self._files or self._content)


def write_savepoint(fs: CheckpointFileSystem, metadata: CheckpointMetadata) -> FileHandle:
    """Complete the savepoint at the root of `fs`; return the handle of its metadata file.

    All data files must be in place. In a directory reserved by `create_savepoint_directory`, remains of
    failed attempts are removed; in any other, a file the savepoint does not refer to is a
    `SavepointExistsError`, and nothing is changed. Raises `MissingFileError` or `CorruptFileError` when a
    data file is not there in its size.
    """
    require(
        metadata.kind is CheckpointKind.SAVEPOINT,
        f"{metadata.kind.value} {metadata.checkpoint_id} is not a savepoint",
    )
    present = _present(fs)
    surplus = set(present) - {file.path for file in metadata.files} - {_IN_PROGRESS}
    if METADATA_FILE_NAME in present or (surplus and _IN_PROGRESS not in present):
        raise SavepointExistsError(_refusal(fs, sorted(surplus)))
    fs.verify_present(metadata.files)
    for path in surplus:
        fs.delete(path)
    handle = write_metadata(fs, "", metadata)
    fs.delete(_IN_PROGRESS)
    return handle


def read_savepoint(uri: str | os.PathLike[str]) -> tuple[CheckpointFileSystem, CheckpointMetadata]:
    """Open a savepoint: the file system its paths are relative to, and its metadata.

    Checks that every file is there with its size; checksums are checked when a file is read. Raises
    `SavepointError` when the directory is no finished savepoint, `MissingFileError`, `CorruptFileError`
    or `CorruptMetadataError`. Changes nothing.
    """
    fs = CheckpointFileSystem.from_uri(uri)
    try:
        metadata = read_metadata(fs, "")
    except MissingFileError as error:
        why = (
            "a savepoint was begun there and not finished; take it again into another directory"
            if fs.exists(_IN_PROGRESS)
            else f"it has no file {METADATA_FILE_NAME}; give the savepoint's own directory"
        )
        raise SavepointError(f"{fs.uri} is not a savepoint: {why}.") from error
    if metadata.kind is not CheckpointKind.SAVEPOINT:
        raise SavepointError(
            f"{fs.uri} is {metadata.kind.value} {metadata.checkpoint_id} of job {metadata.job_name!r}, not a "
            "savepoint: its files lie elsewhere in the job directory. Take a savepoint of that job."
        )
    fs.verify_present(metadata.files)
    return fs, metadata


def _present(fs: CheckpointFileSystem) -> tuple[str, ...]:
    """What is there: all that is listed, and what decides, which an object store may not list yet."""
    listed = fs.list_files(include_temporary=True)
    unlisted = (name for name in (METADATA_FILE_NAME, _IN_PROGRESS) if name not in listed and fs.exists(name))
    return (*listed, *unlisted)


def _refusal(fs: CheckpointFileSystem, present: tuple[str, ...] | list[str]) -> str:
    if METADATA_FILE_NAME in present:
        what = "already is a checkpoint or savepoint"
    elif _IN_PROGRESS in present:
        what = "holds a savepoint that is being written or was not finished"
    else:
        what = f"is not empty (it holds {present[0]!r})"
    return f"{fs.uri} {what}. Nothing was changed; give a directory that is empty or does not exist yet."
