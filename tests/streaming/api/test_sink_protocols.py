"""What a sink may say of itself beside its two phases."""

from __future__ import annotations

import pytest

from statebackend.spark.frame_sinks import reads_once
from statebackend.streaming.runtime.job_sinks import SinkAdapter


class ReadsOnce:
    reads_once = True

    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        return []


class Derived(ReadsOnce):
    """May read its frame as often as it likes."""


class Denies:
    reads_once = False


def test_a_class_says_itself_that_it_reads_a_frame_once() -> None:
    assert reads_once(ReadsOnce())
    assert [reads_once(one) for one in (Derived(), Denies(), object(), [])] == [False] * 4


def test_a_sink_that_rolls_back_is_known_by_its_method() -> None:
    assert SinkAdapter(Derived()).can_roll_back
    assert not SinkAdapter(Denies()).can_roll_back


class Identified:
    def __init__(self, identity: object) -> None:
        self.identity = identity


@pytest.mark.parametrize("identity", [7, None, b"/out", ["/out"]])
def test_an_identity_that_is_no_text_is_none_and_the_class_stands_for_it(identity: object) -> None:
    assert SinkAdapter(Identified(identity)).identity == f"{__name__}.Identified"
    assert SinkAdapter(Identified("/out")).identity == "/out"
