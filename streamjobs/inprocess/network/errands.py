"""What is to be done in a run beside what travels on channels, one move each: messages, and work that waits.

    trigger, acknowledge, decline, notify complete, notify aborted    a message of the coordinator's, to or from a task
    write                                                             a snapshot is written, and then acknowledged
    store                                                             the coordinator stores a checkpoint

Errands have no order among each other: whoever sends two must bear that the second is there first.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from checkpointing.coordinator.acknowledgement import TaskId

__all__ = ["Errand"]


@frozen(eq=False)
class Errand:
    """What is to be done, for which checkpoint, and to, from or of which task, if one; ``make`` does it."""

    name: str
    checkpoint_id: int
    task: TaskId | None
    make: Callable[[], None]

    def __str__(self) -> str:
        where = "" if self.task is None else f" of {self.task}"
        return f"{self.name} {self.checkpoint_id}{where}"
