"""Records on their way through the stateless steps between two subtasks, with their timestamps.

A record has one owner, who may change it. Where a stream forks, each reader but one gets a copy of each record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import frozen

from streamjobs.rows.record_copies import copied, copied_records

__all__ = ["LocalStream"]


@frozen
class LocalStream:
    """Records, and beside them their timestamps, each None for a record without; None in a job without event time."""

    records: Sequence[Any]
    timestamps: Sequence[int | None] | None = None

    def flat_mapped(self, function: Callable[[Any], Iterable[Any]]) -> LocalStream:
        """What a function makes of each record; it has the time of that."""
        results = [_results(function, record) for record in self.records]
        made = [one for several in results for one in several]
        if self.timestamps is None:
            return LocalStream(made)
        times = zip(self.timestamps, results, strict=True)
        return LocalStream(made, [time_ms for time_ms, several in times for _ in several])

    def copied(self) -> LocalStream:
        """The same records for another reader; raises `StreamJobError` for one that cannot be copied."""
        return LocalStream(copied_records(self.records, "a stream with several readers"), self.timestamps)

    def recast(self, function: Callable[[Sequence[Any]], list[Any]]) -> LocalStream:
        """The records in another form, one for one."""
        return LocalStream(function(self.records), self.timestamps)

    def of(self, indices: Iterable[int]) -> LocalStream:
        """The records at these places, in this order."""
        places = list(indices)
        times = self.timestamps
        records = [self.records[index] for index in places]
        return LocalStream(records, None if times is None else [times[index] for index in places])


def _results(function: Callable[[Any], Iterable[Any]], record: Any) -> Sequence[Any]:
    """What a function makes of a record, copied: the function may change it when it is called again."""
    results = function(record)
    if isinstance(results, (list, tuple)) and len(results) == 1 and results[0] is record:
        return results
    return list(map(copied, results))
