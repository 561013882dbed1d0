"""A snapshot in two parts: a freeze at the barrier, and a task that writes what was frozen, on any thread.

    prepared --run--> running --all written--> done
    prepared --cancel--> cancelled
    running  --cancel--> cancelled     at the next step of `write`
    running  --error--> failed

Any other event is an error and changes nothing. A task that is cancelled or fails removes the files it wrote, and
notifies its backend exactly once. Only then may the backend release what the task was reading.
"""

from __future__ import annotations

import enum
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import CancelledError, Executor, Future
from typing import Final, Generic, TypeVar

from attrs import define

from statebackend.state.errors import StateBackendError

S = TypeVar("S")


class SnapshotEvent(enum.Enum):
    """The events of a task."""

    RUN = "run"
    WRITTEN = "all written"
    CANCEL = "cancel"
    ERROR = "error"


class SnapshotTaskState(enum.Enum):
    """The states of a task."""

    PREPARED = "prepared"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


TRANSITIONS: Final[Mapping[tuple[SnapshotTaskState, SnapshotEvent], SnapshotTaskState]] = {
    (SnapshotTaskState.PREPARED, SnapshotEvent.RUN): SnapshotTaskState.RUNNING,
    (SnapshotTaskState.PREPARED, SnapshotEvent.CANCEL): SnapshotTaskState.CANCELLED,
    (SnapshotTaskState.RUNNING, SnapshotEvent.WRITTEN): SnapshotTaskState.DONE,
    (SnapshotTaskState.RUNNING, SnapshotEvent.CANCEL): SnapshotTaskState.CANCELLED,
    (SnapshotTaskState.RUNNING, SnapshotEvent.ERROR): SnapshotTaskState.FAILED,
}


class SnapshotTaskError(StateBackendError, RuntimeError):
    """A snapshot task cannot do this in its state."""


@define
class SnapshotTimes:
    """The duration of both parts; separate from the task, so that keeping it does not keep the frozen state."""

    synchronous_s: float = 0.0
    asynchronous_s: float = 0.0


class SnapshotTask(ABC, Generic[S]):
    """The asynchronous part. Call `run` once, on any thread; call `cancel` on any thread at any time.

    A backend's author implements `write` and, to release files or frozen state, `remove_written` and `ended`. They run
    on the thread of the task, so they may read only immutable data.
    """

    def __init__(self) -> None:
        self._transition_lock = threading.Lock()
        self._state = SnapshotTaskState.PREPARED
        self.times = SnapshotTimes()

    @abstractmethod
    def write(self) -> S:
        """Write everything and return the snapshot; call `raise_if_cancelled` between steps."""

    def remove_written(self) -> None:
        """Remove the files of a snapshot that was cancelled or failed. Must not raise."""

    def ended(self, snapshot: S | None) -> None:
        """Called once at the end: with the snapshot if it is done, else with None.

        Runs on the thread of `run`, or of `cancel` if the task never ran. Must not raise.
        """

    @property
    def state(self) -> SnapshotTaskState:
        return self._state

    @property
    def has_ended(self) -> bool:
        """Whether it is done, cancelled or failed; `run` of a cancelled task may not have returned yet."""
        return self._state not in (SnapshotTaskState.PREPARED, SnapshotTaskState.RUNNING)

    def run(self) -> S:
        """Write the files and return the snapshot.

        Raises `concurrent.futures.CancelledError` if the task is cancelled, `SnapshotTaskError` if it ran before, and
        the errors of the store and the serializers.
        """
        try:
            self._move(SnapshotEvent.RUN)
        except SnapshotTaskError:
            self.raise_if_cancelled()
            raise
        started = time.monotonic()
        try:
            snapshot = self.write()
            self.times.asynchronous_s = time.monotonic() - started
            self.raise_if_cancelled()
            self._move(SnapshotEvent.WRITTEN)
        except BaseException as error:
            end = self._fail()
            try:
                self.remove_written()
            finally:
                # Another thread may be waiting for this, even after an error.
                self.ended(None)
            if end is SnapshotTaskState.CANCELLED:
                raise CancelledError from error
            raise
        self.ended(snapshot)
        return snapshot

    def cancel(self) -> bool:
        """Cancel the task; return whether it is cancelled now, False if it ended in another way."""
        with self._transition_lock:
            before = self._state
            self._state = TRANSITIONS.get((before, SnapshotEvent.CANCEL), before)
            is_cancelled = self._state is SnapshotTaskState.CANCELLED
        if before is SnapshotTaskState.PREPARED:
            self.ended(None)
        return is_cancelled

    def submit(self, executor: Executor) -> Future[S]:
        """Run the task on an executor. Cancelling the future before it runs cancels the task.

        A running future cannot be cancelled: cancel the task, and the future raises `CancelledError`.
        """
        future = executor.submit(self.run)
        future.add_done_callback(self._cancel_with)
        return future

    def raise_if_cancelled(self) -> None:
        """Raise `concurrent.futures.CancelledError` if the task was cancelled."""
        if self._state is SnapshotTaskState.CANCELLED:
            raise CancelledError

    def _cancel_with(self, future: Future[S]) -> None:
        if future.cancelled():
            self.cancel()

    def _move(self, event: SnapshotEvent) -> None:
        with self._transition_lock:
            following = TRANSITIONS.get((self._state, event))
            if following is None:
                raise SnapshotTaskError(
                    f"event {event.value!r} cannot happen to a snapshot that is {self._state.value}; prepare another"
                )
            self._state = following

    def _fail(self) -> SnapshotTaskState:
        """End a task after an error; a cancelled task stays cancelled."""
        with self._transition_lock:
            self._state = TRANSITIONS.get((self._state, SnapshotEvent.ERROR), self._state)
            return self._state


class SnapshotTasks(Generic[S]):
    """The tasks of one backend that may still be running."""

    def __init__(self) -> None:
        self._tasks: list[SnapshotTask[S]] = []

    def add(self, task: SnapshotTask[S]) -> None:
        """Add a task, and forget those that have ended."""
        self._tasks = [*(known for known in self._tasks if not known.has_ended), task]

    def cancel(self) -> None:
        """Cancel all tasks that have not ended."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
