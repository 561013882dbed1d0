"""Functions over two and more keyed streams: one function, one state per key, and the records of every input.

All inputs are keyed alike, so that a record of any of them finds the state of its key, and the timers, that those of
the others have left. Which input comes first is not defined: each keeps its own order within a key, and the watermark
of the operator is the smallest of theirs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from streamjobs.api.functions import KeyedFunction, OnTimerContext, ProcessContext

__all__ = ["KeyedCoProcessFunction", "KeyedMultipleInputFunction"]

K = TypeVar("K")
I1 = TypeVar("I1")
I2 = TypeVar("I2")
O = TypeVar("O")  # noqa: E741


class KeyedCoProcessFunction(KeyedFunction[OnTimerContext[K], O], Generic[K, I1, I2, O]):
    """Processes the records of two streams that are keyed alike, with one state per key and its timers."""

    @abstractmethod
    def process_element1(self, value: I1, context: ProcessContext[K]) -> Iterable[O] | None:
        """Called for every record of the first stream, as `KeyedProcessFunction.process_element`."""

    @abstractmethod
    def process_element2(self, value: I2, context: ProcessContext[K]) -> Iterable[O] | None:
        """Called for every record of the second stream, as `KeyedProcessFunction.process_element`."""


class KeyedMultipleInputFunction(KeyedFunction[OnTimerContext[K], O], Generic[K, O]):
    """Processes the records of any number of streams that are keyed alike, with one state per key and its timers."""

    @abstractmethod
    def process_element(self, input_index: int, value: Any, context: ProcessContext[K]) -> Iterable[O] | None:
        """Called for every record of the stream at that place, from 0; as `KeyedProcessFunction.process_element`."""
