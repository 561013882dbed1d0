"""Defects of the driver's lease on an object store, as patches of `planted_defects`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from attrs import define, evolve

from statebackend.checkpoint.fs.conditional_objects import VersionedObject
from statebackend.checkpoint.ha.object_store import COMPLETED_FILE_NAME, ObjectPointers
from statebackend.checkpoint.store.driver_lease import LEASE_FILE_NAME, DriverLease, LeaseRecord, ObjectStoreLease
from tests.verification.simulation.planting import Patch, method

__all__ = ["DEFECTS_OF_LEASES"]


def _fenced_too_early() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: ObjectPointers, record: Any) -> Any:
            found = self._objects.read(COMPLETED_FILE_NAME)
            self._version = None if found is None else found.version
            return original(self, record)

        return write

    return method(ObjectPointers, "_write", wrap)


def _looked_at_from_memory() -> Patch:
    """A driver checks its leadership in memory only."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def check(self: DriverLease) -> None:
            if self._loss is not None:
                raise self._loss

        return check

    return method(DriverLease, "check", wrap)


def _renewed_by_the_loser() -> Patch:
    return method(DriverLease, "_is_own", lambda original: lambda self, content: True)


def _expiry_by_the_wall_clock() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def taken(self: ObjectStoreLease, objects: Any, place: str) -> DriverLease:
            by_wall_clock = evolve(self, monotonic_ms=lambda: time.time_ns() // 1_000_000)
            lease: DriverLease = original(by_wall_clock, objects, place)
            return lease

        return taken

    return method(ObjectStoreLease, "taken", wrap)


@define
class _SeenByHolder:
    """Objects whose lease has one version while one driver holds it."""

    objects: Any
    newest: str | None = None

    def read(self, path: str) -> VersionedObject | None:
        found = self.objects.read(path)
        self.newest = None if found is None else found.version
        return None if found is None else evolve(found, version=LeaseRecord.from_bytes(found.content, path).token)

    def write(self, path: str, content: bytes, version: str | None) -> Any:
        return self.objects.write(path, content, None if version is None else self.newest)


def _renewals_not_seen() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def taken(self: ObjectStoreLease, objects: Any, place: str) -> DriverLease:
            lease: DriverLease = original(self, _SeenByHolder(objects), place)
            lease._objects = objects
            return lease

        return taken

    return method(ObjectStoreLease, "taken", wrap)


def _lost_answer_is_a_loss() -> Patch:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: DriverLease, record: LeaseRecord) -> bool:
            self._record = record
            written = self._objects.write(LEASE_FILE_NAME, record.to_bytes(), self._version)
            if written is None:
                self._lose()
                return False
            self._version = written
            return True

        return write

    return method(DriverLease, "_write", wrap)


DEFECTS_OF_LEASES: Final[tuple[tuple[str, Patch], ...]] = (
    ("fencing reads the record and writes in two steps", _fenced_too_early()),
    ("a driver relies on its memory of the lease instead of reading it", _looked_at_from_memory()),
    ("a driver that lost the lease renews it", _renewed_by_the_loser()),
    ("a lease expires by a clock that jumps", _expiry_by_the_wall_clock()),
    ("a waiting driver checks the holder of the lease, but not its renewals", _renewals_not_seen()),
    ("a renewal with a lost answer is mistaken for another driver's", _lost_answer_is_a_loss()),
)
