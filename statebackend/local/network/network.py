"""The network of a job as one state machine: which moves there are, and what a move does.

    feed, send        from outside: something for a source to read, an mail beside the channels
    step              one move, which the scheduler chooses
    run               moves until nobody can: everything that was fed is processed, except by who is paused
    advance_processing_time
                      what does not travel on channels: the clock
    resume            the begin of a run that goes on from a checkpoint

An operator that is restored may stand behind the watermark of its channels: what others emit when they are brought to
theirs is early there, and has to be taken before. So the operators behind come to their watermarks one after the other,
those in front first, each when nothing is on its way to it any more; each is a move like any other, which waits for
room. Sources neither read nor send barriers before all have come. Where nobody stands behind, they may at once.

Invariants: what a subtask has sent to another arrives in that order; who sends nothing blocks nobody but behind a
barrier; after `run` all channels are empty and no mail waits.

Who moves next, of those who may: the one source of order in a network.

By default whoever is furthest behind in the graph moves, so that what was sent is at the end of the graph before
anything further is read. With a seed any of them may be the next one, the same each time for the same seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from attrs import frozen

from statebackend.checkpoint.barriers.elements import CheckpointBarrier
from statebackend.local.network.channel import Channel, SubtaskId
from statebackend.local.network.subtasks import Mail, OperatorSubtask, OutputSubtask, SourceSubtask
from statebackend.streaming.errors import StreamJobError

__all__ = ["DownstreamFirst", "Move", "Network", "Scheduler", "Shuffled"]


M = TypeVar("M")


class Scheduler(Protocol):
    """Chooses a move."""

    def choose(self, moves: Iterator[M]) -> M | None:
        """One of the moves, which come downstream first; None if there is none."""


class DownstreamFirst:
    """The first move."""

    def choose(self, moves: Iterator[M]) -> M | None:
        return next(moves, None)


class Shuffled:
    """Any move, as the seed says."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, moves: Iterator[M]) -> M | None:
        known = list(moves)
        return self._random.choice(known) if known else None


@frozen
class Move:
    """A subtask takes the next element of a channel, or without one does ``what``; without a subtask an mail is done.

    ``make`` does it.
    """

    subtask: OperatorSubtask | OutputSubtask | SourceSubtask[Any] | None
    channel: Channel | None
    make: Callable[[], None]
    mail: Mail | None = None
    what: str = ""

    def __str__(self) -> str:
        if self.mail is not None:
            return str(self.mail)
        assert self.subtask is not None
        reader = f"{self.subtask.subtask_id.node}[{self.subtask.subtask_id.index}]"
        if self.channel is None:
            return f"{reader} {self.what}"
        return f"{reader} takes from {self.channel.sender.node}[{self.channel.sender.index}]"


class Network:
    """See the module; ``operators`` come in the order of the graph, the subtasks of one in theirs.

    ``sources`` come in the order of the program; those of ``read_first`` read before the others if all could.
    """

    def __init__(
        self,
        sources: Sequence[SourceSubtask[Any]],
        operators: Sequence[OperatorSubtask],
        output: OutputSubtask,
        scheduler: Scheduler,
        read_first: Collection[SubtaskId] = (),
    ) -> None:
        self.sources = tuple(sources)
        self._in_reading_order = sorted(sources, key=lambda one: one.subtask_id not in read_first)
        self.operators = tuple(operators)
        self.output = output
        self.mails: list[Mail] = []
        """What waits to be done beside the channels."""
        self._scheduler = scheduler
        self._behind: deque[OperatorSubtask] = deque()
        # Downstream first, but the subtasks of one operator in their order.
        places = {one.subtask_id.node: place for place, one in enumerate(operators)}
        behind = sorted(operators, key=lambda one: (-places[one.subtask_id.node], one.subtask_id.index))
        self._behind_first = tuple(behind)
        self._readers: tuple[OperatorSubtask | OutputSubtask, ...] = (output, *behind)

    def send(self, mail: Mail) -> None:
        """Puts an mail among the moves."""
        self.mails.append(mail)

    def moves(self) -> Iterator[Move]:
        """What can happen next: mails, the oldest first, then what is downstream first."""
        for mail in self.mails:
            yield Move(None, None, partial(self._do, mail), mail)
        for subtask in self._readers:
            for channel in subtask.readable():
                yield Move(subtask, channel, partial(subtask.step, channel))
        for subtask in self.operators:
            if subtask.barriers.is_timer_due:
                yield Move(subtask, None, subtask.barriers.time_out, what="aligns no longer")
        if self._behind:
            if self._can_catch_up(self._behind[0]):
                yield Move(self._behind[0], None, self._catch_up, what="comes to its watermark")
            return
        for source in sorted(self._in_reading_order, key=lambda one: one.lead_ms):
            if source.can_move:
                yield Move(source, None, source.step, what="reads")

    def step(self) -> Move | None:
        """Makes one move and returns it; None if nobody can.

        Raises what an operator raises, behind what had been sent to the end of the network by then; the network is not
        to be used any more.
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
        """Moves until nobody can; raises as `step`."""
        while self.step() is not None:
            pass
        self.check_is_empty()

    def check_is_empty(self) -> None:
        """Raises `StreamJobError` if something is on its way: where nobody can move, that must not be."""
        if any(channel.waiting() for subtask in self._readers for channel in subtask.channels):
            raise StreamJobError("the network stands still with elements on their way: an error of this runtime")

    def trigger(self, checkpoint_id: int) -> None:
        """Lets all sources send a barrier."""
        for source in self.sources:
            source.trigger(CheckpointBarrier(checkpoint_id=checkpoint_id))

    def _do(self, mail: Mail) -> None:
        self.mails.remove(mail)
        mail.make()

    def resume(self) -> None:
        """Goes on from what was restored: from here on there are moves that bring operators to their watermarks.

        An operator may have another status than the one it had sent: an input that had ended is read on.
        """
        for one in self.operators:
            one.output.send_time(one.watermarks.status)
        self._behind.extend(one for one in self.operators if one.is_behind)

    def _can_catch_up(self, subtask: OperatorSubtask) -> bool:
        in_front = self.operators[: self.operators.index(subtask) + 1]
        return subtask.output.has_room and not any(one.waiting() for task in in_front for one in task.channels)

    def _catch_up(self) -> None:
        self._behind.popleft().resume()

    def advance_processing_time(self) -> None:
        """Fires what is due by the clock everywhere; what comes of it has moves then, or has arrived.

        Downstream first, so that nobody is sent what others fire before his own turn. What one subtask fires goes out
        at once, as with a watermark; before the next one does so, channels that have no room any more are emptied.
        """
        for subtask in self._behind_first:
            subtask.work.advance_processing_time()
            if not subtask.output.has_room:
                self.run()
