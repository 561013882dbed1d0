"""Savepoints: checkpoints that belong to the user, in a self-contained directory.

A savepoint directory holds `_metadata` (kind SAVEPOINT) and all data files, by paths relative to the directory, so it
can be copied, moved and archived as a whole. While it is being written, it has a file `_in_progress` instead of
`_metadata`:

    create_savepoint_directory(uri)    rejects anything but an absent or empty directory
    fs.upload / fs.write_file ...      data files, by any number of tasks
    write_savepoint(fs, metadata)      checks that all files are there, writes `_metadata`, last

So a directory with `_metadata` is complete, and one without it can only be deleted.

`reserved_directory` is for writers that are one process, such as an import. Such a writer locks `_in_progress`, in
which it lists the files that it can write. If it is killed, the kernel releases the lock, and the next writer deletes
the listed files. It changes nothing if there are other files. A store without locks is not cleaned.

Source positions (`source_progress`) are files below `source-progress/`, because the log of a file source grows with
every file that it reads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import posixpath
import re
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from statebackend.checkpoint.errors import (
    MissingFileError,
    SavepointError,
    SavepointExistsError,
    StorageError,
    UnsafePathError,
)
from statebackend.checkpoint.fs.file_lock import FileLock
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.local_storage import TEMPORARY_PREFIX
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

_IN_PROGRESS: Final = "_in_progress"
_WARNING: Final = "A savepoint is being written here. Without _metadata it is incomplete. Written by "
_LIST: Final = "The next writer may delete these files of it (* is 32 hexadecimal digits):\n"
_MARKER = re.compile(
    rb"%b[0-9a-f]{32}\.\n%b(?P<files>(?:[^\n]+\n)*)[^\n]*" % (re.escape(_WARNING.encode()), re.escape(_LIST.encode()))
)
"""Its group ``files`` is the list. The last line may be incomplete, and is then ignored.

