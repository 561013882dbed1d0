"""Random delivery order: a snapshot and the captured records contain exactly what was sent before the barriers.

A record is (channel, position). Records and the barriers of all checkpoints enter each channel in order. A random move
puts an element into a channel, takes one out, or advances the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import hypothesis.strategies as st
from attrs import define, field
from hypothesis import given

from statebackend.checkpoint.barriers.elements import (
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierArrived,
    BarrierEvent,
    BarrierHandler,
    CaptureComplete,
    ChannelEnded,
    CheckpointBarrier,
    DataPassed,
    Overtake,
    StartTimer,
    StopTimer,
    Trigger,
)
from statebackend.checkpoint.barriers.exactly_once import (
    AlignmentPolicy,
    ExactlyOnceHandler,
    alternating,
    always_aligned,
    always_unaligned,
)
from statebackend.checkpoint.barriers.tracker import BarrierTracker

Record = tuple[int, int]
Element = Record | CheckpointBarrier
TIMEOUT_MS: Final = 3


@define
class _Task:
    """A task: its channels, the processed records, and its snapshot of each checkpoint."""

    handler: BarrierHandler
    coming: list[deque[Element]]
    inside: list[deque[Element]] = field(init=False)
    processed: list[Record] = field(factory=list)
    snapshots: dict[int, list[Record]] = field(factory=dict)
    captured: dict[int, list[Record]] = field(factory=dict)
    complete: set[int] = field(factory=set)
    timers: dict[int, int] = field(factory=dict)
    ended: set[int] = field(factory=set)
    now_ms: int = 0
    is_aligned: dict[int, bool] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.inside = [deque() for _ in self.coming]

    def run(self, moves: Sequence[tuple[int, int]]) -> None:
        """Do random moves, then deliver all remaining elements in order."""
        for move, channel in moves:
            _MOVES[move](self, channel % len(self.coming))
        while any(self._can_move(channel) for channel in range(len(self.coming))):
            for channel in range(len(self.coming)):
                self.come_in(channel)
                self.come_out(channel)

    def come_in(self, channel: int) -> None:
        if not self.coming[channel]:
            return
        element = self.coming[channel].popleft()
        if not isinstance(element, CheckpointBarrier):
            self.inside[channel].append(element)
        elif element.is_unaligned:
            self._put_before(channel, element)
        else:
            self.inside[channel].append(element)
            if element.alignment_timeout_ms is not None:
                self._tell(BarrierAnnounced(channel, element, self.now_ms))

    def come_out(self, channel: int) -> None:
        if channel in self.ended or channel in self.handler.blocked_channels:
            return
        if not self.inside[channel]:
            if not self.coming[channel]:
                self.ended.add(channel)
                self._tell(ChannelEnded(channel, self.now_ms))
            return
        element = self.inside[channel].popleft()
        if isinstance(element, CheckpointBarrier):
            self._tell(BarrierArrived(channel, element, self.now_ms))
            return
        if channel in self.handler.captured_channels:
            (pending,) = self.handler.pending_checkpoint_ids
            self.captured.setdefault(pending, []).append(element)
        self.processed.append(element)
        self._tell(DataPassed(channel, 1))

    def pass_time(self, channel: int) -> None:
        self.now_ms += 1
        for checkpoint_id, at_ms in list(self.timers.items()):
            if at_ms <= self.now_ms:
                del self.timers[checkpoint_id]
                self._tell(AlignmentTimedOut(checkpoint_id, self.now_ms))

    def _can_move(self, channel: int) -> bool:
        return channel not in self.ended

    def _put_before(self, channel: int, barrier: CheckpointBarrier) -> None:
        # The barrier overtakes records, but no other barrier.
        others = [index for index, one in enumerate(self.inside[channel]) if isinstance(one, CheckpointBarrier)]
        place = others[-1] + 1 if others else 0
        overtaken = [one for one in list(self.inside[channel])[place:] if not isinstance(one, CheckpointBarrier)]
        self.captured.setdefault(barrier.checkpoint_id, []).extend(overtaken)
        self.inside[channel].insert(place, barrier)

    def _tell(self, event: BarrierEvent) -> None:
        for action in self.handler.handle(event):
            _CARRY_OUT.get(type(action), _Task._nothing)(self, action)

    def _trigger(self, action: Trigger) -> None:
        checkpoint_id = action.barrier.checkpoint_id
        assert checkpoint_id not in self.snapshots
        assert checkpoint_id > max(self.snapshots, default=0)
        self.snapshots[checkpoint_id] = list(self.processed)
        self.is_aligned[checkpoint_id] = not action.barrier.is_unaligned
        if not action.barrier.is_unaligned:
            self.complete.add(checkpoint_id)

    def _complete(self, action: CaptureComplete) -> None:
        self.complete.add(action.checkpoint_id)

    def _overtake(self, action: Overtake) -> None:
        channel = self.inside[action.channel]
        place = next(
            index
            for index, one in enumerate(channel)
            if isinstance(one, CheckpointBarrier) and one.checkpoint_id in self.handler.pending_checkpoint_ids
        )
        barrier = channel[place]
        assert isinstance(barrier, CheckpointBarrier)
        before = list(channel)[:place]
        records = [one for one in before if not isinstance(one, CheckpointBarrier)]
        self.captured.setdefault(barrier.checkpoint_id, []).extend(records)
        del channel[place]
        # It does not overtake the barriers of finished checkpoints.
        channel.insert(len(before) - len(records), barrier)
        _sort_barriers_first(channel, place + 1)

    def _start_timer(self, action: StartTimer) -> None:
        self.timers[action.checkpoint_id] = action.at_ms

    def _stop_timer(self, action: StopTimer) -> None:
        self.timers.pop(action.checkpoint_id, None)

    def _nothing(self, action: Any) -> None:
        """Actions that the handler itself reports."""


def _sort_barriers_first(channel: deque[Element], count: int) -> None:
    first = [channel.popleft() for _ in range(count)]
    first.sort(key=lambda one: not isinstance(one, CheckpointBarrier))
    channel.extendleft(reversed(first))


_MOVES: Final[Sequence[Callable[[_Task, int], None]]] = (_Task.come_in, _Task.come_out, _Task.come_out, _Task.pass_time)
_CARRY_OUT: Final[Mapping[type, Callable[[_Task, Any], None]]] = {
    Trigger: _Task._trigger,
    CaptureComplete: _Task._complete,
    Overtake: _Task._overtake,
    StartTimer: _Task._start_timer,
    StopTimer: _Task._stop_timer,
}

_BARRIER_COUNT: Final = 3
_KINDS = st.sampled_from(["aligned", "unaligned", "savepoint", "timed"])


def _barrier(checkpoint_id: int, kind: str) -> CheckpointBarrier:
    return CheckpointBarrier(
        checkpoint_id=checkpoint_id,
        is_savepoint=kind == "savepoint",
        is_unaligned=kind == "unaligned",
        alignment_timeout_ms=TIMEOUT_MS * checkpoint_id if kind == "timed" else None,
    )


@st.composite
def _streams(draw: st.DrawFn) -> list[deque[Element]]:
    kinds = draw(st.lists(_KINDS, min_size=_BARRIER_COUNT, max_size=_BARRIER_COUNT))
    channels: list[deque[Element]] = []
    for channel in range(draw(st.integers(1, 3))):
        elements: deque[Element] = deque()
        place = 0
        for checkpoint_id, kind in enumerate(kinds, 1):
            for _ in range(draw(st.integers(0, 3))):
                elements.append((channel, place))
                place += 1
            elements.append(_barrier(checkpoint_id, kind))
        elements.extend((channel, place + one) for one in range(draw(st.integers(0, 2))))
        channels.append(elements)
    return channels


_MOVE_LISTS = st.lists(st.tuples(st.integers(0, len(_MOVES) - 1), st.integers(0, 2)), max_size=60)


def _records_before(channels: Sequence[Sequence[Element]], checkpoint_id: int) -> list[Record]:
    found = []
    for channel in channels:
        for element in channel:
            if isinstance(element, CheckpointBarrier):
                if element.checkpoint_id == checkpoint_id:
                    break
            else:
                found.append(element)
    return sorted(found)


def _run_by_policy(channels: list[deque[Element]], moves: list[tuple[int, int]], policy: AlignmentPolicy) -> _Task:
    as_given = [list(channel) for channel in channels]
    read = [deque(policy(one) if isinstance(one, CheckpointBarrier) else one for one in each) for each in channels]
    task = _Task(ExactlyOnceHandler(len(channels), policy), read)
    task.run(moves)
    for checkpoint_id in task.complete:
        captured = task.captured.get(checkpoint_id, []) if not task.is_aligned[checkpoint_id] else []
        held = sorted([*task.snapshots[checkpoint_id], *captured])
        assert held == _records_before(as_given, checkpoint_id), (checkpoint_id, held)
    assert not task.handler.blocked_channels
    assert not task.handler.captured_channels
    assert task.handler.pending_checkpoint_ids == ()
    for channel, each in enumerate(as_given):
        came_out = [one for one in task.processed if one[0] == channel]
        assert came_out == [one for one in each if not isinstance(one, CheckpointBarrier)]
    return task


@given(_streams(), _MOVE_LISTS)
def test_an_aligned_snapshot_contains_the_records_before_the_barriers(
    channels: list[deque[Element]], moves: list[tuple[int, int]]
) -> None:
    task = _run_by_policy(channels, moves, always_aligned)
    # Channels are blocked until the last barrier, so each checkpoint completes before the next one starts.
    assert task.complete == set(range(1, _BARRIER_COUNT + 1))


@given(_streams(), _MOVE_LISTS)
def test_an_unaligned_snapshot_with_captured_records_contains_the_records_before_the_barriers(
    channels: list[deque[Element]], moves: list[tuple[int, int]]
) -> None:
    _run_by_policy(channels, moves, always_unaligned)


@given(_streams(), _MOVE_LISTS)
def test_an_alternating_snapshot_contains_the_records_before_the_barriers(
    channels: list[deque[Element]], moves: list[tuple[int, int]]
) -> None:
    _run_by_policy(channels, moves, alternating)


@given(_streams(), _MOVE_LISTS)
def test_a_tracked_snapshot_contains_at_least_the_records_before_the_barriers(
    channels: list[deque[Element]], moves: list[tuple[int, int]]
) -> None:
    as_given = [list(channel) for channel in channels]
    read = [
        deque(always_aligned(one) if isinstance(one, CheckpointBarrier) else one for one in each) for each in channels
    ]
    task = _Task(BarrierTracker(len(channels)), read)
    task.run(moves)
    assert _BARRIER_COUNT in task.snapshots
    for checkpoint_id, held in task.snapshots.items():
        assert set(held) >= set(_records_before(as_given, checkpoint_id))
    assert task.handler.pending_checkpoint_ids == ()
