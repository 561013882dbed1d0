"""Event time and timers of a rewritten savepoint whose operators have other uids."""

from __future__ import annotations

from typing import Any

import pytest

from statebackend.checkpoint.metadata import (
    CheckpointKind,
    CheckpointMetadata,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    TimersDue,
    WatermarkState,
)
from statebackend.savepoint.rewrite.drafts import Drafts
from statebackend.savepoint.rewrite.new_files import NewOperator
from statebackend.savepoint.rewrite.savepoint_writer import carried_metadata


def carried(successors: dict[str, list[str]], operators: list[NewOperator], **sections: Any) -> CheckpointMetadata:
    base = CheckpointMetadata(
        checkpoint_id=0,
        kind=CheckpointKind.SAVEPOINT,
        job_id="job",
        job_name="job",
        timestamp_ms=0,
        max_parallelism=4,
        operators=(),
        **sections,
    )
    drafts = Drafts(None)
    drafts.successors = successors
    return carried_metadata(base, drafts, operators)


def reader(*channels: InputChannel) -> NodeWatermark:
    return NodeWatermark(node="both", inputs=(InputWatermark(1, channels),))


@pytest.mark.parametrize(
    ("one", "other", "known"),
    [
        ((5, False), (7, False), (5, False)),
        ((7, False), (5, False), (5, False)),
        ((None, False), (5, False), (None, False)),
        ((5, False), (None, False), (None, False)),
        ((5, True), (7, False), (5, False)),
        ((5, False), (7, True), (5, False)),
        ((5, True), (7, True), (5, True)),
    ],
)
def test_a_reader_of_merged_senders_knows_the_minimum_of_both(one: Any, other: Any, known: Any) -> None:
    nodes = (reader(InputChannel("a", one[0], is_idle=one[1]), InputChannel("b", other[0], is_idle=other[1])),)
    made = carried({"a": ["all"], "b": ["all"], "both": ["both"]}, [], watermarks=WatermarkState(nodes=nodes))
    assert made.watermarks is not None
    [both] = made.watermarks.nodes
    assert both.inputs[0].channels == (InputChannel("all", known[0], is_idle=known[1]),)


def test_an_input_without_senders_and_a_removed_node_are_dropped() -> None:
    nodes = (NodeWatermark(node="a", watermark_ms=3), reader(InputChannel("a", 5)))
    made = carried({"a": [], "both": ["both"]}, [], watermarks=WatermarkState(9, (), nodes))
    assert made.watermarks == WatermarkState(9, (), (NodeWatermark(node="both"),))


@pytest.mark.parametrize(("other_ms", "is_kept"), [(3, True), (4, False), (None, False)])
def test_three_merged_nodes_are_kept_only_if_all_agree(other_ms: int | None, is_kept: bool) -> None:
    times = {"a": 3, "b": other_ms, "c": 3}
    nodes = tuple(NodeWatermark(node=uid, watermark_ms=time_ms) for uid, time_ms in times.items())
    made = carried({uid: ["all"] for uid in times}, [], watermarks=WatermarkState(nodes=nodes))
    assert made.watermarks is not None
    assert made.watermarks.nodes == ((NodeWatermark(node="all", watermark_ms=3),) if is_kept else ())


def operator(origins: tuple[str, ...] = (), *, has_copied_timers: bool = False, **earliest_ms: int) -> NewOperator:
    timers = {f"_timer_state/{name}": ms for name, ms in earliest_ms.items()}
    return NewOperator("own", "own", (), (), {}, {}, timers, origins, has_copied_timers)


FORMER = (TimersDue("a", 5, None), TimersDue("b", 7, 2))


def test_the_earliest_timer_of_all_services_is_due() -> None:
    made = carried({}, [operator(event_one=9, event_other=4, event_third=6, processing_one=8)], timers_due=FORMER)
    assert made.timers_due == (TimersDue("own", 4, 8),)


@pytest.mark.parametrize(("has_copied_timers", "due"), [(True, (TimersDue("own", 5, 2),)), (False, ())])
def test_copied_timers_keep_the_bound_of_the_former_operator(
    has_copied_timers: bool, due: tuple[TimersDue, ...]
) -> None:
    made = carried({}, [operator(("a", "b", "c"), has_copied_timers=has_copied_timers)], timers_due=FORMER)
    assert made.timers_due == due


def test_read_and_copied_timers_are_due_together() -> None:
    made = carried({}, [operator(("b",), has_copied_timers=True, event_one=3, processing_one=9)], timers_due=FORMER)
    assert made.timers_due == (TimersDue("own", 3, 2),)
