"""The lease of a simulated cluster is that of the product, in simulated time; violations are detected."""

from __future__ import annotations

import pytest
from attrs import evolve

from statebackend.checkpoint.errors import JobDirectoryLockedError, LeadershipLostError
from statebackend.checkpoint.store.driver_lease import LeaseRecord
from verification.simulation.cluster.lease_history import LeaseHistory
from verification.simulation.cluster.run_lease import RunLease
from verification.simulation.host.chance import SimulatedClock
from verification.simulation.host.disk import Process
from verification.simulation.host.faults import ProcessDied
from verification.simulation.host.machine import Machine
from verification.simulation.violation import Violation

LEASE_MS = 300
PATH = "job/driver-lease.json"
OWN = LeaseRecord(token="own", renewal=0, lease_ms=LEASE_MS, is_released=False, holder="somebody")


def lease(machine: Machine, name: str, *, is_stand_by: bool = False, beside: RunLease | None = None) -> RunLease:
    return RunLease(machine, Process(name), LEASE_MS, is_stand_by, beside)


def take(one: RunLease) -> None:
    one.take(one.machine.file_system("job", one.process, are_objects=True))


def test_a_second_driver_is_rejected_or_waits_while_the_first_renews() -> None:
    machine = Machine.of_seed(1, (), keeps_lines=True)
    holder = lease(machine, "holder")
    take(holder)
    with pytest.raises(JobDirectoryLockedError):
        take(lease(machine, "rival", beside=holder))
    with pytest.raises(ProcessDied):
        take(lease(machine, "other rival", is_stand_by=True, beside=holder))
    assert holder.held is not None
    holder.held.check()


def test_a_paused_driver_loses_its_lease_and_notices_at_the_renewal() -> None:
    machine = Machine.of_seed(1, (), keeps_lines=True)
    holder, other = lease(machine, "holder"), lease(machine, "other")
    take(holder)
    take(other)
    assert machine.clock.monotonic_ms >= LEASE_MS
    [(_, renew, _)] = holder.moves()
    renew()
    assert isinstance(holder.lost, LeadershipLostError)
    assert holder.moves() == []
    assert other.held is not None
    other.held.check()
    other.close()
    take(lease(machine, "third"))


def test_taking_a_lease_that_is_being_renewed_is_a_violation_at_any_time_of_day() -> None:
    clock = SimulatedClock()
    history = LeaseHistory(clock)
    history.written(PATH, OWN.to_bytes())
    clock.jump_ms(3_600_000)
    clock.pass_ms(LEASE_MS - 1)
    with pytest.raises(Violation, match="a holder that renews the lease keeps it"):
        history.written(PATH, evolve(OWN, token="other").to_bytes())
    clock.pass_ms(1)
    history.written(PATH, evolve(OWN, token="other").to_bytes())
    assert history.is_held_by("other")
    with pytest.raises(Violation, match="a driver that lost the lease does not renew it"):
        history.written(PATH, evolve(OWN, renewal=1).to_bytes())


def test_renewing_a_released_lease_is_a_violation() -> None:
    history = LeaseHistory(SimulatedClock())
    history.written(PATH, evolve(OWN, is_released=True).to_bytes())
    assert not history.is_held_by("own")
    with pytest.raises(Violation, match="released the lease"):
        history.written(PATH, evolve(OWN, renewal=1).to_bytes())
