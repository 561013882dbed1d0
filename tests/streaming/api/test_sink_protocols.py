"""Optional members of a sink."""

from __future__ import annotations

import pytest

from statebackend.spark.frame_sinks import reads_once
from statebackend.streaming.runtime.job_sinks import SinkAdapter


class ReadsOnce:
    reads_once = True

    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        return []


class Derived(ReadsOnce):
    """May read its frame several times."""


class Denies:
    reads_once = False


def test_a_class_declares_that_it_reads_a_frame_once() -> None:
    assert reads_once(ReadsOnce())
    assert [reads_once(one) for one in (Derived(), Denies(), object(), [])] == [False] * 4


def test_a_rollback_sink_is_recognised_by_its_method() -> None:
    assert SinkAdapter(Derived()).can_roll_back
    assert not SinkAdapter(Denies()).can_roll_back


class Identified:
    def __init__(self, identity: object) -> None:
        self.identity = identity


@pytest.mark.parametrize("identity", [7, None, b"/out", ["/out"]])
def test_an_identity_that_is_not_a_text_is_replaced_by_the_class(identity: object) -> None:
    assert SinkAdapter(Identified(identity)).identity == f"{__name__}.Identified"
    assert SinkAdapter(Identified("/out")).identity == "/out"
