"""The protocol of operators (Flink's ``StreamOperator``, with batches instead of records).

A subtask makes these calls, in one thread:

1. ``open``, once. The operator registers its state, and restored state is migrated.
2. ``process_batch``, ``on_watermark``, ``on_event_time_timer`` and ``on_processing_time_timer``, any number of times in
   any order. A batch contains records of one input.
3. ``prepare_snapshot``, at the barrier, before the state is frozen. When it returns, everything the operator held
   outside of state is in state or emitted. Records after the barrier may follow.
4. ``close``, last, also after a failure.

An operator emits only through its `Emitter`, and only between open and close. It does not know the source or the target
of its records, and takes the time from its calls.

`OrderedOutput` collects rows that are emitted one by one, for example by windows and timers. It passes consecutive rows
of the same output to the emitter in one call. It encodes a row when it is added, because the function may change it
later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa
from attrs import frozen

from statebackend.checkpoint.metadata import ChannelTimestamp
from statebackend.streaming.errors import NullKeyError
from statebackend.streaming.operators.subtask_context import SubtaskContext
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.columnar import Columnar
from statebackend.streaming.rows.row_reader import column_values, keys_of_columns
from statebackend.streaming.rows.row_writer import ENCODER_WITHOUT_SCHEMA, RowEncoder
from statebackend.streaming.stream_graph import name_of_input
from statebackend.streaming.time.internal_timer_service import DueTimers

__all__ = [
    "BatchPlaces",
    "CollectingEmitter",
    "ColumnBatch",
    "Emission",
    "Emitter",
    "InputBatch",
    "ObjectBatch",
    "Operator",
    "OrderedOutput",
    "check_keys",
    "place_of_input",
]


@frozen
class ObjectBatch:
    """Records with their keys, key groups and timestamps, as lists of the same length."""

    columns: ClassVar[None] = None
    record_columns: ClassVar[None] = None
    key_columns: ClassVar[None] = None
    places: ClassVar[None] = None

    records: Sequence[Any]
    keys: Sequence[Any]
    key_groups: Sequence[int]
    timestamps: Sequence[int | None] | None = None
    channel_timestamps: Collection[ChannelTimestamp] = ()
    is_early: bool = False


@frozen(eq=False)
class BatchPlaces:
    """The key columns, key groups and timestamps of a batch, as Arrow arrays.

    ``objects_of`` creates the records that a mask selects, with their keys, key groups and timestamps.
    """

    keys: Sequence[pa.Array]
    key_groups: pa.Array
    timestamps: pa.Array
    objects_of: Callable[[pa.Array], ObjectBatch]

    def only(self, mask: pa.Array) -> BatchPlaces:
        """Return the places of the selected records. ``objects_of`` still expects masks over all records."""
        keys = [column.filter(mask) for column in self.keys]
        return BatchPlaces(keys, self.key_groups.filter(mask), self.timestamps.filter(mask), self.objects_of)


@frozen(eq=False)
class ColumnBatch:
    """An `InputBatch` over records in columns. If its keys are in columns, so are its key groups."""

    channel_timestamps: ClassVar[Collection[ChannelTimestamp]] = ()
    is_early: ClassVar[bool] = False

    _records: Columnar
    keys: Sequence[Any]
    key_groups: Sequence[int]
    timestamps: Sequence[int | None] | None = None

    @property
    def records(self) -> Sequence[Any]:
        return self._records.objects

    @property
    def columns(self) -> pa.RecordBatch:
        return self._records.columns

    record_columns = columns

    @property
    def key_columns(self) -> tuple[Sequence[pa.Array], pa.Array] | None:
        keys, key_groups = self.keys, self.key_groups
        if not isinstance(keys, Columnar) or not isinstance(key_groups, Columnar):
            return None
        return keys.columns.columns, key_groups.columns.column(0)

    @cached_property
    def places(self) -> BatchPlaces | None:
        of_keys, times = self.key_columns, self.timestamps
        if of_keys is None:
            return None
        (keys, key_groups), count = of_keys, len(self._records)
        timestamps = pa.nulls(count, pa.int64()) if times is None else pa.array(times, pa.int64())

        def objects_of(mask: pa.Array) -> ObjectBatch:
            return ObjectBatch(
                self._records.filtered(mask).objects,
                keys_of_columns([column.filter(mask) for column in keys]),
                column_values(key_groups.filter(mask)),
                column_values(timestamps.filter(mask)),
            )

        return BatchPlaces(keys, key_groups, timestamps, objects_of)


def place_of_input(operator_uid: str, index: int, count: int) -> str:
    """Return the name of an operator's input for error messages. It has an index if there are several inputs."""
    return f"operator {operator_uid!r}" if count == 1 else f"operator {operator_uid!r}, {name_of_input(index)}"


