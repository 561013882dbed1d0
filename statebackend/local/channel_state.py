"""The parts of a subtask's state that are channel state, and their files.

``input_channels`` is there for every subtask whose barriers may overtake, since it says what the subtask knew of time;
``output_channels`` only with elements. A part without a file has no records. Both are of the format `FORMAT`, and their
bytes are those of `channel_state_bytes`; `channels_of_checkpoint` puts the parts of a checkpoint together again: of a
channel first what was its reader's, then what was its sender's.

How the records of an input are written when they belong to a checkpoint: as rows of the schema that is declared.

Where no schema is declared (plain elements, or what a step makes of records) nothing says what a record is, and
nothing is pickled: such an input has no form, and its channels are not overtaken.

The bytes of one part of channel state: meta data, which stands in the handle, and the elements, which are a file.

    meta     := "SBCS" version checksum body          checksum: XXH3 with 64 bits of the body, big-endian
    body     := i8 has time (0 or 1)  time?  i32(forms) form*  i32(channels) channel*
    time     := i64 watermark  i64 sent watermark  i8 has sent that it is idle  i32(inputs) input*
    input    := i64 watermark of its valve  i32(channels) (UTF node  i32 index  i64 watermark  i8 is idle)*
    form     := UTF uid of the reader  i32 input  i32(n) envelope
    channel  := UTF node  i32 index  i32 elements  i64 bytes       who is at the other end, and what of the file is its
    elements := element*                              those of a channel one behind the other, channels as in the meta
    element  := 01 i32 input  i64 sender's watermark  i8 has timestamps  i32(n) record*  (i8 is there  i64?)*
              | 02 i64 watermark | 03 (idle) | 04 (active)
    record   := i32(n) and what the serializer of the form's envelope writes

Of watermarks, the smallest time says that there is none, and the end of time is not kept: a source says it again.

Invariants, checked on both sides: a channel is named once and has elements; a form is named once; a batch has records,
as many timestamps if any, and a form for its input; watermarks that travel are neither of the two ends; sizes add up
to those of the file, which is at most `MAX_CHANNEL_STATE_BYTES`; no byte is left over. What reads the elements has the
forms of its own program, of the same envelopes: nothing in the bytes says which class reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import xxhash
from attrs import field, frozen

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import MalformedDataError, StateFormatError
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import OpaqueStateHandle, OperatorState, SubtaskState
from statebackend.local.network.channel import InFlight, RecordBatch, SubtaskId
from statebackend.local.network.channel_barriers import SubtaskCapture, SubtaskTime
from statebackend.streaming.errors import EpochError, JobDefinitionError, JobRestoreError, format_value
from statebackend.streaming.operators.operator import place_of_input
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.record_serializer import stored_form
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkStatus
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = [
    "FORMAT",
    "MAX_CHANNEL_STATE_BYTES",
    "ChannelContent",
    "ChannelStateMeta",
    "ChannelStateParts",
    "ChannelsOfCheckpoint",
    "InputName",
    "RecordForm",
    "RecordForms",
    "channel_parts",
    "channels_of_checkpoint",
    "decode_elements",
    "decode_meta",
    "encode_part",
    "forms_of_operators",
    "write_channel_state",
]


InputName = tuple[str, int]
"""The uid of an operator, and the index of one of its inputs."""


@frozen(eq=False)
class RecordForm:
    """Records of one schema; ``envelope`` is what their serializer is, by which the same form is known again."""

    envelope: bytes
    column_count: int
    record_class: type | None
    _serializer: TypeSerializer[Any]
    _to_stored: Callable[[Any], Any]
    _to_row: Callable[[Any], Any]

    def _is_row(self, record: Any) -> bool:
        return isinstance(record, tuple) and len(record) == self.column_count

    def to_bytes(self, record: Any) -> bytes:
        """Raises `StateFormatError` for what is no row of the schema."""
        kind = self.record_class
        if not (self._is_row(record) if kind is None else isinstance(record, kind)):
            raise MalformedDataError(
                f"{format_value(record, 200)} is no row of the {self.column_count} columns declared"
            )
        return self._serializer.to_bytes(self._to_stored(record))

    def from_bytes(self, data: bytes) -> Any:
        """The row; raises `StateFormatError` for bytes that are none."""
        source = DataInputView(data)
        stored = self._serializer.deserialize(source)
        if source.remaining:
            raise MalformedDataError(f"{source.remaining} bytes follow a record")
        try:
            return self._to_row(stored)
        except StateFormatError:
            raise
        except Exception as error:
            raise MalformedDataError(
                f"the columns of a record are none of the schema: {format_value(error, 200)}"
            ) from error


RecordForms = Mapping[InputName, RecordForm]
"""The forms of all inputs of a job that have one."""


def _record_form(schema: DeclaredSchema | None, where: str) -> RecordForm | None:
    """The form of rows of a schema; None without one, and for one with a column that no state can hold."""
    if schema is None:
        return None
    try:
        records = stored_form(schema, where)
    except JobDefinitionError:
        return None
    envelope = snapshot_to_bytes(records.serializer.snapshot_configuration())
    return RecordForm(
        envelope, len(schema.names), schema.record_class, records.serializer, records.to_stored, records.to_row
    )


def forms_of_operators(schemas: Mapping[str, Sequence[DeclaredSchema | None]]) -> RecordForms:
    """The forms of the inputs of operators, by their uids, of those inputs that have one."""
    forms = {
        (uid, index): _record_form(schema, place_of_input(uid, index, len(of_inputs)))
        for uid, of_inputs in schemas.items()
        for index, schema in enumerate(of_inputs)
    }
    return {name: form for name, form in forms.items() if form is not None}


MAX_CHANNEL_STATE_BYTES: Final = 1 << 30
"""Most bytes that the elements of one part may take."""

_MAGIC: Final = b"SBCS"
_VERSION: Final = 1
_CHECKSUM_BYTES: Final = 8

_BATCH, _WATERMARK, _IDLE, _ACTIVE = 1, 2, 3, 4

_STATUSES: Final = {_IDLE: WatermarkStatus.IDLE, _ACTIVE: WatermarkStatus.ACTIVE}


@frozen
class ChannelContent:
    """The other end of a channel, how many elements were in flight in it, and how many bytes of the file they take."""

    end: SubtaskId
    element_count: int
    size_bytes: int


@frozen
class ChannelStateMeta:
    """What is known of a part without its file; ``envelopes`` are those of the forms of the records in it."""

    time: SubtaskTime | None
    envelopes: Mapping[InputName, bytes]
    channels: Sequence[ChannelContent]

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return sum(one.size_bytes for one in self.channels)


def encode_part(
    time: SubtaskTime | None,
    channels: Mapping[SubtaskId, Sequence[InFlight]],
    reader_of: Callable[[SubtaskId], str],
    forms: RecordForms,
) -> tuple[bytes, bytes]:
    """The meta data and the elements of a part; ``reader_of`` says whose inputs the records of a channel are for.

    Raises `StateFormatError` for records that are none of their form, and for more than may be written.
    """
    out = DataOutputView()
    used: dict[InputName, RecordForm] = {}
    contents = []
    for end, elements in channels.items():
        start = out.position
        for element in elements:
            _write_element(out, element, reader_of(end), forms, used)
            if out.position > MAX_CHANNEL_STATE_BYTES:
                raise MalformedDataError(
                    f"what is on its way takes more than {MAX_CHANNEL_STATE_BYTES} bytes; let barriers wait, or give "
                    f"channels room for less"
                )
        contents.append(ChannelContent(end, len(elements), out.position - start))
    meta = ChannelStateMeta(time, {name: form.envelope for name, form in used.items()}, contents)
    return _encode_meta(meta), out.to_bytes()


def decode_meta(data: bytes) -> ChannelStateMeta:
    """The meta data of a part. Raises `StateFormatError` for what is none, or breaks an invariant."""
    source = DataInputView(data)
    if source.read(len(_MAGIC)) != _MAGIC:
        raise MalformedDataError("these bytes are no channel state")
    version = source.read_unsigned_byte()
    if version != _VERSION:
        raise MalformedDataError(f"channel state of version {version} was written by a later release; this reads 1")
    checksum, body = source.read(_CHECKSUM_BYTES), source.read(source.remaining)
    if xxhash.xxh3_64_digest(body) != checksum:
        raise MalformedDataError("the bytes of channel state are not those that were written")
    source = DataInputView(body)
    time = _read_time(source) if _read_flag(source) else None
    envelopes: dict[InputName, bytes] = {}
    for _ in range(source.read_count(10)):
        name = (source.read_utf(), source.read_int())
        _require(name not in envelopes, f"two forms of input {name[1]} of {name[0]!r}")
        envelopes[name] = source.read_sized_bytes()
    channels = [
        ChannelContent(SubtaskId(source.read_utf(), source.read_int()), source.read_int(), source.read_long())
        for _ in range(source.read_count(18))
    ]
    _require(not source.remaining, f"{source.remaining} bytes follow channel state")
    meta = ChannelStateMeta(time, envelopes, channels)
    _check(meta)
    return meta


def decode_elements(
    meta: ChannelStateMeta, data: bytes, reader_of: Callable[[SubtaskId], str], forms: RecordForms
) -> dict[SubtaskId, Sequence[InFlight]]:
    """What was in flight, by the other end of the channel.

    Raises `StateFormatError` for a file that is not that of the meta data, and for records of another form.
    """
    _require(len(data) == meta.size_bytes, f"the elements take {len(data)} bytes instead of {meta.size_bytes}")
    for (uid, index), envelope in meta.envelopes.items():
        form = forms.get((uid, index))
        if form is None or form.envelope != envelope:
            raise MalformedDataError(f"the records for input {index} of {uid!r} were rows of another schema")
    known = {name: form for name, form in forms.items() if name in meta.envelopes}
    source = DataInputView(data)
    found: dict[SubtaskId, Sequence[InFlight]] = {}
    for channel in meta.channels:
        end = source.position + channel.size_bytes
        reader = reader_of(channel.end)
        found[channel.end] = [_read_element(source, reader, known) for _ in range(channel.element_count)]
        _require(source.position == end, f"the elements of {channel.end} do not take {channel.size_bytes} bytes")
    return found


def _encode_meta(meta: ChannelStateMeta) -> bytes:
    _check(meta)
    out = DataOutputView()
    out.write_boolean(meta.time is not None)
    if meta.time is not None:
        _write_time(out, meta.time)
    out.write_int(len(meta.envelopes))
    for (uid, index), envelope in meta.envelopes.items():
        out.write_utf(uid)
        out.write_int(index)
        out.write_sized_bytes(envelope)
    out.write_int(len(meta.channels))
    for channel in meta.channels:
        _write_subtask(out, channel.end)
        out.write_int(channel.element_count)
        out.write_long(channel.size_bytes)
    body = out.to_bytes()
    return _MAGIC + bytes([_VERSION]) + xxhash.xxh3_64_digest(body) + body


def _check(meta: ChannelStateMeta) -> None:
    ends = [one.end for one in meta.channels]
    _require(len(set(ends)) == len(ends), "a channel is named twice")
    for one in meta.channels:
        _require(one.end.index >= 0, f"there is no subtask {one.end.index}")
        _require(0 < one.element_count <= one.size_bytes, f"the channel of {one.end} has no elements")
    _require(all(index >= 0 for _, index in meta.envelopes), "an input has a negative index")
    _require(meta.size_bytes <= MAX_CHANNEL_STATE_BYTES, f"more than {MAX_CHANNEL_STATE_BYTES} bytes of elements")


def _write_time(out: DataOutputView, time: SubtaskTime) -> None:
    out.write_long(_kept(time.own.watermark_ms))
    out.write_long(_kept(time.sent_watermark_ms))
    out.write_boolean(time.sent_status.is_idle)
    out.write_int(len(time.own.inputs))
    for valve in time.own.inputs:
        out.write_long(_kept(valve.watermark_ms))
        out.write_int(len(valve.channels))
        for channel in valve.channels:
            _write_subtask(out, channel.channel)
            out.write_long(_kept(channel.watermark_ms))
            out.write_boolean(channel.is_idle)


def _read_time(source: DataInputView) -> SubtaskTime:
    watermark_ms, sent_ms = _read_kept(source), _read_kept(source)
    status = WatermarkStatus.IDLE if _read_flag(source) else WatermarkStatus.ACTIVE
    valves = []
    for _ in range(source.read_count(12)):
        valve_ms = _read_kept(source)
        channels = tuple(
            ValveChannel(_read_subtask(source), _read_kept(source), _read_flag(source))
            for _ in range(source.read_count(15))
        )
        _require(bool(channels), "an input has no channels")
        _require(len({one.channel for one in channels}) == len(channels), "an input has a channel twice")
        valves.append(ValveState(valve_ms, channels))
    return SubtaskTime(OperatorWatermarkState(watermark_ms, tuple(valves)), sent_ms, status)


def _write_element(
    out: DataOutputView, element: InFlight, reader: str, forms: RecordForms, used: dict[InputName, RecordForm]
) -> None:
    if isinstance(element, RecordBatch):
        _write_batch(out, element, reader, forms, used)
    elif isinstance(element, Watermark):
        _require(_travels(element.timestamp_ms), "neither end of time is in flight")
        out.write_byte(_WATERMARK)
        out.write_long(element.timestamp_ms)
    else:
        out.write_byte(_IDLE if element.is_idle else _ACTIVE)


def _write_batch(
    out: DataOutputView, batch: RecordBatch, reader: str, forms: RecordForms, used: dict[InputName, RecordForm]
) -> None:
    name = (reader, batch.input_index)
    form = forms.get(name)
    if form is None:
        raise MalformedDataError(f"no schema is declared of the records for input {batch.input_index} of {reader!r}")
    _require(bool(batch.records), f"a batch for input {batch.input_index} of {reader!r} has no records")
    times = batch.timestamps
    _require(times is None or len(times) == len(batch.records), "a batch has more records than timestamps, or less")
    used[name] = form
    out.write_byte(_BATCH)
    out.write_int(batch.input_index)
    out.write_long(batch.sender_watermark_ms)
    out.write_boolean(times is not None)
    out.write_int(len(batch.records))
    for record in batch.records:
        out.write_sized_bytes(form.to_bytes(record))
    for time_ms in times or ():
        out.write_boolean(time_ms is not None)
        if time_ms is not None:
            out.write_long(time_ms)


def _read_element(source: DataInputView, reader: str, forms: RecordForms) -> InFlight:
    kind = source.read_unsigned_byte()
    if kind == _BATCH:
        return _read_batch(source, reader, forms)
    if kind == _WATERMARK:
        timestamp_ms = source.read_long()
        _require(_travels(timestamp_ms), "neither end of time is in flight")
        return Watermark(timestamp_ms)
    status = _STATUSES.get(kind)
    if status is None:
        raise MalformedDataError(f"there is no element of kind {kind}")
    return status


def _read_batch(source: DataInputView, reader: str, forms: RecordForms) -> RecordBatch:
    input_index, watermark_ms, has_times = source.read_int(), source.read_long(), _read_flag(source)
    form = forms.get((reader, input_index))
    if form is None:
        raise MalformedDataError(f"records for input {input_index} of {reader!r} are of no form that is named")
    count = source.read_count(4)
    _require(count > 0, f"a batch for input {input_index} of {reader!r} has no records")
    records = [form.from_bytes(source.read_sized_bytes()) for _ in range(count)]
    times = [source.read_long() if _read_flag(source) else None for _ in range(count)] if has_times else None
    return RecordBatch(input_index, records, times, sender_watermark_ms=watermark_ms)


def _write_subtask(out: DataOutputView, subtask: SubtaskId) -> None:
    out.write_utf(subtask.node)
    out.write_int(subtask.index)


def _read_subtask(source: DataInputView) -> SubtaskId:
    subtask = SubtaskId(source.read_utf(), source.read_int())
    _require(subtask.index >= 0, f"there is no subtask {subtask.index}")
    return subtask


def _read_flag(source: DataInputView) -> bool:
    flag = source.read_unsigned_byte()
    _require(flag <= 1, f"a flag is {flag}")
    return flag == 1


def _kept(watermark_ms: int) -> int:
    return MIN_TIMESTAMP if watermark_ms == MAX_TIMESTAMP else watermark_ms


def _read_kept(source: DataInputView) -> int:
    watermark_ms = source.read_long()
    _require(watermark_ms != MAX_TIMESTAMP, "the end of time is not kept")
    return watermark_ms


def _travels(timestamp_ms: int) -> bool:
    return MIN_TIMESTAMP < timestamp_ms < MAX_TIMESTAMP


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise MalformedDataError(message)


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
        raise _rejected(where, f"they are in the format {part.format!r}, which this release does not read")
    try:
        meta = decode_meta(part.meta)
        if [file.size_bytes for file in part.files] != [meta.size_bytes] * bool(meta.channels):
            raise _rejected(where, f"they take {meta.size_bytes} bytes, and the files named have others")
        if meta.size_bytes > MAX_CHANNEL_STATE_BYTES or not part.files:
            return meta.time, {}
        data = file_system.read_file(part.files[0])
        return meta.time, decode_elements(meta, data, lambda end: own.node if is_input else end.node, forms)
    except StateFormatError as error:
        raise _rejected(where, str(error)) from error


def _rejected(where: str, reason: str) -> JobRestoreError:
    return JobRestoreError(
        f"the records that were on their way in {where} cannot be read: {reason}. Nothing was changed; run the program "
        f"that wrote them, take a savepoint, and continue from that"
    )
