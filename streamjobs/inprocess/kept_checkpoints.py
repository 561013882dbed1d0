"""Complete checkpoints that snapshots may still be built upon: they are kept, however few are to be retained.

A subtask builds a snapshot upon files of a checkpoint that it knows to be complete, or of one that is under way. While
that snapshot is on its way, newer checkpoints may complete that do not have those files, and drop the one that has:

    0 is complete, and told        1 was frozen before that: it has written its files anew
    2 is frozen                    it refers to files of 0
    1 is complete                  0 is one too many; 2 cannot be completed without its files

So of each checkpoint that is begun is noted what the subtasks were told by then: it refers to nothing older. What
neither any that is under way nor the next one can refer to is dropped as usual.

Invariant: every complete checkpoint from the least id on that a snapshot may refer to is pinned in the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from checkpointing.coordinator.acknowledgement import TaskId
from checkpointing.handles.invariants import MAX_ID
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore

__all__ = ["KeptCheckpoints"]

_NONE = -1


class KeptCheckpoints:
    """See the module. ``tasks`` are those that build upon what they have written."""

    def __init__(self, store: CompletedCheckpointStore, tasks: Iterable[TaskId]) -> None:
        self._store = store
        self._pins: dict[int, contextlib.ExitStack] = {}
        latest = store.latest()
        if latest is not None:
            self.completed(latest.checkpoint_id)
        self._told = dict.fromkeys(tasks, _NONE if latest is None else latest.checkpoint_id)
        self._least: dict[int, int] = {}

    def begun(self, checkpoint_id: int) -> None:
        """A checkpoint is begun, of which no snapshot is taken yet."""
        self._least[checkpoint_id] = self._least_told

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is in the store, and has dropped none that is kept."""
        if checkpoint_id not in self._pins:
            pin = self._pins[checkpoint_id] = contextlib.ExitStack()
            pin.enter_context(self._store.pin(checkpoint_id))

    def told(self, task: TaskId, checkpoint_id: int) -> None:
        """A task knows that a checkpoint is complete."""
        if task in self._told:
            self._told[task] = max(self._told[task], checkpoint_id)

    def release(self, under_way: Collection[int]) -> None:
        """Drops what is too many and nobody can refer to, where these are the checkpoints that are under way."""
        self._least = {known: least for known, least in self._least.items() if known in under_way}
        least = min((self._least_told, *self._least.values()))
        for known in [one for one in self._pins if one < least]:
            self._pins.pop(known).close()

    def close(self) -> None:
        """Drops what is too many: no snapshot is on its way any more. Raises what the store raises, behind the last."""
        with contextlib.ExitStack() as closing:
            for pin in self._pins.values():
                closing.callback(pin.close)
            self._pins = {}

    @property
    def _least_told(self) -> int:
        return min(self._told.values(), default=MAX_ID)
