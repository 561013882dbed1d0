"""Durable files on a local disk, through direct calls of the operating system.

A file becomes visible under its name only when all of its bytes are on the disk: it is written to a temporary name in
the same directory, synced, and renamed over the target. Then the directory is synced, and every directory that had to
be created. A crash leaves at most a file whose name starts with `.tmp-`.

Copies within one device are hard links if the caller allows it. Both names then share their bytes, so this is only
for immutable files such as RocksDB's SST files.

The program names the root, which may be a symbolic link. Below the root no symbolic link is followed, because a job or
savepoint directory may come from another user. Each operation opens the directories from the root downwards, each
relative to the one above and with `O_NOFOLLOW`, and works relative to the last (`dir_fd`). So a link that replaces a
directory between a check and its use has no effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import pyarrow
from attrs import frozen

from statebackend.checkpoint.fs.file_modes import create_file, make_directory, take_file_mode
from statebackend.checkpoint.invariants import MAX_PATH_BYTES, checksum_of_chunks, chunks_of

__all__ = ["TEMPORARY_PREFIX", "Accept", "LocalStorage", "replacing", "sync_directory"]

TEMPORARY_PREFIX = ".tmp-"

Accept = Callable[[int, str], None]

_LINK_IS_IMPOSSIBLE = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.ENOTSUP, errno.ENOSYS})
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_DEPTH = 128


def sync_directory(directory: str) -> None:
    """Make the names in `directory` durable."""
    descriptor = os.open(directory, _DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@frozen
class LocalStorage:
    """Files under the absolute directory `root`; all methods take checked relative paths.

    The paths are relative to the directory `below` of the root, which must not be a link; "" is the root itself.
    """

    root: str
    below: str = ""

    def inside(self, directory: str) -> LocalStorage:
        """The files in a directory of this storage."""
        return LocalStorage(self.root, f"{self.below}/{directory}" if self.below else directory)

    def local_path(self, path: str) -> str | None:
        """The absolute path for other programs; raises `OSError` if it contains a link below the root."""
        if self._segments(path):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._parent(path) as (name, directory):
                _check_no_link(name, directory, self._full(path))
        return self._full(path)

    @property
    def has_conditional_writes(self) -> bool:
        return False

    def conditional(self) -> None:
        """None: drivers on a disk exclude each other by a lock."""

    def make_root(self) -> None:
        """Create the root directory, durably."""
        with self._opened(self._segments(""), make=True):
            pass

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write a file, durably if requested; after an error it is absent or unchanged."""
        with self._parent(path, make=True) as (name, directory):
            with replacing(name, directory) as temporary, create_file(temporary, directory) as target:
                target.write(data)
                if durable:
                    _sync_file(target)
            if durable:
                os.fsync(directory)

    def create(self, path: str, data: bytes) -> bool:
        """Create a file durably; return False if the name exists."""
        with self._parent(path, make=True) as (name, directory):
            temporary = TEMPORARY_PREFIX + uuid.uuid4().hex
            try:
                with create_file(temporary, directory) as target:
                    target.write(data)
                _place((temporary, directory), (name, directory), may_link=True, durable=True)
            except FileExistsError:
                return False
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
            os.fsync(directory)
        return True

    def put_file(self, source_path: str, path: str, may_link: bool) -> tuple[int, str]:
        """Copy or link a local file into the store; return its size in bytes and its checksum."""
        return self._put_file((os.path.realpath(source_path), None), path, may_link)

    def get_file(self, path: str, target_path: str, may_link: bool, accept: Accept) -> None:
        """Copy or link a file to `target_path`, unless `accept(size, checksum)` raises."""
        with self._parent(path) as source, replacing(target_path) as temporary:
            accept(*_place(source, (temporary, None), may_link, durable=False))

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        with self._parent(path) as source, _open_regular(source) as file:
            return file.read()

    def open_input(self, path: str) -> pyarrow.NativeFile:
        """A seekable file object."""
        with self._parent(path) as source:
            return pyarrow.PythonFile(_open_regular(source), "rb")

    def size_bytes(self, path: str) -> int | None:
        """Size of a regular file, None if it does not exist."""
        try:
            with self._parent(path) as (name, directory):
                status = os.lstat(name, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def sizes_bytes(self, paths: Iterable[str]) -> list[int | None]:
        return [self.size_bytes(path) for path in paths]

    def list_files(self, prefix: str) -> list[str]:
        """Relative paths of all files below the directory `prefix`; empty if it does not exist."""
        return [path for path, entry in self._entries(prefix) if not entry.is_dir()]

    def check_regular(self, prefix: str) -> None:
        """Raise `OSError` if `prefix` is a link, or anything below it is not a file or directory."""
        for path, entry in self._entries(prefix):
            if entry.is_symlink():
                raise _link_found(self._full(path))
            if not (entry.is_file() or entry.is_dir()):
                raise OSError(errno.EINVAL, "is neither a file nor a directory; remove it", self._full(path))

    def list_directories(self, prefix: str) -> list[str]:
        """Names of the directories directly below `prefix`."""
        try:
            with self._opened(self._segments(prefix)) as directory, os.scandir(directory) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def copy(self, path: str, target: str) -> None:
        """Link a file, or copy it if links are not possible."""
        with self._parent(path) as source:
            self._put_file(source, target, may_link=True)

    def delete(self, path: str, durable: bool) -> None:
        """Remove a file, if it exists. With `durable` the removal survives a power loss."""
        with contextlib.suppress(FileNotFoundError), self._parent(path) as (name, directory):
            os.unlink(name, dir_fd=directory)
            if durable:
                os.fsync(directory)

    def delete_directory(self, path: str) -> None:
        """Remove a directory with its content, if it exists."""
        with contextlib.suppress(FileNotFoundError), self._parent(path) as (name, directory):
            _remove_tree(name, directory, self._full(path), _MAX_DEPTH)

    def move_directory(self, path: str, target: str) -> None:
        """Rename a directory, durably."""
        with self._parent(path) as (name, source), self._parent(target, make=True) as (new_name, directory):
            _check_no_link(name, source, self._full(path))
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=directory)
            os.fsync(source)
            os.fsync(directory)

    def _put_file(self, source: _File, path: str, may_link: bool) -> tuple[int, str]:
        with self._parent(path, make=True) as (name, directory):
            with replacing(name, directory) as temporary:
                result = _place(source, (temporary, directory), may_link, durable=True)
                if source[1] is None:
                    # A linked file has the permissions that its program gave it.
                    with _open_regular((temporary, directory)) as placed:
                        take_file_mode(placed.fileno())
            os.fsync(directory)
        return result

    def _entries(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """All entries below a directory, by relative path; use an entry before reading the next one."""
        waiting = [prefix]
        while waiting:
            above = waiting.pop()
            with (
                contextlib.suppress(FileNotFoundError),
                self._opened(self._segments(above)) as directory,
                os.scandir(directory) as entries,
            ):
                for entry in entries:
                    path = f"{above}/{entry.name}" if above else entry.name
                    # No operation accepts a longer path.
                    if entry.is_dir(follow_symlinks=False) and len(os.fsencode(path)) <= MAX_PATH_BYTES:
                        waiting.append(path)
                    yield path, entry

    def _full(self, path: str) -> str:
        return os.path.join(self.root, *self._segments(path))

    def _segments(self, path: str) -> list[str]:
        return [segment for part in (self.below, path) if part for segment in part.split("/")]

    @contextlib.contextmanager
    def _parent(self, path: str, make: bool = False) -> Iterator[tuple[str, int]]:
        """The name of a file, and its open directory."""
        *segments, name = self._segments(path) or ["."]
        with self._opened(segments, make) as directory:
            yield name, directory

    @contextlib.contextmanager
    def _opened(self, segments: Iterable[str], make: bool = False) -> Iterator[int]:
        """Open a directory; `make` creates it durably. Raises `OSError` for a link below the root."""
        if make:
            _make_directories(self.root)
        place = self.root
        directory = os.open(place, _DIRECTORY)
        try:
            for segment in segments:
                place = os.path.join(place, segment)
                below = _open_below(directory, segment, place, make)
                os.close(directory)
                directory = below
            yield directory
        finally:
            os.close(directory)


_File = tuple[str, int | None]
"""A path, and the open directory to which it is relative; None for an absolute path."""


def _open_below(directory: int, name: str, place: str, make: bool) -> int:
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError as error:
        if not make:
            error.filename = place
            raise
    except OSError as error:
        _check_no_link(name, directory, place)
        error.filename = place
        raise
    with contextlib.suppress(FileExistsError):
        make_directory(name, directory)
    os.fsync(directory)
    return _open_below(directory, name, place, make=False)


def _remove_tree(name: str, directory: int, place: str, max_depth: int) -> None:
    # `shutil.rmtree` takes an open directory from Python 3.11 on.
    if max_depth == 0:
        raise OSError(errno.ENAMETOOLONG, "directories are nested too deeply; remove them manually", place)
    opened = _open_below(directory, name, place, make=False)
    try:
        with os.scandir(opened) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_directory in found:
            with contextlib.suppress(FileNotFoundError):
                if is_directory:
                    _remove_tree(inner, opened, os.path.join(place, inner), max_depth - 1)
                else:
                    os.unlink(inner, dir_fd=opened)
    finally:
        os.close(opened)
    os.rmdir(name, dir_fd=directory)


def _check_no_link(name: str, directory: int | None, place: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode):
            raise _link_found(place)


def _link_found(place: str) -> OSError:
    what_to_do = "is a symbolic link, and no link is followed here; put what it leads to in its place"
    return OSError(errno.ELOOP, what_to_do, place)


def _place(source: _File, target: _File, may_link: bool, durable: bool) -> tuple[int, str]:
    """Link or copy a file to a new name; return size and checksum of its bytes."""
    with _open_regular(source) as file:
        if may_link and _try_link(source, target):
            result = checksum_of_chunks(chunks_of(file))
            if durable:
                os.fsync(file.fileno())
            return result
        with create_file(*target) as copy:
            result = checksum_of_chunks(_teed(chunks_of(file), copy.write))
            if durable:
                _sync_file(copy)
        return result


@contextlib.contextmanager
def replacing(target: str, directory: int | None = None) -> Iterator[str]:
    """Yield a temporary name next to `target`; on success rename it to `target`.

    Both names are relative to the open directory `directory`.
    """
    parent = os.path.dirname(target)
    if directory is None:
        _make_directories(parent)
    temporary = os.path.join(parent, TEMPORARY_PREFIX + uuid.uuid4().hex)
    try:
        yield temporary
        os.replace(temporary, target, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        # Renaming a hard link over another one of the same file does nothing, so the name may exist even after
        # success.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)


def _make_directories(directory: str) -> None:
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            make_directory(path)
        sync_directory(os.path.dirname(path))


def _open_regular(source: _File) -> BinaryIO:
    path, directory = source
    # Without O_NONBLOCK, opening a named pipe would wait for a writer; it does not affect regular files.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        _check_no_link(path, directory, path)
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    return open(descriptor, "rb")


def _try_link(source: _File, target: _File) -> bool:
    try:
        os.link(source[0], target[0], src_dir_fd=source[1], dst_dir_fd=target[1], follow_symlinks=False)
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
