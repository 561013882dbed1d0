"""What is done to a running job, chosen by a seeded generator."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator

from attrs import frozen

__all__ = ["Strike", "Target", "strikes"]

LONGEST_DELAY_MS = 1500
"""About what an epoch takes: a strike hits anything from its first record to the commit."""

MOST_EPOCHS = 3


class Target(enum.Enum):
    """Whom it hits. A worker may be none at that moment: then it hits the driver."""

    DRIVER = "SIGKILL to the driver, Python and JVM at once"
    JVM = "SIGKILL to the JVM alone"
    WORKER = "SIGKILL to a Python worker"
    PAUSE = "SIGSTOP to the driver, Python and JVM, for some seconds"


@frozen
class Strike:
    """What happens ``delay_ms`` milliseconds after the driver has completed ``after_epochs`` epochs of its own."""

    number: int
    target: Target
    after_epochs: int
    delay_ms: int
    choice: int
    """Which of several processes, modulo their number."""


def strikes(seed: int, count: int) -> Iterator[Strike]:
    """So many strikes; the first ones of a longer list of the same seed."""
    chance = random.Random(seed)
    targets = list(Target)
    for number in range(count):
        yield Strike(
            number,
            chance.choice(targets),
            chance.randint(0, MOST_EPOCHS),
            chance.randint(0, LONGEST_DELAY_MS),
            chance.randrange(1 << 16),
        )
