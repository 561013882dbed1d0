"""The parts of a subtask's state that are channel state, and their files.

``input_channels`` is there for every subtask whose barriers may overtake, since it says what the subtask knew of time;
``output_channels`` only with elements. A part without a file has no records. Both are of the format `FORMAT`, and their
bytes are those of `channel_state_bytes`; `channels_of_checkpoint` puts the parts of a checkpoint together again: of a
channel first what was its reader's, then what was its sender's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from checkpointing.errors import CheckpointError
from checkpointing.handles.operator_states import OperatorState
from checkpointing.handles.state_handles import OpaqueStateHandle, SubtaskState
from checkpointing.storage.file_system import CheckpointFileSystem
from snapshots.errors import StateFormatError
from streamjobs.errors import EpochError, JobRestoreError
from streamjobs.inprocess.channel_state.channel_state_bytes import (
    MAX_CHANNEL_STATE_BYTES,
    decode_elements,
    decode_meta,
    encode_part,
)
from streamjobs.inprocess.channel_state.record_forms import RecordForms
from streamjobs.inprocess.network.elements import InFlight, SubtaskId
from streamjobs.inprocess.network.subtask_capture import SubtaskCapture, SubtaskTime

__all__ = [
    "FORMAT",
    "ChannelStateParts",
    "ChannelsOfCheckpoint",
    "channel_parts",
    "channels_of_checkpoint",
    "write_channel_state",
]

FORMAT: Final = "channel_state"
"""The format of both handles; written to disk and frozen."""


@frozen
class ChannelStateParts:
    """The two parts of a `SubtaskState`, and how many bytes were in flight in them."""

    input_channels: OpaqueStateHandle | None = None
    output_channels: OpaqueStateHandle | None = None

    @property
    def in_flight_bytes(self) -> int:
        """The size of what was captured, in bytes."""
        parts = (self.input_channels, self.output_channels)
        return sum(file.size_bytes for part in parts if part is not None for file in part.files)


@frozen
class ChannelsOfCheckpoint:
    """What was in flight from which subtask to which, in order; and what each subtask knew of time, if it was kept."""

    in_flight: Mapping[tuple[SubtaskId, SubtaskId], Sequence[InFlight]] = field(factory=dict)
    times: Mapping[SubtaskId, SubtaskTime] = field(factory=dict)


def channel_parts(state: SubtaskState) -> tuple[OpaqueStateHandle | None, OpaqueStateHandle | None]:
    """The two parts of a subtask's state that are channel state."""
    return state.input_channels, state.output_channels


def write_channel_state(
    capture: SubtaskCapture,
    subtask: SubtaskId,
    forms: RecordForms,
    file_system: CheckpointFileSystem,
    file_prefix: str,
) -> ChannelStateParts:
    """Writes what a subtask has captured, in files whose names begin so; nothing is left of what cannot be written.

    Raises `EpochError` for records that are no rows of their schema, or more than may be written.
    """

    def written(
        time: SubtaskTime | None, channels: Mapping[SubtaskId, Sequence[InFlight]], reader: str | None
    ) -> OpaqueStateHandle:
        name = "out" if reader is None else "in"
        try:
            meta, data = encode_part(time, channels, lambda end: reader or end.node, forms)
        except StateFormatError as error:
            raise EpochError(
                f"subtask {subtask.index} of operator {subtask.node!r}: what was on its way {name} when checkpoint "
                f"{capture.checkpoint_id} was taken cannot be written: {error}"
            ) from error
        if not data:
            return OpaqueStateHandle(FORMAT, meta)
        path = f"{file_prefix}-{capture.checkpoint_id:012d}-channels-{name}"
        return OpaqueStateHandle(FORMAT, meta, (file_system.write_file(path, data),))

    inputs = written(capture.time, capture.inputs, subtask.node)
    if not capture.outputs:
        return ChannelStateParts(inputs)
    try:
        return ChannelStateParts(inputs, written(None, capture.outputs, None))
    except (EpochError, CheckpointError):
        for file in inputs.files:
            file_system.delete(file.path)
        raise


def channels_of_checkpoint(
    operators: Iterable[OperatorState], file_system: CheckpointFileSystem, forms: RecordForms
) -> ChannelsOfCheckpoint:
    """What was in flight in a checkpoint, of the operators given.

    Raises `JobRestoreError` for what cannot be read by this program, `CorruptFileError` or `MissingFileError` for files
    that are not those that were written.
    """
    of_readers: dict[tuple[SubtaskId, SubtaskId], list[InFlight]] = {}
    of_senders: dict[tuple[SubtaskId, SubtaskId], list[InFlight]] = {}
    times: dict[SubtaskId, SubtaskTime] = {}
    for operator in operators:
        for index, state in enumerate(operator.subtasks):
            own = SubtaskId(operator.uid, index)
            time, received = _read(state.input_channels, own, True, file_system, forms)
            if time is not None:
                times[own] = time
            of_readers.update({(end, own): list(elements) for end, elements in received.items()})
            _, sent = _read(state.output_channels, own, False, file_system, forms)
            of_senders.update({(own, end): list(elements) for end, elements in sent.items()})
    in_flight = {way: [*of_readers.get(way, ()), *of_senders.get(way, ())] for way in {**of_readers, **of_senders}}
    return ChannelsOfCheckpoint(in_flight, times)


def _read(
    part: OpaqueStateHandle | None,
    own: SubtaskId,
    is_input: bool,
    file_system: CheckpointFileSystem,
    forms: RecordForms,
) -> tuple[SubtaskTime | None, Mapping[SubtaskId, Sequence[InFlight]]]:
    if part is None:
        return None, {}
    where = f"subtask {own.index} of operator {own.node!r} at {file_system.location('')}"
    if part.format != FORMAT:
        raise _refused(where, f"they are in the format {part.format!r}, which this release does not read")
    try:
        meta = decode_meta(part.meta)
        if [file.size_bytes for file in part.files] != [meta.size_bytes] * bool(meta.channels):
            raise _refused(where, f"they take {meta.size_bytes} bytes, and the files named have others")
        if meta.size_bytes > MAX_CHANNEL_STATE_BYTES or not part.files:
            return meta.time, {}
        data = file_system.read_file(part.files[0])
        return meta.time, decode_elements(meta, data, lambda end: own.node if is_input else end.node, forms)
    except StateFormatError as error:
        raise _refused(where, str(error)) from error


def _refused(where: str, reason: str) -> JobRestoreError:
    return JobRestoreError(
        f"the records that were on their way in {where} cannot be read: {reason}. Nothing was changed; run the program "
        f"that wrote them, take a savepoint, and continue from that"
    )
