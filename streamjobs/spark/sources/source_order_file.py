"""Whose each line of a source log of Spark is, and what columns it was read with: `source-order.json` in the log.

Spark's log knows its sources by position. A checkpoint says whose its own positions are; but a log is there before the
first checkpoint, and when it is put in another order the checkpoints are those of the former one. So the file lies in
the log, appears with it, and Spark lets it be. A log of an earlier release is without it, and in the order of the
newest checkpoint.

It is a sealed JSON file (`checkpointing.storage.sealed_json`):
`{"sources": [{"name", "uid", "log"}, ...], "schemas": [<Spark's JSON of a schema, or null>, ...]}`.
Version 1 has no schemas. Invariant: there are as many as sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import asdict, frozen

from checkpointing.errors import InvariantViolationError
from checkpointing.metadata.checkpoint_sections import ReadSource
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.sealed_json import corrupt, read_sealed_json, sealed_json

__all__ = ["SOURCE_ORDER_FILE_NAME", "Schema", "SourceOrder", "read_source_order", "source_order"]

SOURCE_ORDER_FILE_NAME: Final = "source-order.json"

Schema = Mapping[str, Any] | None
"""The schema of a source as Spark writes it in JSON; None where it is not known."""

_FORMAT_VERSION: Final = 2
_VERSIONS: Final = (1, 2)
_MAX_BYTES: Final = 16 << 20
"""Spark's name of a source may list all partitions that it reads."""


@frozen
class SourceOrder:
    """What a file says: the sources in the order of the log's lines, and the schema of each."""

    sources: tuple[ReadSource, ...]
    schemas: tuple[Schema, ...]


def source_order(sources: Sequence[ReadSource], schemas: Sequence[Schema] = ()) -> bytes:
    """The content of the file; without schemas, none is known."""
    known = list(schemas or [None] * len(sources))
    if len(known) != len(sources):
        raise ValueError(f"{len(sources)} sources have {len(known)} schemas")
    return sealed_json({"sources": [asdict(one) for one in sources], "schemas": known}, _FORMAT_VERSION)


def read_source_order(file_system: CheckpointFileSystem, log_directory: str = "") -> SourceOrder | None:
    """What a file says; None if there is none. Raises `CorruptJobIdentityError`."""
    path = f"{log_directory}/{SOURCE_ORDER_FILE_NAME}" if log_directory else SOURCE_ORDER_FILE_NAME
    if not file_system.exists(path):
        return None
    content: dict[str, Any] = read_sealed_json(file_system, path, *_VERSIONS, max_bytes=_MAX_BYTES)
    try:
        sources = tuple(ReadSource(**one) for one in content["sources"])
        schemas = tuple(content.get("schemas", [None] * len(sources)))
    except (InvariantViolationError, KeyError, TypeError) as error:
        corrupt(file_system, path, f"is not valid: {error}")
    if len(schemas) != len(sources) or not all(isinstance(one, dict | None) for one in schemas):
        corrupt(file_system, path, "is not valid: its schemas are not those of its sources")
    return SourceOrder(sources, schemas)
