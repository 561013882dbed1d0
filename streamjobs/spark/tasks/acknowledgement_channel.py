"""How the tasks of a run tell the driver what they acknowledge: by an accumulator of Spark's, beside their rows.

What a task adds comes with the result of the task, so what failed adds nothing, and when an action has returned all of
its tasks have been heard. Spark hears a task once more if it had to run it again for rows that were lost; that is for
the coordinator to judge, by the state that both came to.

An epoch hears its own tasks alone: what comes late, of an epoch that is over, is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

__all__ = ["AcknowledgementChannel", "AcknowledgementSender"]

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
