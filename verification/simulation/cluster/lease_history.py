"""All writes to the lease of a job, and the invariants of each write.

* A holder that renews the lease keeps it. Another one writes it only after the lease has expired, by a monotonic clock,
  or after the holder has released it.
* An earlier holder does not regain the lease by a renewal.
"""

from __future__ import annotations

from attrs import define, field

from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME, LeaseRecord
from verification.simulation.host.chance import SimulatedClock
from verification.simulation.violation import require_that

__all__ = ["LeaseHistory"]


@define
class LeaseHistory:
    """Checks each write of a lease; call `written` for each."""

    clock: SimulatedClock
    record: LeaseRecord | None = None
    writes: int = 0
    _written_ms: int = 0
    _former: set[str] = field(factory=set)

    def written(self, path: str, content: bytes) -> None:
        """Check a write. Raises `Violation`."""
        if path.rpartition("/")[2] != LEASE_FILE_NAME:
            return
        record, before, now_ms = LeaseRecord.from_bytes(content, path), self.record, self.clock.monotonic_ms
        if before is not None and before.token == record.token:
            require_that(not before.is_released, "a driver that released the lease does not renew it")
        elif before is not None:
            require_that(record.token not in self._former, "a driver that lost the lease does not renew it")
            silent_ms = now_ms - self._written_ms
            require_that(
                before.is_released or silent_ms >= before.lease_ms,
                f"a holder that renews the lease keeps it: it was taken {silent_ms} ms after a renewal, and lasts "
                f"{before.lease_ms} ms",
            )
            self._former.add(before.token)
        self.record, self._written_ms, self.writes = record, now_ms, self.writes + 1

    def is_held_by(self, token: str) -> bool:
        """Return whether this holder wrote the lease last and has not released it."""
        return self.record is not None and self.record.token == token and not self.record.is_released
