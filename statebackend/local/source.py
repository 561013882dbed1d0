"""The sources of a local job: records and watermarks in, and the positions of replayable sources as state.

If the program assigns timestamps, watermarks come from its strategy, and the source's own watermarks are ignored except
the end of time. Otherwise the source's own watermarks go on, as those of a test source do.

The position of a split counts as read when its records have been sent. A piece that was fed but not read at a barrier
is read again after a restore. Positions are an operator state under the uid of the source: a split list of
`(name of the split, position)`.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import path_segment
from statebackend.checkpoint.metadata import ChannelWatermark
from statebackend.local.graph import LocalStream, column_getter, field_getter
from statebackend.local.network.channel import SubtaskOutput
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.operator_state_backend import OperatorStateSnapshotTask
from statebackend.streaming.errors import (
    JobDefinitionError,
    JobRestoreError,
    StreamJobError,
    UserFunctionError,
    describe_exception,
)
from statebackend.streaming.rows.columnar import Columnar
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.row_reader import column_values
from statebackend.streaming.runtime.source_offsets import (
    IDENTITIES,
    SPLITS,
    SplitOffset,
    offset_of_splits,
    positions_backend,
)
from statebackend.streaming.stream_graph import ReplayableSource, SourceNode, SplitRead, StreamEdge, TimestampsNode
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, timestamp_of, timestamps_of
from statebackend.streaming.time.timestamps_and_watermarks import TimedChannel, TimestampsAndWatermarks
from statebackend.streaming.time.watermark_generators import END_OF_TIME, WatermarkElement, WatermarkStatus
from statebackend.streaming.watermark_strategy import channel_name


@frozen
class _Timestamps:
    """How the records of a source get their timestamps."""

    node: TimestampsNode
    timestamp_of_record: Callable[[Any], Any]
    times_of_records: Callable[[Sequence[Any]], list[int | None]]
    channel_of_record: Callable[[Any], str] | None
    time: TimestampsAndWatermarks[Any]


class LocalSource:
    """A source under its ``name`` in checkpoints; ``clock`` is the processing time in milliseconds."""

    def __init__(
        self,
        node: SourceNode,
        name: str,
        timestamps_node: TimestampsNode | None,
        output: SubtaskOutput,
        clock: Callable[[], int],
        *,
        has_time: bool,
    ) -> None:
        self.send: Callable[[StreamEdge, LocalStream], None]
        """Sends records of an output to its readers; set when the network is built."""
        self._edge = StreamEdge(node)
        self._where = f"source {name!r}"
        self._name = name
        self._output = output
        self._clock = clock
        self._has_time = has_time
        self._largest: dict[str, int] = {}
        self._timestamps = None if timestamps_node is None else self._timestamps_of(timestamps_node)

    @property
    def watermark_ms(self) -> int:
        """The last watermark; `MIN_TIMESTAMP` before the first."""
        return self._output.watermark_ms

    @property
    def is_idle(self) -> bool:
        return self._output.status.is_idle

    def read(self, records: Sequence[Any], timestamps: Sequence[int | None] | None = None) -> None:
        """Send records, with the timestamps that they came with, if any.

        Raises:
            StreamJobError: The timestamp of a record is invalid, or there are too many channels.
            UserFunctionError: A watermark generator or a function of the strategy raised.
        """
        if self._has_time and timestamps is None:
            timestamps = [None] * len(records)
        self.send(self._edge, LocalStream(records, timestamps))

    def read_and_emit_periodically(self, records: Sequence[Any]) -> None:
        """Send records, then what the strategy emits periodically."""
        self.read(records)
        self.emit_periodically()

    def read_time(self, element: WatermarkElement) -> None:
        """Take a watermark or a status of the source itself."""
        self._send_time(self._timestamps.time.on_upstream(element) if self._timestamps is not None else (element,))

    def read_given_time(self, element: WatermarkElement) -> None:
        """Send a watermark or a status that a test gives, also if the records get timestamps from a strategy."""
        self._send_time(self._timestamps.time.on_given(element) if self._timestamps is not None else (element,))

    def emit_periodically(self) -> None:
        """Send what the strategy emits periodically; called when processing time advances."""
        if self._timestamps is None:
            return
        try:
            elements = self._timestamps.time.on_periodic_emit(self._clock())
        except Exception as error:
            raise _generator_failed(self._where, error) from error
        self._send_time(elements)

    def end_of_input(self) -> None:
        """Send the end of time. An idle source stays idle, as in Flink; a strategy makes it active."""
        self.read_time(END_OF_TIME)

    def assign_timestamps(self, stream: LocalStream) -> None:
        """Send records with their timestamps, and each watermark after the record that caused it."""
        given = self._timestamps
        assert given is not None
        times_of_all = self._timed_together(given, stream.records)
        if times_of_all is not None:
            self.send(StreamEdge(given.node), LocalStream(stream.records, times_of_all))
            return
        on_time: list[int] = []
        future: list[int] = []
        times: list[int | None] = [None] * len(stream.records)
        timed = LocalStream(stream.records, times)

        def send() -> None:
            self.send(StreamEdge(given.node), timed.of(on_time))
            self.send(StreamEdge(given.node, given.node.strategy.future_tag), timed.of(future))
            on_time.clear()
            future.clear()

        for index, record in enumerate(stream.records):
            times[index], is_beyond_limit, elements = self._timed(given, record)
            (future if is_beyond_limit else on_time).append(index)
            if elements:
                send()
                self._send_time(elements)
        send()

    def channels(self) -> list[ChannelWatermark]:
        """The state of its channels, for a checkpoint."""
        if self._timestamps is None:
            return []
        now_ms, time = self._clock(), self._timestamps.time
        known = time.channels() or {"": TimedChannel(time.watermark_ms, time.status.is_idle)}
        return [
            ChannelWatermark(
                source=self._name,
                channel=str(channel),
                largest_timestamp_ms=self._largest.get(str(channel)),
                watermark_ms=None if one.watermark_ms == MIN_TIMESTAMP else one.watermark_ms,
                last_active_ms=now_ms,
                is_idle=one.is_idle,
            )
            for channel, one in known.items()
        ]

    def restore(self, watermark_ms: int, status: WatermarkStatus, channels: Sequence[ChannelWatermark]) -> None:
        """Continue from a checkpoint: what was sent, and the state of the channels of this source."""
        self._output.restore(watermark_ms, status)
        if self._timestamps is None:
            return
        self._largest = {
            one.channel: one.largest_timestamp_ms for one in channels if one.largest_timestamp_ms is not None
        }
        self._timestamps.time.restore(
            watermark_ms,
            status,
            {
                one.channel: TimedChannel(
                    MIN_TIMESTAMP if one.watermark_ms in (None, MAX_TIMESTAMP) else one.watermark_ms or 0, one.is_idle
                )
                for one in channels
                # Alone it stands for a source without channels.
                if one.channel != "" or len(channels) > 1
            },
        )

    def _timestamps_of(self, node: TimestampsNode) -> _Timestamps:
        strategy = node.strategy
        column = _no_timestamp if strategy.timestamps is None else strategy.timestamps
        get_timestamp = self._getter(column, "with_timestamps")
        channel_of_record = None
        if strategy.channel is not None:
            get_channel = self._getter(strategy.channel, "with_channel")

            def channel_of_record(record: Any) -> str:
                return channel_name(get_channel(record))

        try:
            time = strategy.timestamps_and_watermarks(None, channel_of_record)
        except StreamJobError:
            raise
        except Exception as error:
            what = f"{self._where}: its watermark generator cannot be created: {describe_exception(error)}"
            raise UserFunctionError(what) from error
        # The getter of a function adds the record to its errors.
        get_all = column_getter(get_timestamp if callable(column) else column, self._where, "with_timestamps")

        def times_of_records(records: Sequence[Any]) -> list[int | None]:
            times = _times_in_columns(records, column)
            return timestamps_of(get_all(records)) if times is None else times

        return _Timestamps(node, get_timestamp, times_of_records, channel_of_record, time)

    def _getter(self, column: Any, given_to: str) -> Callable[[Any], Any]:
        get = field_getter(column, self._where, given_to)
        if not callable(column):
            return get

        def named(record: Any) -> Any:
            try:
                return get(record)
            except Exception as error:
                what = f"{self._where}, record {format_value(record, 200)}: the function of {given_to} raised"
                raise UserFunctionError(f"{what} {describe_exception(error)}") from error

        return named

    def _timed_together(self, given: _Timestamps, records: Sequence[Any]) -> list[int | None] | None:
        """The timestamps of records, or None if they must be timed one by one."""
        try:
            times = given.times_of_records(records)
        except (TypeError, ValueError, UserFunctionError):
            # Timed one by one, the record raises the error.
            return None
        if not given.time.on_timestamps(times, self._clock()):
            return None
        largest_ms = max((time for time in times if time is not None), default=None)
        if largest_ms is not None:
            self._largest[""] = max(largest_ms, self._largest.get("", largest_ms))
        return times

    def _timed(self, given: _Timestamps, record: Any) -> tuple[int | None, bool, Sequence[WatermarkElement]]:
        try:
            time_ms = timestamp_of(given.timestamp_of_record(record))
        except (TypeError, ValueError) as error:
            raise StreamJobError(f"{self._where}, record {format_value(record, 200)}: {error}") from error
        try:
            made = given.time.on_record(record, time_ms, self._clock())
        except StreamJobError:
            raise
        except Exception as error:
            raise _generator_failed(f"{self._where}, record {format_value(record, 200)}", error) from error
        if time_ms is not None and not made.is_beyond_limit:
            channel = "" if given.channel_of_record is None else given.channel_of_record(record)
            self._largest[channel] = max(time_ms, self._largest.get(channel, time_ms))
        return time_ms, made.is_beyond_limit, made.elements

    def _send_time(self, elements: Sequence[WatermarkElement]) -> None:
        for element in elements:
            self._output.send_time(element)


def _no_timestamp(record: Any) -> None:
    """The timestamp of a record of a strategy without timestamps."""


def _times_in_columns(records: Sequence[Any], column: Any) -> list[int | None] | None:
    """The timestamps of records in columns, as `timestamps_of`; None if they are read from the objects."""
    if not isinstance(records, Columnar) or column not in records.columns.schema.names:
        return None
    times = records.columns.column(column)
    if pa.types.is_int64(times.type):
        return column_values(times)
    if not pa.types.is_timestamp(times.type):
        return None
    return [None if us is None else us // 1000 for us in column_values(times.cast(pa.int64()))]


def _generator_failed(where: str, error: Exception) -> UserFunctionError:
    return UserFunctionError(f"{where}: its watermark generator raised {describe_exception(error)}")


_POSITIONS: Final = 1 << 63
A_POSITION: Final = "a position is a whole number of 64 bits"


@frozen
class ReplayedSource:
    """A replayable source of the program; its records are rows of the schema if it is declared."""

    source: ReplayableSource = field(eq=False)
    schema: DeclaredSchema | None = None
    elements: tuple[Any, ...] = field(default=(), init=False)
    """No elements are known before the source is read."""


_BATCH_BYTES: Final = 16 << 20
"""Batches of this size are not concatenated."""


class ArrowRows:
    """A replayable source of Arrow data, with one split. Its positions are numbers of rows.

    ``open_reader`` returns a reader of the same rows each time. A restart opens another one and skips rows.
    """

    def __init__(self, open_reader: Callable[[], pa.RecordBatchReader]) -> None:
        self._open_reader = open_reader
        self._reader: pa.RecordBatchReader | None = None
        self._position = 0
        self._rest: pa.RecordBatch | None = None
        """The rows of the last batch from the position on; None at the end of the data."""

    def splits(self) -> Mapping[str, int]:
        return {"rows": 0}

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        if self._reader is None or position != self._position:
            self.close()
            self._reader, self._position = self._open_reader(), 0
            self._rest = self._following(self._reader)
            while self._position < position:
                self._take(self._reader, position - self._position)
        batches: list[pa.RecordBatch] = []
        until, size = self._position + max_records, 0
        while self._rest is not None and self._position < until and size < _BATCH_BYTES:
            batches.append(self._take(self._reader, until - self._position))
            size += batches[-1].nbytes
        rows = pa.concat_batches(batches) if len(batches) > 1 else batches[0] if batches else ()
        return SplitRead(rows, self._position, self._rest is None)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = self._rest = None

    def _take(self, reader: pa.RecordBatchReader, most: int) -> pa.RecordBatch:
        """Take rows of the current batch."""
        if self._rest is None:
            raise ValueError(f"the data has {self._position} rows, fewer than were read before")
        taken, rest = self._rest.slice(0, most), self._rest.slice(most)
        self._position += taken.num_rows
        self._rest = rest if rest.num_rows else self._following(reader)
        return taken

    @staticmethod
    def _following(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
        """The next batch that has rows."""
        return next((batch for batch in reader if batch.num_rows), None)


class SplitPositions:
    """The positions of the splits of a source, and their state; for the thread of the run.

    Raises `JobRestoreError` if a split has disappeared that may have more records, and `StreamJobError` if a split was
    created again.
    """

    def __init__(self, uid: str, source: ReplayableSource, restored: RestoredState | None, own: CheckpointFileSystem):
        self._source, self._uid = source, uid
        self._backend = positions_backend(uid, restored, own, f"shared/{path_segment(uid)}/00000")
        stored = SplitOffset.of_state(self._backend)
        if not stored.positions and restored is not None:
            stored = offset_of_splits(restored.metadata.source_positions, uid)
        known = stored.positions
        try:
            given = source.splits()
        except Exception as error:
            raise UserFunctionError(f"source {uid!r}: splits() raised {describe_exception(error)}") from error
        there = _checked_splits(uid, given)
        gone = sorted(known.keys() - there.keys())
        if gone:
            raise JobRestoreError(
                f"source {uid!r}: split {gone[0]!r}, which was read up to position {known[gone[0]]}, no longer exists, "
                f"so its other records would be lost. Restore the split, or give the source another uid and pass "
                f"allow_non_restored_state=True to read all splits again"
            )
        # Nothing of these was read, so another split of the same name is read from its start.
        unread = {name for name, position in known.items() if position == there[name] == 0}
        if known and hasattr(source, "position_of_new_split"):
            new = {name: source.position_of_new_split(name) for name in there if name not in known}
            there = {**there, **_checked_splits(uid, new)}
        self.now: dict[str, int] = {**there, **known}
        """The position of each split after the records that were sent."""
        identities = {name: one for name, one in stored.identities.items() if name not in unread}
        self._identities: Mapping[str, str] = identities
        self._identify()

    def freeze(self, checkpoint_id: int) -> OperatorStateSnapshotTask:
        """Freeze the positions, to be written on any thread. Raises `StreamJobError` if a split was created again."""
        self._identify()
        self._backend.get_state(SPLITS).update(sorted(self.now.items()))
        if self._identities:
            self._backend.get_state(IDENTITIES).update(sorted(self._identities.items()))
        return self._backend.prepare_snapshot(checkpoint_id, uuid.uuid4().hex)

    def _identify(self) -> None:
        now, where = SplitOffset(self.now, self._identities), f"source {self._uid!r}"
        option = "allow_non_restored_state=True to read all splits again"
        self._identities = now.identified_by(self._source, where, option).identities

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Later checkpoints may refer to the files of this one."""
        self._backend.notify_checkpoint_complete(checkpoint_id)

    def close(self) -> None:
        """Cancel what is being written, and close the source if it can be closed."""
        self._backend.close()
        close = getattr(self._source, "close", None)
        if close is not None:
            close()


def position_of(given: object) -> int | None:
    """A position as an `int`; None for an object that is not a position."""
    try:
        position = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return None
    return position if not isinstance(given, bool) and -_POSITIONS <= position < _POSITIONS else None


def _checked_splits(uid: str, given: object) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, begin in given.items() if isinstance(given, Mapping) else [(None, None)]:
        position = position_of(begin)
        if not isinstance(name, str) or position is None:
            raise JobDefinitionError(
                f"source {uid!r}: splits() returned {format_value(given, 200)}; it must return the first position of "
                f"each split by the name of the split, such as {{'file-1': 0}}, and {A_POSITION}"
            )
        found[name] = position
    return found
