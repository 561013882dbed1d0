"""Functions over pairs of records that an interval join has brought together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from streamjobs.api.functions import CallContext, RuntimeContext, SideOutputs
from streamjobs.api.lifecycle import WorkerLifecycle

__all__ = ["JoinContext", "ProcessJoinFunction"]

K = TypeVar("K")
I1 = TypeVar("I1")
I2 = TypeVar("I2")
O = TypeVar("O")  # noqa: E741


class JoinContext(CallContext, Generic[K]):
    """What every call of `ProcessJoinFunction.process_element` is given; one object for all pairs."""

    __slots__ = ("current_key", "left_timestamp", "right_timestamp")

    _method = "process_element"

    def __init__(self, epoch_id: int, side_outputs: SideOutputs) -> None:
        super().__init__(epoch_id, side_outputs)
        self.current_key: Any = None
        self.left_timestamp = 0
        """The timestamp of the left record, in milliseconds."""
        self.right_timestamp = 0
        """The timestamp of the right record, in milliseconds."""

    @property
    def timestamp(self) -> int:
        """The timestamp of the pair, and of what is emitted for it: the larger of both, in milliseconds."""
        return max(self.left_timestamp, self.right_timestamp)


class ProcessJoinFunction(WorkerLifecycle, ABC, Generic[K, I1, I2, O]):
    """Makes of a pair of records what is emitted. Instances travel by pickling, and hold configuration only."""

    def open(self, context: RuntimeContext) -> None:
        """Called before the first record of an epoch, and once on the driver. Register all state here."""

    @abstractmethod
    def process_element(self, left: I1, right: I2, context: JoinContext[K]) -> Iterable[O] | None:
        """Called for every pair; yields what to emit, or returns a list of records or None.

        The pairs of one record come in the order of the other's timestamps, and of its arrival where those are equal.
        """

    def close(self) -> None:
        """Called after the last record of an epoch, also after a failure."""
