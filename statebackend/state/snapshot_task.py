"""A snapshot in two parts: a freeze at the barrier, and a task that writes what was frozen, on any thread.

    prepared --run--> running --all written--> done
    prepared --cancel--> cancelled
    running  --cancel--> cancelled     at the next step of the writing
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
    """What can happen to a task."""

    RUN = "run"
    WRITTEN = "all written"
    CANCEL = "cancel"
    ERROR = "error"


class SnapshotTaskState(enum.Enum):
    """Where a task is."""

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
    """A snapshot was told to do what it cannot do in its state."""


@define
class SnapshotTimes:
    """How long the two parts took. Apart from the task, so that who wants to know does not keep what was frozen."""

    synchronous_s: float = 0.0
    asynchronous_s: float = 0.0


class SnapshotTask(ABC, Generic[S]):
    """The asynchronous part; `run` may be called on any thread, once, and `cancel` on any thread at any time.

    A backend's author implements `write` and, where files or frozen state are to be let go, `remove_written` and
    `ended`. They run on the thread that runs the task, so they may read only what nobody changes.
    """

    def __init__(self) -> None:
        self._transition_lock = threading.Lock()
        self._state = SnapshotTaskState.PREPARED
        self.times = SnapshotTimes()

    @abstractmethod
    def write(self) -> S:
        """Writes everything and returns the snapshot; calls `raise_if_cancelled` between two steps."""

    def remove_written(self) -> None:
        """Removes what `write` has written of a snapshot that was cancelled or failed. Must not raise."""

    def ended(self, snapshot: S | None) -> None:
        """Called once, when nothing more will happen: with the snapshot if it is done, else with None.

        On the thread of `run`, or on that of `cancel` if the task never ran. Must not raise.
        """

    @property
    def state(self) -> SnapshotTaskState:
        """Where the task is."""
        return self._state

    @property
    def has_ended(self) -> bool:
        """Whether it is done, cancelled or failed; a cancelled one may still be on its way out of `run`."""
        return self._state not in (SnapshotTaskState.PREPARED, SnapshotTaskState.RUNNING)

    def run(self) -> S:
        """Writes the files and returns the snapshot.

        Raises `concurrent.futures.CancelledError` if it is or was cancelled, `SnapshotTaskError` if it ran before, and
        what the store and the serializers raise.
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
                # Somebody may be waiting for this, whatever happened.
                self.ended(None)
            if end is SnapshotTaskState.CANCELLED:
                raise CancelledError from error
            raise
        self.ended(snapshot)
        return snapshot

    def cancel(self) -> bool:
        """Cancels the task; returns whether it is cancelled now, which one that has ended otherwise is not."""
        with self._transition_lock:
            before = self._state
            self._state = TRANSITIONS.get((before, SnapshotEvent.CANCEL), before)
            is_cancelled = self._state is SnapshotTaskState.CANCELLED
        if before is SnapshotTaskState.PREPARED:
            self.ended(None)
        return is_cancelled

    def submit(self, executor: Executor) -> Future[S]:
        """Has an executor run the task; to cancel the future before it runs is to cancel the task.

        A future that runs cannot be cancelled: cancel the task, and the future raises `CancelledError`.
        """
        future = executor.submit(self.run)
        future.add_done_callback(self._cancel_with)
        return future

    def raise_if_cancelled(self) -> None:
        """Raises `concurrent.futures.CancelledError` if the task was cancelled."""
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
        """Ends a task after an error; one that was cancelled stays cancelled."""
        with self._transition_lock:
            self._state = TRANSITIONS.get((self._state, SnapshotEvent.ERROR), self._state)
            return self._state


class SnapshotTasks(Generic[S]):
    """The tasks of one backend that may be under way."""

    def __init__(self) -> None:
        self._tasks: list[SnapshotTask[S]] = []

    def add(self, task: SnapshotTask[S]) -> None:
        """Takes a task in; those that have ended are forgotten."""
        self._tasks = [*(known for known in self._tasks if not known.has_ended), task]

    def cancel(self) -> None:
        """Cancels all that have not ended."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
