"""The content of a `_metadata` file as objects: state by operator, time, timers, source positions, sinks.

A checkpoint id only defines the order of checkpoints. The records that a checkpoint covers are in `source_positions`; a
no-data epoch has the positions of the checkpoint before it. After a rollback on Spark, ids continue from the
older checkpoint, and checkpoints that had these ids before are set aside. The local runtime never uses an id again.

Constructors check the invariants, so they hold before a write and after a read. `parent_digest` is the checksum of the
parent's whole `_metadata` file: the history is a hash chain, as in TigerBeetle's superblock.

All times are milliseconds since the Unix epoch. Event time comes from the records and may be negative. Processing time
comes from the clock and must not be negative, but a timer may be set to any time. None means unknown or not set yet.

A *channel* has its own watermark: it is a source, or one value of a source's channel column such as a partition. A
source without such a column has one channel named "".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from attrs import field, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import InvariantViolationError
from statebackend.checkpoint.invariants import (
    MAX_ID,
    MAX_NAME_LENGTH,
    check_encodable,
    check_identifier,
    check_integer,
    check_optional_integer,
    is_checksum,
    require,
)
from statebackend.checkpoint.state_handles import (
    MAX_MAX_PARALLELISM,
    FileHandle,
    OperatorState,
    check_operator_states,
    files_of_operators,
)

__all__ = [
    "SOURCE_PROGRESS_DIRECTORY",
    "ChannelTimestamp",
    "ChannelWatermark",
    "CheckpointKind",
    "CheckpointMetadata",
    "InputChannel",
    "InputWatermark",
    "NodeWatermark",
    "ReadSource",
    "SavepointIdentity",
    "SourcePositions",
    "TimersDue",
    "WatermarkState",
    "check_distinct_channels",
    "check_distinct_operators",
]


_MIN_TIME_MS = -(1 << 63)


def _check_time(what: str, time_ms: object) -> None:
    check_optional_integer(what, time_ms, _MIN_TIME_MS, MAX_ID)


def _check_channel(source: object, channel: object) -> None:
    check_identifier("the source of a channel", source)
    if not isinstance(channel, str) or len(channel) > MAX_NAME_LENGTH:
        raise InvariantViolationError(
            f"a channel must be a string of at most {MAX_NAME_LENGTH} characters, not {format_value(channel)}"
        )
    check_encodable("a channel", channel)


@frozen
class ChannelTimestamp:
    """The largest event time of a channel so far."""

    source: str
    channel: str
    timestamp_ms: int

    def __attrs_post_init__(self) -> None:
        _check_channel(self.source, self.channel)
        check_integer("timestamp_ms", self.timestamp_ms, _MIN_TIME_MS, MAX_ID)


@frozen(kw_only=True)
class ChannelWatermark:
    """The state of the watermark valve for one channel.

    `largest_timestamp_ms` is its largest event time so far, `watermark_ms` its own watermark. `last_active_ms` is the
    processing time of the last epoch with records of this channel; idleness counts from it.
    """

    source: str
    channel: str = ""
    largest_timestamp_ms: int | None = None
    watermark_ms: int | None = None
    last_active_ms: int | None = None
    is_idle: bool = False

    def __attrs_post_init__(self) -> None:
        _check_channel(self.source, self.channel)
        _check_time("largest_timestamp_ms", self.largest_timestamp_ms)
        _check_time("watermark_ms", self.watermark_ms)
        check_optional_integer("last_active_ms", self.last_active_ms, 0, MAX_ID)
        require(type(self.is_idle) is bool, "is_idle must be a bool")


@frozen
class InputChannel:
    """The state of an input for one sending node: its watermark, and whether it is idle."""

    channel: str
    watermark_ms: int | None = None
    is_idle: bool = False

    def __attrs_post_init__(self) -> None:
        check_identifier("the channel of an input", self.channel)
        _check_time("watermark_ms", self.watermark_ms)
        require(type(self.is_idle) is bool, "is_idle must be a bool")


@frozen
class InputWatermark:
    """The watermark valve of one input of a node: its last output, and its channels."""

    watermark_ms: int | None
    channels: tuple[InputChannel, ...]

    def __attrs_post_init__(self) -> None:
        _check_time("watermark_ms", self.watermark_ms)
        require(
            type(self.channels) is tuple and all(type(one) is InputChannel for one in self.channels),
            "the channels of an input must be a tuple of InputChannel objects",
        )
        require(len(self.channels) > 0, "an input has channels")
        names = {one.channel for one in self.channels}
        require(len(names) == len(self.channels), "a channel of an input appears twice")


@frozen(kw_only=True)
class NodeWatermark:
    """The event time of one node of the graph, a source or an operator.

    `watermark_ms` is its watermark now and in the next epoch. `epoch_watermark_ms` is its watermark in the epoch of the
    checkpoint, which decides whether records before the next watermark are late. `sent_watermark_ms` and `is_idle` are
    the watermark and the status that it sent last to its readers. A source has no inputs.
    """

    node: str
    watermark_ms: int | None = None
    sent_watermark_ms: int | None = None
    is_idle: bool = False
    inputs: tuple[InputWatermark, ...] = ()
    epoch_watermark_ms: int | None = None

    def __attrs_post_init__(self) -> None:
        check_identifier("the node of a watermark", self.node)
        _check_time("epoch_watermark_ms", self.epoch_watermark_ms)
        _check_time("watermark_ms", self.watermark_ms)
        _check_time("sent_watermark_ms", self.sent_watermark_ms)
        require(type(self.is_idle) is bool, "is_idle must be a bool")
        require(
            type(self.inputs) is tuple and all(type(one) is InputWatermark for one in self.inputs),
            "the inputs of a node must be a tuple of InputWatermark objects",
        )


@frozen
class WatermarkState:
    """The watermarks of a job after a checkpoint: of all sources together, their channels, and its nodes."""

    watermark_ms: int | None = None
    channels: tuple[ChannelWatermark, ...] = ()
    nodes: tuple[NodeWatermark, ...] = ()

    def __attrs_post_init__(self) -> None:
        _check_time("watermark_ms", self.watermark_ms)
        require(
            type(self.channels) is tuple and all(type(one) is ChannelWatermark for one in self.channels),
            "channels must be a tuple of ChannelWatermark objects",
        )
        check_distinct_channels(self.channels)
        require(
            type(self.nodes) is tuple and all(type(one) is NodeWatermark for one in self.nodes),
            "nodes must be a tuple of NodeWatermark objects",
        )
        require(len({one.node for one in self.nodes}) == len(self.nodes), "the watermark of a node appears twice")


@frozen
class TimersDue:
    """The earliest pending timers of an operator, over all its subtasks.

    Requests in flight count as a processing-time timer, at their timeout.
    """

    operator_uid: str
    event_time_ms: int | None = None
    processing_time_ms: int | None = None

    def __attrs_post_init__(self) -> None:
        check_identifier("the operator of a timer", self.operator_uid)
        _check_time("event_time_ms", self.event_time_ms)
        _check_time("processing_time_ms", self.processing_time_ms)

    def earliest(self, other: TimersDue) -> TimersDue:
        """The earlier timer of each kind."""
        return TimersDue(
            self.operator_uid,
            _earlier(self.event_time_ms, other.event_time_ms),
            _earlier(self.processing_time_ms, other.processing_time_ms),
        )


@frozen
class ReadSource:
    """The source of one of the engine's positions.

    `name` is the name that the engine uses. `uid` is that of the program's source, which may read several. `log` is
    the name under which the engine keeps further data of it.
    """

    name: str
    uid: str | None = None
    log: str | None = None

    def __attrs_post_init__(self) -> None:
        require(type(self.name) is str, f"the name of a source must be a str, not {format_value(self.name)}")
        check_encodable("the name of a source", self.name)
        for what, identifier in (("the uid of a source", self.uid), ("the log of a source", self.log)):
            if identifier is not None:
                check_identifier(what, identifier)


@frozen(kw_only=True)
class SourcePositions:
    """The positions of the sources after a checkpoint.

    `batch_id` is the engine's number of the last batch whose records are in the state; it is independent of the
    checkpoint id. The checkpoint of an epoch without records has the positions of the previous one. `sources` names
    what is read, in the order of the positions; None in checkpoints of old releases. `offsets` is the engine's own
    record of the positions, opaque here.
    """

    batch_id: int
    offsets: bytes = field(repr=lambda offsets: f"<{len(offsets)} bytes>")
    sources: tuple[ReadSource, ...] | None = None

    def __attrs_post_init__(self) -> None:
        check_integer("batch_id", self.batch_id, 0, MAX_ID)
        require(type(self.offsets) is bytes, "the offsets of source positions must be bytes")
        require(
            self.sources is None
            or (type(self.sources) is tuple and all(type(one) is ReadSource for one in self.sources)),
            "sources must be a tuple of ReadSource objects",
        )


@frozen
class SavepointIdentity:
    """The identity of a savepoint, wherever it is: three fields of its metadata."""

    job_id: str
    checkpoint_id: int
    timestamp_ms: int

    def __attrs_post_init__(self) -> None:
        check_identifier("job_id of a savepoint", self.job_id)
        check_integer("checkpoint_id of a savepoint", self.checkpoint_id, 0, MAX_ID)
        check_integer("timestamp_ms of a savepoint", self.timestamp_ms, 0, MAX_ID)

    def __str__(self) -> str:
        return f"{self.job_id}/{self.checkpoint_id}/{self.timestamp_ms}"


def _earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    return min([time_ms for time_ms in (one_ms, other_ms) if time_ms is not None], default=None)


def check_distinct_channels(channels: Iterable[ChannelWatermark | ChannelTimestamp]) -> None:
    """Require that no channel of a source appears twice."""
    names = [(one.source, one.channel) for one in channels]
    require(len(set(names)) == len(names), "a channel appears twice")


def check_distinct_operators(timers: Iterable[TimersDue]) -> None:
    """Require that no operator appears twice."""
    uids = [one.operator_uid for one in timers]
    require(len(set(uids)) == len(uids), "the timers of an operator appear twice")


SOURCE_PROGRESS_DIRECTORY = "source-progress"
"""The directory of the source progress files in a savepoint."""


class CheckpointKind(enum.Enum):
    """The owner: the job deletes checkpoints that it no longer needs; savepoints belong to the user."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"


