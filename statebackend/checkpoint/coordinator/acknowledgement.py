"""The acknowledgement of a subtask at a barrier, and its bytes.

An acknowledgement reports that an attempt of a subtask has durably stored its state for a checkpoint of a run. It lists
the parts of the state. `digest` identifies the *content*: two attempts that computed the same state have the same
digest, although their files and `state_id` differ. An acknowledgement also contains data for event time: the largest
timestamp of each channel, and the earliest timers.

The bytes travel through the engine and are not trusted on arrival:

    acknowledgement := magic version checksum body
    magic           := "SBAC"
    version         := one byte, 1
    checksum        := 8 bytes, XXH3 with 64 bits of body, big-endian
    body            := Avro binary encoding of the record in `_SCHEMA`, nothing after it

They are exchanged within one epoch, between processes of one release, so any other version is rejected.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import fastavro
import xxhash
from attrs import asdict, field, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import InvariantViolationError, MalformedAcknowledgementError, UnsafePathError
from statebackend.checkpoint.handle_records import (
    NO_FILES,
    SUBTASK_STATE_SCHEMA,
    KnownFiles,
    read_subtask_state,
    subtask_state_to_record,
)
from statebackend.checkpoint.invariants import MAX_ID, check_encodable, check_identifier, check_integer, require
from statebackend.checkpoint.metadata import ChannelTimestamp, TimersDue, check_distinct_channels
from statebackend.checkpoint.record_bounds import item_count_check
from statebackend.checkpoint.state_handles import SubtaskState

__all__ = ["MAX_ACKNOWLEDGEMENT_BYTES", "Acknowledgement", "ReportValue", "TaskId"]

MAX_ACKNOWLEDGEMENT_BYTES = 16 << 20
"""The largest encoded acknowledgement; state belongs in files, not in `meta`."""

MAX_REPORT_ENTRIES = 10_000

ReportValue = str | int | float | bool | None
"""A value of a report or a metric: a JSON scalar, integers within 64 bits."""

_MAGIC = b"SBAC"
_VERSION = 1
_HEADER_BYTES = len(_MAGIC) + 1 + 8

_VALUES = {"type": "map", "values": ["null", "boolean", "long", "double", "string"]}

_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "statebackend.Acknowledgement",
    "fields": [
        {"name": "job_id", "type": "string"},
        {"name": "run_id", "type": "string"},
        {"name": "checkpoint_id", "type": "long"},
        {"name": "operator_uid", "type": "string"},
        {"name": "subtask_index", "type": "int"},
        {"name": "attempt_id", "type": "string"},
        {"name": "digest", "type": "string"},
        {"name": "state", "type": SUBTASK_STATE_SCHEMA},
        {
            "name": "channel_timestamps",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "statebackend.ChannelTimestamp",
                    "fields": [
                        {"name": "source", "type": "string"},
                        {"name": "channel", "type": "string"},
                        {"name": "timestamp_ms", "type": "long"},
                    ],
                },
            },
        },
        {"name": "event_time_timer_ms", "type": ["null", "long"]},
        {"name": "processing_time_timer_ms", "type": ["null", "long"]},
        {"name": "report", "type": _VALUES},
        {"name": "metrics", "type": _VALUES},
    ],
}
_PARSED = fastavro.parse_schema(_SCHEMA)
_check_item_count = item_count_check(_SCHEMA)
# A record is the sequence of its fields, so it is read in three parts: the fields before the state, the state,
# whose bytes are kept, and the fields after it.
_STATE_AT = [one["name"] for one in _SCHEMA["fields"]].index("state")
_BEFORE_STATE, _AFTER_STATE = (
    fastavro.parse_schema({"type": "record", "name": name, "fields": fields})
    for name, fields in (
        ("statebackend.BeforeState", _SCHEMA["fields"][:_STATE_AT]),
        ("statebackend.AfterState", _SCHEMA["fields"][_STATE_AT + 1 :]),
    )
)


@frozen(order=True)
class TaskId:
    """Subtask `subtask_index` of the operator `operator_uid`."""

    operator_uid: str
    subtask_index: int

    def __attrs_post_init__(self) -> None:
        check_identifier("operator_uid", self.operator_uid)
        check_integer("subtask_index", self.subtask_index, 0, (1 << 31) - 1)

    def __str__(self) -> str:
        return f"{self.operator_uid}[{self.subtask_index}]"


def _values_of(what: str) -> Any:
    def check(_: object, __: object, values: Mapping[str, ReportValue]) -> None:
        require(len(values) <= MAX_REPORT_ENTRIES, f"{what} has more than {MAX_REPORT_ENTRIES} entries")
        for name, value in values.items():
            check_identifier(f"a name in {what}", name)
            require(
                value is None or type(value) in (str, int, float, bool),
                f"{what}[{name!r}] must be a str, int, float, bool or None, not {type(value).__name__}",
            )
            if type(value) is str:
                check_encodable(f"{what}[{name!r}]", value)
            require(
                type(value) is not int or -(1 << 63) <= value < (1 << 63),
                f"{what}[{name!r}] = {value} does not fit into 64 bits",
            )

    return field(factory=dict, converter=dict, validator=check)


@frozen
class Acknowledgement:
    """One subtask's acknowledgement of one checkpoint.

    `attempt_id` names the attempt that produced it. `channel_timestamps` are the largest event times of each channel in
    the epoch. `event_time_timer_ms` and `processing_time_timer_ms` are the earliest pending timers. `report` is for the
    runtime, `metrics` for users. Raises `InvariantViolationError` for invalid values.
    """

    job_id: str
    run_id: str
    checkpoint_id: int
    operator_uid: str
    subtask_index: int
    attempt_id: str
    digest: str
    state: SubtaskState
    report: Mapping[str, ReportValue] = _values_of("report")
    metrics: Mapping[str, ReportValue] = _values_of("metrics")
    channel_timestamps: tuple[ChannelTimestamp, ...] = ()
    event_time_timer_ms: int | None = None
    processing_time_timer_ms: int | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("job_id", "run_id", "operator_uid", "attempt_id", "digest"):
            check_identifier(name, getattr(self, name))
        check_integer("checkpoint_id", self.checkpoint_id, 0, MAX_ID)
        check_integer("subtask_index", self.subtask_index, 0, (1 << 31) - 1)
        require(type(self.state) is SubtaskState, "state must be a SubtaskState")
        require(
            type(self.channel_timestamps) is tuple
            and all(type(one) is ChannelTimestamp for one in self.channel_timestamps),
            "channel_timestamps must be a tuple of ChannelTimestamp objects",
        )
        check_distinct_channels(self.channel_timestamps)
        if self.has_timers:
            # The constructor of `TimersDue` checks the times.
            _ = self.timers_due

    @property
    def task(self) -> TaskId:
        """The task that acknowledges."""
        return TaskId(self.operator_uid, self.subtask_index)

    @property
    def has_timers(self) -> bool:
        """Whether any timer is pending."""
        return self.event_time_timer_ms is not None or self.processing_time_timer_ms is not None

    @property
    def timers_due(self) -> TimersDue:
        """The earliest timers of this subtask, with the uid of its operator."""
        return TimersDue(self.operator_uid, self.event_time_timer_ms, self.processing_time_timer_ms)

    def encode(self) -> bytes:
        """Encode this acknowledgement; raise `MalformedAcknowledgementError` if it is too large."""
        record = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        record["state"] = subtask_state_to_record(self.state)
        record["channel_timestamps"] = [asdict(one) for one in self.channel_timestamps]
        body = io.BytesIO()
        fastavro.schemaless_writer(body, _PARSED, record, strict=True)
        content = body.getvalue()
        size_bytes = _HEADER_BYTES + len(content)
        if size_bytes > MAX_ACKNOWLEDGEMENT_BYTES:
            raise MalformedAcknowledgementError(
                f"acknowledgement of {self.task} for checkpoint {self.checkpoint_id} would take {size_bytes} "
                f"bytes, the limit is {MAX_ACKNOWLEDGEMENT_BYTES}; its meta alone has "
                f"{self.state.meta_bytes} bytes. Move state from meta into files."
            )
        return _MAGIC + bytes((_VERSION,)) + xxhash.xxh3_64_digest(content) + content

    @classmethod
    def decode(cls, data: bytes, known_files: KnownFiles = NO_FILES) -> Acknowledgement:
        """Decode an acknowledgement; raise `MalformedAcknowledgementError` with the reason if `data` is invalid.

        `known_files` are the files of the previous checkpoint. Files that are still in use are taken from there.
        """
        if len(data) > MAX_ACKNOWLEDGEMENT_BYTES:
            raise _malformed(f"{len(data)} bytes, the limit is {MAX_ACKNOWLEDGEMENT_BYTES}")
        if data[: len(_MAGIC)] != _MAGIC:
            raise _malformed(f"starts with {bytes(data[: len(_MAGIC)])!r} instead of {_MAGIC!r}")
        if len(data) < _HEADER_BYTES:
            raise _malformed(f"ends after {len(data)} bytes, within its header")
        if data[len(_MAGIC)] != _VERSION:
            raise _malformed(
                f"has version {data[len(_MAGIC)]}, this release reads {_VERSION}; run the same release of "
                "this package on the driver and on all executors"
            )
        content = bytes(data[_HEADER_BYTES:])
        if xxhash.xxh3_64_digest(content) != data[len(_MAGIC) + 1 : _HEADER_BYTES]:
            raise _malformed("is truncated or altered: its checksum does not match")
        source = io.BytesIO(content)
        try:
            _check_item_count(content)
            before: Any = fastavro.schemaless_reader(source, _BEFORE_STATE, None)
            state = read_subtask_state(source, known_files)
            after: Any = fastavro.schemaless_reader(source, _AFTER_STATE, None)
            after["channel_timestamps"] = tuple(ChannelTimestamp(**one) for one in after["channel_timestamps"])
            acknowledgement = cls(state=state, **before, **after)
        except (InvariantViolationError, UnsafePathError) as error:
            raise _malformed(f"breaks an invariant: {error}") from error
        except Exception as error:
            raise _malformed(f"does not have the fields of an acknowledgement: {format_value(error)}") from error
        if source.tell() != len(content):
            raise _malformed(f"has {len(content) - source.tell()} bytes after its end")
        return acknowledgement


_PLAIN_FIELDS = tuple(
    name.name for name in Acknowledgement.__attrs_attrs__ if name.name not in ("state", "channel_timestamps")
)


def _malformed(what: str) -> MalformedAcknowledgementError:
    return MalformedAcknowledgementError(f"acknowledgement {what}")
