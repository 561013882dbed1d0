"""Messages between tasks and the coordinator. They may be reordered, lost, doubled or late."""

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
    """A message to a task or, with None, to the coordinator; it arrives at ``not_before`` or later."""

    to: TaskId | None
    content: Any
    not_before: int = 0


@define
class Messages:
    """The messages in flight. They outlive a run, as in a network."""

    machine: Machine
    under_way: list[Message] = field(factory=list)
    moment: int = 0

    def send(self, to: TaskId | None, content: Any) -> None:
        """Send a message, unless a fault changes it."""
        what = type(content).__name__
        fault = self.machine.faults.at(FaultPlace.MESSAGE, what)
        late = 0
        copies = 1
        if fault is not None:
            self.machine.trace.add(f"FAULT, {fault.kind.description}: {what}")
            self.machine.disk.points.add((fault.kind.name, what))
            copies = {FaultKind.MESSAGE_LOST: 0, FaultKind.MESSAGE_DOUBLED: 2}.get(fault.kind, 1)
            late = self.moment + _LATE_MOVES if fault.kind is FaultKind.MESSAGE_LATE else 0
        self.under_way += [Message(to, content, late)] * copies

    def deliverable(self) -> Sequence[Message]:
        """Return the messages that may arrive now."""
        return [one for one in self.under_way if one.not_before <= self.moment]

    def taken(self, message: Message) -> Any:
        """Remove a message that arrives, and return its content."""
        self.under_way.remove(message)
        return message.content

    def forget_tasks(self) -> None:
        """End a run: messages to its tasks are lost, those to the coordinator arrive in the next run."""
        chance = self.machine.moves_chance
        self.under_way = [
            evolve(one, not_before=self.moment + chance.randrange(_INTO_NEXT_RUN))
            for one in self.under_way
            if one.to is None
        ]
