"""Files of checkpoints that were given up, while the run goes on that wrote them.

A subtask that stays open builds each snapshot upon the files of the one before, whether or not the checkpoint of that
was ever completed. So a file of a checkpoint that failed may be part of the next one, and cannot be deleted when the
checkpoint fails. It can be when a newer checkpoint is complete and nothing else is under way: then what subtasks build
upon is what that checkpoint has, and what it does not have nobody will ask for.

What is not deleted by then is deleted by the next start, which finds files that no checkpoint refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checkpointing.handles.state_handles import SubtaskState

__all__ = ["GivenUpFiles"]


class GivenUpFiles:
    """The states that wait until nobody can refer to their files."""

    def __init__(self) -> None:
        self._states: list[SubtaskState] = []

    def add(self, states: Iterable[SubtaskState]) -> None:
        """States of a checkpoint that is given up."""
        self._states += states

    def taken(self, completed_id: int, newest_id: int, *, is_quiet: bool) -> Sequence[SubtaskState]:
        """The states to discard, now that a checkpoint is complete: all, or none as long as more is under way.

        ``newest_id`` is the newest checkpoint that was begun, ``is_quiet`` says that no snapshot waits to be written.
        """
        if not is_quiet or completed_id < newest_id:
            return ()
        return self.all_taken()

    def all_taken(self) -> Sequence[SubtaskState]:
        """All of them, for who knows that no subtask is open."""
        states, self._states = self._states, []
        return states
