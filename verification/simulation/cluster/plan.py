"""A schedule of the cluster as data: graph, input, barriers and faults, made by a seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable
from typing import Final

from attrs import frozen

from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from verification.simulation.host.faults import Fault, FaultKind, FaultPlace

__all__ = ["BarrierMode", "ClusterPlan", "Edge"]


class BarrierMode(enum.Enum):
    """The mode of barriers."""

    ALIGNED = "exactly once, aligned"
    UNALIGNED = "exactly once, unaligned"
    ALTERNATING = "exactly once, unaligned after a time to align"
    AT_LEAST_ONCE = "at least once"

    def checkpointing_mode(self, alignment_timeout_ms: int | None) -> CheckpointingMode:
        """The checkpointing mode; an alignment timeout is in milliseconds."""
        if self is BarrierMode.ALTERNATING:
            return CheckpointingMode(alignment_timeout_ms=alignment_timeout_ms)
        return _MODES[self]


_MODES: Final = {
    BarrierMode.ALIGNED: CheckpointingMode.ALIGNED,
    BarrierMode.UNALIGNED: CheckpointingMode.UNALIGNED,
    BarrierMode.AT_LEAST_ONCE: CheckpointingMode.AT_LEAST_ONCE,
}


@frozen
class Edge:
    """An edge of the graph: each record goes to the subtask of its key, or to all subtasks."""

    sender: int
    reader: int
    is_broadcast: bool = False

    def __str__(self) -> str:
        return f"{self.sender}{'=>' if self.is_broadcast else '->'}{self.reader}"


_KINDS: Final = (
    FaultKind.KILL,
    FaultKind.KILL,
    FaultKind.POWER_LOSS,
    FaultKind.POWER_LOSS,
    FaultKind.STORAGE_ERROR,
    FaultKind.STORAGE_ERROR_AFTER,
    FaultKind.TASK_FAILS,
    FaultKind.MESSAGE_LOST,
    FaultKind.MESSAGE_DOUBLED,
    FaultKind.MESSAGE_DOUBLED,
    FaultKind.MESSAGE_LATE,
    FaultKind.MESSAGE_LATE,
    FaultKind.DRIVER_DIES,
    FaultKind.CLOCK_JUMPS_AHEAD,
    FaultKind.CLOCK_JUMPS_BACK,
)


@frozen(kw_only=True)
class ClusterPlan:
    """Nodes are numbered along the edges; those without inputs are sources. Times are milliseconds.

    ``records`` is the input of each subtask of a source. ``slow`` are indexes of channels that deliver seldom.
    ``savepoints`` are moves at which a savepoint is requested.
    """

    seed: int
    edges: tuple[Edge, ...]
    parallelism: int
    records: int
    mode: BarrierMode
    capacity: int
    interval_ms: int
    timeout_ms: int
    alignment_timeout_ms: int | None
    max_concurrent: int
    tolerable_failures: int
    retained: int
    slow: frozenset[int]
    savepoints: tuple[int, ...]
    faults: tuple[Fault, ...]
    is_on_objects: bool = False
    """Whether the job is on an object store, where another driver may take the lease of its driver."""
    lease_ms: int | None = None
    """The duration of the lease, in milliseconds."""
    is_stand_by: bool = False
    """Whether a driver waits while another one leads, instead of being rejected."""
    is_led_by_zookeeper: bool = False
    """Whether the job is on a disk, and ZooKeeper records its leader and its checkpoints."""

    @classmethod
    def of_seed(cls, seed: int) -> ClusterPlan:
        """Return the plan of a seed."""
        chance = random.Random(seed)
        places = random.Random(f"places {seed}")
        is_on_objects = places.random() < 0.3
        keepers = random.Random(f"keepers {seed}")
        leases = random.Random(f"leases {seed}")
        is_led_by_zookeeper = not is_on_objects and keepers.random() < 0.35
        edges = _graph(chance)
        mode = chance.choice(tuple(BarrierMode))
        parallelism = chance.choice((1, 1, 2, 2, 3))
        return cls(
            seed=seed,
            edges=edges,
            parallelism=parallelism,
            records=chance.randrange(2, 9),
            mode=mode,
            capacity=chance.choice((1, 2, 3, 6)),
            interval_ms=chance.choice((20, 60, 150)),
            timeout_ms=chance.choice((200, 1000)),
            alignment_timeout_ms=chance.choice((0, 15, 60)) if mode is BarrierMode.ALTERNATING else None,
            max_concurrent=chance.choice((1, 1, 2, 3)),
            tolerable_failures=chance.choice((0, 2, 50)),
            retained=chance.choice((1, 2, 3)),
            slow=frozenset(chance.sample(range(12), chance.choice((0, 1, 3)))),
            savepoints=tuple(chance.randrange(200) for _ in range(chance.choice((0, 0, 1, 2)))),
            faults=(
                *_faults(chance),
                *((*_other_drivers(places), *_faults_of_leases(leases)) if is_on_objects else ()),
                *((*_other_drivers(keepers), *_silences(keepers), *_rivals(keepers)) if is_led_by_zookeeper else ()),
            ),
            is_on_objects=is_on_objects,
            lease_ms=leases.choice((100, 250, 600)) if is_on_objects else None,
            is_stand_by=leases.random() < 0.5,
            is_led_by_zookeeper=is_led_by_zookeeper,
        )

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes, in order."""
        return tuple(sorted({node for edge in self.edges for node in (edge.sender, edge.reader)}))

    @property
    def sources(self) -> tuple[int, ...]:
        """The nodes without inputs."""
        readers = {edge.reader for edge in self.edges}
        return tuple(node for node in self.nodes if node not in readers)

    @property
    def is_exactly_once(self) -> bool:
        """Whether no record may be processed twice."""
        return self.mode is not BarrierMode.AT_LEAST_ONCE

    @property
    def may_be_taken_over(self) -> bool:
        """Whether another driver may lead while the first one runs."""
        return self.is_on_objects or self.is_led_by_zookeeper

    @property
    def checkpointing_mode(self) -> CheckpointingMode:
        """The mode of the barriers."""
        return self.mode.checkpointing_mode(self.alignment_timeout_ms)

    def without_node(self, node: int) -> Iterable[Edge]:
        """Return the edges that remain without a node."""
        return [edge for edge in self.edges if node not in (edge.sender, edge.reader)]

    def description(self) -> str:
        """The plan in a few lines."""
        faults = "; ".join(map(str, self.faults)) or "none"
        return (
            f"cluster on {f'an object store, led by a lease of {self.lease_ms} ms' if self.is_on_objects else 'a disk'}"
            f"{', where others stand by' if self.is_on_objects and self.is_stand_by else ''}"
            f"{', led by ZooKeeper' if self.is_led_by_zookeeper else ''}\n"
            f"graph {' '.join(map(str, self.edges))}, parallelism {self.parallelism}, {self.records} records "
            f"for each source subtask\n"
            f"{self.mode.value}, time to align {self.alignment_timeout_ms} ms, channels hold {self.capacity}, "
            f"slow {sorted(self.slow)}\n"
            f"a checkpoint every {self.interval_ms} ms, {self.max_concurrent} at once, late after {self.timeout_ms}, "
            f"{self.tolerable_failures} failures endured, {self.retained} retained, savepoints at moves "
            f"{list(self.savepoints)}\nfaults: {faults}"
        )


