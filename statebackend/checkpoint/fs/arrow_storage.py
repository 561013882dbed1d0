"""Files on any store that `pyarrow.fs` reaches: object stores, HDFS, and others through fsspec.

Such stores make an object visible when its upload ends, so a file is one put without a rename. The remains of an
interrupted upload are deleted if the store keeps them. If any survive, the size and checksum in a handle detect them.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

import pyarrow
import pyarrow.fs
from attrs import frozen

from statebackend.checkpoint.fs.file_modes import create_file
from statebackend.checkpoint.fs.local_storage import Accept, replacing
from statebackend.checkpoint.invariants import CHUNK_BYTES, checksum_of_chunks, chunks_of


@frozen
class ArrowStorage:
    """Files under the directory `root` of a `pyarrow.fs.FileSystem`; takes checked relative paths."""

    filesystem: pyarrow.fs.FileSystem
    root: str

    def local_path(self, path: str) -> str | None:
        """None: the files have no path on this machine."""
        return None

    def make_root(self) -> None:
        """Do nothing: directories appear with their files."""

    @property
    def has_conditional_writes(self) -> bool:
        return False

    def conditional(self) -> None:
        """None: `pyarrow.fs` has no conditional writes."""

    def put(self, path: str, data: bytes, durable: bool = True) -> None:
        """Write a file in one put, which is always durable on such stores."""
        self._write(path, (data,))

    def create(self, path: str, data: bytes) -> bool:
        """Write a file if it does not exist. Such stores have no exclusive writes, so the final content decides."""
        if self.size_bytes(path) is not None:
            return False
        self._write(path, (data,))
        return self.read(path) == data

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file on a store that writes files atomically: after a failure the old content stays."""
        with self.filesystem.open_output_stream(self._full(path), compression=None) as stream:
            stream.write(data)

    def copy(self, path: str, target: str) -> None:
        """Copy a file within the store."""
        if self.size_bytes(path) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self.filesystem.create_dir(self._full(target).rpartition("/")[0], recursive=True)
        self.filesystem.copy_file(self._full(path), self._full(target))

    def put_file(self, source_path: str, path: str, may_link: bool) -> tuple[int, str]:
        """Upload a local file; return its size in bytes and its checksum, both taken from the bytes."""
        with open(source_path, "rb") as source:
            return self._write(path, chunks_of(source))

    def get_file(self, path: str, target_path: str, may_link: bool, accept: Accept) -> None:
        """Download a file to `target_path`, which appears only if `accept(size, checksum)` does not raise."""
        with replacing(target_path) as temporary:
            with create_file(temporary) as target:
                result = checksum_of_chunks(_written(self.chunks(path), target))
            accept(*result)

    def read(self, path: str) -> bytes:
        """All bytes of a file."""
        return b"".join(self.chunks(path))

    def chunks(self, path: str) -> Iterator[bytes]:
        """The bytes of a file in chunks."""
        with self.filesystem.open_input_stream(self._full(path), compression=None) as source:
            while chunk := source.read(CHUNK_BYTES):
                yield chunk

    def open_input(self, path: str) -> pyarrow.NativeFile:
        """A seekable file object."""
        return self.filesystem.open_input_file(self._full(path))

    def size_bytes(self, path: str) -> int | None:
        """Size of a file, None if there is none."""
        return self.sizes_bytes((path,))[0]

    def sizes_bytes(self, paths: Iterable[str]) -> list[int | None]:
        """`size_bytes` of each path, in one request."""
        full_paths = [self._full(path) for path in paths]
        infos = self.filesystem.get_file_info(full_paths) if full_paths else []
        return [cast(int, info.size) if info.is_file else None for info in infos]

    def list_files(self, prefix: str) -> list[str]:
        """Relative paths of all files below the directory `prefix`; empty if it does not exist."""
        return [self._relative(info.path) for info in self._select(prefix, recursive=True) if info.is_file]

    def list_directories(self, prefix: str) -> list[str]:
        """Names of the directories directly below `prefix`."""
        infos = self._select(prefix, recursive=False)
        return [cast(str, info.base_name) for info in infos if info.type == pyarrow.fs.FileType.Directory]

    def delete(self, path: str, durable: bool) -> None:
        """Remove a file, if it exists."""
        if self.size_bytes(path) is not None:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(self._full(path))

    def delete_directory(self, path: str) -> None:
        """Remove a directory with its content, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(self._full(path))

    def move_directory(self, path: str, target: str) -> None:
        """Copy every file to its new path, then delete the old directory: few stores rename directories."""
        for file in self.list_files(path):
            self._write(target + file[len(path) :], self.chunks(file))
        self.delete_directory(path)

    def _write(self, path: str, chunks: Iterable[bytes]) -> tuple[int, str]:
        full_path = self._full(path)
        try:
            stream = self.filesystem.open_output_stream(full_path, compression=None)
        except FileNotFoundError:
            self.filesystem.create_dir(full_path.rpartition("/")[0], recursive=True)
            stream = self.filesystem.open_output_stream(full_path, compression=None)
        try:
            with stream:
                return checksum_of_chunks(_written(chunks, stream))
        except BaseException:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(full_path)
            raise

    def _select(self, prefix: str, recursive: bool) -> list[pyarrow.fs.FileInfo]:
        selector = pyarrow.fs.FileSelector(
            self._full(prefix) if prefix else self.root, recursive=recursive, allow_not_found=True
        )
        return list(self.filesystem.get_file_info(selector))

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}" if self.root else path

    def _relative(self, full_path: str) -> str:
        return full_path[len(self.root) + 1 :] if self.root else full_path


def _written(chunks: Iterable[bytes], target: BinaryIO) -> Iterator[bytes]:
    for chunk in chunks:
        target.write(chunk)
        yield chunk
