"""Who still needs which file: reference counts of shared files by checkpoint.

Incremental checkpoints share files. A file may be deleted when the last checkpoint that refers to it is
dropped, and never if it belongs to somebody else, such as a savepoint the job was started from without
claiming it (Flink's no-claim mode).

Invariant: a path is in `referenced()` if and only if it is protected or some registered checkpoint names
it; no path that `unregister` returns is in `referenced()` afterwards. Pure bookkeeping, no storage; each
call costs time in proportion to the paths it names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from checkpointing.errors import CheckpointNotFoundError, InvariantViolationError
from checkpointing.handles.relative_path import checked_relative_path

__all__ = ["SharedStateRegistry"]


class SharedStateRegistry:
    """Reference counts of files, by checkpoint id."""

    def __init__(self) -> None:
        self._paths_by_checkpoint: dict[int, frozenset[str]] = {}
        self._counts: Counter[str] = Counter()
        self._protected: set[str] = set()

    def register(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """Let a checkpoint refer to `paths`. An id that is registered is refused."""
        if checkpoint_id in self._paths_by_checkpoint:
            raise InvariantViolationError(f"checkpoint {checkpoint_id} is already registered")
        distinct = frozenset(paths)
        # Those that are known were checked when they became so: most files of an increment are.
        for path in distinct.difference(self._counts):
            checked_relative_path(path)
        self._paths_by_checkpoint[checkpoint_id] = distinct
        self._counts.update(distinct)

    def unregister(self, checkpoint_id: int) -> frozenset[str]:
        """Drop a checkpoint; return the files that nobody refers to any more, which may be deleted.

        Raises `CheckpointNotFoundError` for an id that is not registered.
        """
        if checkpoint_id not in self._paths_by_checkpoint:
            raise CheckpointNotFoundError(f"checkpoint {checkpoint_id} is not registered")
        released = set()
        for path in self._paths_by_checkpoint.pop(checkpoint_id):
            self._counts[path] -= 1
            if self._counts[path] == 0:
                del self._counts[path]
                if path not in self._protected:
                    released.add(path)
        return frozenset(released)

    def protect(self, paths: Iterable[str]) -> None:
        """Never give `paths` free: they belong to somebody else, such as a savepoint not claimed."""
        self._protected.update([checked_relative_path(path) for path in paths])

    def unreferenced(self, paths: Iterable[str]) -> list[str]:
        """Those of `paths` that are neither protected nor referred to, in their order."""
        return [path for path in paths if path not in self._counts and path not in self._protected]

    def referenced(self) -> frozenset[str]:
        """All paths that must not be deleted."""
        return frozenset(self._counts) | self._protected

    def protected(self) -> frozenset[str]:
        """All paths given to `protect`."""
        return frozenset(self._protected)

    def checkpoints(self) -> frozenset[int]:
        """Ids of all registered checkpoints."""
        return frozenset(self._paths_by_checkpoint)
