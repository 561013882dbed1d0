"""An object store in memory: objects are complete and durable or absent, have conditional writes, and list late.

A listing may omit recent puts and deletes, by a random choice. A read by key is consistent.
"""

from __future__ import annotations

import errno
from typing import Final

from attrs import define

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.conditional_objects import VersionedObject
from statebackend.checkpoint.invariants import checksum_of_bytes
from verification.simulation.host.disk import SimulatedStorage

__all__ = ["SimulatedObjectStore", "SimulatedObjects"]

_LAG_STEPS: Final = 12


@define
class SimulatedObjects:
    """Objects with conditional writes, for one process; a `ConditionalObjects`. Versions are checksums."""

    store: SimulatedObjectStore

    def read(self, path: str) -> VersionedObject | None:
        try:
            content = self.store.content(path)
        except OSError as error:
            raise StorageError(f"{path}: {error}") from error
        return None if content is None else VersionedObject(content, checksum_of_bytes(content))

    def write(self, path: str, content: bytes, version: str | None) -> str | None:
        try:
            return self.store.put_if(path, content, version)
        except OSError as error:
            raise StorageError(f"{path}: {error}") from error


@define
class SimulatedObjectStore(SimulatedStorage):
    """A `Storage` of objects in memory."""

    @property
    def has_conditional_writes(self) -> bool:
        return True

    def conditional(self) -> SimulatedObjects:
        return SimulatedObjects(self)

    def content(self, path: str) -> bytes | None:
        """Return the current content of an object."""
        self._step("read", path)
        return self.disk.files.get(self._full(path))

    def put_if(self, path: str, content: bytes, version: str | None) -> str | None:
        """Put an object if it has this version; otherwise return None and change nothing."""
        late_fault = self._step("compare and set", path)
        known = self.disk.files.get(self._full(path))
        if (None if known is None else checksum_of_bytes(known)) != version:
            return None
        self._set(path, content)
        self.disk.on_written(path, content)
        self._fail_after(late_fault, path)
        return checksum_of_bytes(content)

    def put(self, path: str, data: bytes, durable: bool) -> None:
        late_fault = self._step("put", path)
        self._set(path, data)
        # The process may die before the answer, and then does not know whether the object was put.
        self._step("answer", path)
        self._fail_after(late_fault, path)

    def create(self, path: str, data: bytes) -> bool:
        return self.put_if(path, data, None) is not None

    def delete(self, path: str, durable: bool) -> None:
        late_fault = self._step("delete", path)
        full = self._full(path)
        if self.disk.files.pop(full, None) is not None:
            self.disk.synced.pop(full, None)
            self.disk.changed[full] = self._now
        self._fail_after(late_fault, path)

    def delete_directory(self, path: str) -> None:
        for full in self._below(path):
            self.delete(full[len(self.root) + 1 :], durable=True)

    def move_directory(self, path: str, target: str) -> None:
        raise OSError(errno.ENOTSUP, "objects are not moved here", path)

    def _set(self, path: str, data: bytes) -> None:
        full = self._full(path)
        self.disk.files[full] = self.disk.synced[full] = data
        self.disk.changed[full] = self._now

    @property
    def _now(self) -> int:
        return sum(self.disk.faults.steps.values())

    def _below(self, prefix: str) -> list[str]:
        start = self._full(prefix) + "/"
        late = [
            path for path, at in self.disk.changed.items() if path.startswith(start) and self._now - at < _LAG_STEPS
        ]
        listed = set(super()._below(prefix))
        for path in sorted(late):
            if self.disk.lists_late and self.disk.chance.random() < 0.5:
                listed.symmetric_difference_update((path,))
        return sorted(listed)
