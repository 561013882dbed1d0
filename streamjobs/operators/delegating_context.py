"""A runtime context that tells where it runs as another one does, whatever it makes of state."""

from __future__ import annotations

from streamjobs.api.functions import RuntimeContext

__all__ = ["DelegatingContext"]


class DelegatingContext(RuntimeContext):
    """What it is asked of the subtask, ``context`` answers; which state there is, its subclasses say."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context

    @property
    def operator_uid(self) -> str:
        return self._context.operator_uid

    @property
    def subtask_index(self) -> int:
        return self._context.subtask_index

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    @property
    def epoch_id(self) -> int:
        return self._context.epoch_id

    @property
    def is_restored(self) -> bool:
        return self._context.is_restored
