"""From the channel state of a checkpoint into the channels of a network that has done nothing yet.

Keys are not stored: a record has those that its input gives it, as when it was sent. So records of keyed inputs go to
who owns their key groups now, and those of inputs that are spread are dealt out one by one. Broadcast inputs have
nothing in flight. What is put into a channel is taken before anything else.

With the parallelism of the former run each subtask is where it was in event time, too; otherwise all subtasks of a node
begin where the one was that was furthest behind, and what is in flight brings them on (see `channel_redistribution`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from checkpointing.handles.operator_states import OperatorState
from savepoints.restored_state import RestoredState
from streamjobs.errors import JobRestoreError
from streamjobs.inprocess.channel_state.channel_redistribution import MergedChannels, merged_channels
from streamjobs.inprocess.channel_state.channel_state_parts import (
    ChannelsOfCheckpoint,
    channel_parts,
    channels_of_checkpoint,
)
from streamjobs.inprocess.channel_state.record_forms import forms_of_operators
from streamjobs.inprocess.local_operator import LocalOperator
from streamjobs.inprocess.local_stream import LocalStream
from streamjobs.inprocess.network.channel import Channel
from streamjobs.inprocess.network.elements import InFlight, RecordBatch, SubtaskId
from streamjobs.inprocess.network.network import Network
from streamjobs.inprocess.network.operator_subtask import OperatorSubtask
from streamjobs.time.operator_watermarks import OperatorWatermarkState
from streamjobs.time.status_watermark_valve import ValveChannel

__all__ = ["InFlightShares", "restore_channels", "restore_checkpoint"]


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
