"""An external system that two-phase sinks write to: prepared data is durable, committed data is visible.

Each call is a step at which a fault may happen, before or after the call is carried out.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field

from verification.simulation.host.faults import Fault
from verification.simulation.jobs.program import Row
from verification.simulation.violation import require_that

__all__ = ["OtherSystem", "StagingSink"]


@define
class OtherSystem:
    """The prepared and the committed data, by names; it outlives all runs of a job."""

    staged: dict[str, list[Row]] = field(factory=dict)
    shown: list[Row] = field(factory=list)
    committed: set[str] = field(factory=set)


@define(eq=False)
class StagingSink:
    """A sink of one run; ``step`` counts a step, and returns the fault that happens after it."""

    identity: str
    system: OtherSystem
    step: Callable[[str], Fault | None]

    def stage_records(self, records: Sequence[Any], epoch_id: int, attempt_id: str) -> bytes:
        late_fault = self.step("stage")
        name = f"{epoch_id} {attempt_id}"
        self.system.staged[name] = [(row.k, row.id, row.n) for row in records]
        _fail(late_fault)
        return name.encode()

    def commit(self, epoch_id: int, committable: bytes) -> None:
        late_fault = self.step("commit")
        name = committable.decode()
        if name not in self.system.committed:
            require_that(name in self.system.staged, f"a sink commits what it has staged: {name} is not there")
            self.system.shown += self.system.staged.pop(name)
            self.system.committed.add(name)
        _fail(late_fault)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        self.system.staged.pop(f"{epoch_id} {attempt_id}", None)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        late_fault = self.step("recover")
        last_id = -1 if last_completed_epoch_id is None else last_completed_epoch_id
        for name in [one for one in self.system.staged if int(one.partition(" ")[0]) > last_id]:
            del self.system.staged[name]
        _fail(late_fault)


def _fail(late_fault: Fault | None) -> None:
    if late_fault is not None:
        raise OSError(errno.EIO, "the other system fails after the step")
