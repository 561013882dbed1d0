"""The Avro encoding of the record of a `_metadata` file, put together from parts that are encoded already.

A handle that arrived with an acknowledgement has kept its bytes. The record of a thousand subtasks is then a matter of
joining them: to make a record of each of their files and to encode it would take longer than all else in an epoch.
What comes out is what the encoder makes of the whole record.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import fastavro

from checkpointing.handles.handle_records import encode_state_handle
from checkpointing.handles.state_handles import OperatorState
from checkpointing.metadata.metadata_schema import METADATA_SCHEMAS, OPERATOR_STATE_SCHEMA

__all__ = ["encode_metadata_record"]

_OPERATORS: Final = "operators"
_EMPTY_ARRAY: Final = b"\0"
"""An array without items; also what ends every other."""


def _fields_before_operators(version: int) -> Any:
    fields = METADATA_SCHEMAS[version]["fields"]
    at = [field["name"] for field in fields].index(_OPERATORS)
    return fastavro.parse_schema({"type": "record", "name": f"statebackend.Before{version}", "fields": fields[:at]})


_RECORDS: Final = {version: fastavro.parse_schema(schema) for version, schema in METADATA_SCHEMAS.items()}
_BEFORE: Final = {version: _fields_before_operators(version) for version in METADATA_SCHEMAS}
_OPERATOR: Final = fastavro.parse_schema(OPERATOR_STATE_SCHEMA)
_LONG: Final = fastavro.parse_schema({"type": "long"})


def encode_metadata_record(version: int, others: Mapping[str, Any], operators: Sequence[OperatorState]) -> bytes:
    """The record of this version with these operators; ``others`` are the values of all other fields by name."""
    before = _encoded(_BEFORE[version], {name: others[name] for name in _names(version)})
    whole = _encoded(_RECORDS[version], {**others, _OPERATORS: []})
    behind = whole[len(before) + len(_EMPTY_ARRAY) :]
    return b"".join((before, *_array([b"".join(_operator(one)) for one in operators]), behind))


def _names(version: int) -> list[str]:
    return [field["name"] for field in _BEFORE[version]["fields"]]


def _operator(operator: OperatorState) -> Iterator[bytes]:
    plain = {
        "uid": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "subtasks": [],
    }
    # The subtasks are the last field.
    yield _encoded(_OPERATOR, plain)[: -len(_EMPTY_ARRAY)]
    yield from _array(
        [_encoded(_LONG, one.subtask_index) + encode_state_handle(one.handle) for one in operator.subtasks]
    )


def _array(items: Sequence[bytes]) -> Iterator[bytes]:
    if items:
        yield _encoded(_LONG, len(items))
        yield from items
    yield _EMPTY_ARRAY


def _encoded(schema: Any, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value, strict=True)
    return out.getvalue()
