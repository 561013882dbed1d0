"""Who writes the snapshots of a run: the run itself, as one move among others, or a few threads beside it.

Both only write. What follows, the acknowledgement, is an errand of the run, so that subtasks and the coordinator belong
to one thread. A snapshot that nobody waits for any more is given up.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.handles.state_handles import SubtaskState
from streamjobs.inprocess.network.errands import Errand

__all__ = ["Finished", "InlineWriter", "SnapshotWriter", "ThreadedWriter", "Work"]


class Work(Protocol):
    """What is to be written for a checkpoint, and then acknowledged."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that it is of."""

    @property
    def task(self) -> TaskId:
        """Whose it is."""

    def write(self) -> None:
        """Writes the files, on any thread."""

    def cancel(self) -> None:
        """Nobody waits for it any more; on any thread."""

    @property
    def left_behind(self) -> Sequence[SubtaskState]:
        """What is durable of it although the rest could not be written."""

    def acknowledgement(self, of_nothing: Callable[[TaskId, int], Acknowledgement]) -> Acknowledgement:
        """What is acknowledged when it is written; ``of_nothing`` makes that of a task without state."""


Finished = Callable[[Work, BaseException | None], None]
"""Is told, on the thread of the run, that a snapshot is written, or what was raised."""


class SnapshotWriter(Protocol):
    """Writes what it is given; belongs to the thread of the run."""

    @property
    def is_writing(self) -> bool:
        """Whether anything is under way outside of the moves of the run."""

    def submit(self, work: Work) -> None:
        """Has a snapshot written."""

    def collect(self, wait_s: float | None = 0.0) -> bool:
        """Makes errands of what was written meanwhile, after a wait if nothing was; returns whether anything was.

        If ``wait_s`` is None it waits until something is.
        """

    def cancel(self, checkpoint_id: int) -> None:
        """Nobody waits for the snapshots of a checkpoint any more."""

    def close(self) -> None:
        """Gives up what is under way, and waits until nothing is."""


class InlineWriter:
    """Writes on the thread of the run, when the scheduler says so."""

    is_writing = False

    def __init__(self, send: Callable[[Errand], None], finished: Finished) -> None:
        self._send = send
        self._finished = finished
        self._under_way: list[Work] = []

    def submit(self, work: Work) -> None:
        self._under_way.append(work)
        self._send(Errand("write", work.checkpoint_id, work.task, lambda: self._write(work)))

    def collect(self, wait_s: float | None = 0.0) -> bool:
        return False

    def cancel(self, checkpoint_id: int) -> None:
        for work in [one for one in self._under_way if one.checkpoint_id == checkpoint_id]:
            self._under_way.remove(work)
            work.cancel()

    def close(self) -> None:
        """Nothing: the backends give up what nobody writes."""

    def _write(self, work: Work) -> None:
        if work not in self._under_way:
            # It was given up.
            return
        self._under_way.remove(work)
        try:
            work.write()
        except Exception as error:
            self._finished(work, error)
            return
        self._finished(work, None)


class ThreadedWriter:
    """Writes on threads of its own; what was written waits to be collected."""

    def __init__(self, send: Callable[[Errand], None], finished: Finished, threads: int = 2) -> None:
        self._send = send
        self._finished = finished
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="statebackend-snapshot")
        self._written: queue.SimpleQueue[tuple[Work, BaseException | None]] = queue.SimpleQueue()
        self._under_way: list[Work] = []

    @property
    def is_writing(self) -> bool:
        return bool(self._under_way)

    def submit(self, work: Work) -> None:
        self._under_way.append(work)
        self._executor.submit(self._write, work)

    def collect(self, wait_s: float | None = 0.0) -> bool:
        if not self._under_way:
            return False
        try:
            work, error = self._written.get(wait_s is None or wait_s > 0, wait_s)
        except queue.Empty:
            return False
        self._under_way.remove(work)
        self._send(Errand("write", work.checkpoint_id, work.task, lambda: self._finished(work, error)))
        return True

    def cancel(self, checkpoint_id: int) -> None:
        for work in self._under_way:
            if work.checkpoint_id == checkpoint_id:
                work.cancel()

    def close(self) -> None:
        for work in self._under_way:
            work.cancel()
        self._executor.shutdown(wait=True)

    def _write(self, work: Work) -> None:
        error: BaseException | None = None
        try:
            work.write()
        except BaseException as raised:
            # Whatever it is, the run has to hear of it: it waits for this thread.
            error = raised
        self._written.put((work, error))
