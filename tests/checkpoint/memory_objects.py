"""Conditional writes in memory, for tests with several drivers and faults between a driver and the store."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from attrs import define, field

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.conditional_objects import VersionedObject


@define
class StoredObjects:
    """The content of the store. Every write creates a new version."""

    by_path: dict[str, VersionedObject] = field(factory=dict)
    lock: threading.Lock = field(factory=threading.Lock)
    versions: itertools.count[int] = field(factory=itertools.count)


@define
class MemoryObjects:
    """The connection of one driver to the store; a `ConditionalObjects`.

    ``before_write`` is called with path and content. The next ``loses`` writes take effect, but their answers are lost.
    With ``is_cut_off``, no request reaches the store.
    """

    stored: StoredObjects = field(factory=StoredObjects)
    before_write: Callable[[str, bytes], object] | None = None
    loses: int = 0
    is_cut_off: bool = False
    written: list[str] = field(factory=list)

    def read(self, path: str) -> VersionedObject | None:
        self._check_reachable()
        return self.stored.by_path.get(path)

    def write(self, path: str, content: bytes, version: str | None) -> str | None:
        self._check_reachable()
        if self.before_write is not None:
            self.before_write(path, content)
        with self.stored.lock:
            there = self.stored.by_path.get(path)
            if (None if there is None else there.version) != version:
                return there.version if there is not None and there.content == content else None
            new = VersionedObject(content, f"v{next(self.stored.versions)}")
            self.stored.by_path[path] = new
        self.written.append(path)
        if self.loses:
            self.loses -= 1
            raise StorageError(f"the answer to the write of {path} was lost")
        return new.version

    def _check_reachable(self) -> None:
        if self.is_cut_off:
            raise StorageError("the store cannot be reached")
