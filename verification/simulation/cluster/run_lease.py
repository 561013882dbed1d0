"""The lease of one driver: the product's own, with simulated time, and renewals as moves.

The driver may move to renew its lease once it is due. When a driver waits for the lease, time passes at each of its
attempts. Meanwhile a driver that runs beside it renews its lease, and a paused one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import define, field

from statebackend.checkpoint.errors import LeadershipLostError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.store.driver_lease import DriverLease, ObjectStoreLease
from verification.simulation.cluster.moves import Move
from verification.simulation.host.disk import Process
from verification.simulation.host.faults import FaultPlace, ProcessDied
from verification.simulation.host.machine import Machine

__all__ = ["RunLease"]

_MOST_LOOKS: Final = 35
"""A driver that waits for a live leader is ended after this many attempts, which is more than three durations."""


@define(eq=False)
class RunLease:
    """The lease of one driver; ``beside`` is the lease of a driver that runs while this one waits."""

    machine: Machine
    process: Process
    lease_ms: int
    is_stand_by: bool
    beside: RunLease | None = None
    lost: LeadershipLostError | None = None
    """Set when a renewal finds that another driver holds the lease."""
    held: DriverLease | None = None
    _keep: Callable[[], bool] | None = None
    _interval_ms: int = 0
    _due_ms: int = 0
    _is_renewing: bool = False
    _looks: int = field(default=0)

    def take(self, files: CheckpointFileSystem) -> DriverLease:
        """Wait for the lease. Raises like `ObjectStoreLease.lead`, or `ProcessDied` if the wait is in vain."""
        provider = ObjectStoreLease(
            lease_ms=self.lease_ms,
            is_stand_by=self.is_stand_by,
            monotonic_ms=lambda: self.machine.clock.monotonic_ms,
            sleep=self._wait,
            keeper=self._kept,
        )
        self.held = provider.lead(files, "job")
        self.held.at_loss(self._lose)
        self.beside = None
        return self.held

    def moves(self) -> Sequence[Move]:
        """Return the renewal, if it is due."""
        return [("driver renews its lease", self.renew_if_due, 6)] if self._is_due else []

    def renew_if_due(self) -> None:
        """Renew the lease once if it is due, however late."""
        if not self._is_due or self._is_renewing or self._keep is None:
            return
        self._is_renewing = True
        try:
            self._due_ms = self.machine.clock.monotonic_ms + self._interval_ms
            if not self._keep():
                self._keep = None
        finally:
            self._is_renewing = False

    def close(self) -> None:
        """Release the lease."""
        if self.held is not None:
            self.held.close()

    @property
    def _is_due(self) -> bool:
        return self._keep is not None and self.machine.clock.monotonic_ms >= self._due_ms

    def _kept(self, keep: Callable[[], bool], interval_s: float) -> _Kept:
        self._keep, self._interval_ms = keep, round(interval_s * 1000)
        self._due_ms = self.machine.clock.monotonic_ms + self._interval_ms
        return _Kept(self)

    def forget(self) -> None:
        """Stop renewing the lease."""
        self._keep = None

    def _lose(self, lost: LeadershipLostError) -> None:
        self.lost = lost

    def _wait(self, seconds: float) -> None:
        self.process.check()
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            self.process.die()
            raise ProcessDied("it has stood by for long enough")
        self.machine.clock.pass_ms(round(seconds * 1000))
        self.machine.clock_faults(FaultPlace.WAITING, "wait for the lease")
        if self.beside is not None:
            try:
                self.beside.renew_if_due()
            except ProcessDied:
                # The other driver died, not this one. It notices at its next move.
                self.beside = None


@define
class _Kept:
    """A `LeaseKeeper`."""

    lease: RunLease

    def stop(self) -> None:
        self.lease.forget()
