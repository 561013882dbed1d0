"""How the tasks of a run tell how far they are, by an accumulator of Spark's.

Spark brings what a Python task adds to an accumulator when the task has ended, and not before. So what is told is told
task by task: of each state the last notice of its restore, of its migration, or of its part of a savepoint, as soon as
the task has succeeded. Of a job of many subtasks that is progress; of one, it is the end.

PySpark keeps every accumulator for good. So that of a run knows its channel by a weak reference only: a run that nobody
has any more is not kept by what its tasks might have told.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from statebackend.api.progress import Progress, ProgressListener, no_progress

__all__ = ["ProgressChannel", "ProgressSender"]

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
