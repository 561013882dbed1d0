"""What is done to a running job, chosen by a seeded generator: each kind of strike, and where a job can suffer it."""

from __future__ import annotations

import enum
import random
from collections.abc import Collection, Iterator

from attrs import frozen

__all__ = ["Strike", "Target", "World", "strikes"]

LONGEST_DELAY_MS = 1500
"""About what an epoch takes: a strike hits anything from its first record to the commit."""

MOST_EPOCHS = 3


class World(enum.Enum):
    """Where a job runs, and what it keeps its checkpoints in."""

    DISK = "in one JVM, on a disk, with a clock that can be moved"
    CLUSTER = "on two executors, led through ZooKeeper"
    STORE = "on an object store"
    SMALL_DISK = "on a small disk"


class Target(enum.Enum):
    """Whom it hits, and in which worlds. A worker or executor may be none then: it hits the driver instead."""

    DRIVER = ("SIGKILL to the driver, Python and JVM at once", tuple(World))
    JVM = ("SIGKILL to the JVM alone", (World.DISK, World.CLUSTER))
    WORKER = ("SIGKILL to a Python worker", (World.DISK, World.CLUSTER))
    PAUSE = ("SIGSTOP to the driver, Python and JVM, for some seconds", (World.DISK, World.CLUSTER))
    CLOCK = ("the clock of all processes jumps by up to a day", (World.DISK,))
    EXECUTOR = ("SIGKILL to an executor", (World.CLUSTER,))
    ZOOKEEPER_KILL = ("SIGKILL to ZooKeeper, which comes back within a session or behind it", (World.CLUSTER,))
    ZOOKEEPER_PAUSE = ("SIGSTOP to ZooKeeper, for less or more than a session", (World.CLUSTER,))
    STORE_GONE = ("the object store closes all connections for some seconds", (World.STORE,))
    STORE_BUSY = ("the object store answers 503 for some seconds", (World.STORE,))
    DISK_FULL = ("the disk is full for some seconds", (World.SMALL_DISK,))

    def __init__(self, told: str, worlds: tuple[World, ...]) -> None:
        self.told = told
        self.worlds = worlds

    @property
    def ends_driver(self) -> bool:
        """Whether the driver that is hit completes nothing more."""
        return self in (Target.DRIVER, Target.JVM)


@frozen
class Strike:
    """What happens ``delay_ms`` milliseconds after the driver has completed ``after_epochs`` epochs of its own."""

    number: int
    target: Target
    world: World
    after_epochs: int
    delay_ms: int
    choice: int
    """Which of several processes, modulo their number; how far, how long."""


def strikes(seed: int, count: int, targets: Collection[Target] = tuple(Target)) -> Iterator[Strike]:
    """So many strikes of these kinds; the first ones of a longer list of the same seed and kinds."""
    chance = random.Random(seed)
    kinds = [one for one in Target if one in targets]
    for number in range(count):
        target = chance.choice(kinds)
        yield Strike(
            number,
            target,
            chance.choice(target.worlds),
            chance.randint(0, MOST_EPOCHS),
            chance.randint(0, LONGEST_DELAY_MS),
            chance.randrange(1 << 16),
        )
