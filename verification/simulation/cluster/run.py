"""One run of the cluster's job: from the newest checkpoint to a failure, a crash or the end.

The random generator chooses the next of all possible moves: a task takes an element of a channel, a source reads, a
message arrives, a snapshot is uploaded, the coordinator's next action is carried out, a timer fires, or time passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from statebackend.checkpoint.coordinator.requests import CheckpointRequestKind
from verification.simulation.cluster.coordinator_actions import CoordinatorActions, JobFailed
from verification.simulation.cluster.history import History
from verification.simulation.cluster.messages import Message, Messages
from verification.simulation.cluster.moves import Move, describe
from verification.simulation.cluster.plan import ClusterPlan
from verification.simulation.cluster.run_lease import RunLease
from verification.simulation.cluster.run_storage import RunStorage
from verification.simulation.cluster.run_tasks import RunTasks
from verification.simulation.host.disk import Process
from verification.simulation.host.faults import FaultKind
from verification.simulation.host.machine import Machine
from verification.simulation.violation import require_that

__all__ = ["ClusterRun"]

_MOST_MOVES: Final = 8_000
_MOST_HEARD: Final = 8
"""How many of the oldest messages may arrive next."""
_SETTLING_MOVES: Final = 400


class ClusterRun:
    """One run of the cluster's job."""

    def __init__(
        self,
        plan: ClusterPlan,
        machine: Machine,
        messages: Messages,
        history: History,
        process: Process,
        run_id: str,
        lease: RunLease,
    ) -> None:
        self._plan = plan
        self._machine = machine
        self._messages = messages
        self._storage = RunStorage(plan, machine, history, process, run_id, lease)
        self._tasks = RunTasks(plan, machine, messages, history, self._storage, run_id)
        self._coordinator = CoordinatorActions(plan, machine, messages, history, self._storage, self._tasks, run_id)

    @property
    def leads(self) -> bool:
        """Whether no other driver has taken the lease."""
        return self._storage.leads

    @property
    def has_lease(self) -> bool:
        """Whether it still holds its lease; True without a lease."""
        held, known = self._storage.lease.held, self._storage.history.lease
        return held is not None and known is not None and known.is_held_by(held.token)

    def close(self) -> None:
        """Release the lease."""
        self._storage.lease.close()

    def start(self) -> None:
        """Restore the newest checkpoint."""
        newest = self._storage.open()
        if not self.leads:
            raise JobFailed("another driver has begun to lead")
        self._tasks.build()
        if newest is not None:
            self._tasks.restore(self._storage.states_of(newest))
        self._coordinator.begin(None if newest is None else newest.checkpoint_id)

    def run(self, moves_so_far: int, most: int | None = None) -> int:
        """Move until all records are in a complete checkpoint, something ends the run, or ``most`` moves are done.

        Returns the number of moves.
        """
        count = moves_so_far
        settled_for = 0
        while settled_for < _SETTLING_MOVES:
            count += 1
            if most is not None and count > most:
                break
            require_that(count < _MOST_MOVES, "the job terminates: no move is possible")
            self._messages.moment += 1
            if count in self._plan.savepoints:
                self._coordinator.request(CheckpointRequestKind.SAVEPOINT)
            if self._storage.lease.lost is not None:
                raise self._storage.lease.lost
            kind = self._machine.clock_faults()
            if kind is FaultKind.DRIVER_DIES:
                raise JobFailed("the driver dies")
            description, move, _ = self._chosen()
            self._machine.trace.move(description)
            move()
            if self._tasks.have_processed_all:
                settled_for += 1
                if self._coordinator.is_settled:
                    break
            else:
                self._coordinator.is_settled = False
        self._messages.forget_tasks()
        return count

    def seen(self) -> Mapping[int, list[Any]]:
        """Return the records that all subtasks of each node have received."""
        return self._tasks.seen()

    def _chosen(self) -> Move:
        moves = [
            *self._tasks.moves(),
            *self._message_moves(),
            *self._coordinator.moves(),
            *self._storage.lease.moves(),
        ]
        moves.append(("time passes", partial(self._pass_time, is_all=not moves), 2))
        weights = [weight for _, _, weight in moves]
        return self._machine.moves_chance.choices(moves, weights)[0]

    def _message_moves(self) -> Sequence[Move]:
        moves: list[Move] = []
        for message in self._messages.deliverable()[:_MOST_HEARD]:
            description = f"{message.to or 'coordinator'} hears {describe(message.content)}"
            moves.append((description, partial(self._deliver, message), 4))
        return moves

    def _deliver(self, message: Message) -> None:
        content = self._messages.taken(message)
        if message.to is None:
            self._coordinator.tell(content)
        else:
            self._tasks.receive(message.to, content)

    def _pass_time(self, is_all: bool) -> None:
        timers = [*self._coordinator.timers.values(), *self._tasks.timers()]
        clock = self._machine.clock
        if is_all and timers and not self._messages.under_way:
            clock.pass_ms(max(0, min(timers) - clock.now_ms))
        else:
            clock.pass_ms(self._machine.moves_chance.choice((1, 5, 20)))
