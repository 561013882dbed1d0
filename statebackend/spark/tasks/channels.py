"""How tasks send acknowledgements and progress to the driver, and how a worker gets its rows without delay.

Both use an accumulator of Spark, beside the rows. Its values arrive with the result of a task: a failed task adds
nothing, and when an action returns, the values of all its tasks have arrived. If Spark repeats a task for lost rows,
its acknowledgement arrives again, and the coordinator compares the state of both. Acknowledgements of earlier epochs
are dropped. Progress arrives per task: the last notice of each restore, migration or export. PySpark keeps every
accumulator forever, so the one for progress has only a weak reference to its channel.

Spark sends the function, the rows and the end of a task in several small writes, with Nagle's algorithm on: each small
write waits for the acknowledgement of the one before. Linux delays acknowledgements by about 40 ms while the receiver
sends nothing. So a task sets ``TCP_QUICKACK`` when it starts, which saved a fifth of an epoch with few rows.
(Nagle: RFC 896. Delayed acknowledgements: RFC 1122, 4.2.3.2. ``TCP_QUICKACK``: tcp(7).)
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from statebackend.state.progress import Progress, ProgressListener, no_progress

__all__ = [
    "AcknowledgementChannel",
    "AcknowledgementSender",
    "ProgressChannel",
    "ProgressSender",
    "acknowledge_what_has_come",
]


_OPEN_FILES = "/proc/self/fd"


def acknowledge_what_has_come() -> None:
    """Acknowledges what has come over the connections of this process within its host.

    PySpark names the connection of a worker nowhere, so every one that may be it is told; nothing but that changes for
    the others. Does nothing where the system has no such option or no list of open files, and where the program has
    set a default timeout, with which Python makes every socket that it touches one that does not block: the rows come
    all the same.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or socket.getdefaulttimeout() is not None or not os.path.isdir(_OPEN_FILES):
        return
    for name in os.listdir(_OPEN_FILES):
        # A file that was closed since, or a socket that is not connected.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _acknowledge(int(name), option)


def _acknowledge(descriptor: int, option: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
        if is_tcp and connection.getsockname()[0] == connection.getpeername()[0]:
            connection.setsockopt(socket.IPPROTO_TCP, option, 1)


_Told = list[Progress]


class _Telling(AccumulatorParam[_Told]):
    """Collects in a task; on the driver it hands on what comes, and keeps nothing."""

    def __init__(self, channel: weakref.ref[ProgressChannel] | None) -> None:
        self._channel = channel

    def __reduce__(self) -> tuple[Callable[[None], _Telling], tuple[None]]:
        # The channel stays on the driver.
        return _Telling, (None,)

    def zero(self, value: _Told) -> _Told:
        return []

    def addInPlace(self, value1: _Told, value2: _Told) -> _Told:  # noqa: N802
        if self._channel is None:
            value1.extend(value2)
            return value1
        channel = self._channel()
        if channel is not None:
            for one in value2:
                channel.listener(one)
        return []


class ProgressSender:
    """The tasks' end; picklable, and small."""

    def __init__(self, accumulator: Accumulator[_Told]) -> None:
        self._accumulator = accumulator

    def send(self, progress: Progress) -> None:
        """Lets the driver know of an operation that is done when the task has succeeded; others are left out."""
        if progress.is_done:
            self._accumulator.add([progress])


class ProgressChannel:
    """The driver's end; one for a run. ``listener`` is called on a thread of Spark's, and must raise nothing."""

    def __init__(self, context: SparkContext, listener: ProgressListener = no_progress) -> None:
        self.listener = listener
        accumulator: Any = context.accumulator([], _Telling(weakref.ref(self)))
        self.sender = ProgressSender(accumulator)


Sent = tuple[int, bytes]
"""The id of an epoch, and an encoded acknowledgement."""


class _Collecting(AccumulatorParam[list[Sent]]):
    def zero(self, value: list[Sent]) -> list[Sent]:
        return []

    def addInPlace(self, value1: list[Sent], value2: list[Sent]) -> list[Sent]:  # noqa: N802
        value1.extend(value2)
        return value1


_COLLECTING: Final = _Collecting()


class AcknowledgementSender:
    """The tasks' end; picklable, and small."""

    def __init__(self, accumulator: Accumulator[list[Sent]]) -> None:
        self._accumulator = accumulator

    def send(self, epoch_id: int, encoded: bytes) -> None:
        """Lets the driver know when the task has succeeded."""
        self._accumulator.add([(epoch_id, encoded)])


class AcknowledgementChannel:
    """The driver's end; one for a run. Spark keeps an accumulator for good, so it is left empty."""

    def __init__(self, context: SparkContext) -> None:
        self._accumulator: Any = context.accumulator([], _COLLECTING)
        self.sender = AcknowledgementSender(self._accumulator)

    def take(self, epoch_id: int) -> Sequence[bytes]:
        """What the tasks of the epoch have sent since the last call, in the order in which they ended."""
        received: list[Sent] = self._accumulator.value
        count = len(received)
        # Tasks of before may be heard at any time, on another thread.
        taken, received[:count] = received[:count], []
        return [encoded for sent_in, encoded in taken if sent_in == epoch_id]
