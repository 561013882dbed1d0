"""Defects of the local runtime and of state backends, as patches of `planted_defects`."""

from __future__ import annotations

import contextlib
import fcntl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from unittest import mock

from statebackend.checkpoint.fs import file_lock
from statebackend.checkpoint.store.completed_checkpoint_store import PinnedCheckpoints
from statebackend.local import run as local_run
from statebackend.local.checkpoints import RunCheckpoints, SnapshotWriter
from statebackend.local.network.channel import Channel, EndOfInput, OvertakingBarrier
from statebackend.local.network.subtasks import SourceSubtask
from statebackend.local.sinks import LocalSinks
from statebackend.state.heap.priority_queue import HeapPriorityQueue
from statebackend.streaming.runtime import restore_plan
from tests.verification.simulation.planting import Patch, method

__all__ = ["DEFECTS_OF_JOBS"]


def _overtaken_not_captured() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def take(self: Channel) -> Any:
            element = original(self)
            return OvertakingBarrier(element.barrier, ()) if isinstance(element, OvertakingBarrier) else element

        return take

    return method(Channel, "take", wrap)


def _in_flight_in_another_order() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, elements: original(self, list(reversed(elements)))

    return method(Channel, "put_restored", wrap)


def _in_flight_not_restored() -> Patch:
    return lambda: mock.patch.object(local_run, "restore_checkpoint")


def _watermarks_not_restored() -> Patch:
    return lambda: mock.patch.object(local_run, "restore_network")


def _wrong_range() -> Patch:
    def overlaps(handles: Sequence[Any], parallelism: int, max_parallelism: int) -> Iterator[slice]:
        for index in range(parallelism):
            yield slice(index, index + 1)

    return lambda: mock.patch.object(restore_plan, "overlaps", overlaps)


def _timers_again() -> Patch:
    """Firing removes a timer from the queue, without recording that for the next increment."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def remove_head(self: HeapPriorityQueue[Any]) -> None:
            table = self._open_table()
            entry = table.built_heap()[0]
            is_noted = entry in table.history.epoch.changes
            original(self)
            if not is_noted:
                table.history.epoch.changes.pop(entry, None)

        return remove_head

    return method(HeapPriorityQueue, "remove_head", wrap)


def _committed_twice() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def take_results(self: LocalSinks, checkpoint_id: int) -> Any:
            known = {one: [list(piece) for piece in pieces] for one, pieces in self._results.items()}
            result = original(self, checkpoint_id)
            self._results.update({one: pieces for one, pieces in known.items() if one == checkpoint_id})
            return result

        return take_results

    return method(LocalSinks, "take_results", wrap)


def _committed_before_stored() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def store(self: RunCheckpoints, action: Any) -> None:
            self._completed(action.completed.checkpoint_id)
            original(self, action)

        return store

    from statebackend.local import checkpoints

    wrapped = wrap(RunCheckpoints._store)
    actions = checkpoints._ACTIONS
    return lambda: mock.patch.dict(actions, {checkpoints.StoreCheckpoint: wrapped})  # type: ignore[arg-type]


def _abandoned_at_once() -> Patch:
    def discard(self: RunCheckpoints, action: Any) -> None:
        self._parts.store.discard(action.states)

    from statebackend.local import checkpoints

    return lambda: mock.patch.dict(checkpoints._ACTIONS, {checkpoints.DiscardStates: discard})  # type: ignore[arg-type]


def _not_pinned() -> Patch:
    return method(PinnedCheckpoints, "completed", lambda original: lambda self, checkpoint_id: None)


def _not_committed_again() -> Patch:
    """A start removes the staged output of later attempts, and does not commit that of its checkpoint."""

    return method(LocalSinks, "commit_again", lambda original: lambda self, metadata: None)


def _read_behind_the_stop() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: SourceSubtask[Any]) -> None:
            if self._barriers and self._barriers[0][1] is not None and self._unread and not self.has_ended:
                barrier = self._barriers.popleft()
                assert self._on_barrier is not None
                self._on_barrier(barrier[0].checkpoint_id)
                self._unread.popleft()(self.work)
                self.output.send_barrier(barrier[0])
                self._has_stopped = True
                return
            original(self)

        return step

    return method(SourceSubtask, "step", wrap)


def _position_of_the_next() -> Patch:
    def step(self: SourceSubtask[Any]) -> None:
        if not self._barriers:
            self._unread.popleft()(self.work)
            if self.has_ended and not self._unread:
                self.output.send_to_all(EndOfInput.END)
            self._report()
            return
        barrier, _ = self._barriers.popleft()
        self.output.send_barrier(barrier)
        if self._unread and not self.has_ended:
            self._unread.popleft()(self.work)
        assert self._on_barrier is not None
        self._on_barrier(barrier.checkpoint_id)

    return method(SourceSubtask, "step", lambda original: step)


def _acknowledged_unwritten() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: SnapshotWriter, work: Any) -> None:
            if work not in self._in_progress:
                return
            self._in_progress.remove(work)
            with contextlib.suppress(Exception):
                work.write()
            self._finished(work, None)

        return write

    return method(SnapshotWriter, "_write", wrap)


def _lock_of_nobody() -> Patch:
    free = mock.Mock(wraps=fcntl)
    free.flock = lambda descriptor, how: None
    return lambda: mock.patch.object(file_lock, "fcntl", free)


def _barrier_at_the_end_of_the_queue() -> Patch:
    """A source with a full channel sends its barrier before earlier records."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def put_barrier(self: Channel, barrier: Any, *, splits: bool) -> Any:
            result = original(self, barrier, splits=splits)
            if not barrier.is_unaligned and len(self._elements) > 1:
                elements = list(self._elements)
                self._elements = deque([*elements[:-2], elements[-1], elements[-2]])
            return result

        return put_barrier

    return method(Channel, "put_barrier", wrap)


DEFECTS_OF_JOBS: Final[tuple[tuple[str, Patch], ...]] = (
    ("overtaken records are not captured", _overtaken_not_captured()),
    ("in-flight data is restored in another order", _in_flight_in_another_order()),
    ("in-flight data is not restored", _in_flight_not_restored()),
    ("watermark state is not restored", _watermarks_not_restored()),
    ("keyed state is restored to the wrong range", _wrong_range()),
    ("timers that have fired are restored and fire twice", _timers_again()),
    ("a sink commits twice", _committed_twice()),
    ("a sink commits before the checkpoint is stored", _committed_before_stored()),
    ("files of a failed checkpoint are deleted although the next one uses them", _abandoned_at_once()),
    ("a checkpoint is deleted although a pending one uses its files", _not_pinned()),
    ("a start does not commit staged output again", _not_committed_again()),
    ("a source that stops acknowledges, and reads on before its barrier", _read_behind_the_stop()),
    ("the position of a source is that of a later barrier", _position_of_the_next()),
    ("a snapshot that could not be written is acknowledged", _acknowledged_unwritten()),
    ("the lock admits a second driver", _lock_of_nobody()),
    ("a barrier overtakes the record before it, which is not captured", _barrier_at_the_end_of_the_queue()),
)
