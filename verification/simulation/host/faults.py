"""Faults, each at a numbered step of its kind of steps.

Steps are counted over all runs of a job, so a fault happens once. A fault whose step never comes does nothing.

| place      | its steps                                                                            |
|------------|--------------------------------------------------------------------------------------|
| STORAGE    | the steps of a storage operation: a temporary name, bytes, sync, rename, ...         |
| COMPLETION | those of them that complete or drop a checkpoint                                     |
| LEASE      | those of them that read or write the lease of a job                                  |
| WAITING    | looks of a driver that waits for the lease                                           |
| TASK       | what tasks do: a record, a timer, a snapshot                                         |
| MESSAGE    | messages between tasks and the coordinator                                           |
| MOVE       | moves of the scheduler                                                               |
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

from attrs import frozen

__all__ = ["Fault", "FaultKind", "FaultPlace", "Faults", "ProcessDied", "TaskFailed"]


class ProcessDied(BaseException):
    """The process has died. Its error handlers do not run."""


class TaskFailed(Exception):
    """A task fails by the schedule."""


class FaultPlace(enum.Enum):
    """The kinds of steps."""

    STORAGE = "storage step"
    COMPLETION = "step of completing or dropping"
    LEASE = "step at the lease"
    WAITING = "look of who waits for the lease"
    TASK = "task step"
    MESSAGE = "message"
    MOVE = "move"


class FaultKind(enum.Enum):
    """What happens, and at which kind of step."""

    KILL = ("the process dies", FaultPlace.STORAGE)
    POWER_LOSS = ("the machine loses power, and what was not synced", FaultPlace.STORAGE)
    STORAGE_ERROR = ("the storage fails, and nothing was done", FaultPlace.STORAGE)
    STORAGE_ERROR_AFTER = ("the storage fails after the step", FaultPlace.STORAGE)
    SECOND_DRIVER = ("another driver starts, and runs to its end, while this one stands still", FaultPlace.STORAGE)
    RIVAL_DRIVER = ("another driver comes to lead while this one lives", FaultPlace.STORAGE)
    NO_QUORUM = ("the servers of ZooKeeper do not answer for a while", FaultPlace.STORAGE)
    TASK_FAILS = ("a task fails", FaultPlace.TASK)
    MESSAGE_LOST = ("a message is lost", FaultPlace.MESSAGE)
    MESSAGE_DOUBLED = ("a message comes twice", FaultPlace.MESSAGE)
    MESSAGE_LATE = ("a message arrives late, after newer ones", FaultPlace.MESSAGE)
    DRIVER_DIES = ("the driver dies between two moves", FaultPlace.MOVE)
    CLOCK_JUMPS_AHEAD = ("the clock jumps ahead", FaultPlace.MOVE)
    CLOCK_JUMPS_BACK = ("the clock jumps back", FaultPlace.MOVE)

    def __init__(self, description: str, place: FaultPlace) -> None:
        self.description = description
        self.place = place


@frozen
class Fault:
    """``kind`` happens at the step ``at`` of its place, or of the narrower kind ``among``, which has its own count."""

    kind: FaultKind
    at: int
    among: FaultPlace | None = None

    @property
    def place(self) -> FaultPlace:
        """The kind of steps that are counted."""
        return self.among or self.kind.place

    def __str__(self) -> str:
        return f"{self.kind.name} at {self.place.value} {self.at}"


class Faults:
    """The faults of a schedule; counts the steps."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._by_step = {(one.place, one.at): one for one in faults}
        self.steps: Counter[FaultPlace] = Counter()
        """The number of steps of each kind so far."""
        self.struck: list[tuple[Fault, str]] = []
        """The faults that happened, with their steps."""

    def end(self) -> None:
        """Drop the remaining faults."""
        self._by_step.clear()

    def at(self, place: FaultPlace, what: str) -> Fault | None:
        """Count a step, and return the fault that happens at it."""
        number = self.steps[place]
        self.steps[place] += 1
        fault = self._by_step.pop((place, number), None)
        if fault is not None:
            self.struck.append((fault, what))
        return fault
