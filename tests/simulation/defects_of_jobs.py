"""Defects of the runtime of this process and of state backends, as patches; see `planted_defects`."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

from checkpointing.storage import driver_lock
from streamjobs.inprocess.run_checkpoints import RunCheckpoints
from tests.simulation.planting import Patch

__all__ = ["DEFECTS_OF_JOBS"]


def _committed_before_stored() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def store(self: RunCheckpoints, action: Any) -> None:
            self._run.checkpoint_completed(action.completed.checkpoint_id)
            original(self, action)

        return store

    from streamjobs.inprocess import run_checkpoints

    wrapped = wrap(RunCheckpoints._store)
    actions = run_checkpoints._CARRY_OUT
    return lambda: mock.patch.dict(actions, {run_checkpoints.StoreCheckpoint: wrapped})  # type: ignore[arg-type]


def _lock_of_nobody() -> Patch:
    free = mock.Mock(wraps=fcntl)
    free.flock = lambda descriptor, how: None
    free.LOCK_EX, free.LOCK_NB, free.LOCK_SH = fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_SH
    return lambda: mock.patch.object(driver_lock, "fcntl", free)


DEFECTS_OF_JOBS: Final[tuple[tuple[str, Patch], ...]] = (
    ("a sink commits before the checkpoint is stored", _committed_before_stored()),
    ("a second driver is let in by the lock", _lock_of_nobody()),
)
