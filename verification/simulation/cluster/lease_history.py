"""What is written to the lease of a job, as somebody sees it who sees all, and what must be so of every write.

* Who holds it and renews it keeps it: another one writes only when the length is over since the last write, by a clock
  that no jump moves, or behind one that gives it back.
* Who has lost it does not get it back by a renewal, nor who has given it back.
"""

from __future__ import annotations

from attrs import define, field

from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME, LeaseRecord
from verification.simulation.host.chance import SimulatedClock
from verification.simulation.violation import require_that

__all__ = ["LeaseHistory"]


@define
class LeaseHistory:
    """See the module; `written` is told of every object that is written."""

    clock: SimulatedClock
    record: LeaseRecord | None = None
    writes: int = 0
    _written_ms: int = 0
    _former: set[str] = field(factory=set)

    def written(self, path: str, content: bytes) -> None:
        """Raises `Violation` if it must not be."""
        if path.rpartition("/")[2] != LEASE_FILE_NAME:
            return
        record, before, now_ms = LeaseRecord.from_bytes(content, path), self.record, self.clock.monotonic_ms
        if before is not None and before.token == record.token:
            require_that(not before.is_released, "who has given the lease back does not renew it")
        elif before is not None:
            require_that(record.token not in self._former, "who has lost the lease does not renew it")
            silent_ms = now_ms - self._written_ms
            require_that(
                before.is_released or silent_ms >= before.lease_ms,
                f"who renews the lease keeps it: it was taken {silent_ms} ms behind a renewal, and lasts "
                f"{before.lease_ms} ms",
            )
            self._former.add(before.token)
        self.record, self._written_ms, self.writes = record, now_ms, self.writes + 1

    def is_held_by(self, token: str) -> bool:
        """Whether this is who has written it last, and has not given it back."""
        return self.record is not None and self.record.token == token and not self.record.is_released
