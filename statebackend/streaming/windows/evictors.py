"""What is thrown out of a window when it fires, before its function sees the rest or after.

A window with an evictor keeps its records one by one, whatever its function is. What was thrown out stays out in later
firings; records in other windows are not touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from statebackend.streaming.errors import JobDefinitionError, format_value
from statebackend.streaming.time.timestamps import Duration, duration_ms

__all__ = ["CountEvictor", "DeltaEvictor", "Evictor", "TimeEvictor", "TimestampedValue"]

T = TypeVar("T")
W = TypeVar("W")


@frozen
class TimestampedValue(Generic[T]):
    """A record of a window with its timestamp, which is None if it has none."""

    value: T
    timestamp_ms: int | None


class Evictor(ABC, Generic[T, W]):
    """See the module. Instances travel to the subtasks by pickling, and hold configuration only."""

    @abstractmethod
    def evict_before(self, elements: Sequence[TimestampedValue[T]], window: W) -> Sequence[TimestampedValue[T]]:
        """The records that the function is to see, of those that the window holds, in the order in which they came."""

    @abstractmethod
    def evict_after(self, elements: Sequence[TimestampedValue[T]], window: W) -> Sequence[TimestampedValue[T]]:
        """The records that the window goes on holding, of those that the function has seen."""


@frozen
class _OneTimeEvictor(Evictor[Any, Any]):
    """An evictor that keeps the same records whether it is asked before the function or after."""

    after: bool = field(default=False, kw_only=True)

    def evict_before(self, elements: Sequence[TimestampedValue[Any]], window: Any) -> Sequence[TimestampedValue[Any]]:
        return elements if self.after or not elements else self.kept(elements)

    def evict_after(self, elements: Sequence[TimestampedValue[Any]], window: Any) -> Sequence[TimestampedValue[Any]]:
        return self.kept(elements) if self.after and elements else elements

    @abstractmethod
    def kept(self, elements: Sequence[TimestampedValue[Any]]) -> Sequence[TimestampedValue[Any]]:
        """The records that stay; there is at least one to choose from."""


@frozen
class CountEvictor(_OneTimeEvictor):
    """Keeps the newest records, up to a number."""

    max_count: int

    @classmethod
    def of(cls, max_count: int, after: bool = False) -> CountEvictor:
        """Keeps the last ``max_count`` records that came; ``after`` evicts when the function has seen all."""
        if type(max_count) is not int or max_count < 0:
            raise JobDefinitionError(
                f"CountEvictor.of() takes a number of records from 0 on, not {format_value(max_count, 40)}"
            )
        return cls(max_count, after=after)

    def kept(self, elements: Sequence[TimestampedValue[Any]]) -> Sequence[TimestampedValue[Any]]:
        return elements[max(0, len(elements) - self.max_count) :]


@frozen
class TimeEvictor(_OneTimeEvictor):
    """Keeps the records whose timestamps are less than a duration before the greatest one."""

    size_ms: int

    @classmethod
    def of(cls, size: Duration, after: bool = False) -> TimeEvictor:
        """Keeps what is less than ``size`` older than the newest timestamp; ``after`` as for `CountEvictor`.

        Records of which the first has no timestamp all stay.
        """
        return cls(duration_ms(size, "TimeEvictor: the size", at_least_ms=0), after=after)

    def kept(self, elements: Sequence[TimestampedValue[Any]]) -> Sequence[TimestampedValue[Any]]:
        if elements[0].timestamp_ms is None:
            return elements
        newest_ms = max(element.timestamp_ms for element in elements if element.timestamp_ms is not None)
        cutoff_ms = newest_ms - self.size_ms
        return [
            element for element in elements if element.timestamp_ms is not None and element.timestamp_ms > cutoff_ms
        ]


@frozen
class DeltaEvictor(_OneTimeEvictor):
    """Keeps the records that differ from the last one by less than a threshold."""

    threshold: float
    delta_function: Callable[[Any, Any], float]

    @classmethod
    def of(cls, threshold: float, delta_function: Callable[[Any, Any], float], after: bool = False) -> DeltaEvictor:
        """Keeps the records for which ``delta_function(record, last)`` is below ``threshold``; ``after`` as above."""
        if not callable(delta_function):
            raise JobDefinitionError(
                f"DeltaEvictor.of() takes a function of two records, not {format_value(delta_function, 80)}"
            )
        return cls(threshold, delta_function, after=after)

    def kept(self, elements: Sequence[TimestampedValue[Any]]) -> Sequence[TimestampedValue[Any]]:
        last = elements[-1].value
        return [element for element in elements if self.delta_function(element.value, last) < self.threshold]
