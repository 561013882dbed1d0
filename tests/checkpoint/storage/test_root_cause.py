"""The reported root cause of a failed run whose driver may have been replaced by another one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from attrs import define

from statebackend.checkpoint import LeadershipLostError, MissingFileError, StorageError
from statebackend.checkpoint.ha.leadership import LossListener, raising_root_cause, root_cause

FAILURE = MissingFileError("offsets/0 is missing")


@define
class Lead:
    """A leadership whose `look` returns a given result."""

    look: Callable[[], None]

    def check(self) -> None:
        self.look()

    def at_loss(self, listener: LossListener) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def raising(error: Exception) -> Lead:
    def look() -> None:
        raise error

    return Lead(look)


def test_each_failure_of_a_replaced_driver_is_the_cause_of_its_own_loss_error() -> None:
    lost = LeadershipLostError("another driver leads")
    lead, other = raising(lost), ValueError("a sink's file is not there")
    reported = [root_cause(lead, FAILURE), root_cause(lead, other), root_cause(lead, FAILURE)]
    assert [(type(one), str(one)) for one in reported] == [(LeadershipLostError, "another driver leads")] * 3
    assert [one.__cause__ for one in reported] == [FAILURE, other, FAILURE]
    assert lost.__cause__ is None


@pytest.mark.parametrize("error", [StorageError("nobody answers"), RuntimeError("no more threads"), OSError("no net")])
def test_a_failure_is_kept_if_the_check_fails_in_any_way(error: Exception) -> None:
    assert root_cause(raising(error), FAILURE) is FAILURE


def test_a_failure_is_kept_if_the_check_times_out() -> None:
    answered = threading.Event()
    lead = Lead(lambda: (answered.wait(), None)[1])
    try:
        assert root_cause(lead, FAILURE, limit_s=0.0) is FAILURE
    finally:
        answered.set()


def test_only_failures_in_the_block_are_checked() -> None:
    lost = LeadershipLostError("another driver leads")
    with pytest.raises(LeadershipLostError, match="another driver leads") as raised, raising_root_cause(raising(lost)):
        raise FAILURE
    assert raised.value.__cause__ is FAILURE
    with pytest.raises(MissingFileError) as kept, raising_root_cause(Lead(lambda: None)):
        raise FAILURE
    assert kept.value is FAILURE
    with pytest.raises(KeyboardInterrupt), raising_root_cause(raising(lost)):
        raise KeyboardInterrupt
    with raising_root_cause(raising(lost)):
        pass
