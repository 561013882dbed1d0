"""What a function of the user's may give for a record: an iterable of records, or None for none.

Calls of a user's functions: what they fail with, as errors that name operator, key, and what the call was for.

What the product itself raises stays what it is: an error that names the operator already, or, out of `open()`, one of
state and its files, which whoever opens the operator tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import GeneratorType
from typing import Any, Final

from snapshots.errors import StateFormatError
from statebackend.checkpoint.errors import CheckpointError
from statebackend.state.errors import StateBackendError
from statebackend.streaming.errors import (
    MissingTimestampError,
    StreamJobError,
    UserFunctionError,
    format_value,
    one_line,
    told,
)

__all__ = ["PLAIN_RESULTS", "call_failure", "call_user", "check_results", "missing_timestamp", "of_key", "of_record"]


_KEY_CHARACTERS: Final = 80
_RECORD_CHARACTERS: Final = 200


def of_key(uid: str, key: Any) -> str:
    """An operator and a key, as errors name them."""
    return f"operator {uid!r}, key {format_value(key, _KEY_CHARACTERS)}"


def of_record(record: Any) -> str:
    """A record, as errors name it."""
    return f"record {format_value(record, _RECORD_CHARACTERS)}"


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
        f"WatermarkStrategy.with_timestamps(...), leave such records out before the operator, or {instead}"
    )


def call_user(uid: str, method: str, call: Callable[[], object]) -> None:
    """Calls a function's ``open`` or ``close``."""
    try:
        call()
    except (StreamJobError, StateBackendError, StateFormatError, CheckpointError):
        raise
    except Exception as error:
        raise UserFunctionError(f"operator {uid!r}: {method} raised {told(error)}") from error


_CHARACTERS: Final = 80

PLAIN_RESULTS: Final = frozenset({GeneratorType, list, tuple})
"""Classes of which every object is what it may be: `check_results` need not look at it, and takes its time."""


def check_results(result: Any, method: str) -> None:
    """Raises `TypeError` for what is no iterable, and for a record, whose parts would be emitted.

    A tuple of records is no record. ``method`` is what the function is called in the message.
    """
    is_record = hasattr(result, "_fields") or hasattr(result, "asDict")
    if is_record or isinstance(result, (str, bytes, bytearray, Mapping)):
        raise TypeError(
            f"{method} returned {format_value(result, _CHARACTERS)}, which is one record and not an iterable of "
            f"records; yield it, or return a list of records"
        )
    if not isinstance(result, Iterable):
        raise TypeError(
            f"{method} returned {format_value(result, _CHARACTERS)}, which is not an iterable of records; "
            f"yield the records, or return a list of them"
        )
