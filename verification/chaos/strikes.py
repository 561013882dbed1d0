"""The kinds of strikes on a running job, the worlds in which each can occur, and the strikes of a seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Collection, Iterator

from attrs import frozen

__all__ = ["Strike", "Target", "World", "strikes"]

LONGEST_DELAY_MS = 1500
"""About the duration of an epoch, so a strike can hit every phase from the first record to the commit."""

MOST_EPOCHS = 3


class World(enum.Enum):
    """The environment of a job, and the storage of its checkpoints."""

    DISK = "in one JVM, on a disk, with a clock that can be moved"
    CLUSTER = "on two executors, led through ZooKeeper"
    STORE = "on an object store"
    SMALL_DISK = "on a small disk"


class Target(enum.Enum):
    """The target of a strike, and its worlds. If a job has no worker or executor at that time, the driver is hit."""

    DRIVER = ("SIGKILL to the driver, Python and JVM at once", tuple(World))
    JVM = ("SIGKILL to the JVM alone", (World.DISK, World.CLUSTER))
    WORKER = ("SIGKILL to a Python worker", (World.DISK, World.CLUSTER))
    PAUSE = ("SIGSTOP to the driver, Python and JVM, for some seconds", (World.DISK, World.CLUSTER))
    CLOCK = ("the clock of all processes jumps by up to a day", (World.DISK,))
    EXECUTOR = ("SIGKILL to an executor", (World.CLUSTER,))
    ZOOKEEPER_KILL = ("SIGKILL to ZooKeeper, which restarts within a session or after it", (World.CLUSTER,))
    ZOOKEEPER_PAUSE = ("SIGSTOP to ZooKeeper, for less or more than a session", (World.CLUSTER,))
    STORE_GONE = ("the object store closes all connections for some seconds", (World.STORE,))
    STORE_BUSY = ("the object store answers 503 for some seconds", (World.STORE,))
    DISK_FULL = ("the disk is full for some seconds", (World.SMALL_DISK,))

    def __init__(self, description: str, worlds: tuple[World, ...]) -> None:
        self.description = description
        self.worlds = worlds

    @property
    def ends_driver(self) -> bool:
        """Whether the driver that is hit completes no further epoch."""
        return self in (Target.DRIVER, Target.JVM)


@frozen
class Strike:
    """A strike ``delay_ms`` milliseconds after the driver completed ``after_epochs`` epochs."""

    number: int
    target: Target
    world: World
    after_epochs: int
    delay_ms: int
    choice: int
    """A random number that selects one of several processes, a distance or a duration."""


def strikes(seed: int, count: int, targets: Collection[Target] = tuple(Target)) -> Iterator[Strike]:
    """Yield the strikes of a seed and of these kinds; a larger `count` only appends strikes."""
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
