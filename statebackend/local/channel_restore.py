"""From the channel state of a checkpoint to the channels of a new network.

Keys are not stored: the input computes the key of each record again. A record of a keyed input goes to the subtask
that owns its key group. Records of an input without keys are distributed one by one. Broadcast inputs have nothing in
flight. A subtask takes restored elements before all others.

With the same parallelism every channel gets its former elements, and every subtask its former event time. With another
parallelism, all elements from one node to another become one sequence, from which each subtask takes its records:

    former channels       s0 -> r0:  a W5 b        s0 -> r1:  c W5 d W7 e
    by watermarks left    s0 -> r0:           a W5 b
                          s0 -> r1:  c W5 d W7 e        s0 sent the same watermarks to both; r1 is further behind

    aligned from the end  s0:  c | W5 | a d | W7 | b e

A sender sends the same watermarks and statuses on all its channels. So the channels of one sender differ only in how
many of them their readers have taken. Aligned from their ends, these channels become one sequence, in which each record
follows the same watermarks as before. The sequences of several senders follow one another, and their watermarks pass
a valve, as they did at the reader. For each sender, the valve starts where the slowest reader was. All subtasks of a
node start there.

Invariants: every record is in the sequence once; records of one channel keep their order and their place among its
watermarks; watermarks of the sequence increase, and never exceed the watermark that a former reader would have
reached; at its end, event time is the minimum over the former senders. All subtasks of a node take the same watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.state_handles import OperatorState
from statebackend.local.channel_state import ChannelsOfCheckpoint, channels_of_checkpoint, forms_of_operators
from statebackend.local.graph import LocalOperator, LocalStream
from statebackend.local.network.channel import InFlight, RecordBatch
from statebackend.local.network.network import Network
from statebackend.local.network.subtasks import OperatorSubtask
from statebackend.savepoint.restored_state import RestoredState
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import StatusWatermarkValve, ValveChannel, ValveState
from statebackend.streaming.time.watermark_generators import WatermarkElement

Readers = Mapping[TaskId, OperatorWatermarkState[TaskId]]
"""The former subtasks of a node, with what each knew of event time."""


@frozen
class MergedChannels:
    """All in-flight elements from one node to another, and the event time at their start and end."""

    elements: Sequence[InFlight]
    begins: ValveChannel[str]
    ends: ValveChannel[str]


def merged_channels(
    node: str, in_flight: Mapping[tuple[TaskId, TaskId], Sequence[InFlight]], readers: Readers
) -> MergedChannels:
    """Merge the channels from a node to the former ``readers``, in time proportional to elements and channels.

    Raises `JobRestoreError` if they do not know a sender.
    """
    senders = sorted({sender for sender, reader in in_flight if sender.operator_uid == node and reader in readers})
    valves = [valve for state in readers.values() for valve in state.inputs]
    known = sorted({one.channel for valve in valves for one in valve.channels if one.channel.operator_uid == node})
    views = {sender: _furthest_behind(sender, in_flight, readers) for sender in known}
    missing = [sender for sender in senders if sender not in views]
    if missing:
        to = next(reader.operator_uid for sender, reader in in_flight if sender == missing[0] and reader in readers)
        raise _inconsistent(missing[0], to, "has no event time of this channel")
    channels = tuple(ValveChannel(one, view.watermark_ms, view.is_idle) for one, view in sorted(views.items()))
    # The former reader did not wait for a channel that was behind its valve.
    active = [max(view.watermark_ms, view.valve_ms) for view in views.values() if not view.is_idle]
    begins_ms = min(active) if active else max(view.watermark_ms for view in views.values())
    valve = StatusWatermarkValve.restored(ValveState(begins_ms, channels))
    begins = ValveChannel(node, begins_ms, valve.status.is_idle)
    elements: list[InFlight] = []
    for sender in senders:
        for element in _aligned_from_the_end([in_flight.get((sender, reader), ()) for reader in sorted(readers)]):
            if isinstance(element, RecordBatch):
                elements.append(element)
            else:
                elements += valve.take(sender, element)
    return MergedChannels(elements, begins, ValveChannel(node, valve.watermark_ms, valve.status.is_idle))


@frozen
class _View:
    """A channel as one of its readers knew it, and the watermark of its valve."""

    watermark_ms: int
    is_idle: bool
    valve_ms: int


def _furthest_behind(
    sender: TaskId, in_flight: Mapping[tuple[TaskId, TaskId], Sequence[InFlight]], readers: Readers
) -> _View:
    """The view of the reader that had taken the fewest watermarks and statuses of a sender."""
    found: list[tuple[int, _View]] = []
    for reader, state in readers.items():
        left = sum(not isinstance(one, RecordBatch) for one in in_flight.get((sender, reader), ()))
        for valve in state.inputs:
            own = (one for one in valve.channels if one.channel == sender)
            found += [(left, _View(one.watermark_ms, one.is_idle, valve.watermark_ms)) for one in own]
    return max(found, key=lambda one: one[0])[1]


def _aligned_from_the_end(channels: Sequence[Sequence[InFlight]]) -> list[InFlight]:
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
    """The batches between the watermarks and statuses of a channel (one piece more), and those."""
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
    """Assigns in-flight records to the subtasks of an operator, and gives them their keys again.

    ``learn_keys`` sets the types of an operator's keys from a record, if they are not known.
    """

    operators: Mapping[str, LocalOperator]
    parallelism: int
    learn_keys: Callable[[LocalOperator, int, Sequence[Any]], None]

    def shares(self, uid: str, batch: RecordBatch) -> Sequence[RecordBatch]:
        """The records of a batch for each subtask."""
        operator = self.operators[uid]
        self.learn_keys(operator, batch.input_index, batch.records)
        stream = LocalStream(batch.records, batch.timestamps)
        return [
            evolve(batch, records=one.records, timestamps=one.timestamps, keys=one.keys, key_groups=one.key_groups)
            for one in operator.partitioned(batch.input_index, stream, self.parallelism)
        ]

    def share_of(self, subtask: TaskId, batch: RecordBatch) -> RecordBatch:
        """A batch of a subtask; raises `JobRestoreError` if its records have other keys than they had."""
        if not self.operators[subtask.operator_uid].is_keyed(batch.input_index):
            return batch
        own = self.shares(subtask.operator_uid, batch)[subtask.subtask_index]
        if len(own.records) != len(batch.records):
            raise JobRestoreError(
                f"in-flight records for input {batch.input_index} of operator {subtask.operator_uid!r} have other keys "
                f"than when the checkpoint was taken. Run the program that took it, take a savepoint, and "
                f"continue from that"
            )
        return own


def restore_checkpoint(network: Network, shares: InFlightShares, restored: RestoredState, *, has_time: bool) -> None:
    """Put the in-flight elements of a checkpoint, for operators that the job has, into the channels.

    Without ``has_time`` these are only records, because event time starts again.

    Raises what `channels_of_checkpoint` and `restore_channels` raise.
    """
    known = [one for one in restored.metadata.operators if one.uid in shares.operators]
    states = [state for one in known for state in one.subtasks]
    if any(one.input_channels is not None or one.output_channels is not None for one in states):
        forms = forms_of_operators({uid: one.row_schemas for uid, one in shares.operators.items()})
        former = channels_of_checkpoint(known, restored.file_system, forms)
        if not has_time:
            former = evolve(former, in_flight={way: _records(one) for way, one in former.in_flight.items()})
        restore_channels(network, shares, former, known, has_time=has_time)


def _records(elements: Sequence[InFlight]) -> Sequence[InFlight]:
    return [one for one in elements if isinstance(one, RecordBatch)]


def restore_channels(
    network: Network,
    shares: InFlightShares,
    former: ChannelsOfCheckpoint,
    operators: Sequence[OperatorState],
    *,
    has_time: bool,
) -> None:
    """Put in-flight elements into the channels; with event time, after `restore_network`.

    ``operators`` are those of the checkpoint. Raises `JobRestoreError` for elements that no subtask would read, and for
    elements of a channel or reader that the checkpoint does not have.
    """
    channels = {(one.sender, one.reader): one for subtask in network.operators for one in subtask.channels}
    inputs: dict[tuple[str, str], set[int]] = {}
    for (sender, reader), channel in channels.items():
        inputs.setdefault((sender.operator_uid, reader.operator_uid), set()).update(channel.inputs)
    for (sender, reader), elements in former.in_flight.items():
        _check_is_read(
            sender.operator_uid,
            reader.operator_uid,
            elements,
            inputs.get((sender.operator_uid, reader.operator_uid), set()),
        )
        if reader not in former.times:
            raise _inconsistent(sender, reader.operator_uid, f"has no event time of subtask {reader.subtask_index}")
    same = {one.uid for one in operators if one.parallelism == shares.parallelism}
    kept = {one.operator_uid for way in channels for one in way if one.operator_uid not in shares.operators} | same
    if has_time:
        _restore_times(network, former, same)
    merged: set[tuple[str, str]] = set()
    for (sender, reader), elements in former.in_flight.items():
        if sender.operator_uid in kept and reader.operator_uid in kept:
            if (sender, reader) not in channels:
                raise _inconsistent(
                    sender, reader.operator_uid, f"has no channel from it to subtask {reader.subtask_index}"
                )
            channels[sender, reader].put_restored(
                [shares.share_of(reader, one) if isinstance(one, RecordBatch) else one for one in elements]
            )
        else:
            merged.add((sender.operator_uid, reader.operator_uid))
    for sender_node, reader_node in sorted(merged):
        _restore_merged(network, shares, former, sender_node, reader_node, has_time)


def _check_is_read(sender: str, reader: str, elements: Sequence[InFlight], inputs: set[int]) -> None:
    unread = [one.input_index for one in elements if isinstance(one, RecordBatch) and one.input_index not in inputs]
    if unread or not inputs:
        to = f"input {unread[0]} of {reader!r}" if unread else repr(reader)
        raise JobRestoreError(
            f"the checkpoint has records in flight from {sender!r} to {to}, but this job does not connect them. "
            f"Nothing was changed. Run the program that took the checkpoint, take a savepoint, and continue from that"
        )


def _inconsistent(sender: TaskId, reader: str, reason: str) -> JobRestoreError:
    return JobRestoreError(
        f"the checkpoint has records in flight from subtask {sender.subtask_index} of {sender.operator_uid!r} to "
        f"{reader!r}, but {reason}. Its files are damaged or forged. Nothing was changed. Restore another checkpoint"
    )


def _restore_times(network: Network, former: ChannelsOfCheckpoint, same: set[str]) -> None:
    for subtask in network.operators:
        time = former.times.get(subtask.task)
        if time is not None and subtask.task.operator_uid in same:
            subtask.watermarks.restore(time.own, time.sent_status)
            subtask.work.watermark_ms = time.own.watermark_ms
            subtask.output.restore(time.sent_watermark_ms, time.sent_status)
    outputs = {one.task: one.output for one in network.sources}
    outputs.update({one.task: one.output for one in network.operators})
    network.output.restore(outputs)


def _restore_merged(
    network: Network,
    shares: InFlightShares,
    former: ChannelsOfCheckpoint,
    sender_node: str,
    reader_node: str,
    has_time: bool,
) -> None:
    """Put all in-flight elements between two nodes into the channels of the first subtask that sends now."""
    readers = {one: time.own for one, time in former.times.items() if one.operator_uid == reader_node}
    merged = merged_channels(sender_node, former.in_flight, readers)
    subtasks = sorted(
        (one for one in network.operators if one.task.operator_uid == reader_node), key=lambda one: one.task
    )
    sequences: list[list[InFlight]] = [[] for _ in subtasks]
    for element in merged.elements:
        of_subtasks: Sequence[InFlight]
        if isinstance(element, RecordBatch):
            of_subtasks = shares.shares(reader_node, element)
        else:
            of_subtasks = [element] * len(subtasks)
        for sequence, one in zip(sequences, of_subtasks, strict=True):
            if not isinstance(one, RecordBatch) or one.records:
                sequence.append(one)
    for subtask, sequence in zip(subtasks, sequences, strict=True):
        [channel] = [one for one in subtask.channels if one.sender == TaskId(sender_node, 0)]
        channel.put_restored(sequence)
        if has_time:
            subtask.watermarks.restore(_start_of(subtask, merged), subtask.output.status)


def _start_of(subtask: OperatorSubtask, merged: MergedChannels) -> OperatorWatermarkState[TaskId]:
    """The event time of a subtask: the first channel is at the start of the merged elements, the others at the end."""

    def placed(channel: ValveChannel[TaskId]) -> ValveChannel[TaskId]:
        if channel.channel.operator_uid != merged.begins.channel:
            return channel
        given = merged.begins if channel.channel.subtask_index == 0 else merged.ends
        return ValveChannel(channel.channel, given.watermark_ms, given.is_idle)

    state = subtask.watermarks.snapshot()
    return evolve(state, inputs=tuple(evolve(one, channels=tuple(map(placed, one.channels))) for one in state.inputs))
