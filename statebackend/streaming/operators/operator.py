"""The protocol of operators: what a subtask calls, in which order, and what an operator may do then.

    open        once; registers state, which is when restored state is migrated
    process_batch, on_watermark, on_event_time_timer, on_processing_time_timer
                any number of times, in any order; records of several inputs come one batch of one input at a time
    prepare_snapshot
                at the barrier, before the subtask takes the snapshot of its state: what the operator holds outside of
                state must be in state, or emitted, when it returns. More records may follow, behind the barrier
    close       last, also after a failure

An operator emits by its `Emitter` and in no other way, in the calls between open and close. It belongs to one thread.
It knows neither where its records come from nor where they go, and takes the time from its calls.
(Flink's ``StreamOperator``, with batches in place of records.)

Batches of records that are objects already, and what every batch holds its keys to.

What an operator emits row by row, in order, until it is handed on in one piece.

Windows and timers fire one by one, most of them emitting one row. Handing each row on by itself would cost more than
making it, so rows are collected, and those that go to the same place one behind the other are one call. A row is
encoded when it is added, because the function may change it afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import pyarrow as pa
from attrs import frozen

from statebackend.checkpoint.metadata import ChannelTimestamp
from statebackend.streaming.errors import NullKeyError
from statebackend.streaming.operators.subtask_context import SubtaskContext
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.row_writer import ENCODER_WITHOUT_SCHEMA, RowEncoder
from statebackend.streaming.stream_graph import name_of_input
from statebackend.streaming.time.internal_timer_service import DueTimers

__all__ = [
    "BatchPlaces",
    "CollectingEmitter",
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
    """Records, their keys and their key groups, as lists of one length; what is known of their time, if anything is."""

    columns: ClassVar[None] = None
    places: ClassVar[None] = None

    records: Sequence[Any]
    keys: Sequence[Any]
    key_groups: Sequence[int]
    timestamps: Sequence[int | None] | None = None
    channel_timestamps: Collection[ChannelTimestamp] = ()
    is_early: bool = False


@frozen(eq=False)
class BatchPlaces:
    """Where the records of a batch belong, as Arrow columns: the columns of their keys, key groups and timestamps.

    ``objects_of`` makes the records that a mask says, with all that belongs to them.
    """

    keys: Sequence[pa.Array]
    key_groups: pa.Array
    timestamps: pa.Array
    objects_of: Callable[[pa.Array], ObjectBatch]

    def only(self, mask: pa.Array) -> BatchPlaces:
        """Those of the records that the mask says; ``objects_of`` goes on to be asked for all of them."""
        keys = [column.filter(mask) for column in self.keys]
        return BatchPlaces(keys, self.key_groups.filter(mask), self.timestamps.filter(mask), self.objects_of)


def place_of_input(operator_uid: str, index: int, count: int) -> str:
    """How errors call the input of an operator at that place, from 0, if it has so many."""
    return f"operator {operator_uid!r}" if count == 1 else f"operator {operator_uid!r}, {name_of_input(index)}"


def check_keys(place: str, keys: Sequence[Any], is_composite: bool) -> None:
    """Raises `NullKeyError` if a key, or a part of a composite key, of an input is None."""
    has_null = any(None in key for key in keys) if is_composite else None in keys
    if has_null:
        raise NullKeyError(
            f"{place}: a record has a null key; filter such records out, or give them a key, before key_by"
        )


class InputBatch(Protocol):
    """Records of one input of a subtask, in order, with what is known of each beside them, in the same order.

    Objects are made when they are asked for: an operator that reads columns pays for none. Reading them raises
    `NullKeyError` for a record without a key, and `StreamJobError` for a value that Python has no object for.
    """

    @property
    def columns(self) -> pa.RecordBatch | None:
        """The records as Arrow columns, for who takes them whole; None where they never were in columns."""

    @property
    def places(self) -> BatchPlaces | None:
        """Keys and times in columns; None where they never were, and if no record has a timestamp."""

    @property
    def records(self) -> Sequence[Any]:
        """The records as objects."""

    @property
    def keys(self) -> Sequence[Any]:
        """The key of each record; empty if the input is broadcast, as the key groups are then."""

    @property
    def key_groups(self) -> Sequence[int]:
        """The key group of each record; all are the subtask's."""

    @property
    def timestamps(self) -> Sequence[int | None] | None:
        """The timestamp of each record in milliseconds, or None for one without; None if none has one."""

    @property
    def channel_timestamps(self) -> Collection[ChannelTimestamp]:
        """The largest timestamps of the channels of sources that the records came from; none for those of operators."""

    @property
    def is_early(self) -> bool:
        """Whether the records were sent before the watermark at which the epoch stands."""


