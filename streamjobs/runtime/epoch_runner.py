"""Carries out what an epoch asks for, for every runtime alike: a rim does the work, the table decides what comes next.

Whatever the rim raises fails the epoch: what was acknowledged is discarded, the sink forgets what it staged, and the
error is raised. What goes wrong with clearing up hides nothing and keeps nothing else from being cleared up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.pending_checkpoint import CompletedCheckpoint
from checkpointing.handles.state_handles import SubtaskState
from streamjobs.runtime.broadcast_copies import check_broadcast_copies
from streamjobs.runtime.epoch import Epochs
from streamjobs.runtime.epoch_events import (
    AbortSink,
    Acknowledged,
    ActionReturned,
    AllIn,
    BatchArrived,
    Commit,
    CommitAgain,
    Committed,
    Discard,
    Epoch,
    Failed,
    Open,
    Refuse,
    RunAction,
    Store,
    Stored,
    TimePassed,
    Triggered,
)

__all__ = ["EpochRim", "EpochRunner"]


class EpochRim(Protocol):
    """What a runtime does for an epoch; everything may raise, and then fails the epoch."""

    @property
    def committing(self) -> AbstractContextManager[Any]:
        """What is held from the storing of a checkpoint until the output of its epoch is committed."""

    def begin(self, epoch: Epoch) -> Collection[TaskId]:
        """Prepares the epoch; returns the tasks that take part, none if there is no state to store."""

    def run(self, epoch: Epoch) -> Iterable[Acknowledgement]:
        """Runs the action to its end; returns what the tasks have acknowledged."""

    def store(self, epoch: Epoch, completed: CompletedCheckpoint) -> None:
        """Stores the checkpoint: from here on the epoch is durable."""

    def commit(self, epoch: Epoch) -> None:
        """Makes the output of the epoch visible."""

    def commit_again(self, checkpoint_id: int) -> None:
        """Makes the output of an epoch of before visible, in case that it was not."""

    def abort(self, epoch: Epoch) -> None:
        """Lets the sink forget what it has staged for the epoch."""

    def discard(self, states: Sequence[SubtaskState], in_use: frozenset[str]) -> None:
        """Deletes the files of given-up state that nobody else needs."""


class EpochRunner:
    """Feeds `Epochs` with what a rim has done. ``now_ms`` is a monotonic clock."""

    def __init__(self, epochs: Epochs, rim: EpochRim, now_ms: Callable[[], int]) -> None:
        self._epochs = epochs
        self._rim = rim
        self._now_ms = now_ms

    def run(self, cause: BatchArrived | TimePassed) -> Epoch | None:
        """Runs the epoch of a batch, or one without records since time has passed.

        Returns it if it has become durable, None for a batch that was done before.

        Raises what made it fail, `EpochError` or `SourceProgressMismatchError` for a batch that is refused.
        """
        before = self._epochs.last
        try:
            self._take(cause)
        except BaseException as error:
            if not self._epochs.is_over:
                with contextlib.suppress(Exception):
                    self._take(Failed(f"{type(error).__name__}: {error}"))
            raise
        last = self._epochs.last
        return None if last is before or last is None else Epoch(last.checkpoint_id, last.batch_id, last.offsets)

    def _take(self, event: object) -> None:
        for action in self._epochs.handle(event):
            self._PERFORMERS[type(action)](self, action)

    def _open(self, action: Open) -> None:
        self._take(Triggered(self._rim.begin(action.epoch), self._now_ms()))

    def _run_action(self, action: RunAction) -> None:
        acknowledgements = self._rim.run(action.epoch)
        self._take(ActionReturned())
        for acknowledgement in acknowledgements:
            self._take(Acknowledged(acknowledgement))
        self._take(AllIn(self._now_ms()))

    def _store(self, action: Store) -> None:
        check_broadcast_copies(action.completed)
        with self._rim.committing:
            self._rim.store(action.epoch, action.completed)
            self._take(Stored())

    def _commit(self, action: Commit) -> None:
        self._rim.commit(action.epoch)
        self._take(Committed())

    def _commit_again(self, action: CommitAgain) -> None:
        self._rim.commit_again(action.checkpoint_id)
        self._take(Committed())

    def _discard(self, action: Discard) -> None:
        # What made the epoch fail is worth more than what then went wrong with clearing it away: files that stay are
        # orphans, which the store finds.
        if action.states:
            with contextlib.suppress(Exception):
                self._rim.discard(action.states, action.in_use)

    def _abort_sink(self, action: AbortSink) -> None:
        # As with what is discarded; the sink clears up when the job is started again.
        with contextlib.suppress(Exception):
            self._rim.abort(action.epoch)

    def _refuse(self, action: Refuse) -> None:
        raise action.error

    _PERFORMERS: Final[Mapping[type, Callable[[EpochRunner, Any], None]]] = {
        Open: _open,
        RunAction: _run_action,
        Store: _store,
        Commit: _commit,
        CommitAgain: _commit_again,
        Discard: _discard,
        AbortSink: _abort_sink,
        Refuse: _refuse,
    }
