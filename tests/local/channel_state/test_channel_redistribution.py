"""The records in flight of a previous run as one sequence: in order, with their event time, and never twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.local.channel_restore import merged_channels
from statebackend.local.network.channel import InFlight, RecordBatch
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.time.operator_watermarks import OperatorWatermarks, OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkElement, WatermarkStatus

S0, S1 = TaskId("s", 0), TaskId("s", 1)
R0, R1 = TaskId("r", 0), TaskId("r", 1)
IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE


def b(name: str) -> RecordBatch:
    return RecordBatch(0, [name])


def at(valve_ms: int, **channels: int | None) -> OperatorWatermarkState[TaskId]:
    """The watermarks of s0, s1 and so on at a reader with one input; None if idle."""
    views = tuple(
        ValveChannel(TaskId(name[0], int(name[1:])), MIN_TIMESTAMP if time is None else time, time is None)
        for name, time in channels.items()
    )
    return OperatorWatermarkState(valve_ms, (ValveState(valve_ms, views),))


def shown(elements: Sequence[InFlight]) -> str:
    """Record names as text, watermarks as numbers."""
    return " ".join(
        one.records[0]
        if isinstance(one, RecordBatch)
        else str(one.timestamp_ms)
        if isinstance(one, Watermark)
        else one.value
        for one in elements
    )


def test_channels_of_one_sender_are_aligned_at_their_ends() -> None:
    merged = merged_channels(
        "s",
        {(S0, R0): [b("a"), Watermark(7), b("b")], (S0, R1): [b("c"), Watermark(5), b("d"), Watermark(7), b("e")]},
        {R0: at(5, s0=5), R1: at(3, s0=3)},
    )
    assert shown(merged.elements) == "c 5 a d 7 b e"
    assert (merged.begins.watermark_ms, merged.ends.watermark_ms) == (3, 7)


def test_several_senders_have_the_earliest_watermark() -> None:
    merged = merged_channels(
        "s",
        {(S0, R0): [Watermark(9), b("a")], (S1, R0): [b("b"), Watermark(6), b("c")]},
        {R0: at(2, s0=4, s1=2)},
    )
    assert shown(merged.elements) == "a b 6 c"
    assert (merged.begins.watermark_ms, merged.ends.watermark_ms) == (2, 6)


def test_a_sender_without_records_in_flight_holds_the_others_at_its_watermark() -> None:
    merged = merged_channels("s", {(S0, R0): [Watermark(9), b("a")]}, {R0: at(3, s0=4, s1=3), R1: at(3, s0=9, s1=3)})
    assert shown(merged.elements) == "a"
    assert (merged.begins.watermark_ms, merged.ends.watermark_ms) == (3, 3)


def test_a_sender_with_a_pending_watermark_holds_no_other() -> None:
    merged = merged_channels("s", {(S0, R0): [b("a"), Watermark(20)], (S1, R0): [b("b")]}, {R0: at(10, s0=10, s1=4)})
    assert shown(merged.elements) == "a 20 b"
    assert merged.begins.watermark_ms == 10


def test_statuses_are_redistributed_with_watermarks() -> None:
    merged = merged_channels("s", {(S0, R0): [b("a"), IDLE, b("b"), ACTIVE, Watermark(5)]}, {R0: at(3, s0=3)})
    assert shown(merged.elements) == "a idle b active 5"
    assert not merged.begins.is_idle
    waking = merged_channels("s", {(S0, R0): [b("a"), ACTIVE, Watermark(5), IDLE]}, {R0: at(3, s0=None)})
    assert shown(waking.elements) == "a active 5 idle"
    assert (waking.begins.is_idle, waking.ends.is_idle) == (True, True)


def test_readers_without_watermarks_of_a_sender_are_rejected() -> None:
    with pytest.raises(JobRestoreError, match="from subtask 1 of 's' to 'r', but has no event time of this channel"):
        merged_channels("s", {(S1, R0): [b("a")]}, {R0: at(3, s0=3)})


# The output of one sender: a watermark or a status goes to all channels, and a number is a record for that reader.
sent = st.lists(st.one_of(st.integers(0, 3), st.sampled_from(["W", "idle", "active"])), max_size=25)


@given(st.lists(sent, min_size=1, max_size=3), st.data())
def test_no_record_is_lost_moved_or_ahead_of_its_watermark(
    scripts: Sequence[Sequence[int | str]], data: st.DataObject
) -> None:
    readers = [TaskId("r", index) for index in range(4)]
    channels: dict[tuple[TaskId, TaskId], list[InFlight]] = {}
    times_before: dict[str, list[WatermarkElement]] = {}
    for number, script in enumerate(scripts):
        _send(TaskId("s", number), script, readers, channels, times_before)
    senders = [TaskId("s", number) for number in range(len(scripts))]
    states: dict[TaskId, OperatorWatermarkState[TaskId]] = {}
    in_flight: dict[tuple[TaskId, TaskId], list[InFlight]] = {}
    for reader in readers:
        valves = OperatorWatermarks([senders])
        for sender in senders:
            elements = channels[sender, reader]
            taken = data.draw(st.integers(0, len(elements)))
            for one in elements[:taken]:
                if not isinstance(one, RecordBatch):
                    valves.take(0, sender, one)
            in_flight[sender, reader] = elements[taken:]
        states[reader] = valves.snapshot()
    merged = merged_channels("s", in_flight, states)
    _check(merged.elements, in_flight)
    times = [one.timestamp_ms for one in merged.elements if isinstance(one, Watermark)]
    assert times == sorted(set(times))
    assert not times or (merged.begins.watermark_ms < times[0] and merged.ends.watermark_ms == times[-1])
    if len(scripts) == 1:
        _check_times(merged.elements, times_before)


def _send(
    sender: TaskId,
    script: Sequence[int | str],
    readers: Sequence[TaskId],
    channels: dict[tuple[TaskId, TaskId], list[InFlight]],
    times_before: dict[str, list[WatermarkElement]],
) -> None:
    times: list[WatermarkElement] = []
    for reader in readers:
        channels[sender, reader] = []
    for place, one in enumerate(script):
        if isinstance(one, int):
            name = f"{sender.subtask_index}.{place}"
            channels[sender, readers[one]].append(b(name))
            times_before[name] = list(times)
            continue
        is_idle = (
            bool([time for time in times if isinstance(time, WatermarkStatus)])
            and next(time for time in reversed(times) if isinstance(time, WatermarkStatus)) is IDLE
        )
        element: WatermarkElement = Watermark(place) if one == "W" else WatermarkStatus(one)
        # A sender drops watermarks while it is idle, and drops repeated statuses.
        if (one == "W" and is_idle) or (isinstance(element, WatermarkStatus) and element.is_idle is is_idle):
            continue
        times.append(element)
        for reader in readers:
            channels[sender, reader].append(element)


def _check(elements: Sequence[InFlight], in_flight: Mapping[tuple[TaskId, TaskId], Sequence[InFlight]]) -> None:
    names = [one.records[0] for one in elements if isinstance(one, RecordBatch)]
    expected = {way: [one.records[0] for one in of if isinstance(one, RecordBatch)] for way, of in in_flight.items()}
    assert sorted(names) == sorted(name for of_channel in expected.values() for name in of_channel)
    for of_channel in expected.values():
        assert [name for name in names if name in of_channel] == of_channel


def _check_times(elements: Sequence[InFlight], times_before: Mapping[str, Sequence[WatermarkElement]]) -> None:
    """With one sender, a record comes after exactly the watermarks that were sent before it."""
    all_times = [one for one in elements if isinstance(one, Watermark)]
    seen: list[WatermarkElement] = []
    for one in elements:
        if not isinstance(one, RecordBatch):
            seen.append(one)
            continue
        before = [time for time in times_before[one.records[0]] if isinstance(time, Watermark) and time in all_times]
        assert [time for time in seen if isinstance(time, Watermark)] == before