def check_keys(place: str, keys: Sequence[Any], is_composite: bool) -> None:
    """Raise `NullKeyError` if a key of an input, or a part of a composite key, is None."""
    has_null = any(None in key for key in keys) if is_composite else None in keys
    if has_null:
        raise NullKeyError(
            f"{place}: a record has a null key; filter such records out, or give them a key, before key_by"
        )


class InputBatch(Protocol):
    """Records of one input of a subtask in order, with their keys, key groups and timestamps.

    Objects are created on demand, so an operator that reads columns does not pay for them. Reading objects raises
    `NullKeyError` for a record without a key, and `StreamJobError` for a value that Python cannot represent.
    """

    @property
    def columns(self) -> pa.RecordBatch | None:
        """The records as Arrow columns, or None if they never were in columns."""

    @property
    def record_columns(self) -> pa.RecordBatch | None:
        """The columns of the records alone, or None if they never were in columns."""

    @property
    def key_columns(self) -> tuple[Sequence[pa.Array], pa.Array] | None:
        """The columns of the key, and the key groups, as arrays without nulls; None if they never were in columns."""

    @property
    def places(self) -> BatchPlaces | None:
        """Keys and times as columns, or None if they never were in columns or a key is null."""

    @property
    def records(self) -> Sequence[Any]:
        """The records as objects."""

    @property
    def keys(self) -> Sequence[Any]:
        """The key of each record. Keys and key groups are empty for a broadcast input."""

    @property
    def key_groups(self) -> Sequence[int]:
        """The key group of each record. All belong to the subtask."""

    @property
    def timestamps(self) -> Sequence[int | None] | None:
        """The timestamp of each record in milliseconds, or None. The list is None if no record has one."""

    @property
    def channel_timestamps(self) -> Collection[ChannelTimestamp]:
        """The largest timestamp per source channel of the records; empty for records of operators."""

    @property
    def is_early(self) -> bool:
        """Whether the records were sent before the watermark of the epoch."""


