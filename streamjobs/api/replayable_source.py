"""Sources that can be read again from a position, which a checkpoint has.

Such a source is a number of *splits* (the files of a directory, the partitions of a topic), each of which is read in
order and can be read again from any position that it has given. How far each is read stands in the checkpoint with the
state that its records have made. So a job that is started again reads on behind the records that count already, and no
other. (Flink's sources of splits, FLIP-27; here one reader reads all of them in turns.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from attrs import frozen

__all__ = ["ReplayableSource", "SplitRead"]


@frozen
class SplitRead:
    """What was read of a split: records, the position behind them, and whether nothing follows."""

    records: Sequence[Any]
    position: int
    is_at_end: bool = False


@runtime_checkable
class ReplayableSource(Protocol):
    """See the module. What it raises ends the run; the next one reads again from the last checkpoint."""

    def splits(self) -> Mapping[str, int]:
        """The splits there are now, each with the position at which it begins; asked once per run.

        One that a checkpoint knows goes on from there; one that is new is read from its begin, one that is gone is an
        error.
        """

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        """At most so many records of a split from a position on, the same ones each time.

        Without a record, and not at the end, there is nothing yet: it is asked again soon. It is not to wait for long.
        """
