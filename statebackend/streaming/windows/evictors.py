"""Evictors: which records a firing window removes, before or after its function.

A window with an evictor stores every record, also with a reduce or aggregate function. Evicted records are removed from
this window only, also for later firings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.time.timestamps import Duration, duration_ms
from statebackend.streaming.windows.triggers import check_delta_function, check_threshold

T = TypeVar("T")
W = TypeVar("W")


@frozen
class TimestampedValue(Generic[T]):
    """A record of a window with its timestamp, or None without one."""

    value: T
    timestamp_ms: int | None


class Evictor(ABC, Generic[T, W]):
    """Removes records from a firing window. Instances travel by pickling and hold configuration only."""

    @abstractmethod
    def evict_before(self, elements: Sequence[TimestampedValue[T]], window: W) -> Sequence[TimestampedValue[T]]:
        """Return the records that the function receives, of all that the window holds in order of arrival."""

    @abstractmethod
    def evict_after(self, elements: Sequence[TimestampedValue[T]], window: W) -> Sequence[TimestampedValue[T]]:
        """Return the records that the window keeps, of those that the function received."""


@frozen
class _OneTimeEvictor(Evictor[Any, Any]):
    """The base of evictors that apply the same rule either before or after the function."""

    after: bool = field(default=False, kw_only=True)

    def evict_before(self, elements: Sequence[TimestampedValue[Any]], window: Any) -> Sequence[TimestampedValue[Any]]:
        return elements if self.after or not elements else self.kept(elements)

    def evict_after(self, elements: Sequence[TimestampedValue[Any]], window: Any) -> Sequence[TimestampedValue[Any]]:
        return self.kept(elements) if self.after and elements else elements

    @abstractmethod
    def kept(self, elements: Sequence[TimestampedValue[Any]]) -> Sequence[TimestampedValue[Any]]:
        """Return the records that stay. ``elements`` is not empty."""


def _check_count(evictor: Any, attribute: Any, count: Any) -> None:
    if type(count) is not int or count < 0:
        raise JobDefinitionError(
            f"CountEvictor.of() takes a number of records of 0 or more, not {format_value(count, 40)}"
        )


@frozen
class CountEvictor(_OneTimeEvictor):
    """Keeps the newest records, up to a number."""

    max_count: int = field(validator=_check_count)

    @classmethod
    def of(cls, max_count: int, after: bool = False) -> CountEvictor:
        """Keep the last ``max_count`` records. ``after`` evicts after the function."""
        return cls(max_count, after=after)

    def kept(self, elements: Sequence[TimestampedValue[Any]]) -> Sequence[TimestampedValue[Any]]:
        return elements[max(0, len(elements) - self.max_count) :]


def _check_size(evictor: Any, attribute: Any, size_ms: Any) -> None:
    if type(size_ms) is not int or size_ms < 0:
        raise JobDefinitionError(f"TimeEvictor: size_ms is {format_value(size_ms, 40)}; use TimeEvictor.of('1 minute')")


@frozen
class TimeEvictor(_OneTimeEvictor):
    """Keeps the records that are less than a duration older than the newest record."""

    size_ms: int = field(validator=_check_size)

    @classmethod
    def of(cls, size: Duration, after: bool = False) -> TimeEvictor:
        """Keep records less than ``size`` older than the newest record. ``after`` evicts after the function.

        If the first record has no timestamp, no record is evicted.
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

    threshold: float = field(validator=check_threshold)
    delta_function: Callable[[Any, Any], float] = field(validator=check_delta_function)

    @classmethod
    def of(cls, threshold: float, delta_function: Callable[[Any, Any], float], after: bool = False) -> DeltaEvictor:
        """Keep records with ``delta_function(record, last) < threshold``. ``after`` evicts after the function."""
        return cls(threshold, delta_function, after=after)

    def kept(self, elements: Sequence[TimestampedValue[Any]]) -> Sequence[TimestampedValue[Any]]:
        last = elements[-1].value
        return [element for element in elements if self.delta_function(element.value, last) < self.threshold]