def _shown_names(content: Mapping[str, object]) -> str:
    return repr(sorted(content))


@frozen(kw_only=True)
class CheckpointMetadata:
    """Everything about one completed checkpoint or savepoint. Raises `InvariantViolationError`.

    `processing_time_ms` is the time of the clock in the epoch, `watermarks` the resulting watermarks, `timers_due` the
    earliest timers of each operator that has any. `restored_from` is the savepoint that the job started from.

    `sink_committables` maps sinks to their pending commits, opaque here. `sink_identities` names the sink that staged
    them, if known. `source_progress_files` are the engine's source log in a savepoint, below `source-progress/`.
    `properties` belong to the caller.

    File paths are relative to the job directory for a checkpoint and to the savepoint's own directory for a savepoint.
    A parent has both an id and the digest of its `_metadata` file, or neither.
    """

    checkpoint_id: int
    kind: CheckpointKind
    job_id: str
    job_name: str
    timestamp_ms: int
    max_parallelism: int
    operators: tuple[OperatorState, ...]
    parent_checkpoint_id: int | None = None
    parent_digest: str | None = None
    processing_time_ms: int | None = None
    source_positions: SourcePositions | None = None
    watermarks: WatermarkState | None = None
    timers_due: tuple[TimersDue, ...] = ()
    restored_from: SavepointIdentity | None = None
    sink_committables: Mapping[str, bytes] = field(factory=dict, repr=_shown_names)
    sink_identities: Mapping[str, str] = field(factory=dict)
    properties: Mapping[str, str] = field(factory=dict)
    source_progress_files: tuple[FileHandle, ...] = ()

    def __attrs_post_init__(self) -> None:
        check_integer("checkpoint_id", self.checkpoint_id, 0, MAX_ID)
        require(type(self.kind) is CheckpointKind, "kind must be a CheckpointKind")
        check_identifier("job_id", self.job_id)
        check_identifier("job_name", self.job_name)
        check_integer("timestamp_ms", self.timestamp_ms, 0, MAX_ID)
        check_integer("max_parallelism", self.max_parallelism, 1, MAX_MAX_PARALLELISM)
        self._check_parent()
        require(
            type(self.operators) is tuple and all(type(one) is OperatorState for one in self.operators),
            "operators must be a tuple of OperatorState objects",
        )
        check_operator_states(self.operators)
        self._check_sections()
        self._check_source_progress()
        self._check_sinks()
        for name, text in self.properties.items():
            check_identifier("a name in properties", name)
            require(type(text) is str, f"properties[{name!r}] must be a str")
            check_encodable(f"properties[{name!r}]", text)

    def _check_sections(self) -> None:
        check_optional_integer("processing_time_ms", self.processing_time_ms, 0, MAX_ID)
        for what, section, kind in (
            ("source_positions", self.source_positions, SourcePositions),
            ("watermarks", self.watermarks, WatermarkState),
            ("restored_from", self.restored_from, SavepointIdentity),
        ):
            require(section is None or type(section) is kind, f"{what} must be of type {kind.__name__}")
        require(
            type(self.timers_due) is tuple and all(type(one) is TimersDue for one in self.timers_due),
            "timers_due must be a tuple of TimersDue objects",
        )
        check_distinct_operators(self.timers_due)

    def _check_sinks(self) -> None:
        for name, content in self.sink_committables.items():
            check_identifier("a name in sink_committables", name)
            require(type(content) is bytes, f"sink_committables[{name!r}] must be bytes")
        for name, identity in self.sink_identities.items():
            require(
                name in self.sink_committables,
                f"sink_identities names {format_value(name)}, which has nothing to commit",
            )
            require(type(identity) is str, f"sink_identities[{name!r}] must be a str")
            check_encodable(f"sink_identities[{name!r}]", identity)

    def _check_source_progress(self) -> None:
        files = self.source_progress_files
        require(
            type(files) is tuple and all(type(file) is FileHandle for file in files),
            "source_progress_files must be a tuple of FileHandle objects",
        )
        if not files:
            return
        require(self.kind is CheckpointKind.SAVEPOINT, "only a savepoint has source_progress_files")
        require(len({file.path for file in files}) == len(files), "source_progress_files must be distinct")
        for file in files:
            prefix, _, name = file.path.partition("/")
            require(
                prefix == SOURCE_PROGRESS_DIRECTORY and name != "",
                f"{file.path!r} is not a file of source progress: it must be below {SOURCE_PROGRESS_DIRECTORY}/",
            )

    def _check_parent(self) -> None:
        if self.parent_checkpoint_id is None and self.parent_digest is None:
            return
        check_integer("parent_checkpoint_id", self.parent_checkpoint_id, 0, self.checkpoint_id)
        require(
            self.kind is CheckpointKind.SAVEPOINT or self.parent_checkpoint_id != self.checkpoint_id,
            f"checkpoint {self.checkpoint_id} cannot be its own parent",
        )
        require(
            is_checksum(self.parent_digest),
            f"parent_digest must be the checksum of the parent's metadata file, not {format_value(self.parent_digest)}",
        )

    @property
    def source_offsets(self) -> bytes:
        """The engine's own record of the source positions; empty if there are none."""
        return b"" if self.source_positions is None else self.source_positions.offsets

    @property
    def files(self) -> tuple[FileHandle, ...]:
        """Every distinct file the checkpoint needs."""
        return (*files_of_operators(self.operators), *self.source_progress_files)

    @property
    def size_bytes(self) -> int:
        """Bytes of all state: files and opaque metas."""
        return self.meta_bytes + sum(file.size_bytes for file in self.files)

    @property
    def meta_bytes(self) -> int:
        """Bytes of the opaque metas of all operators."""
        return sum(one.meta_bytes for one in self.operators)
