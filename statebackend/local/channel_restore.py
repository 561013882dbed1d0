"""From the channel state of a checkpoint into the channels of a network that has done nothing yet.

Keys are not stored: a record has those that its input gives it, as when it was sent. So records of keyed inputs go to
who owns their key groups now, and those of inputs that are spread are dealt out one by one. Broadcast inputs have
nothing in flight. What is put into a channel is taken before anything else.

With the parallelism of the former run each subtask is where it was in event time, too; otherwise all subtasks of a node
begin where the one was that was furthest behind, and what is in flight brings them on (see `channel_redistribution`).

What was in flight between the subtasks of a former run, dealt out to those of this one.

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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from statebackend.checkpoint.state_handles import OperatorState
from statebackend.local.channel_state import (
    ChannelsOfCheckpoint,
    channel_parts,
    channels_of_checkpoint,
    forms_of_operators,
)
from statebackend.local.inputs import LocalStream
from statebackend.local.network.channel import Channel, InFlight, RecordBatch, SubtaskId
from statebackend.local.network.network import Network
from statebackend.local.network.subtasks import OperatorSubtask
from statebackend.local.operator import LocalOperator
from statebackend.savepoint.restored_state import RestoredState
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import StatusWatermarkValve, ValveChannel, ValveState
from statebackend.streaming.time.watermark_generators import WatermarkElement

__all__ = ["InFlightShares", "MergedChannels", "merged_channels", "restore_channels", "restore_checkpoint"]


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


@frozen
class InFlightShares:
    """To which subtasks of an operator records in flight belong, with keys again.

    ``learn_keys`` sees to it that the types of an operator's keys are known, as far as these records tell them.
    """

    operators: Mapping[str, LocalOperator]
    parallelism: int
    learn_keys: Callable[[LocalOperator, int, Sequence[Any]], None]

    def shares(self, uid: str, batch: RecordBatch) -> Sequence[RecordBatch]:
        """What each subtask is given of a batch; those that are given nothing have no records."""
        operator = self.operators[uid]
        self.learn_keys(operator, batch.input_index, batch.records)
        stream = LocalStream(batch.records, batch.timestamps)
        return [
            evolve(batch, records=one.records, timestamps=one.timestamps, keys=one.keys, key_groups=one.key_groups)
            for one in operator.partitioned(batch.input_index, stream, self.parallelism)
        ]

    def share_of(self, subtask: SubtaskId, batch: RecordBatch) -> RecordBatch:
        """A batch that belongs to a subtask; raises `JobRestoreError` if its records have other keys than they had."""
        if not self.operators[subtask.node].is_keyed(batch.input_index):
            return batch
        own = self.shares(subtask.node, batch)[subtask.index]
        if len(own.records) != len(batch.records):
            raise JobRestoreError(
                f"records on their way into input {batch.input_index} of operator {subtask.node!r} have other keys "
                f"than when the checkpoint was taken. Run the program that took it, take a savepoint, and continue "
                f"from that"
            )
        return own


def restore_checkpoint(network: Network, shares: InFlightShares, restored: RestoredState, *, has_time: bool) -> None:
    """Puts what was in flight in a checkpoint, for operators that the job has, into the channels.

    Raises what `channels_of_checkpoint` and `restore_channels` raise.
    """
    known = [one for one in restored.metadata.operators if one.uid in shares.operators]
    if any(part is not None for one in known for state in one.subtasks for part in channel_parts(state)):
        forms = forms_of_operators({uid: one.row_schemas for uid, one in shares.operators.items()})
        former = channels_of_checkpoint(known, restored.file_system, forms)
        restore_channels(network, shares, former, known, has_time=has_time)


def restore_channels(
    network: Network,
    shares: InFlightShares,
    former: ChannelsOfCheckpoint,
    operators: Sequence[OperatorState],
    *,
    has_time: bool,
) -> None:
    """Puts what was in flight into the channels, behind `restore_network` where there is event time.

    ``operators`` are those of the checkpoint. Raises `JobRestoreError` for what was on its way to where nothing reads
    it.
    """
    channels = {(one.sender, one.reader): one for subtask in network.operators for one in subtask.channels}
    _check_ways(former, channels)
    same = {one.uid for one in operators if one.parallelism == shares.parallelism}
    kept = {one.node for way in channels for one in way if one.node not in shares.operators} | same
    if has_time:
        _restore_times(network, former, same)
    merged: set[tuple[str, str]] = set()
    for (sender, reader), elements in former.in_flight.items():
        if sender.node in kept and reader.node in kept:
            channels[sender, reader].put_restored(
                [shares.share_of(reader, one) if isinstance(one, RecordBatch) else one for one in elements]
            )
        else:
            merged.add((sender.node, reader.node))
    for sender_node, reader_node in sorted(merged):
        _restore_merged(network, shares, former, sender_node, reader_node, has_time)


def _check_ways(former: ChannelsOfCheckpoint, channels: Mapping[tuple[SubtaskId, SubtaskId], Channel]) -> None:
    inputs: dict[tuple[str, str], set[int]] = {}
    for (sender, reader), channel in channels.items():
        inputs.setdefault((sender.node, reader.node), set()).update(channel.inputs)
    for (sender, reader), elements in former.in_flight.items():
        fed = inputs.get((sender.node, reader.node), set())
        unread = [one.input_index for one in elements if isinstance(one, RecordBatch) and one.input_index not in fed]
        if unread or not fed:
            to = f"input {unread[0]} of {reader.node!r}" if unread else repr(reader.node)
            raise JobRestoreError(
                f"records were on their way from {sender.node!r} to {to}, where this job leads none. Nothing was "
                f"changed; run the program that took the checkpoint, take a savepoint, and continue from that"
            )


def _restore_times(network: Network, former: ChannelsOfCheckpoint, same: set[str]) -> None:
    for subtask in network.operators:
        time = former.times.get(subtask.subtask_id)
        if time is not None and subtask.subtask_id.node in same:
            subtask.watermarks.restore(time.own, time.sent_status)
            subtask.work.begin_at(time.own.watermark_ms)
            subtask.output.restore(time.sent_watermark_ms, time.sent_status)
    outputs = {one.subtask_id: one.output for one in network.sources}
    outputs.update({one.subtask_id: one.output for one in network.operators})
    network.output.restore(outputs)


def _restore_merged(
    network: Network,
    shares: InFlightShares,
    former: ChannelsOfCheckpoint,
    sender_node: str,
    reader_node: str,
    has_time: bool,
) -> None:
    """Puts all that was on its way between two nodes into the channels of the first subtask that sends now."""
    readers = {one: time.own for one, time in former.times.items() if one.node == reader_node}
    merged = merged_channels(sender_node, former.in_flight, readers)
    subtasks = sorted(
        (one for one in network.operators if one.subtask_id.node == reader_node), key=lambda one: one.subtask_id
    )
    sequences: list[list[InFlight]] = [[] for _ in subtasks]
    for element in merged.elements:
        if isinstance(element, RecordBatch):
            for sequence, share in zip(sequences, shares.shares(reader_node, element), strict=True):
                sequence.extend([share] if share.records else [])
        else:
            for sequence in sequences:
                sequence.append(element)
    for subtask, sequence in zip(subtasks, sequences, strict=True):
        [channel] = [one for one in subtask.channels if one.sender == SubtaskId(sender_node, 0)]
        channel.put_restored(sequence)
        if has_time:
            subtask.watermarks.restore(_from(subtask, merged), subtask.output.status)


def _from(subtask: OperatorSubtask, merged: MergedChannels) -> OperatorWatermarkState[SubtaskId]:
    """Where a subtask stands: what was in flight comes by one channel, and the others are where it ends."""

    def placed(channel: ValveChannel[SubtaskId]) -> ValveChannel[SubtaskId]:
        if channel.channel.node != merged.begins.channel:
            return channel
        given = merged.begins if channel.channel.index == 0 else merged.ends
        return ValveChannel(channel.channel, given.watermark_ms, given.is_idle)

    state = subtask.watermarks.snapshot()
    return evolve(state, inputs=tuple(evolve(one, channels=tuple(map(placed, one.channels))) for one in state.inputs))
