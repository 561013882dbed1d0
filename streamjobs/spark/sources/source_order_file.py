"""Whose each line of a source log of Spark is: `source-order.json`, in the log's own directory.

Spark's log knows its sources by position. A checkpoint says whose its own positions are; but a log is there before the
first checkpoint, and when it is put in another order the checkpoints are those of the former one. So the file lies in
the log, appears with it, and Spark lets it be. A log of an earlier release is without it, and in the order of the
newest checkpoint.

It is a sealed JSON file (`checkpointing.storage.sealed_json`): `{"sources": [{"name", "uid", "log"}, ...]}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import asdict

from checkpointing.errors import InvariantViolationError
from checkpointing.metadata.checkpoint_sections import ReadSource
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.sealed_json import corrupt, read_sealed_json, sealed_json

__all__ = ["SOURCE_ORDER_FILE_NAME", "read_source_order", "source_order"]

SOURCE_ORDER_FILE_NAME: Final = "source-order.json"

_FORMAT_VERSION: Final = 1
_MAX_BYTES: Final = 16 << 20
"""Spark's name of a source may list all partitions that it reads."""


def source_order(sources: Sequence[ReadSource]) -> bytes:
    """The content of the file."""
    return sealed_json({"sources": [asdict(one) for one in sources]}, _FORMAT_VERSION)


def read_source_order(file_system: CheckpointFileSystem, log_directory: str = "") -> tuple[ReadSource, ...] | None:
    """What a file says; None if there is none. Raises `CorruptJobIdentityError`."""
    path = f"{log_directory}/{SOURCE_ORDER_FILE_NAME}" if log_directory else SOURCE_ORDER_FILE_NAME
    if not file_system.exists(path):
        return None
    content: dict[str, Any] = read_sealed_json(file_system, path, _FORMAT_VERSION, max_bytes=_MAX_BYTES)
    try:
        return tuple(ReadSource(**one) for one in content["sources"])
    except (InvariantViolationError, KeyError, TypeError) as error:
        corrupt(file_system, path, f"is not valid: {error}")