def _graph(chance: random.Random) -> tuple[Edge, ...]:
    """Return a chain, a join, a broadcast or two ends, with more nodes between them."""
    shape = chance.randrange(5)
    edges = {
        0: [Edge(0, 1)],
        1: [Edge(0, 1), Edge(1, 2)],
        2: [Edge(0, 2), Edge(1, 2)],
        3: [Edge(0, 2), Edge(1, 2, is_broadcast=True)],
        4: [Edge(0, 1), Edge(0, 2)],
    }[shape]
    if chance.random() < 0.4:
        last = max(edge.reader for edge in edges)
        edges = [*edges, Edge(chance.choice((last, last, 0)), last + 1, is_broadcast=chance.random() < 0.2)]
    return tuple(edges)


def _faults(chance: random.Random) -> tuple[Fault, ...]:
    kinds = [chance.choice(_KINDS) for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 4)))]
    return tuple(_fault(chance, kind) for kind in kinds)


def _other_drivers(chance: random.Random) -> tuple[Fault, ...]:
    """Return other drivers that take the lease while one is paused, each at some step of the storage."""
    steps = [chance.randrange(40) for _ in range(chance.choice((0, 1, 1, 2)))]
    return tuple(Fault(FaultKind.SECOND_DRIVER, step, _completion(chance, 0.8)) for step in steps)


def _faults_of_leases(chance: random.Random) -> tuple[Fault, ...]:
    """Return faults of the lease, of its holder, and of drivers that wait for it."""
    at_lease = [chance.choice(_KINDS_AT_LEASE) for _ in range(chance.choice((0, 1, 2)))]
    jumps = [chance.choice(_JUMPS) for _ in range(chance.choice((0, 1, 2)))]
    return (
        *(Fault(kind, int(chance.random() ** 2 * 40), FaultPlace.LEASE) for kind in at_lease),
        *_rivals(chance),
        *(Fault(kind, chance.randrange(20), FaultPlace.WAITING) for kind in jumps),
    )


def _rivals(chance: random.Random) -> tuple[Fault, ...]:
    """Return other drivers that compete while one runs."""
    steps = [chance.randrange(200) for _ in range(chance.choice((0, 1, 1, 2)))]
    return tuple(Fault(FaultKind.RIVAL_DRIVER, step, _completion(chance, 0.3)) for step in steps)


def _completion(chance: random.Random, share: float) -> FaultPlace | None:
    return FaultPlace.COMPLETION if chance.random() < share else None


def _silences(chance: random.Random) -> tuple[Fault, ...]:
    """Return losses of the servers' quorum, at some step of the storage."""
    steps = [chance.randrange(40) for _ in range(chance.choice((0, 0, 1)))]
    return tuple(Fault(FaultKind.NO_QUORUM, step, _completion(chance, 0.6)) for step in steps)


def _fault(chance: random.Random, kind: FaultKind) -> Fault:
    if kind.place is FaultPlace.STORAGE and chance.random() < 0.6:
        return Fault(kind, chance.randrange(40), FaultPlace.COMPLETION)
    return Fault(kind, int(chance.random() ** 2 * _STEPS[kind.place]))


_JUMPS: Final = (FaultKind.CLOCK_JUMPS_AHEAD, FaultKind.CLOCK_JUMPS_BACK)
_KINDS_AT_LEASE: Final = (
    FaultKind.KILL,
    FaultKind.STORAGE_ERROR,
    FaultKind.STORAGE_ERROR_AFTER,
    FaultKind.STORAGE_ERROR_AFTER,
    FaultKind.SECOND_DRIVER,
    FaultKind.RIVAL_DRIVER,
)
_STEPS: Final = {FaultPlace.STORAGE: 250, FaultPlace.TASK: 150, FaultPlace.MESSAGE: 80, FaultPlace.MOVE: 400}
"""About as many as there are in a schedule."""
