"""A root directory in a store. All access to files of checkpoints goes through `CheckpointFileSystem`.

Paths are relative to the root and checked before the store receives them. A write returns a `FileHandle` (path, size,
checksum), and a read through a handle checks that the bytes are those that were written. A written file is complete and
durable, or absent. Errors of the store (full disk, permissions, network) become a `StorageError` with the location, and
the cause is chained.

On a local disk the operating system is called directly, because syncing and linking are not portable. All other URIs
use `pyarrow.fs`. Credentials of a URI never appear in a message or a file (`store_uri`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Protocol
from urllib.parse import quote

import pyarrow
import pyarrow.fs

from statebackend.checkpoint.errors import CorruptFileError, MissingFileError, StorageError, UnsafePathError, fix_of
from statebackend.checkpoint.fs.arrow_storage import ArrowStorage
from statebackend.checkpoint.fs.conditional_objects import ConditionalObjects
from statebackend.checkpoint.fs.local_storage import TEMPORARY_PREFIX, Accept, LocalStorage
from statebackend.checkpoint.fs.s3_storage import S3Location, S3Storage
from statebackend.checkpoint.fs.store_uri import (
    check_credentials,
    check_path,
    is_uri,
    place_inside,
    redacted,
    scheme_of,
    secrets_of,
    without_secrets,
)
from statebackend.checkpoint.invariants import checked_relative_path, checksum_of_bytes, checksum_of_chunks
from statebackend.checkpoint.state_handles import FileHandle

__all__ = ["CheckpointFileSystem", "Storage"]

_READ_AT_ONCE_BYTES = 8 << 20
"""Bytes per read; each read is a request to an object store."""

_WHAT_TO_DO = "Restore from another checkpoint or savepoint, or restore the original file from a backup."


class Storage(Protocol):
    """The operations of a kind of store for `CheckpointFileSystem`, which selects it by URI.

    Paths are relative to its root, checked, with `/` between their parts. A file is complete, or absent. All methods
    raise `StorageError` when the store fails, and `MissingFileError` if a file to read does not exist.
    """

    def local_path(self, path: str) -> str | None:
        """The path of the file on the local disk; None in other stores."""

    @property
    def has_conditional_writes(self) -> bool:
        """Whether `conditional` returns an object."""

    def conditional(self) -> ConditionalObjects | None:
        """The files as objects with conditional writes; None for a store without them."""

    def make_root(self) -> None:
        """Create the root directory, if the store has directories."""

    def put(self, path: str, data: bytes, durable: bool) -> None:
        """Write a file. With ``durable`` it survives a crash after the return."""

    def create(self, path: str, data: bytes) -> bool:
        """Create a file, durably. Returns False, and changes nothing, if it exists.

        ``data`` is unique among all attempts to create the file.
        """

    def put_file(self, source_path: str, path: str, may_link: bool) -> tuple[int, str]:
        """Store a local file, durably; return size and checksum. With ``may_link`` the source never changes."""

    def get_file(self, path: str, target_path: str, may_link: bool, accept: Accept) -> None:
        """Download a file. It appears at its target after ``accept`` has checked size and checksum."""

    def read(self, path: str) -> bytes:
        """Return the content of a file."""

    def open_input(self, path: str) -> pyarrow.NativeFile:
        """Open a file for reading in parts."""

    def size_bytes(self, path: str) -> int | None:
        """The size of a file; None if it does not exist."""

    def sizes_bytes(self, paths: Iterable[str]) -> list[int | None]:
        """The sizes of several files, in their order."""

    def list_files(self, prefix: str) -> list[str]:
        """The files below a directory, at any depth."""

    def list_directories(self, prefix: str) -> list[str]:
        """The directories directly below one."""

    def copy(self, path: str, target: str) -> None:
        """Copy or link an immutable file, durably."""

    def delete(self, path: str, durable: bool) -> None:
        """Delete a file. A missing one is not an error."""

    def delete_directory(self, path: str) -> None:
        """Delete a directory with its content. A missing one is not an error."""

    def move_directory(self, path: str, target: str) -> None:
        """Rename a directory."""


class CheckpointFileSystem:
    """Files below the root `uri`; create it with `from_uri`. Pickles as its URI. Threads may share it.

    All methods raise `UnsafePathError` for a path that is absolute, has `..`, `.`, empty segments,
    backslashes or control characters, and `StorageError` when the store fails.
    """

    def __init__(self, uri: str, storage: Storage) -> None:
        self._uri = without_secrets(uri)
        self._whole_uri = uri
        self._storage = storage

    @classmethod
    def from_uri(cls, uri: str | os.PathLike[str]) -> CheckpointFileSystem:
        """The root at a local path, a `file:///` URI or any URI of `pyarrow.fs`. Accesses nothing.

        A path may start with ``~``, the home of the user. A local root need not exist; it is created by the
        first write. Raises `StorageError` for a URI that no file system understands.
        """
        text = os.fspath(uri)
        if not text or "\0" in text:
            raise UnsafePathError(f"{text!r} is neither a path nor a URI")
        check_path(text)
        if not is_uri(text):
            # Shells do not expand a tilde after "=", and a directory named "~" would be created.
            root = os.path.abspath(os.path.expanduser(text))
            return cls(root, LocalStorage(root))
        check_credentials(text)
        try:
            if scheme_of(text) == "s3":
                return cls(text, S3Storage.at(S3Location.from_uri(text)))
            filesystem, root = pyarrow.fs.FileSystem.from_uri(text)
        except (pyarrow.ArrowException, ImportError, OSError, ValueError) as error:
            why = redacted(str(error), secrets_of(text)).rstrip(".")
            raise StorageError(
                f"cannot open {without_secrets(text)!r}: {why}. Give a local path, a file:/// URI, or a URI that "
                f"pyarrow.fs supports, such as s3:// or gs://."
            ) from (None if secrets_of(text) else error)
        if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
            root = os.path.abspath(root)
            return cls(root, LocalStorage(root))
        return cls(text, ArrowStorage(filesystem, root.rstrip("/")))

    @property
    def uri(self) -> str:
        """The argument of `from_uri` that opens this root: an absolute path if local, else the URI.

        It contains no credentials; if the URI had some, they must then be in the environment.
        """
        return self._uri

    @property
    def has_conditional_writes(self) -> bool:
        """Whether the store has conditional writes. Sends no request."""
        return self._storage.has_conditional_writes

    @property
    def conditional(self) -> ConditionalObjects | None:
        """The files as objects with conditional writes; None for a store without them.

        Each call creates a client. Raises `StorageError` if its package is not installed.
        """
        return self._storage.conditional()

    def inside(self, directory: str) -> CheckpointFileSystem:
        """Return a file system for a directory below this root. The directory need not exist.

        On a local disk no symbolic link below this root is followed.
        """
        checked_relative_path(directory)
        if isinstance(self._storage, LocalStorage):
            return CheckpointFileSystem(place_inside(self._whole_uri, directory), self._storage.inside(directory))
        return CheckpointFileSystem.from_uri(place_inside(self._whole_uri, quote(directory)))

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        if isinstance(self._storage, LocalStorage) and self._storage.below:
            return _inside, (self._storage.root, self._storage.below)
        # Another process of this program also needs the credentials.
        return CheckpointFileSystem.from_uri, (self._whole_uri,)

    def __repr__(self) -> str:
        return f"CheckpointFileSystem({self._uri!r})"

    def location(self, path: str) -> str:
        """The root and `path`, for messages, without credentials and parameters of a URI."""
        place = self._uri.partition("?")[0] if is_uri(self._uri) else self._uri
        return f"{place.rstrip('/')}/{path}" if path else place

    def local_path(self, path: str = "") -> str | None:
        """The real path of `path` (of the root by default) if the store is a local disk, else None.

        Raises `StorageError` if it contains a symbolic link below the root.
        """
        with self._reporting("open", path):
            return self._storage.local_path(path and checked_relative_path(path))

    def check_regular(self, directory: str) -> None:
        """Raise `StorageError` if `directory` of a local store has anything but files and directories, at any depth.

        For directories that other programs read, which could follow a symbolic link or block on a named pipe.
        """
        checked_relative_path(directory)
        if isinstance(self._storage, LocalStorage):
            with self._reporting("use", directory):
                self._storage.check_regular(directory)

    def make_root(self) -> None:
        """Create the root directory of a local store, durably; other stores need none."""
        with self._reporting("create", ""):
            self._storage.make_root()

    def write_file(self, path: str, data: bytes, *, durable: bool = True) -> FileHandle:
        """Write `data` to `path`, replacing an existing file. Complete and durable on return.

        After an error the file is absent or has its old content. Without `durable` the file is not synced, and a
        power loss may lose it.
        """
        handle = FileHandle(path, len(data), checksum_of_bytes(data))
        with self._reporting("write", path):
            self._storage.put(path, data, durable)
        return handle

    def create_file(self, path: str, data: bytes) -> bool:
        """Create `path` with `data`, unless the file exists. Returns whether it was created. Durable on return.

        Of several concurrent calls, one returns True on a local disk and on stores with conditional writes; at most
        the last one does on other stores. `data` must be unique: the content shows which write was first.
        """
        checked_relative_path(path)
        with self._reporting("create", path):
            return self._storage.create(path, data)

    def upload(self, local_path: str | os.PathLike[str], path: str, *, may_link: bool = True) -> FileHandle:
        """Copy a local file to `path`. Complete and durable on return, absent after an error.

        A local store on the same device creates a hard link, so the local file must not change in place afterwards;
        pass `may_link=False` if it might. It may be deleted. Raises `MissingFileError` if the local file is missing.
        """
        checked_relative_path(path)
        source = os.fspath(local_path)
        if not os.path.isfile(source):
            raise MissingFileError(f"cannot upload {source} to {self.location(path)}: no such file")
        with self._reporting(f"upload {source} to", path):
            size_bytes, checksum = self._storage.put_file(source, path, may_link)
        return FileHandle(path, size_bytes, checksum)

    def read_file(self, handle_or_path: FileHandle | str) -> bytes:
        """All bytes of a file, verified when a `FileHandle` is given.

        Raises `MissingFileError` or `CorruptFileError`.
        """
        if isinstance(handle_or_path, str):
            path = checked_relative_path(handle_or_path)
            with self._reporting("read", path):
                return self._storage.read(path)
        handle = handle_or_path
        self._verify_size(handle, self._size_or_none(handle.path))
        with self._reporting("read", handle.path):
            data = self._storage.read(handle.path)
        self._verify(handle, len(data), checksum_of_bytes(data))
        return data

    def verify_content(self, handle: FileHandle) -> None:
        """Read a file, in bounded memory, and compare it with its checksum.

        Raises `MissingFileError` or `CorruptFileError`.
        """
        self._verify_size(handle, self._size_or_none(handle.path))
        with self._reporting("read", handle.path), self._storage.open_input(handle.path) as source:
            size_bytes, checksum = checksum_of_chunks(iter(lambda: source.read(_READ_AT_ONCE_BYTES), b""))
        self._verify(handle, size_bytes, checksum)

    def download(self, handle: FileHandle, local_path: str | os.PathLike[str], *, may_link: bool = True) -> None:
        """Copy a file to `local_path`, and verify it. After an error the target is absent or unchanged.

        A local store on the same device creates a hard link, so the copy must not change in place; pass
        `may_link=False` if it might. Raises `MissingFileError` or `CorruptFileError`.
        """
        self._verify_size(handle, self._size_or_none(handle.path))
        target = os.path.abspath(os.fspath(local_path))
        with self._reporting(f"download to {target}", handle.path):
            self._storage.get_file(
                handle.path,
                target,
                may_link,
                lambda size_bytes, checksum: self._verify(handle, size_bytes, checksum),
            )

    def open_input(self, path: str) -> pyarrow.NativeFile:
        """A seekable file object for pyarrow's readers. Not verified. Raises `MissingFileError` if absent."""
        checked_relative_path(path)
        with self._reporting("open", path):
            return self._storage.open_input(path)

    def exists(self, path: str) -> bool:
        """Whether `path` is a file."""
        return self._size_or_none(checked_relative_path(path)) is not None

    def size(self, path: str) -> int:
        """Size of a file in bytes. Raises `MissingFileError` if absent."""
        size_bytes = self._size_or_none(checked_relative_path(path))
        if size_bytes is None:
            raise MissingFileError(f"there is no file {self.location(path)}")
        return size_bytes

    def verify_present(self, handles: Iterable[FileHandle]) -> None:
        """Check that each file exists with its size, without reading it.

        Raises `MissingFileError` or `CorruptFileError` for the first one that fails.
        """
        expected = list(handles)
        with self._reporting("look up files in", ""):
            sizes_bytes = self._storage.sizes_bytes(handle.path for handle in expected)
        for handle, size_bytes in zip(expected, sizes_bytes, strict=True):
            self._verify_size(handle, size_bytes)

    def list_files(self, prefix: str = "", *, include_temporary: bool = False) -> tuple[str, ...]:
        """Paths of all files below the directory `prefix` (default: the root), sorted.

        Remains of interrupted writes are left out unless `include_temporary`.
        """
        with self._reporting("list", prefix):
            paths = self._storage.list_files(prefix and checked_relative_path(prefix))
        return tuple(sorted(path for path in paths if include_temporary or not _is_temporary(path)))

    def why_absent(self) -> str | None:
        """The reason why the root has no files, as the end of a sentence; None if it may have some."""
        root = self.local_path()
        if root is None:
            # An object store has no directories, only objects below a name.
            return (
                None if self.list_directories() or self.list_files() else "does not exist: there is no object below it"
            )
        with self._reporting("look up", ""):
            try:
                mode = os.stat(root).st_mode
            except (FileNotFoundError, NotADirectoryError):
                return "does not exist"
        return None if stat.S_ISDIR(mode) else "is a file, and no directory"

    def list_directories(self, prefix: str = "") -> tuple[str, ...]:
        """Names of the directories directly below the directory `prefix` (default: the root), sorted."""
        with self._reporting("list", prefix):
            return tuple(sorted(self._storage.list_directories(prefix and checked_relative_path(prefix))))

    def copy_file(self, path: str, target: str) -> None:
        """Copy an immutable file below the root: complete, or absent.

        A local store creates a hard link if possible; an object store copies it itself. Raises `MissingFileError`.
        """
        checked_relative_path(path)
        checked_relative_path(target)
        with self._reporting(f"copy to {target}", path):
            self._storage.copy(path, target)

    def delete(self, path: str, *, durable: bool = False) -> None:
        """Remove a file, if it exists. With `durable` the removal survives a power loss."""
        checked_relative_path(path)
        with self._reporting("delete", path):
            self._storage.delete(path, durable)

    def delete_directory(self, path: str) -> None:
        """Remove a directory below the root with its content, if it exists."""
        checked_relative_path(path)
        with self._reporting("delete directory", path):
            self._storage.delete_directory(path)

    def move_directory(self, path: str, target: str) -> None:
        """Rename a directory below the root. Atomic on a local disk, file by file elsewhere."""
        checked_relative_path(path)
        checked_relative_path(target)
        with self._reporting(f"move to {target}", path):
            self._storage.move_directory(path, target)

    def _size_or_none(self, path: str) -> int | None:
        with self._reporting("look up", path):
            return self._storage.size_bytes(path)

    def _verify_size(self, handle: FileHandle, size_bytes: int | None) -> None:
        if size_bytes is None:
            what = "is missing"
            try:
                self._storage.local_path(handle.path)
            except OSError as error:
                # A link has no size either.
                what = f"{error.strerror}"
            raise MissingFileError(
                f"{self.location(handle.path)} {what}: expected {handle.size_bytes} bytes with "
                f"checksum {handle.checksum}. {_WHAT_TO_DO}"
            )
        if size_bytes != handle.size_bytes:
            raise CorruptFileError(
                f"{self.location(handle.path)} is corrupt: expected {handle.size_bytes} bytes, "
                f"found {size_bytes}. {_WHAT_TO_DO}"
            )

    def _verify(self, handle: FileHandle, size_bytes: int, checksum: str) -> None:
        self._verify_size(handle, size_bytes)
        if checksum != handle.checksum:
            raise CorruptFileError(
                f"{self.location(handle.path)} is corrupt: expected checksum {handle.checksum}, "
                f"found {checksum}, at the expected size of {size_bytes} bytes. {_WHAT_TO_DO}"
            )

    @contextlib.contextmanager
    def _reporting(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFileError(f"cannot {action} {self.location(path)}: {error}") from error
        except (OSError, pyarrow.ArrowException) as error:
            why = redacted(str(error), secrets_of(self._whole_uri))
            # A chained cause would show the same message again.
            cause = error if why == str(error) else None
            fix = fix_of(why)
            raise StorageError(f"cannot {action} {self.location(path)}: {why}{f'. {fix}' if fix else ''}") from cause


def _inside(root: str, directory: str) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(root).inside(directory)


def _is_temporary(path: str) -> bool:
    return path.rpartition("/")[2].startswith(TEMPORARY_PREFIX)