class Emitter(Protocol):
    """Where an operator puts what it emits."""

    @property
    def side_outputs(self) -> Collection[OutputTag[Any]]:
        """The side outputs that somebody reads; nothing else need be made."""

    def encoder(self, tag: OutputTag[Any] | None) -> RowEncoder:
        """What an operator does to each row when its function emits it, and before the function goes on."""

    def emit(
        self, tag: OutputTag[Any] | None, rows: Sequence[Any], timestamps: Sequence[int | None] | None = None
    ) -> None:
        """Takes encoded rows of the output or, with a tag, of that side output.

        ``timestamps`` are those of the rows, in milliseconds; without, no row has one. Calls keep their order, across
        tags too.
        """

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Takes a watermark of an operator that holds them back: it comes behind all that was emitted."""


class Operator(ABC):
    """One operator in one subtask; see the module for the order of calls, which the caller has checked."""

    holds_watermarks: ClassVar[bool] = False
    """Whether its emitter is told which watermarks go on; those of others go on behind `on_watermark`."""

    fires_together: bool = False
    """Whether no timer of event time that fires registers or deletes another, to be asked when it is open.

    Then those that are due come by `on_event_time_timers`, and their keys are not made current before.
    """

    late_records_dropped: int = 0
    """How many records came behind the watermark since `open`, and went nowhere."""

    @abstractmethod
    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        """Registers state.

        Raises `UserFunctionError` for what a function of the user's raises; errors of state and of its files stay what
        they are.
        """

    @abstractmethod
    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        """Takes records of an input; inputs count from 0, in the order of the node's.

        Raises `UserFunctionError`, naming key and record, for what a function of the user's raises.
        """

    def on_watermark(self, timestamp_ms: int) -> None:  # noqa: B027
        """No record at or before that time is expected any more. Timers due were called before."""

    def let_watermarks_out(self) -> None:  # noqa: B027
        """Emits what stands before the watermarks that the operator holds back, and those: none stays behind."""

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        """A timer that the operator has registered is due by the watermark."""
        raise NotImplementedError(f"{type(self).__name__} registers no timers")

    def on_event_time_timers(self, due: DueTimers) -> None:
        """Timers that the operator has registered are due by the watermark, in this order."""
        raise NotImplementedError(f"{type(self).__name__} takes its timers one by one")

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        """A timer that the operator has registered is due by the clock."""
        raise NotImplementedError(f"{type(self).__name__} registers no timers")

    def prepare_snapshot(self) -> None:  # noqa: B027
        """A snapshot of the state follows."""

    def begin_epoch(self, epoch_id: int) -> None:  # noqa: B027
        """The snapshot was taken, and what follows belongs to another epoch, whose id functions are told."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what `open` made; raises as `open`. Called once, also if `open` has failed."""


class Emission(NamedTuple):
    """What one call has emitted: rows of the output or, with a tag, of a side output, and their timestamps.

    They are early if they go out before the watermark at which the epoch stands does.
    """

    tag: OutputTag[Any] | None
    rows: Sequence[Any]
    timestamps: Sequence[int | None] | None = None
    is_early: bool = False


class CollectingEmitter:
    """Keeps what is emitted until it is taken; ``is_early`` says of what is emitted from now on whether it is."""

    def __init__(
        self,
        side_outputs: Collection[OutputTag[Any]] = (),
        encoders: Mapping[OutputTag[Any] | None, RowEncoder] | None = None,
    ) -> None:
        self._side_outputs = frozenset(side_outputs)
        self._encoders = encoders or {}
        self._collected: list[Emission] = []
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
            self._collected.append(Emission(tag, rows, timestamps, self.is_early))

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Nothing: where emissions are collected, whoever drives the operator has it let its watermarks out."""

    def taken(self) -> Sequence[Emission]:
        """What was emitted since the last call, in order."""
        collected, self._collected = self._collected, []
        return collected


class OrderedOutput:
    """See the module."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._tag: OutputTag[Any] | None = None
        self._encoder = emitter.encoder(None)
        self._rows: list[Any] = []
        self._timestamps: list[int | None] = []

    @property
    def side_outputs(self) -> Collection[OutputTag[Any]]:
        """The side outputs that somebody reads."""
        return self._emitter.side_outputs

    def side_outputs_at(self, timestamp: Callable[[], int | None]) -> Mapping[OutputTag[Any], Callable[[Any], object]]:
        """What takes the rows of each of them, with the timestamp that there is at that time."""

        def into(tag: OutputTag[Any]) -> Callable[[Any], object]:
            return lambda value: self.add(tag, value, timestamp())

        return {tag: into(tag) for tag in self.side_outputs}

    def add(self, tag: OutputTag[Any] | None, row: Any, timestamp_ms: int | None) -> None:
        """Takes a row of the output or, with a tag, of that side output."""
        if tag is not self._tag:
            self.flush()
            self._tag = tag
            self._encoder = self._emitter.encoder(tag)
        encoder = self._encoder
        self._rows.append(row if row.__class__ in encoder.unchanged else encoder.encode(row))
        self._timestamps.append(timestamp_ms)

    def flush(self) -> None:
        """Hands on what there is."""
        if self._rows:
            rows, timestamps = self._rows, self._timestamps
            self._rows, self._timestamps = [], []
            self._emitter.emit(self._tag, rows, timestamps)
