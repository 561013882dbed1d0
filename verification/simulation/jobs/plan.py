"""A schedule of a job as data: its shape, the events of its sources, its settings in each run, and the faults."""

from __future__ import annotations

import enum
import random
from typing import Final

from attrs import frozen

from verification.simulation.cluster.plan import BarrierMode
from verification.simulation.host.faults import Fault, FaultKind, FaultPlace

__all__ = ["Event", "JobPlan", "Shape"]


class Shape(enum.Enum):
    """The operators between the sources and the sinks."""

    CHAIN = "one operator"
    LONG_CHAIN = "two operators in a chain"
    TWO_SINKS = "two operators, and a sink after each"
    JOIN = "two sources into one operator"
    JOIN_AFTER = "a source and an operator into a second operator"
    BROADCAST = "a source, and one that all subtasks read, into one operator"


@frozen
class Event:
    """An event of a source: a record with key and time, a watermark (no key), or the end (no time)."""

    time: int | None
    key: int | None = None
    id: int = 0

    def __str__(self) -> str:
        if self.time is None:
            return "end"
        return f"watermark {self.time}" if self.key is None else f"record {self.id} of key {self.key} at {self.time}"


_KINDS: Final = (
    FaultKind.KILL,
    FaultKind.KILL,
    FaultKind.POWER_LOSS,
    FaultKind.STORAGE_ERROR,
    FaultKind.STORAGE_ERROR_AFTER,
    FaultKind.TASK_FAILS,
    FaultKind.TASK_FAILS,
    FaultKind.DRIVER_DIES,
    FaultKind.DRIVER_DIES,
    FaultKind.DRIVER_DIES,
    FaultKind.DRIVER_DIES,
    FaultKind.MESSAGE_LOST,
    FaultKind.MESSAGE_DOUBLED,
    FaultKind.MESSAGE_LATE,
    FaultKind.CLOCK_JUMPS_AHEAD,
    FaultKind.CLOCK_JUMPS_BACK,
    FaultKind.SECOND_DRIVER,
)
_STEPS: Final = {
    FaultPlace.STORAGE: 150,
    FaultPlace.COMPLETION: 25,
    FaultPlace.TASK: 30,
    FaultPlace.MESSAGE: 60,
    FaultPlace.MOVE: 150,
}
"""About as many as there are in a schedule."""

_ROCKSDB_SHARE: Final = 0.04
"""RocksDB writes real files first, which takes many times as long."""


@frozen(kw_only=True)
class JobPlan:
    """``events`` are those of each source; ``parallelism`` is that of each run, the last one for all later runs."""

    seed: int
    shape: Shape
    events: tuple[tuple[Event, ...], ...]
    parallelism: tuple[int, ...]
    mode: BarrierMode
    alignment_timeout_ms: int
    capacity: int
    interval_ms: int
    timeout_ms: int
    max_concurrent: int
    retained: int
    slow: int | None
    faults: tuple[Fault, ...]
    has_staged_sinks: bool = False
    """Whether sinks have two phases."""
    backend: str = "heap"
    stops: tuple[int, ...] = ()
    """For each of the first runs, the move at which it must stop with a savepoint. The next run continues."""

    @classmethod
    def of_seed(cls, seed: int) -> JobPlan:
        """Return the plan of a seed."""
        chance = random.Random(seed)
        beside = random.Random(f"beside {seed}")
        shape = chance.choice(tuple(Shape))
        sources = 1 if shape in (Shape.CHAIN, Shape.LONG_CHAIN, Shape.TWO_SINKS) else 2
        return cls(
            seed=seed,
            shape=shape,
            events=tuple(_events(chance, index) for index in range(sources)),
            parallelism=tuple(chance.choice((1, 2, 2, 3)) for _ in range(chance.choice((1, 2, 3)))),
            mode=chance.choice(tuple(BarrierMode)),
            alignment_timeout_ms=chance.choice((0, 5, 30)),
            capacity=chance.choice((1, 2, 8)),
            interval_ms=chance.choice((10, 20, 40, 80)),
            timeout_ms=chance.choice((300, 2000)),
            max_concurrent=chance.choice((1, 1, 2)),
            retained=chance.choice((1, 2)),
            slow=chance.choice((None, 0, 1, 2)),
            faults=tuple(_fault(chance) for _ in range(chance.choice((0, 1, 1, 2, 2, 3)))),
            has_staged_sinks=beside.random() < 0.4,
            backend="rocksdb" if beside.random() < _ROCKSDB_SHARE else "heap",
            stops=tuple(beside.randrange(beside.choice((30, 200))) for _ in range(beside.choice((0, 0, 1, 2)))),
        )

    @property
    def is_exactly_once(self) -> bool:
        """Whether no record may be processed twice."""
        return self.mode is not BarrierMode.AT_LEAST_ONCE

    def description(self) -> str:
        """The plan in a few lines."""
        events = "\n".join(f"source {index}: {'; '.join(map(str, one))}" for index, one in enumerate(self.events))
        return (
            f"job, {self.shape.value}, parallelism {list(self.parallelism)} in its lives\n{events}\n"
            f"{self.mode.value} ({self.alignment_timeout_ms} ms), channels hold {self.capacity}, slow: {self.slow}\n"
            f"a checkpoint every {self.interval_ms} ms, {self.max_concurrent} at once, late after {self.timeout_ms}, "
            f"{self.retained} retained, state on {self.backend}, sinks with {1 + self.has_staged_sinks} phases, "
            f"to stop at moves {list(self.stops)}\nfaults: {'; '.join(map(str, self.faults)) or 'none'}"
        )


def _events(chance: random.Random, source: int) -> tuple[Event, ...]:
    """Return records whose times go up and down, some of them late, with watermarks between them, and the end."""
    events: list[Event] = []
    time, watermark = 0, -1
    for number in range(chance.randrange(1, 8)):
        time += chance.randrange(12)
        events.append(Event(max(0, time - chance.choice((0, 0, 0, 7, 25))), chance.randrange(4), 100 * source + number))
        if chance.random() < 0.4 and time - 5 > watermark:
            watermark = time - 5
            events.append(Event(watermark))
    return (*events, Event(None))


def _fault(chance: random.Random) -> Fault:
    kind = chance.choice(_KINDS)
    is_at_completion = kind.place is FaultPlace.STORAGE and chance.random() < 0.5
    place = FaultPlace.COMPLETION if is_at_completion else kind.place
    return Fault(kind, chance.randrange(_STEPS[place]), FaultPlace.COMPLETION if is_at_completion else None)
