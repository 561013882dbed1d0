"""The end of an epoch in this process: its records are processed, and a barrier makes a checkpoint of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.pending_checkpoint import CompletedCheckpoint
from checkpointing.handles.state_handles import SubtaskState
from streamjobs.api.stream_graph import SinkNode
from streamjobs.inprocess.network.network import Network
from streamjobs.inprocess.record_sinks import give_to_sinks
from streamjobs.runtime.epoch_events import Epoch

__all__ = ["LocalEpoch"]


class EndingEpoch(Protocol):
    """The run whose epoch ends."""

    network: Network
    acknowledgements: list[Acknowledgement]

    def tasks(self) -> Sequence[TaskId]:
        """Who takes part in a checkpoint."""

    def store(self, epoch: Epoch, completed: CompletedCheckpoint) -> None:
        """Stores the checkpoint."""

    def discard(self, states: Sequence[SubtaskState], in_use: frozenset[str]) -> None:
        """Deletes the files of these states that nobody else needs."""

    def taken(self) -> Iterable[tuple[SinkNode, Sequence[Any]]]:
        """What has come out for each sink."""


class LocalEpoch:
    """The end of an epoch, whose records are processed; an `EpochRim`."""

    def __init__(self, run: EndingEpoch) -> None:
        self.committing = contextlib.nullcontext()
        self._run = run

    def begin(self, epoch: Epoch) -> Sequence[TaskId]:
        """Who has state."""
        return self._run.tasks()

    def run(self, epoch: Epoch) -> Iterable[Acknowledgement]:
        """Sends a barrier through the network; returns what the subtasks acknowledged."""
        try:
            self._run.network.trigger(epoch.checkpoint_id)
            self._run.network.run()
        except BaseException:
            # Nobody has been told of them yet.
            self.discard([one.state for one in self._run.acknowledgements], frozenset())
            raise
        return self._run.acknowledgements

    def store(self, epoch: Epoch, completed: CompletedCheckpoint) -> None:
        """Stores the checkpoint."""
        self._run.store(epoch, completed)

    def commit(self, epoch: Epoch) -> None:
        """Gives the records to the sinks."""
        give_to_sinks(self._run.taken())

    def commit_again(self, checkpoint_id: int) -> None:
        """Nothing: elements are no source that is replayed."""

    def abort(self, epoch: Epoch) -> None:
        """Nothing: the sink has been told of nothing."""

    def discard(self, states: Sequence[SubtaskState], in_use: frozenset[str]) -> None:
        """Deletes what nobody else needs."""
        self._run.discard(states, in_use)
