"""Records on their way through the stateless steps between two subtasks, with their timestamps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import frozen

__all__ = ["LocalStream"]


@frozen
class LocalStream:
    """Records, and beside them their timestamps, each None for a record without; None in a job without event time."""

    records: Sequence[Any]
    timestamps: Sequence[int | None] | None = None

    def flat_mapped(self, function: Callable[[Any], Iterable[Any]]) -> LocalStream:
        """What a function makes of each record; it has the time of that."""
        results = [list(function(record)) for record in self.records]
        made = [one for several in results for one in several]
        if self.timestamps is None:
            return LocalStream(made)
        times = zip(self.timestamps, results, strict=True)
        return LocalStream(made, [time_ms for time_ms, several in times for _ in several])

    def recast(self, function: Callable[[Sequence[Any]], list[Any]]) -> LocalStream:
        """The records in another form, one for one."""
        return LocalStream(function(self.records), self.timestamps)

    def of(self, indices: Iterable[int]) -> LocalStream:
        """The records at these places, in this order."""
        places = list(indices)
        times = self.timestamps
        records = [self.records[index] for index in places]
        return LocalStream(records, None if times is None else [times[index] for index in places])
