"""A schedule of the cluster as data: a graph, what is read, how barriers go, and the faults. Made by a seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable
from typing import Final

from attrs import frozen

from simulation.host.faults import Fault, FaultKind, FaultPlace

__all__ = ["BarrierMode", "ClusterPlan", "Edge"]


class BarrierMode(enum.Enum):
    """How channels deal with barriers."""

    ALIGNED = "exactly once, aligned"
    UNALIGNED = "exactly once, unaligned"
    ALTERNATING = "exactly once, unaligned after a time to align"
    AT_LEAST_ONCE = "at least once"


@frozen
class Edge:
    """Records go from one node to another: each to the subtask of its key, or to all of them."""

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
    FaultKind.STORAGE_ERROR_BEHIND,
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

    ``records`` is what each subtask of a source reads, ``slow`` are channels, by number, that deliver seldom,
    ``savepoints`` are moves at which one is asked for.
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
    """Whether the job is on an object store, and its driver leads by a lease that another may take."""

    @classmethod
    def of_seed(cls, seed: int) -> ClusterPlan:
        """The plan of a seed."""
        chance = random.Random(seed)
        places = random.Random(f"places {seed}")
        is_on_objects = places.random() < 0.3
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
            faults=(*_faults(chance), *(_other_drivers(places) if is_on_objects else ())),
            is_on_objects=is_on_objects,
        )

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes, in their order."""
        return tuple(sorted({node for edge in self.edges for node in (edge.sender, edge.reader)}))

    @property
    def sources(self) -> tuple[int, ...]:
        """Nodes that nobody sends to."""
        readers = {edge.reader for edge in self.edges}
        return tuple(node for node in self.nodes if node not in readers)

    @property
    def is_exactly_once(self) -> bool:
        """Whether nothing may come twice."""
        return self.mode is not BarrierMode.AT_LEAST_ONCE

    def without_node(self, node: int) -> Iterable[Edge]:
        """The edges that are left when a node goes."""
        return [edge for edge in self.edges if node not in (edge.sender, edge.reader)]

    def told(self) -> str:
        """The plan in a few lines."""
        faults = "; ".join(map(str, self.faults)) or "none"
        return (
            f"cluster on {'an object store' if self.is_on_objects else 'a disk'}, "
            f"graph {' '.join(map(str, self.edges))}, parallelism {self.parallelism}, {self.records} records "
            f"for each source subtask\n"
            f"{self.mode.value}, time to align {self.alignment_timeout_ms} ms, channels hold {self.capacity}, "
            f"slow {sorted(self.slow)}\n"
            f"a checkpoint every {self.interval_ms} ms, {self.max_concurrent} at once, late after {self.timeout_ms}, "
            f"{self.tolerable_failures} failures endured, {self.retained} retained, savepoints at moves "
            f"{list(self.savepoints)}\nfaults: {faults}"
        )


def _graph(chance: random.Random) -> tuple[Edge, ...]:
    """A chain, a join, a broadcast, or two ends, with more nodes in between."""
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
    """Other drivers that take the lease while one stands still, each at some step of the storage."""
    steps = [chance.randrange(40) for _ in range(chance.choice((0, 1, 1, 2)))]
    return tuple(Fault(FaultKind.SECOND_DRIVER, step, is_at_completion=chance.random() < 0.8) for step in steps)


def _fault(chance: random.Random, kind: FaultKind) -> Fault:
    if kind.place is FaultPlace.STORAGE and chance.random() < 0.6:
        return Fault(kind, chance.randrange(40), is_at_completion=True)
    return Fault(kind, int(chance.random() ** 2 * _STEPS[kind.place]))


_STEPS: Final = {FaultPlace.STORAGE: 250, FaultPlace.TASK: 150, FaultPlace.MESSAGE: 80, FaultPlace.MOVE: 400}
"""About as many as there are in a schedule."""