class Emitter(Protocol):
    """Receives what an operator emits."""

    records_out: Counter[OutputTag[Any] | None]
    """The rows of each output so far."""

    @property
    def side_outputs(self) -> Collection[OutputTag[Any]]:
        """The side outputs that have a reader. Others need not be emitted."""

    def encoder(self, tag: OutputTag[Any] | None) -> RowEncoder:
        """Encodes each row when a function emits it, before the function continues."""

    def emit(
        self, tag: OutputTag[Any] | None, rows: Sequence[Any], timestamps: Sequence[int | None] | None = None
    ) -> None:
        """Receive encoded rows of the output or, with a tag, of a side output.

        ``timestamps`` are in milliseconds; None means that no row has one. Calls keep their order, also across tags.
        """

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Receive a watermark from an operator that holds watermarks back. It follows all rows emitted before."""


class Operator(ABC):
    """An operator in one subtask. The module documents the order of calls, which the caller ensures."""

    holds_watermarks: ClassVar[bool] = False
    """Whether it emits watermarks itself. Watermarks of other operators are forwarded after `on_watermark`."""

    fires_together: bool = False
    """Whether firing event-time timers never registers or deletes timers. Valid after `open`.

    If True, the caller passes due timers to `on_event_time_timers` and does not set their keys before.
    """

    in_flight_timeout_ms: int | None = None
    """How long what is in flight after `prepare_snapshot` may take; None if nothing is in flight."""

    late_records: Mapping[OutputTag[Any] | None, int] = MappingProxyType({})
    """The number of late records since `open`, by side output. Under None is the number of dropped records."""

    @property
    def holds_output(self) -> bool:
        """Whether it holds back rows or watermarks now. The idle status of its subtask waits for them."""
        return False

    @abstractmethod
    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        """Register state.

        Raises:
            UserFunctionError: A user function failed. Errors of state and its files are raised unchanged.
        """

    @abstractmethod
    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        """Process records of an input, by its index in the node.

        Raises:
            UserFunctionError: A user function failed. The message names key and record.
        """

    def on_watermark(self, timestamp_ms: int) -> None:  # noqa: B027
        """Handle a new watermark. Timers that it makes due have fired before."""

    def let_watermarks_out(self) -> None:  # noqa: B027
        """Emit all watermarks that are held back, and the records before them."""

    def await_in_flight(self) -> None:  # noqa: B027
        """Emit everything that is held back, and the results of everything in flight."""

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        """Handle a timer that is due by the watermark."""
        raise NotImplementedError(f"{type(self).__name__} registers no timers")

    def on_event_time_timers(self, due: DueTimers) -> None:
        """Handle timers that are due by the watermark, in this order."""
        raise NotImplementedError(f"{type(self).__name__} takes its timers one by one")

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        """Handle a timer that is due by the clock."""
        raise NotImplementedError(f"{type(self).__name__} registers no timers")

    def on_processing_time(self) -> None:  # noqa: B027
        """Handle the end of the due processing-time timers."""

    def prepare_snapshot(self) -> None:  # noqa: B027
        """Prepare for a snapshot of the state."""

    def begin_epoch(self, epoch_id: int) -> None:  # noqa: B027
        """Start the next epoch after a snapshot. Functions receive its id."""

    @abstractmethod
    def close(self) -> None:
        """Release what `open` created. Called once, also if `open` failed. Raises as `open`."""


class Emission(NamedTuple):
    """Rows that one call emitted to the output or, with a tag, to a side output, and their timestamps.

    Early rows are sent before the watermark of the epoch.
    """

    tag: OutputTag[Any] | None
    rows: Sequence[Any]
    timestamps: Sequence[int | None] | None = None
    is_early: bool = False


class CollectingEmitter:
    """Collects emissions until they are taken. ``is_early`` applies to everything emitted from now on."""

    def __init__(
        self,
        side_outputs: Collection[OutputTag[Any]] = (),
        encoders: Mapping[OutputTag[Any] | None, RowEncoder] | None = None,
    ) -> None:
        self._side_outputs = frozenset(side_outputs)
        self._encoders = encoders or {}
        self._collected: list[Emission] = []
        self.records_out: Counter[OutputTag[Any] | None] = Counter()
        self.is_early = False

    @property
    def side_outputs(self) -> Collection[OutputTag[Any]]:
        return self._side_outputs

    def encoder(self, tag: OutputTag[Any] | None) -> RowEncoder:
        return self._encoders.get(tag, ENCODER_WITHOUT_SCHEMA)

    def emit(
        self, tag: OutputTag[Any] | None, rows: Sequence[Any], timestamps: Sequence[int | None] | None = None
    ) -> None:
        if rows:
            self.records_out[tag] += len(rows)
            self._collected.append(Emission(tag, rows, timestamps, self.is_early))

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Ignore it: with collected emissions, the driver of the operator calls `let_watermarks_out`."""

    def taken(self) -> Sequence[Emission]:
        """Return and remove what was emitted since the last call, in order."""
        collected, self._collected = self._collected, []
        return collected


class OrderedOutput:
    """Collects rows in order, across outputs."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._tag: OutputTag[Any] | None = None
        self._encoder = emitter.encoder(None)
        self._rows: list[Any] = []
        self._timestamps: list[int | None] = []

    @property
    def side_outputs(self) -> Collection[OutputTag[Any]]:
        """The side outputs that have a reader."""
        return self._emitter.side_outputs

    def side_outputs_at(self, timestamp: Callable[[], int | None]) -> Mapping[OutputTag[Any], Callable[[Any], object]]:
        """Return a consumer of rows for each side output. At each call it uses the result of ``timestamp``."""

        def into(tag: OutputTag[Any]) -> Callable[[Any], object]:
            return lambda value: self.add(tag, value, timestamp())

        return {tag: into(tag) for tag in self.side_outputs}

    def add(self, tag: OutputTag[Any] | None, row: Any, timestamp_ms: int | None) -> None:
        """Add a row of the output or, with a tag, of a side output."""
        if tag is not self._tag:
            self.flush()
            self._tag = tag
            self._encoder = self._emitter.encoder(tag)
        encoder = self._encoder
        self._rows.append(row if row.__class__ in encoder.unchanged else encoder.encode(row))
        self._timestamps.append(timestamp_ms)

    def flush(self) -> None:
        """Pass all collected rows to the emitter."""
        if self._rows:
            rows, timestamps = self._rows, self._timestamps
            self._rows, self._timestamps = [], []
            self._emitter.emit(self._tag, rows, timestamps)