The markers of writers with several processes have no list and do not match.
"""
_RANDOM = re.compile("[0-9a-f]{32}")
_NO_LOCKS: Final = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS)


def check_savepoint_directory(uri: str | os.PathLike[str], *, may_clear: bool = False) -> CheckpointFileSystem:
    """Check the target of a savepoint before long work starts. Changes nothing.

    Args:
        uri: The directory.
        may_clear: Whether it may have what a killed writer has left, which `reserved_directory` deletes.

    Raises:
        SavepointExistsError: The directory exists and is not empty.
        SavepointError: It is inside a job directory or an unfinished savepoint, which would remove it as an orphan.
    """
    fs = CheckpointFileSystem.from_uri(uri)
    present = _present(fs)
    if may_clear and _IN_PROGRESS in present and METADATA_FILE_NAME not in present:
        # Without the lock, so that a writer that takes it at the same time does not fail.
        try:
            marker = None if fs.local_path(_IN_PROGRESS) is None else fs.read_file(_IN_PROGRESS)
        except MissingFileError:
            # Its writer has just ended.
            return check_savepoint_directory(uri, may_clear=may_clear)
        _leftovers(fs, marker)
    elif not all(_is_unfinished_marker(fs, path) for path in present):
        raise SavepointExistsError(_rejection(fs, present))
    _check_nobody_removes(fs, fs.local_path() or os.fspath(uri))
    return fs


def create_savepoint_directory(uri: str | os.PathLike[str]) -> CheckpointFileSystem:
    """Reserve an absent or empty directory for a savepoint; raises as `check_savepoint_directory`.

    Of several concurrent callers, one succeeds.
    """
    fs = check_savepoint_directory(uri)
    if not _create_marker(fs, ""):
        raise SavepointExistsError(_rejection(fs, (_IN_PROGRESS,)))
    return fs


@contextlib.contextmanager
def reserved_directory(uri: str | os.PathLike[str], files: Iterable[str]) -> Iterator[CheckpointFileSystem]:
    """Reserve a directory for a savepoint that only this process writes; delete what a killed writer has left.

    If an error occurs before the savepoint is complete, the directory is emptied. Of several concurrent callers, one
    succeeds.

    Args:
        uri: The directory: absent, empty, or left by a writer that was killed.
        files: The paths of all files that the caller can write, except `_metadata`. ``*`` is 32 hexadecimal digits.

    Raises:
        SavepointExistsError: The directory has other files, or another process writes there.
        SavepointError: See `check_savepoint_directory`.
    """
    fs = check_savepoint_directory(uri, may_clear=True)
    lines = "".join(f"{path}\n" for path in files)
    is_new = _create_marker(fs, _LIST + lines)
    with _locked_marker(fs, is_new) as lock:
        if lock is not None:
            _clear(fs, lock, is_new, lines)
        try:
            yield fs
        except BaseException:
            abandon_savepoint_directory(fs)
            raise


def _clear(fs: CheckpointFileSystem, lock: FileLock, is_new: bool, lines: str) -> None:
    """Delete the files of a killed writer, and list those of this one."""
    try:
        # Also for a new marker: another writer may have used it, and been killed, before this one locked it.
        left = _leftovers(fs, _content(lock))
    except SavepointExistsError:
        if is_new:
            fs.delete(_IN_PROGRESS)
        raise
    for path in left:
        fs.delete(path)
    if not is_new:
        found = _MARKER.fullmatch(_content(lock))
        assert found is not None
        os.ftruncate(lock.descriptor, found.end("files"))
        os.pwrite(lock.descriptor, lines.encode(), found.end("files"))
        os.fsync(lock.descriptor)


def _create_marker(fs: CheckpointFileSystem, files: str) -> bool:
    """Create the marker. Returns False if it exists. Raises `SavepointExistsError` if there is a savepoint."""
    is_new = fs.create_file(_IN_PROGRESS, f"{_WARNING}{uuid.uuid4().hex}.\n{files}".encode())
    if fs.exists(METADATA_FILE_NAME):
        # Another process has written one there since the check.
        if is_new:
            fs.delete(_IN_PROGRESS)
        raise SavepointExistsError(_rejection(fs, (METADATA_FILE_NAME,)))
    return is_new


@contextlib.contextmanager
def _locked_marker(fs: CheckpointFileSystem, is_new: bool) -> Iterator[FileLock | None]:
    """Lock the marker. Yields None for one that this process has just created in a store without locks.

    Raises:
        SavepointExistsError: Another process has the lock, or it is unknown whether one writes there.
    """
    try:
        lock = _lock_of(fs)
    except OSError as error:
        if not is_new or error.errno not in _NO_LOCKS:
            is_locked = error.errno == errno.EWOULDBLOCK
            raise SavepointExistsError(_rejection(fs, (_IN_PROGRESS,), is_locked)) from error
        lock = None
    try:
        yield lock
    finally:
        if lock is not None:
            lock.release()


def _lock_of(fs: CheckpointFileSystem) -> FileLock:
    path = fs.local_path(_IN_PROGRESS)
    if path is None:
        raise OSError(errno.ENOTSUP, "the store has no locks")
    # Without O_NONBLOCK, opening a named pipe could wait for another process.
    lock = FileLock(
        os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), fcntl.LOCK_EX | fcntl.LOCK_NB
    )
    try:
        status = os.fstat(lock.descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a file", path)
        if not os.path.samestat(status, os.lstat(path)):
            # Its writer completed, or was rejected, before the lock was taken.
            raise OSError(errno.EWOULDBLOCK, "another process has just used it", path)
    except OSError:
        lock.release()
        raise
    return lock


def _leftovers(fs: CheckpointFileSystem, marker: bytes | None) -> list[str]:
    """Return the files that a killed writer has left, without the marker. Only with its lock may they be deleted.

    ``marker`` is its content; None in a store without locks.

    Raises:
        SavepointExistsError: There is a file that the writer did not list, or `_metadata`.
        StorageError: There is a symbolic link in place of a directory.
    """
    present = _present(fs)
    found = None if marker is None else _MARKER.fullmatch(marker)
    if found is None or METADATA_FILE_NAME in present:
        raise SavepointExistsError(_rejection(fs, present))
    listed = set(found["files"].decode("utf-8", "replace").split("\n")[:-1])
    directories = set(map(posixpath.dirname, listed)) - {""}
    try:
        for directory in directories:
            # Listings leave out links to directories. This raises `StorageError` for one.
            fs.local_path(directory)
    except UnsafePathError as error:
        # No writer lists such a file.
        raise SavepointExistsError(_rejection(fs, present)) from error
    listed |= {posixpath.join(directory, f"{TEMPORARY_PREFIX}*") for directory in ("", *directories)}
    left = [path for path in present if path != _IN_PROGRESS and not _is_unfinished_marker(fs, path)]
    for path in left:
        # A link or pipe is no file of a writer. Another writer that has the lock may just have deleted a file.
        is_listed = not listed.isdisjoint((path, _RANDOM.sub("*", path)))
        if not (is_listed and fs.exists(path)) and path in _present(fs):
            raise SavepointExistsError(
                f"{fs.uri} has the remains of a writer that was killed, and {path!r}, which it did not write. Nothing "
                f"was changed; remove {path!r}, or give a directory that is empty or does not exist yet."
            )
    return left


def _content(lock: FileLock) -> bytes:
    return os.pread(lock.descriptor, os.fstat(lock.descriptor).st_size, 0)


def _is_unfinished_marker(fs: CheckpointFileSystem, path: str) -> bool:
    """Whether a file is what a writer leaves that is killed while it creates the marker, or is not there any more."""
    if _RANDOM.sub("*", path) != f"{TEMPORARY_PREFIX}*":
        return False
    try:
        with fs.open_input(path) as source:
            start = source.read(len(_WARNING))
    except MissingFileError:
        return True
    return _WARNING.encode().startswith(start)


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
    # Object stores have no temporary files, and a listing there is a request.
    for path in _present(fs) if fs.local_path() is not None else ():
        if _is_unfinished_marker(fs, path):
            fs.delete(path)
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
            f"{fs.uri} is {metadata.kind.value.lower()} {metadata.checkpoint_id} of job {metadata.job_name!r}, not a "
            f"savepoint: its files are elsewhere in the job directory. Take a savepoint of that job, or write one from "
            f"this checkpoint {_COMMANDS}"
        )
    fs.verify_present(metadata.files)
    return fs, metadata


_COMMANDS: Final = "with the command 'statebackend migrate' or 'statebackend rewrite'"


def not_a_savepoint(fs: CheckpointFileSystem) -> SavepointError:
    """The error for a root without `_metadata`; it describes what the directory is instead."""
    absent = fs.why_absent()
    if absent is not None:
        return SavepointError(f"{fs.uri} {absent}: it has no state")
    if fs.exists(_IN_PROGRESS):
        why = "a savepoint was started there and not finished; take it again to another directory"
    elif fs.exists(JOB_FILE_NAME):
        why = f"it is the directory of a job; take a savepoint of the job, or write one from its checkpoint {_COMMANDS}"
    else:
        # Raises an error for a symbolic link, which does not count as a file.
        fs.local_path(METADATA_FILE_NAME)
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


def _rejection(fs: CheckpointFileSystem, present: Sequence[str], is_locked: bool = False) -> str:
    instead = "give a directory that is empty or does not exist yet"
    if METADATA_FILE_NAME in present:
        what = "already is a checkpoint or savepoint"
    elif is_locked:
        what = "holds a savepoint that another process is writing"
    elif _IN_PROGRESS in present:
        what = "holds a savepoint that is being written or was not finished"
        instead = f"if it is no longer being written, remove it, or {instead}"
    else:
        what = f"is not empty (it holds {present[0]!r})"
    return f"{fs.uri} {what}. Nothing was changed; {instead}."
