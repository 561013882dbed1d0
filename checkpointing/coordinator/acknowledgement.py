"""What a subtask tells the coordinator at a barrier, and its bytes on the way there.

An acknowledgement says: this attempt at subtask s of operator o has durably stored its state for
checkpoint c of run r of job j, here is the handle. `digest` identifies the *content* of that state, so
that two attempts which computed the same state can be told from two which did not, although their files
and `state_id` differ.

The bytes travel through the engine's rows and are not trusted on arrival:

    acknowledgement := magic version checksum body
    magic           := "SBAK"
    version         := one byte, 1
    checksum        := 8 bytes, xxh3 with 64 bits of body, big-endian
    body            := Avro binary encoding of the record in `_SCHEMA`, nothing after it
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import fastavro
import xxhash
from attrs import field, frozen

from checkpointing.errors import InvariantViolationError, MalformedAcknowledgementError, UnsafePathError
from checkpointing.handles.handle_records import (
    STATE_HANDLE_SCHEMA,
    KnownFiles,
    read_state_handle,
    state_handle_to_record,
)
from checkpointing.handles.state_handles import (
    KeyedStateHandle,
    check_encodable,
    check_identifier,
    check_integer,
    require,
)

__all__ = ["MAX_ACKNOWLEDGEMENT_BYTES", "Acknowledgement", "ReportValue", "TaskId"]

MAX_ACKNOWLEDGEMENT_BYTES = 16 << 20
"""Largest encoded acknowledgement; state belongs in files, not in `meta`."""

MAX_REPORT_ENTRIES = 10_000

ReportValue = str | int | float | bool | None
"""What a report or a metric can be: a JSON scalar, integers within 64 bits."""

_NO_FILES: Final[KnownFiles] = MappingProxyType({})

_MAGIC = b"SBAK"
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
        {"name": "handle", "type": STATE_HANDLE_SCHEMA},
        {"name": "report", "type": _VALUES},
        {"name": "metrics", "type": _VALUES},
    ],
}
_PARSED = fastavro.parse_schema(_SCHEMA)
# A record is its fields one behind the other, so that it can be read in three parts: what is in front of the handle,
# the handle, whose bytes are kept, and what is behind it.
_HANDLE_AT = [one["name"] for one in _SCHEMA["fields"]].index("handle")
_BEFORE_HANDLE, _BEHIND_HANDLE = (
    fastavro.parse_schema({"type": "record", "name": name, "fields": fields})
    for name, fields in (
        ("statebackend.BeforeHandle", _SCHEMA["fields"][:_HANDLE_AT]),
        ("statebackend.BehindHandle", _SCHEMA["fields"][_HANDLE_AT + 1 :]),
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

    `attempt_id` names the try that produced it, `report` is for the runtime (watermarks, progress),
    `metrics` for people. Raises `InvariantViolationError` when built from anything else.
    """

    job_id: str
    run_id: str
    checkpoint_id: int
    operator_uid: str
    subtask_index: int
    attempt_id: str
    digest: str
    handle: KeyedStateHandle
    report: Mapping[str, ReportValue] = _values_of("report")
    metrics: Mapping[str, ReportValue] = _values_of("metrics")

    def __attrs_post_init__(self) -> None:
        for name in ("job_id", "run_id", "operator_uid", "attempt_id", "digest"):
            check_identifier(name, getattr(self, name))
        check_integer("checkpoint_id", self.checkpoint_id, 0, (1 << 63) - 1)
        check_integer("subtask_index", self.subtask_index, 0, (1 << 31) - 1)
        require(type(self.handle) is KeyedStateHandle, "handle must be a KeyedStateHandle")

    @property
    def task(self) -> TaskId:
        """Who acknowledges."""
        return TaskId(self.operator_uid, self.subtask_index)

    def encode(self) -> bytes:
        """The bytes of this acknowledgement; `MalformedAcknowledgementError` if there are too many."""
        record = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        record["handle"] = state_handle_to_record(self.handle)
        body = io.BytesIO()
        fastavro.schemaless_writer(body, _PARSED, record, strict=True)
        content = body.getvalue()
        size_bytes = _HEADER_BYTES + len(content)
        if size_bytes > MAX_ACKNOWLEDGEMENT_BYTES:
            raise MalformedAcknowledgementError(
                f"acknowledgement of {self.task} for checkpoint {self.checkpoint_id} would take {size_bytes} "
                f"bytes, the limit is {MAX_ACKNOWLEDGEMENT_BYTES}; its meta alone has "
                f"{len(self.handle.meta)} bytes. Move state from meta into files."
            )
        return _MAGIC + bytes((_VERSION,)) + xxhash.xxh3_64_digest(content) + content

    @classmethod
    def decode(cls, data: bytes, known_files: KnownFiles = _NO_FILES) -> Acknowledgement:
        """The acknowledgement in `data`; `MalformedAcknowledgementError` says what is wrong with it.

        `known_files` are those of the checkpoint before: those that the state still has are taken from there.
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
            before: Any = fastavro.schemaless_reader(source, _BEFORE_HANDLE, None)
            handle = read_state_handle(source, known_files)
            behind: Any = fastavro.schemaless_reader(source, _BEHIND_HANDLE, None)
            acknowledgement = cls(handle=handle, **before, **behind)
        except (InvariantViolationError, UnsafePathError) as error:
            raise _malformed(f"breaks an invariant: {error}") from error
        except Exception as error:
            raise _malformed(f"is not the record it should be: {error!r}") from error
        if source.tell() != len(content):
            raise _malformed(f"has {len(content) - source.tell()} bytes after its end")
        return acknowledgement


_PLAIN_FIELDS = tuple(name.name for name in Acknowledgement.__attrs_attrs__ if name.name != "handle")


def _malformed(what: str) -> MalformedAcknowledgementError:
    return MalformedAcknowledgementError(f"acknowledgement {what}")
