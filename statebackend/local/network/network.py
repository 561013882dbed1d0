"""The network of a job as one state machine: which moves are possible, and what a move does.

    feed, send                 from outside: a piece for a source, a mail outside of the channels
    step                       one move, which the scheduler chooses
    run                        moves until none is possible: all that was fed is processed, except by paused sources
    advance_processing_time    the clock, which does not travel on channels
    resume                     the start of a run that continues from a checkpoint

A restored operator may have processed a smaller watermark than its channels have. Records that upstream operators emit
while they catch up are early for it, so it must take them first. The operators that are behind therefore catch up one
after the other, in the order of the graph, each when no element is in its channels. Each catch-up is a move and needs
room. Sources neither read nor send barriers before all have caught up.

Invariants: elements between two subtasks arrive in the order in which they were sent; a subtask that sends nothing
blocks no other, except while it aligns; after `run` all channels are empty and no mail waits.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from attrs import frozen

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.local.network.channel import Channel
from statebackend.local.network.subtasks import (
    Mail,
    OperatorSubtask,
    OutputSubtask,
    ReadingSubtask,
    SourceSubtask,
)
from statebackend.streaming.errors import StreamJobError

M = TypeVar("M")


class Scheduler(Protocol):
    """Chooses the next move: the only source of order in a network."""

    def choose(self, moves: Iterator[M]) -> M | None:
        """Return one of the moves, which come downstream first; None if there is none."""


class DownstreamFirst:
    """The first move: what was sent reaches the output before anything else is read."""

    def choose(self, moves: Iterator[M]) -> M | None:
        return next(moves, None)


class Shuffled:
    """A random move, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, moves: Iterator[M]) -> M | None:
        known = list(moves)
        return self._random.choice(known) if known else None


@frozen
class Move:
    """A subtask takes the next element of a channel, or does ``what``, or a mail is carried out; ``make`` does it.

    ``is_reading`` is whether a source takes a piece of its input.
    """

    subtask: ReadingSubtask | SourceSubtask[Any] | None
    channel: Channel | None
    make: Callable[[], None]
    mail: Mail | None = None
    what: str = ""
    is_reading: bool = False

    def __str__(self) -> str:
        if self.mail is not None:
            return str(self.mail)
        assert self.subtask is not None
        what = self.what if self.channel is None else f"takes from {self.channel.sender}"
        return f"{self.subtask.task} {what}"


class Network:
    """The subtasks of a job: ``operators`` in the order of the graph, ``sources`` in that of the program.

    The sources of ``read_first`` read before the others if all of them could.
    """

    def __init__(
        self,
        sources: Sequence[SourceSubtask[Any]],
        operators: Sequence[OperatorSubtask],
        output: OutputSubtask,
        scheduler: Scheduler,
        read_first: Collection[TaskId] = (),
    ) -> None:
        self.sources = tuple(sources)
        self._in_reading_order = sorted(sources, key=lambda one: one.task not in read_first)
        self.operators = tuple(operators)
        self.output = output
        self.mails: list[Mail] = []
        """The possible moves outside of the channels."""
        self._scheduler = scheduler
        self._behind: deque[OperatorSubtask] = deque()
        # Downstream first, but the subtasks of one operator by their index.
        places = {one.task.operator_uid: place for place, one in enumerate(operators)}
        downstream = sorted(operators, key=lambda one: (-places[one.task.operator_uid], one.task.subtask_index))
        self._downstream_first = tuple(downstream)
        self._readers: tuple[ReadingSubtask, ...] = (output, *downstream)

    def send(self, mail: Mail) -> None:
        """Add a mail to the moves."""
        self.mails.append(mail)

    def moves(self) -> Iterator[Move]:
        """The possible moves: mails, the oldest first, then downstream first."""
        for mail in self.mails:
            yield Move(None, None, partial(self._do, mail), mail)
        for subtask in self._readers:
            for channel in subtask.readable():
                yield Move(subtask, channel, partial(subtask.step, channel))
        for operator in self.operators:
            if operator.barriers.is_timer_due:
                yield Move(operator, None, operator.barriers.time_out, what="stops aligning")
        if self._behind:
            if self._can_catch_up(self._behind[0]):
                yield Move(self._behind[0], None, self._catch_up, what="catches up with its watermark")
            return
        for source in sorted(self._in_reading_order, key=lambda one: one.alignment_watermark_ms):
            if source.can_move:
                what = "sends a barrier" if source.has_barrier else "reads"
                yield Move(source, None, source.step, what=what, is_reading=not source.has_barrier)

    def step(self) -> Move | None:
        """Make one move and return it; None if none is possible.

        Raises what an operator raises, after the output has received what was sent before. The network is over then.
        """
        try:
            move = self._scheduler.choose(self.moves())
            if move is not None:
                move.make()
        except BaseException:
            while channels := self.output.readable():
                self.output.step(channels[0])
            raise
        return move

    def run(self) -> None:
        """Make moves until none is possible; raises as `step`."""
        while self.step() is not None:
            pass
        if any(channel.waiting() for subtask in self._readers for channel in subtask.channels):
            raise StreamJobError(
                "no subtask can make progress, but channels are not empty. This is a bug of Statebackend: please "
                "report it"
            )

    def resume(self) -> None:
        """Continue from a restored checkpoint: operators that are behind catch up.

        The status of an operator may differ from the one that it had sent: an input that had ended is read again.
        """
        for one in self.operators:
            one.output.send_time(one.watermarks.status)
        self._behind.extend(one for one in self.operators if one.is_behind)

    def advance_processing_time(self) -> None:
        """Fire the processing-time timers that are due everywhere, downstream first.

        So no subtask receives what others fire before it fires itself. Channels without room are emptied in between.
        """
        for subtask in self._downstream_first:
            subtask.work.advance_processing_time()
            if not subtask.output.has_room:
                self.run()

    def _do(self, mail: Mail) -> None:
        self.mails.remove(mail)
        mail.make()

    def _can_catch_up(self, subtask: OperatorSubtask) -> bool:
        upstream = self.operators[: self.operators.index(subtask) + 1]
        return subtask.output.has_room and not any(one.waiting() for task in upstream for one in task.channels)

    def _catch_up(self) -> None:
        self._behind.popleft().catch_up()
