"""Calls of a user's functions: what they fail with, as errors that name operator, key, and what the call was for.

What the product itself raises stays what it is: an error that names the operator already, or, out of `open()`, one of
state and its files, which whoever opens the operator tells of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from checkpointing.errors import CheckpointError
from snapshots.errors import StateFormatError
from statebackend.api.errors import StateBackendError
from streamjobs.errors import MissingTimestampError, StreamJobError, UserFunctionError
from streamjobs.user_errors import cited, one_line, told

__all__ = ["call_failure", "call_user", "missing_timestamp", "of_key", "of_record"]

_KEY_CHARACTERS: Final = 80
_RECORD_CHARACTERS: Final = 200


def of_key(uid: str, key: Any) -> str:
    """An operator and a key, as errors name them."""
    return f"operator {uid!r}, key {cited(key, _KEY_CHARACTERS)}"


def of_record(record: Any) -> str:
    """A record, as errors name it."""
    return f"record {cited(record, _RECORD_CHARACTERS)}"


def call_failure(error: Exception, where: str, method: str) -> Exception:
    """What a call failed with, as an error; ``where`` names operator, key and what the call was for."""
    if isinstance(error, StreamJobError):
        return error
    if isinstance(error, (StateBackendError, StateFormatError)):
        return UserFunctionError(f"{where}: {one_line(str(error))}")
    return UserFunctionError(f"{where}: {method} raised {told(error)}")


def missing_timestamp(where: str, who_needs_it: str, instead: str) -> MissingTimestampError:
    """That a record has none where it must; ``where`` names operator, key and record, ``instead`` another way out."""
    return MissingTimestampError(
        f"{where}: the record has no timestamp, and {who_needs_it}: give it one by "
        f"WatermarkStrategy.with_timestamps(...), leave such records out in front of the operator, or {instead}"
    )


def call_user(uid: str, method: str, call: Callable[[], object]) -> None:
    """Calls a function's ``open`` or ``close``."""
    try:
        call()
    except (StreamJobError, StateBackendError, StateFormatError, CheckpointError):
        raise
    except Exception as error:
        raise UserFunctionError(f"operator {uid!r}: {method} raised {told(error)}") from error
