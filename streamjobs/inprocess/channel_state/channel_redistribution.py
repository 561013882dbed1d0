"""What was in flight between the subtasks of a former run, dealt out to those of this one.

With the same parallelism every channel gets what it had. Otherwise all that one node had sent to another becomes one
sequence, and every subtask takes of its batches the records that are its own:

    former channels       s0 -> r0:  a W5 b        s0 -> r1:  c W5 d W7 e
    by watermarks left    s0 -> r0:           a W5 b
                          s0 -> r1:  c W5 d W7 e              what s0 sent of time it sent to both; r1 is further behind

    aligned from the end  s0:  c | W5 | a d | W7 | b e

A former sender sends watermarks and statuses on all its channels alike, so what is left of them in one channel is the
end of what is left in any other: aligned from their ends, the channels of one sender become one sequence in which each
record is behind the same watermarks as before. Several senders come one after the other, and their time goes through
a valve, as it did at the reader; it begins where the reader was that was furthest behind, for each sender.

Invariants: every record is in the sequence once; records of one channel keep their order, and their place among its
watermarks; watermarks of the sequence rise, and are never ahead of what a former reader would have come to; when it
ends, time is where the former senders were together. All subtasks of a node take the same times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from streamjobs.errors import JobRestoreError
from streamjobs.inprocess.network.elements import InFlight, RecordBatch, SubtaskId
from streamjobs.time.operator_watermarks import OperatorWatermarkState
from streamjobs.time.status_watermark_valve import StatusWatermarkValve, ValveChannel, ValveState
from streamjobs.time.watermark_elements import WatermarkElement

__all__ = ["MergedChannels", "merged_channels"]


@frozen
class MergedChannels:
    """All that was in flight from one node to another: what time it begins and ends with, by one channel for all."""

    elements: Sequence[InFlight]
    begins: ValveChannel[str]
    ends: ValveChannel[str]


def merged_channels(
    node: str,
    in_flight: Mapping[tuple[SubtaskId, SubtaskId], Sequence[InFlight]],
    readers: Mapping[SubtaskId, OperatorWatermarkState[SubtaskId]],
) -> MergedChannels:
    """The channels from a node to the former ``readers``, each with what it knew of time.

    Raises `JobRestoreError` if they knew nothing of who has sent. Takes time in proportion to the elements and the
    channels.
    """
    senders = sorted({sender for sender, reader in in_flight if sender.node == node and reader in readers})
    views = {sender: _furthest_behind(sender, in_flight, readers) for sender in _senders_known(node, readers)}
    missing = [sender for sender in senders if sender not in views]
    if missing:
        raise JobRestoreError(f"{missing[0]} had records on their way to readers that know nothing of it")
    channels = tuple(ValveChannel(one, view.watermark_ms, view.is_idle) for one, view in sorted(views.items()))
    # Nobody waited for a channel that was behind its valve, and nobody does here.
    active = [max(view.watermark_ms, view.valve_ms) for view in views.values() if not view.is_idle]
    begins_ms = min(active) if active else max(view.watermark_ms for view in views.values())
    valve = StatusWatermarkValve.restored(ValveState(begins_ms, channels))
    begins = ValveChannel(node, begins_ms, valve.status.is_idle)
    elements: list[InFlight] = []
    for sender in senders:
        own = [in_flight.get((sender, reader), ()) for reader in sorted(readers)]
        for element in _aligned_from_the_end(own):
            if isinstance(element, RecordBatch):
                elements.append(element)
            else:
                elements += valve.take(sender, element)
    return MergedChannels(elements, begins, ValveChannel(node, valve.watermark_ms, valve.status.is_idle))


@frozen
class _View:
    """A channel as one of its readers knows it, beside its valve."""

    watermark_ms: int
    is_idle: bool
    valve_ms: int


def _senders_known(node: str, readers: Mapping[SubtaskId, OperatorWatermarkState[SubtaskId]]) -> Sequence[SubtaskId]:
    valves = [valve for state in readers.values() for valve in state.inputs]
    return sorted({one.channel for valve in valves for one in valve.channels if one.channel.node == node})


def _furthest_behind(
    sender: SubtaskId,
    in_flight: Mapping[tuple[SubtaskId, SubtaskId], Sequence[InFlight]],
    readers: Mapping[SubtaskId, OperatorWatermarkState[SubtaskId]],
) -> _View:
    """What the reader knew of a sender that had most of its times still to take."""
    found: list[tuple[int, _View]] = []
    for reader, state in readers.items():
        left = sum(not isinstance(one, RecordBatch) for one in in_flight.get((sender, reader), ()))
        for valve in state.inputs:
            views = (
                _View(one.watermark_ms, one.is_idle, valve.watermark_ms)
                for one in valve.channels
                if one.channel == sender
            )
            found += [(left, view) for view in views]
    return max(found, key=lambda one: one[0])[1]


def _aligned_from_the_end(channels: Sequence[Sequence[InFlight]]) -> list[InFlight]:
    """One sequence of the channels of one sender; see the module."""
    pieces = [_pieces(channel) for channel in channels]
    merged: list[InFlight] = []
    for left in range(max(len(times) for _, times in pieces), -1, -1):
        behind = [(batches, times) for batches, times in pieces if len(times) >= left]
        for batches, times in behind:
            merged += batches[len(times) - left]
        if left:
            _, times = behind[0]
            merged.append(times[len(times) - left])
    return merged


def _pieces(channel: Sequence[InFlight]) -> tuple[list[list[RecordBatch]], list[WatermarkElement]]:
    """The batches between the times of a channel, and the times; there is one piece more."""
    batches: list[list[RecordBatch]] = [[]]
    times: list[WatermarkElement] = []
    for element in channel:
        if isinstance(element, RecordBatch):
            batches[-1].append(element)
        else:
            times.append(element)
            batches.append([])
    return batches, times
