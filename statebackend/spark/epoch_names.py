"""Names of directories, and committables, of the epochs of a `ParquetSink` on disks and object stores."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from statebackend.streaming.errors import format_value
from statebackend.streaming.sink import SinkError

__all__ = [
    "COMMITTABLE",
    "EPOCH_COLUMN",
    "SET_ASIDE",
    "STAGED",
    "STAGING",
    "attempt_of",
    "check_attempt",
    "committable_fields",
    "epoch_name",
    "visible_already",
]

EPOCH_COLUMN: Final = "epoch"

STAGING: Final = "_staging"
SET_ASIDE: Final = "_set_aside"
COMMITTABLE: Final = "_committable"

_ATTEMPT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
STAGED: Final = re.compile(rf"(\d{{12,19}})-({_ATTEMPT.pattern})")
"""The directory of an attempt: its epoch, and the attempt."""


def epoch_name(epoch_id: int) -> str:
    """The directory of a visible epoch."""
    return f"{EPOCH_COLUMN}={epoch_id:012d}"


def check_attempt(attempt_id: str) -> None:
    """Raises `SinkError` unless it can be part of a directory's name."""
    if not _ATTEMPT.fullmatch(attempt_id):
        raise SinkError(f"{attempt_id!r} cannot be part of a directory's name")


def visible_already(place: str, epoch_id: int) -> SinkError:
    """The rejection of an epoch that somebody has made visible before its checkpoint."""
    return SinkError(
        f"{place} exists, but this job has not completed epoch {epoch_id}: another job wrote it, or this one before it "
        f"went back to an older state. Write to another path, or remove the epochs from {epoch_id} on"
    )


def attempt_of(committable: bytes, epoch_id: int) -> str:
    """The attempt that staged the epoch on a disk. Raises `SinkError` for what is no such committable."""
    fields = committable_fields(committable, epoch_id, 1)
    return str(fields["attempt"])


def committable_fields(committable: bytes, epoch_id: int, expected_version: int) -> dict[str, Any]:
    """The fields of a committable of this epoch and version; `attempt` is a text. Raises `SinkError` for any other."""
    try:
        value = json.loads(committable)
        version, epoch, attempt = value["version"], value["epoch"], value["attempt"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SinkError(
            f"epoch {epoch_id}: {format_value(committable, 100)} is not a committable of a ParquetSink"
        ) from error
    if version != expected_version or epoch != epoch_id or not isinstance(attempt, str):
        raise SinkError(
            f"epoch {epoch_id}: {format_value(committable, 100)} is a committable of another epoch or version"
        )
    return dict(value)
