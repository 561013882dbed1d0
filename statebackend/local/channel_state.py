"""Channel state: the in-flight elements of a subtask in a checkpoint, as bytes and as files.

``input_channels`` exists for every subtask whose barriers may overtake, because it has the event time of the subtask;
``output_channels`` only with elements. A part without a file has no elements. Of a channel, the part of its reader
precedes that of its sender.

Records are written as rows of the declared schema of their input. Without one, nothing says what a record is, and
nothing is pickled: barriers do not overtake on the channels of such an input.

A part is metadata, which is in the handle, and elements, which are a file:

    meta     := "SBCH" i32(version) checksum body      checksum: XXH3 with 64 bits of the body, big-endian
    body     := i8 has time (0 or 1)  time?  i32(forms) form*  i32(channels) channel*
    time     := i64 watermark  i64 sent watermark  i8 has sent that it is idle  i32(inputs) input*
    input    := i64 watermark of its valve  i32(channels) (UTF node  i32 index  i64 watermark  i8 is idle)*
    form     := UTF uid of the reader  i32 input  i32(n) envelope
    channel  := UTF node  i32 index  i32 elements  i64 bytes       the other end, and its share of the file
    elements := element*                              channel by channel, as in the metadata
    element  := 01 i32 input  i64 sender's watermark  i8 has timestamps  i32(n) record*  (i8 is there  i64?)*
              | 02 i64 watermark | 03 (idle) | 04 (active)
    record   := i32(n) and the output of the serializer in the envelope of the form

The smallest time means no watermark. The end of time is not stored: a source sends it again.

Invariants, checked when writing and reading: a channel is named once and has elements; a form is named once; a batch
has records, a timestamp for each if any, and a form for its input; no watermark in flight is the smallest or
the largest time; sizes add up to that of the file, at most `MAX_CHANNEL_STATE_BYTES`; no bytes are left over. The
reader uses the forms of its own program with equal envelopes: the bytes do not name classes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import xxhash
from attrs import field, frozen

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import MalformedDataError, StateFormatError, format_value
from snapshots.format_versions import read_header, write_header
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.errors import CheckpointError, InvariantViolationError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import OpaqueStateHandle, OperatorState, SubtaskState
from statebackend.local.network.channel import InFlight, RecordBatch
from statebackend.local.network.channel_barriers import SubtaskCapture, SubtaskTime
from statebackend.streaming.errors import EpochError, JobDefinitionError, JobRestoreError
from statebackend.streaming.operators.operator import place_of_input
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.record_serializer import stored_form
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkStatus
from typeserializers.kernel.type_serializer import TypeSerializer

_FORMAT: Final = "channel_state"
"""The format of the handles of both parts; written to disk and frozen."""

MAX_CHANNEL_STATE_BYTES: Final = 1 << 30
"""The most bytes that the elements of one part may take."""

_MAGIC: Final = b"SBCH"
_VERSION: Final = 1
_CHECKSUM_BYTES: Final = 8
_BATCH, _WATERMARK, _IDLE, _ACTIVE = 1, 2, 3, 4
_STATUSES: Final = {_IDLE: WatermarkStatus.IDLE, _ACTIVE: WatermarkStatus.ACTIVE}

InputName = tuple[str, int]
"""The uid of an operator, and the index of one of its inputs."""


@frozen(eq=False)
class RecordForm:
    """Writes and reads records of one schema; ``envelope`` is the snapshot of their serializer."""

    envelope: bytes
    column_count: int
    record_class: type | None
    _serializer: TypeSerializer[Any]
    _to_stored: Callable[[Any], Any]
    _to_row: Callable[[Any], Any]

    def to_bytes(self, record: Any) -> bytes:
        """Raises `StateFormatError` for a record that is not a row of the schema."""
        is_row = isinstance(record, tuple) and len(record) == self.column_count
        _require(
            is_row if self.record_class is None else isinstance(record, self.record_class),
            lambda: f"{format_value(record, 200)} is not a row of the {self.column_count} columns declared",
        )
        return self._serializer.to_bytes(self._to_stored(record))

    def from_bytes(self, data: bytes) -> Any:
        """Raises `StateFormatError` for bytes that are not a row."""
        source = DataInputView(data)
        stored = self._serializer.deserialize(source)
        _require(not source.remaining, lambda: f"{source.remaining} bytes follow a record")
        try:
            return self._to_row(stored)
        except StateFormatError:
            raise
        except Exception as error:
            raise MalformedDataError(
                f"the columns of a record are not those of the schema: {format_value(error, 200)}"
            ) from error


RecordForms = Mapping[InputName, RecordForm]
"""The forms of all inputs of a job that have one."""


def forms_of_operators(schemas: Mapping[str, Sequence[DeclaredSchema | None]]) -> RecordForms:
    """The forms of the inputs of operators, by uid. An input without a schema, or with a column that no state can
    hold, has no form.
    """
    forms: dict[InputName, RecordForm] = {}
    for uid, of_inputs in schemas.items():
        for index, schema in enumerate(of_inputs):
            if schema is None:
                continue
            with contextlib.suppress(JobDefinitionError):
                records = stored_form(schema, place_of_input(uid, index, len(of_inputs)))
                envelope = snapshot_to_bytes(records.serializer.snapshot_configuration())
                forms[uid, index] = RecordForm(
                    envelope,
                    len(schema.names),
                    schema.record_class,
                    records.serializer,
                    records.to_stored,
                    records.to_row,
                )
    return forms


@frozen
class ChannelContent:
    """The other end of a channel, the number of its in-flight elements, and their bytes in the file."""

    end: TaskId
    element_count: int
    size_bytes: int


@frozen
class ChannelStateMeta:
    """The metadata of a part; ``envelopes`` are those of the forms of its records. Checks the invariants."""

    time: SubtaskTime | None
    envelopes: Mapping[InputName, bytes]
    channels: Sequence[ChannelContent]

    def __attrs_post_init__(self) -> None:
        ends = [one.end for one in self.channels]
        _require(len(set(ends)) == len(ends), "a channel is named twice")
        for one in self.channels:
            _require(0 < one.element_count <= one.size_bytes, f"the channel of {one.end} has no elements")
        _require(all(index >= 0 for _, index in self.envelopes), "an input has a negative index")
        _require(self.size_bytes <= MAX_CHANNEL_STATE_BYTES, f"more than {MAX_CHANNEL_STATE_BYTES} bytes of elements")

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return sum(one.size_bytes for one in self.channels)


def encode_part(
    time: SubtaskTime | None,
    channels: Mapping[TaskId, Sequence[InFlight]],
    reader_of: Callable[[TaskId], str],
    forms: RecordForms,
) -> tuple[bytes, bytes]:
    """Encode the metadata and the elements of a part; ``reader_of`` returns the operator that reads a channel.

    Raises `StateFormatError` for records of another form, and for too many bytes.
    """
    out = DataOutputView()
    used: dict[InputName, RecordForm] = {}
    contents = []
    for end, elements in channels.items():
        start = out.position
        for element in elements:
            _write_element(out, element, reader_of(end), forms, used)
            _require(
                out.position <= MAX_CHANNEL_STATE_BYTES,
                f"the in-flight data takes more than {MAX_CHANNEL_STATE_BYTES} bytes; use aligned checkpoints, or "
                f"channels of a smaller capacity",
            )
        contents.append(ChannelContent(end, len(elements), out.position - start))
    meta = ChannelStateMeta(time, {name: form.envelope for name, form in used.items()}, contents)
    return _encode_meta(meta), out.to_bytes()


def decode_meta(data: bytes) -> ChannelStateMeta:
    """Decode the metadata of a part. Raises `StateFormatError` for other bytes, or a broken invariant."""
    source = DataInputView(data)
    read_header(source, _MAGIC, _VERSION, "channel state")
    checksum, body = source.read(_CHECKSUM_BYTES), source.read(source.remaining)
    _require(xxhash.xxh3_64_digest(body) == checksum, "the bytes of channel state are not those that were written")
    source = DataInputView(body)
    time = _read_time(source) if _read_flag(source) else None
    envelopes: dict[InputName, bytes] = {}
    for _ in range(source.read_count(10)):
        name = (source.read_utf(), source.read_int())
        _require(name not in envelopes, f"two forms of input {name[1]} of {name[0]!r}")
        envelopes[name] = source.read_sized_bytes()
    channels = [
        ChannelContent(_read_task(source), source.read_int(), source.read_long()) for _ in range(source.read_count(18))
    ]
    _require(not source.remaining, lambda: f"{source.remaining} bytes follow channel state")
    return ChannelStateMeta(time, envelopes, channels)


def decode_elements(
    meta: ChannelStateMeta, data: bytes, reader_of: Callable[[TaskId], str], forms: RecordForms
) -> dict[TaskId, Sequence[InFlight]]:
    """Decode the in-flight elements, by the other end of the channel.

    Raises `StateFormatError` for a file that does not fit the metadata, and for records of another form.
    """
    _require(len(data) == meta.size_bytes, f"the elements take {len(data)} bytes instead of {meta.size_bytes}")
    for (uid, index), envelope in meta.envelopes.items():
        form = forms.get((uid, index))
        is_same = form is not None and form.envelope == envelope
        _require(is_same, f"the records for input {index} of {uid!r} were rows of another schema")
    known = {name: form for name, form in forms.items() if name in meta.envelopes}
    source = DataInputView(data)
    found: dict[TaskId, Sequence[InFlight]] = {}
    for channel in meta.channels:
        end = source.position + channel.size_bytes
        reader = reader_of(channel.end)
        found[channel.end] = [_read_element(source, reader, known) for _ in range(channel.element_count)]
        _require(source.position == end, f"the elements of {channel.end} do not take {channel.size_bytes} bytes")
    return found


def _encode_meta(meta: ChannelStateMeta) -> bytes:
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
        _write_task(out, channel.end)
        out.write_int(channel.element_count)
        out.write_long(channel.size_bytes)
    body = out.to_bytes()
    out = DataOutputView()
    write_header(out, _MAGIC, _VERSION)
    out.write(xxhash.xxh3_64_digest(body))
    out.write(body)
    return out.to_bytes()


def _write_time(out: DataOutputView, time: SubtaskTime) -> None:
    _write_watermark(out, time.own.watermark_ms)
    _write_watermark(out, time.sent_watermark_ms)
    out.write_boolean(time.sent_status.is_idle)
    out.write_int(len(time.own.inputs))
    for valve in time.own.inputs:
        _write_watermark(out, valve.watermark_ms)
        out.write_int(len(valve.channels))
        for channel in valve.channels:
            _write_task(out, channel.channel)
            _write_watermark(out, channel.watermark_ms)
            out.write_boolean(channel.is_idle)


def _read_time(source: DataInputView) -> SubtaskTime:
    watermark_ms, sent_ms = _read_watermark(source), _read_watermark(source)
    status = WatermarkStatus.IDLE if _read_flag(source) else WatermarkStatus.ACTIVE
    valves = []
    for _ in range(source.read_count(12)):
        valve_ms = _read_watermark(source)
        channels = tuple(
            ValveChannel(_read_task(source), _read_watermark(source), _read_flag(source))
            for _ in range(source.read_count(15))
        )
        _require(bool(channels), "an input has no channels")
        _require(len({one.channel for one in channels}) == len(channels), "an input has a channel twice")
        valves.append(ValveState(valve_ms, channels))
    return SubtaskTime(OperatorWatermarkState(watermark_ms, tuple(valves)), sent_ms, status)


def _write_element(
    out: DataOutputView, element: InFlight, reader: str, forms: RecordForms, used: dict[InputName, RecordForm]
) -> None:
    if isinstance(element, Watermark):
        _require(
            MIN_TIMESTAMP < element.timestamp_ms < MAX_TIMESTAMP,
            "a watermark in flight is neither the smallest nor the largest time",
        )
        out.write_byte(_WATERMARK)
        out.write_long(element.timestamp_ms)
        return
    if not isinstance(element, RecordBatch):
        out.write_byte(_IDLE if element.is_idle else _ACTIVE)
        return
    index, records, times = element.input_index, element.records, element.timestamps
    form = forms.get((reader, index))
    if form is None:
        raise MalformedDataError(f"the records for input {index} of {reader!r} have no declared schema")
    _require(bool(records), f"a batch for input {index} of {reader!r} has no records")
    _require(times is None or len(times) == len(records), "a batch has more or fewer timestamps than records")
    used[reader, index] = form
    out.write_byte(_BATCH)
    out.write_int(index)
    out.write_long(element.sender_watermark_ms)
    out.write_boolean(times is not None)
    out.write_int(len(records))
    for record in records:
        out.write_sized_bytes(form.to_bytes(record))
    for time_ms in times or ():
        out.write_boolean(time_ms is not None)
        if time_ms is not None:
            out.write_long(time_ms)


def _read_element(source: DataInputView, reader: str, forms: RecordForms) -> InFlight:
    kind = source.read_unsigned_byte()
    if kind == _WATERMARK:
        timestamp_ms = source.read_long()
        _require(
            MIN_TIMESTAMP < timestamp_ms < MAX_TIMESTAMP,
            "a watermark in flight is neither the smallest nor the largest time",
        )
        return Watermark(timestamp_ms)
    if kind in _STATUSES:
        return _STATUSES[kind]
    _require(kind == _BATCH, f"there is no element of kind {kind}")
    index, watermark_ms, has_times = source.read_int(), source.read_long(), _read_flag(source)
    form = forms.get((reader, index))
    if form is None:
        raise MalformedDataError(f"the records for input {index} of {reader!r} have a form that is not named")
    count = source.read_count(4)
    _require(count > 0, f"a batch for input {index} of {reader!r} has no records")
    records = [form.from_bytes(source.read_sized_bytes()) for _ in range(count)]
    times = [source.read_long() if _read_flag(source) else None for _ in range(count)] if has_times else None
    return RecordBatch(index, records, times, sender_watermark_ms=watermark_ms)


def _write_task(out: DataOutputView, task: TaskId) -> None:
    out.write_utf(task.operator_uid)
    out.write_int(task.subtask_index)


def _read_task(source: DataInputView) -> TaskId:
    try:
        return TaskId(source.read_utf(), source.read_int())
    except InvariantViolationError as error:
        raise MalformedDataError(str(error)) from error


def _read_flag(source: DataInputView) -> bool:
    flag = source.read_unsigned_byte()
    _require(flag <= 1, f"a flag is {flag}")
    return flag == 1


def _write_watermark(out: DataOutputView, watermark_ms: int) -> None:
    out.write_long(MIN_TIMESTAMP if watermark_ms == MAX_TIMESTAMP else watermark_ms)


def _read_watermark(source: DataInputView) -> int:
    watermark_ms = source.read_long()
    _require(watermark_ms != MAX_TIMESTAMP, "the end of time is not stored")
    return watermark_ms


def _require(condition: bool, message: str | Callable[[], str]) -> None:
    if not condition:
        raise MalformedDataError(message if isinstance(message, str) else message())


@frozen
class ChannelsOfCheckpoint:
    """The in-flight elements of a checkpoint by (sender, reader), in order, and the event time of each subtask."""

    in_flight: Mapping[tuple[TaskId, TaskId], Sequence[InFlight]] = field(factory=dict)
    times: Mapping[TaskId, SubtaskTime] = field(factory=dict)


def write_channel_state(
    capture: SubtaskCapture,
    subtask: TaskId,
    forms: RecordForms,
    file_system: CheckpointFileSystem,
    file_prefix: str,
) -> SubtaskState:
    """Write what the channels of a subtask captured, to files with this prefix; on failure no file remains.

    Raises `EpochError` for records that are not rows of their schema, and for too many bytes.
    """

    def written(
        time: SubtaskTime | None, channels: Mapping[TaskId, Sequence[InFlight]], reader: str | None
    ) -> OpaqueStateHandle:
        name = "out" if reader is None else "in"
        try:
            meta, data = encode_part(time, channels, lambda end: reader or end.operator_uid, forms)
        except StateFormatError as error:
            raise EpochError(
                f"subtask {subtask.subtask_index} of operator {subtask.operator_uid!r}, "
                f"checkpoint {capture.checkpoint_id}: the records in flight ({name}) cannot be written: {error}"
            ) from error
        if not data:
            return OpaqueStateHandle(_FORMAT, meta)
        path = f"{file_prefix}-{capture.checkpoint_id:012d}-channels-{name}"
        return OpaqueStateHandle(_FORMAT, meta, (file_system.write_file(path, data),))

    inputs = written(capture.time, capture.inputs, subtask.operator_uid)
    if not capture.outputs:
        return SubtaskState(input_channels=inputs)
    try:
        return SubtaskState(input_channels=inputs, output_channels=written(None, capture.outputs, None))
    except (EpochError, CheckpointError):
        for file in inputs.files:
            file_system.delete(file.path)
        raise


def channels_of_checkpoint(
    operators: Iterable[OperatorState], file_system: CheckpointFileSystem, forms: RecordForms
) -> ChannelsOfCheckpoint:
    """Read the in-flight elements of these operators in a checkpoint.

    Raises `JobRestoreError` for data that this program cannot read, `CorruptFileError` or `MissingFileError`.
    """
    of_readers: dict[tuple[TaskId, TaskId], Sequence[InFlight]] = {}
    of_senders: dict[tuple[TaskId, TaskId], Sequence[InFlight]] = {}
    times: dict[TaskId, SubtaskTime] = {}
    for operator in operators:
        for index, state in enumerate(operator.subtasks):
            own = TaskId(operator.uid, index)
            time, received = _read_part(state.input_channels, own, True, file_system, forms)
            if time is not None:
                times[own] = time
            of_readers.update({(end, own): elements for end, elements in received.items()})
            _, sent = _read_part(state.output_channels, own, False, file_system, forms)
            of_senders.update({(own, end): elements for end, elements in sent.items()})
    in_flight = {way: [*of_readers.get(way, ()), *of_senders.get(way, ())] for way in {**of_readers, **of_senders}}
    return ChannelsOfCheckpoint(in_flight, times)


def _read_part(
    part: OpaqueStateHandle | None,
    own: TaskId,
    is_input: bool,
    file_system: CheckpointFileSystem,
    forms: RecordForms,
) -> tuple[SubtaskTime | None, Mapping[TaskId, Sequence[InFlight]]]:
    if part is None:
        return None, {}
    try:
        _require(part.format == _FORMAT, f"their format {part.format!r} is not known to this release")
        meta = decode_meta(part.meta)
        sizes = [file.size_bytes for file in part.files]
        _require(
            sizes == [meta.size_bytes] * bool(meta.channels),
            f"they take {meta.size_bytes} bytes, and the files named have other sizes",
        )
        if not part.files:
            return meta.time, {}
        data = file_system.read_file(part.files[0])
        return meta.time, decode_elements(
            meta, data, lambda end: own.operator_uid if is_input else end.operator_uid, forms
        )
    except StateFormatError as error:
        raise JobRestoreError(
            f"subtask {own.subtask_index} of operator {own.operator_uid!r} at {file_system.location('')}: its records "
            f"in flight cannot be read: {error}. Nothing was changed. Run the program that wrote them, take a "
            f"savepoint, and continue from that"
        ) from error
