"""Messages between tasks and the coordinator: they come in any order, and some never, twice, or late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import define, evolve, field, frozen

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from verification.simulation.host.faults import FaultKind, FaultPlace
from verification.simulation.host.machine import Machine

__all__ = ["Message", "Messages"]

_LATE_MOVES: Final = 60
_INTO_NEXT_RUN: Final = 150


@frozen
class Message:
    """``content`` for a task, or for the coordinator (None), from moment ``not_before`` on."""

    to: TaskId | None
    content: Any
    not_before: int = 0


@define
class Messages:
    """What is on its way; it outlives a run, as a network does."""

    machine: Machine
    under_way: list[Message] = field(factory=list)
    moment: int = 0

    def send(self, to: TaskId | None, content: Any) -> None:
        """Sends something, unless a fault has it otherwise."""
        what = type(content).__name__
        fault = self.machine.faults.at(FaultPlace.MESSAGE, what)
        late = 0
        copies = 1
        if fault is not None:
            self.machine.trace.add(f"FAULT, {fault.kind.told}: {what}")
            self.machine.disk.points.add((fault.kind.name, what))
            copies = {FaultKind.MESSAGE_LOST: 0, FaultKind.MESSAGE_DOUBLED: 2}.get(fault.kind, 1)
            late = self.moment + _LATE_MOVES if fault.kind is FaultKind.MESSAGE_LATE else 0
        self.under_way += [Message(to, content, late)] * copies

    def deliverable(self) -> Sequence[Message]:
        """What may arrive now."""
        return [one for one in self.under_way if one.not_before <= self.moment]

    def taken(self, message: Message) -> Any:
        """The content of one that arrives."""
        self.under_way.remove(message)
        return message.content

    def forget_tasks(self) -> None:
        """A run is over: what was for its tasks is lost; what was for the coordinator comes into the next run."""
        chance = self.machine.moves_chance
        self.under_way = [
            evolve(one, not_before=self.moment + chance.randrange(_INTO_NEXT_RUN))
            for one in self.under_way
            if one.to is None
        ]
