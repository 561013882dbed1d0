"""How tasks send acknowledgements and progress to the driver, and how a worker gets its rows without delay.

Both use an accumulator of Spark, not the rows. Its values arrive with the result of a task: a failed task adds
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
    """Acknowledge received data on all connections of this process within its host.

    PySpark does not expose the connection of a worker, so this sets the option on each candidate; it changes nothing
    else for them. Does nothing if the system has no such option or no list of open files, or if the program has set a
    default timeout, with which Python would make every socket non-blocking.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or socket.getdefaulttimeout() is not None or not os.path.isdir(_OPEN_FILES):
        return
    for name in os.listdir(_OPEN_FILES):
        # The file may be closed by now, or the socket not connected.
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _acknowledge(int(name), option)


def _acknowledge(descriptor: int, option: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
        if is_tcp and connection.getsockname()[0] == connection.getpeername()[0]:
            connection.setsockopt(socket.IPPROTO_TCP, option, 1)


_Notices = list[Progress]


class _Notifying(AccumulatorParam[_Notices]):
    """Collects progress in a task; on the driver it passes progress to the channel and keeps nothing."""

    def __init__(self, channel: weakref.ref[ProgressChannel] | None) -> None:
        self._channel = channel

    def __reduce__(self) -> tuple[Callable[[None], _Notifying], tuple[None]]:
        # The channel stays on the driver.
        return _Notifying, (None,)

    def zero(self, value: _Notices) -> _Notices:
        return []

    def addInPlace(self, value1: _Notices, value2: _Notices) -> _Notices:  # noqa: N802
        if self._channel is None:
            value1.extend(value2)
            return value1
        channel = self._channel()
        if channel is not None:
            for one in value2:
                channel.listener(one)
        return []


class ProgressSender:
    """The tasks' end; picklable and small."""

    def __init__(self, accumulator: Accumulator[_Notices]) -> None:
        self._accumulator = accumulator

    def send(self, progress: Progress) -> None:
        """Send a finished operation; it arrives if the task succeeds. Others are ignored."""
        if progress.is_done:
            self._accumulator.add([progress])


class ProgressChannel:
    """The driver's end, one per run. ``listener`` is called on a thread of Spark and must not raise."""

    def __init__(self, context: SparkContext, listener: ProgressListener = no_progress) -> None:
        self.listener = listener
        accumulator: Any = context.accumulator([], _Notifying(weakref.ref(self)))
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
    """The tasks' end; picklable and small."""

    def __init__(self, accumulator: Accumulator[list[Sent]]) -> None:
        self._accumulator = accumulator

    def send(self, epoch_id: int, encoded: bytes) -> None:
        """Send an acknowledgement; it arrives if the task succeeds."""
        self._accumulator.add([(epoch_id, encoded)])


class AcknowledgementChannel:
    """The driver's end, one per run. Spark keeps an accumulator forever, so it is emptied."""

    def __init__(self, context: SparkContext) -> None:
        self._accumulator: Any = context.accumulator([], _COLLECTING)
        self.sender = AcknowledgementSender(self._accumulator)

    def take(self, epoch_id: int) -> Sequence[bytes]:
        """Return what the tasks of the epoch have sent since the last call, in the order in which they ended."""
        received: list[Sent] = self._accumulator.value
        count = len(received)
        # Values of earlier tasks may arrive at any time, on another thread.
        taken, received[:count] = received[:count], []
        return [encoded for sent_in, encoded in taken if sent_in == epoch_id]
