"""When an epoch without records may begin, for an engine that brings batches on its own.

A batch fires what is due as well, so an epoch of its own behind every batch would only double what a busy job costs.
Whether another batch follows is not known. So

    the trigger leaves room for one                     it begins at once
    the trigger leaves none, or there is no interval    it begins when as much time has gone by as it costs, if no batch
                                                        has come by then: a job that is busy never pays, one that is not
                                                        waits no longer than twice what it must (as one who rents skis
                                                        before buying)
    behind an epoch without records                     when the trigger would bring the next batch, so that there is
                                                        one in an interval, however dense timers are

No clock here: times are those of a monotonic clock of the caller's, in milliseconds.
"""

from __future__ import annotations

from typing import Final

__all__ = ["EpochPacing"]

_MOST_FIRST_COST_MS: Final = 1000
"""The cost of an epoch without records is that of the last one; of the first, that of the batch, and at most this."""


class EpochPacing:
    """See the module; ``interval_ms`` is that of the trigger, 0 if batches come as fast as they can."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._cost_ms: int | None = None
        self.earliest_ms: int | None = None
        """When an epoch without records may begin; None before the first epoch: at once."""

    def batch_ended(self, began_ms: int, ended_ms: int) -> None:
        """An epoch with a batch has run."""
        cost_ms = min(ended_ms - began_ms, _MOST_FIRST_COST_MS) if self._cost_ms is None else self._cost_ms
        has_room = ended_ms + cost_ms <= began_ms + self._interval_ms
        self.earliest_ms = ended_ms if has_room else ended_ms + cost_ms

    def time_epoch_ended(self, began_ms: int, ended_ms: int) -> None:
        """An epoch without records has run."""
        self._cost_ms = ended_ms - began_ms
        self.earliest_ms = max(ended_ms, began_ms + self._interval_ms)
