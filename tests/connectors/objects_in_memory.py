"""An object store in memory, for tests that write, kill and read a target hundreds of times.

It behaves like `S3Storage` on a store whose listings are complete. Objects appear whole, there are no directories, and
a conditional write creates an object once. Requests, retries and late listings are tested with a server.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from attrs import field, frozen

from statebackend.checkpoint.fs.local_storage import Accept
from statebackend.checkpoint.invariants import checksum_of_bytes


@frozen
class MemoryStorage:
    """The objects below a location; a `Storage`."""

    objects: dict[str, bytes] = field(factory=dict)
    has_conditional_writes: bool = True

    def conditional(self) -> None:
        """None, because `create` needs no client."""

    def local_path(self, path: str) -> str | None:
        return None

    def make_root(self) -> None:
        """Does nothing, because there are no directories."""

    def put(self, path: str, data: bytes, durable: bool) -> None:
        self.objects[path] = bytes(data)

    def create(self, path: str, data: bytes) -> bool:
        return self.objects.setdefault(path, data) is data

    def put_file(self, source_path: str, path: str, may_link: bool) -> tuple[int, str]:
        self.objects[path] = data = Path(source_path).read_bytes()
        return len(data), checksum_of_bytes(data)

    def get_file(self, path: str, target_path: str, may_link: bool, accept: Accept) -> None:
        data = self.read(path)
        accept(len(data), checksum_of_bytes(data))
        Path(target_path).write_bytes(data)

    def read(self, path: str) -> bytes:
        try:
            return self.objects[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such object", path) from None

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self.read(path))

    def size_bytes(self, path: str) -> int | None:
        return len(self.objects[path]) if path in self.objects else None

    def sizes_bytes(self, paths: Iterable[str]) -> list[int | None]:
        return [*map(self.size_bytes, paths)]

    def list_files(self, prefix: str) -> list[str]:
        return [path for path in [*self.objects] if not prefix or path.startswith(f"{prefix}/")]

    def list_directories(self, prefix: str) -> list[str]:
        below = (path.removeprefix(f"{prefix}/") for path in self.list_files(prefix))
        return sorted({path.split("/")[0] for path in below if "/" in path})

    def copy(self, path: str, target: str) -> None:
        self.objects[target] = self.read(path)

    def delete(self, path: str, durable: bool) -> None:
        self.objects.pop(path, None)

    def delete_directory(self, path: str) -> None:
        for file in self.list_files(path):
            del self.objects[file]

    def move_directory(self, path: str, target: str) -> None:
        for file in self.list_files(path):
            self.objects[target + file[len(path) :]] = self.objects.pop(file)
