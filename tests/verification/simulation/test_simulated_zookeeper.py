"""The simulated ZooKeeper servers behave like real ones in the operations of the product."""

from __future__ import annotations

import pytest

from statebackend.checkpoint.errors import LeadershipLostError
from statebackend.checkpoint.ha.zookeeper import JobNodes, UnknownOutcomeError, ZooKeeperLeadership, ZooKeeperSettings
from verification.simulation.host.disk import Process
from verification.simulation.host.faults import Fault, FaultKind, FaultPlace
from verification.simulation.host.machine import Machine

NODES = JobNodes("/jobs", "job")
SETTINGS = ZooKeeperSettings("simulated")


def machine_with(*faults: Fault) -> Machine:
    return Machine.of_seed(1, faults, keeps_lines=True)


def led(machine: Machine, name: str) -> ZooKeeperLeadership:
    with machine.zookeeper.asked_by(Process(name)):
        leadership = ZooKeeperLeadership(SETTINGS, NODES, None)
        leadership.session.make(NODES.checkpoints)
    return leadership


def test_a_rejected_transaction_changes_nothing() -> None:
    machine = machine_with()
    leadership = led(machine, "driver")
    node = NODES.checkpoint(1)
    with machine.zookeeper.asked_by(Process("driver")):
        assert leadership.commit("make one", lambda one: one.create(node, b"1"), lambda: False) is None

        def build(transaction: object) -> None:
            transaction.create(NODES.checkpoint(2), b"2")  # type: ignore[attr-defined]
            transaction.create(node, b"again")  # type: ignore[attr-defined]

        assert type(leadership.commit("make two", build, lambda: False)).__name__ == "NodeExistsError"
        assert leadership.session.children(NODES.checkpoints) == [node.rpartition("/")[2]]
        assert leadership.session.get(node) == b"1"


def test_a_replaced_leader_changes_nothing() -> None:
    machine = machine_with()
    first = led(machine, "first")
    second = led(machine, "second")
    with machine.zookeeper.asked_by(Process("second")):
        second.check()
    with machine.zookeeper.asked_by(Process("first")):
        with pytest.raises(LeadershipLostError):
            first.commit("make one", lambda one: one.create(NODES.checkpoint(1), b"1"), lambda: False)
        with pytest.raises(LeadershipLostError):
            first.check()
    assert NODES.checkpoint(1) not in machine.zookeeper.nodes


@pytest.mark.parametrize("kind", [FaultKind.STORAGE_ERROR, FaultKind.STORAGE_ERROR_AFTER])
def test_a_lost_answer_is_resolved(kind: FaultKind) -> None:
    machine = machine_with(Fault(kind, 0, FaultPlace.COMPLETION))
    leadership = led(machine, "driver")
    node = NODES.checkpoint(1)
    with machine.zookeeper.asked_by(Process("driver")):
        done = leadership.commit(
            "make one", lambda one: one.create(node, b"1"), lambda: leadership.session.get(node) == b"1"
        )
    assert done is None
    assert len(machine.faults.struck) == 1
    assert machine.zookeeper.nodes[node].data == b"1"


def test_servers_without_a_quorum_leave_the_outcome_unknown() -> None:
    machine = machine_with(Fault(FaultKind.NO_QUORUM, 0, FaultPlace.COMPLETION))
    leadership = led(machine, "driver")
    with machine.zookeeper.asked_by(Process("driver")):
        with pytest.raises(UnknownOutcomeError):
            leadership.commit("make one", lambda one: one.create(NODES.checkpoint(1), b"1"), lambda: False)
        machine.zookeeper.now_s = machine.zookeeper.silent_until_s
        leadership.check()
    assert machine.faults.steps[FaultPlace.COMPLETION] == 1
