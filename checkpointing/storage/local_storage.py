"""Durable files on a local disk, by the operating system's own calls.

A file becomes visible under its name only when all of its bytes are on the disk: written to a temporary
name in the same directory, synced, renamed over the target, and the directory synced, as is every
directory that had to be created. A crash leaves at most a file whose name starts with `.tmp-`.

Copies within one device are hard links where the caller allows it: the two names then share their
bytes, which is right for files that never change once written (RocksDB's tables) and wrong for others.
Symbolic links in the place of files are not followed, since what is read must lie where its path says.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import pyarrow
from attrs import frozen

from checkpointing.handles.checksum import checksum_of_chunks, chunks_of
from checkpointing.storage.file_modes import create_file, make_directory, take_file_mode

__all__ = ["TEMPORARY_PREFIX", "Accept", "LocalStorage", "replacing", "sync_directory"]

TEMPORARY_PREFIX = ".tmp-"

Accept = Callable[[int, str], None]

_LINK_IS_IMPOSSIBLE = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.ENOTSUP, errno.ENOSYS})


def sync_directory(directory: str) -> None:
    """Make the names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@frozen
class LocalStorage:
    """Files under the absolute directory `root`; all methods take checked relative paths."""

    root: str

    def local_path(self, path: str) -> str | None:
        """The real path of `path`."""
        return os.path.join(self.root, path) if path else self.root

    @property
    def has_conditional_writes(self) -> bool:
        """No."""
        return False

    def conditional(self) -> None:
        """None: drivers on a disk exclude each other by a lock."""

    def make_root(self) -> None:
        """Create the root directory, durably."""
        _make_directories(self.root)

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write a file: complete, and on return durable if so asked; absent or as before on any error."""
        with replacing(self._full(path), durable) as temporary, create_file(temporary) as target:
            target.write(data)
            if durable:
                _sync_file(target)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file under a name that is free, durably: complete, or False where the name is taken."""
        full_path = self._full(path)
        directory = os.path.dirname(full_path)
        _make_directories(directory)
        temporary = os.path.join(directory, TEMPORARY_PREFIX + uuid.uuid4().hex)
        try:
            with create_file(temporary) as target:
                target.write(data)
            _place(temporary, full_path, may_link=True, durable=True)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_directory(directory)
        return True

    def put_file(self, source_path: str, path: str, may_link: bool) -> tuple[int, str]:
        """Bring in a file; return its size in bytes and its checksum, both taken from the bytes."""
        with self._replacing(path) as temporary:
            result = _place(os.path.realpath(source_path), temporary, may_link, durable=True)
            with _open_regular(temporary) as placed:
                # What is linked has the permissions that the program which wrote it gave it.
                take_file_mode(placed.fileno())
            return result

    def get_file(self, path: str, target_path: str, may_link: bool, accept: Accept) -> None:
        """Bring a file out to `target_path`, which appears unless `accept(size, checksum)` raises."""
        with replacing(target_path, durable=False) as temporary:
            accept(*_place(self._full(path), temporary, may_link, durable=False))

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        with _open_regular(self._full(path)) as source:
            return source.read()

    def open_input(self, path: str) -> pyarrow.NativeFile:
        """A seekable file object."""
        return pyarrow.PythonFile(_open_regular(self._full(path)), "rb")

    def size_bytes(self, path: str) -> int | None:
        """Size of a regular file, None if there is none."""
        try:
            status = os.lstat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def sizes_bytes(self, paths: Iterable[str]) -> list[int | None]:
        """`size_bytes` of each path."""
        return [self.size_bytes(path) for path in paths]

    def list_files(self, prefix: str) -> list[str]:
        """Relative paths of all files below the directory `prefix`; none if there is no such directory."""
        found = []
        start = os.path.join(self.root, prefix) if prefix else self.root
        for directory, _, names in os.walk(start, onerror=_raise_unless_missing):
            relative = os.path.relpath(directory, self.root)
            found += [name if relative == "." else f"{relative}/{name}" for name in names]
        return found

    def list_directories(self, prefix: str) -> list[str]:
        """Names of the directories directly below `prefix`."""
        start = os.path.join(self.root, prefix) if prefix else self.root
        try:
            with os.scandir(start) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def copy(self, path: str, target: str) -> None:
        """A link, or a copy where there can be none."""
        self.put_file(self._full(path), target, may_link=True)

    def delete(self, path: str, durable: bool) -> None:
        """Remove a file; a missing one is fine. With `durable` the removal survives a power loss."""
        target = self._full(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
            if durable:
                sync_directory(os.path.dirname(target))

    def delete_directory(self, path: str) -> None:
        """Remove a directory and all it holds; a missing one is fine."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._full(path))

    def move_directory(self, path: str, target: str) -> None:
        """Rename a directory, durably."""
        _make_directories(os.path.dirname(self._full(target)))
        os.rename(self._full(path), self._full(target))
        sync_directory(os.path.dirname(self._full(path)))
        sync_directory(os.path.dirname(self._full(target)))

    def _full(self, path: str) -> str:
        return os.path.join(self.root, path)

    def _replacing(self, path: str) -> contextlib.AbstractContextManager[str]:
        return replacing(self._full(path), durable=True)


def _place(source_path: str, target_path: str, may_link: bool, durable: bool) -> tuple[int, str]:
    """Link or copy a file to a name not taken yet; return size and checksum of its bytes."""
    with _open_regular(source_path) as source:
        if may_link and _try_link(source_path, target_path):
            result = checksum_of_chunks(chunks_of(source))
            if durable:
                os.fsync(source.fileno())
            return result
        with create_file(target_path) as target:
            result = checksum_of_chunks(_teed(chunks_of(source), target.write))
            if durable:
                _sync_file(target)
        return result


@contextlib.contextmanager
def replacing(target_path: str, durable: bool) -> Iterator[str]:
    """Yield a temporary name next to `target_path`; on success it takes the target's place."""
    directory = os.path.dirname(target_path)
    _make_directories(directory)
    temporary = os.path.join(directory, TEMPORARY_PREFIX + uuid.uuid4().hex)
    try:
        yield temporary
        os.replace(temporary, target_path)
    finally:
        # Renaming one hard link over another of the same file does nothing, so the name may still be
        # there after success as well.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    if durable:
        sync_directory(directory)


def _make_directories(directory: str) -> None:
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            make_directory(path)
        sync_directory(os.path.dirname(path))


def _open_regular(path: str) -> BinaryIO:
    # Without O_NONBLOCK the opening of a named pipe would wait for a writer; of a regular file it changes nothing.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    return open(descriptor, "rb")


def _try_link(source_path: str, target_path: str) -> bool:
    try:
        os.link(source_path, target_path, follow_symlinks=False)
    except OSError as error:
        if error.errno in _LINK_IS_IMPOSSIBLE:
            return False
        raise
    return True


def _sync_file(target: BinaryIO) -> None:
    target.flush()
    os.fsync(target.fileno())


def _teed(chunks: Iterable[bytes], write: Callable[[bytes], object]) -> Iterator[bytes]:
    for chunk in chunks:
        write(chunk)
        yield chunk


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
