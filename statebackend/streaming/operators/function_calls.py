"""Helpers for calls of user functions: errors with operator and key, and checks of results.

Errors of this package are raised unchanged: they already name the operator, or the caller of `open()` adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from types import GeneratorType
from typing import Any, Final
from uuid import UUID

from snapshots.errors import StateFormatError, format_value, one_line
from statebackend.checkpoint.errors import CheckpointError
from statebackend.state.errors import StateBackendError
from statebackend.streaming.errors import MissingTimestampError, StreamJobError, UserFunctionError, describe_exception
from statebackend.streaming.rows.row_writer import RowMismatchError

__all__ = [
    "PLAIN_RESULTS",
    "call_failure",
    "call_user",
    "check_results",
    "explain_tuple",
    "missing_timestamp",
    "of_key",
    "of_record",
]


_KEY_CHARACTERS: Final = 80
_RECORD_CHARACTERS: Final = 200


def of_key(uid: str, key: Any) -> str:
    """Return the name of an operator and a key for error messages."""
    return f"operator {uid!r}, key {format_value(key, _KEY_CHARACTERS)}"


def of_record(record: Any) -> str:
    """Return the name of a record for error messages."""
    return f"record {format_value(record, _RECORD_CHARACTERS)}"


def call_failure(error: Exception, where: str, method: str) -> Exception:
    """Convert the exception of a call. ``where`` names operator, key and the purpose of the call."""
    if isinstance(error, StreamJobError):
        return error
    if isinstance(error, (StateBackendError, StateFormatError)):
        return UserFunctionError(f"{where}: {one_line(str(error))}")
    return UserFunctionError(f"{where}: {method} raised {describe_exception(error)}")


def missing_timestamp(where: str, who_needs_it: str, instead: str) -> MissingTimestampError:
    """Return the error for a missing timestamp. ``where`` names operator, key and record; ``instead`` is another fix.

    ``who_needs_it`` names the part that needs timestamps.
    """
    return MissingTimestampError(
        f"{where}: the record has no timestamp, and {who_needs_it}: give it one by "
        f"WatermarkStrategy.with_timestamps(...), leave such records out before the operator, or {instead}"
    )


def call_user(uid: str, method: str, call: Callable[[], object]) -> None:
    """Call ``open`` or ``close`` of a function."""
    try:
        call()
    except (StreamJobError, StateBackendError, StateFormatError, CheckpointError):
        raise
    except Exception as error:
        raise UserFunctionError(f"operator {uid!r}: {method} raised {describe_exception(error)}") from error


_CHARACTERS: Final = 80

PLAIN_RESULTS: Final = frozenset({GeneratorType, list, tuple})
"""Result classes that are not checked with `check_results`, to save time. `explain_tuple` checks a tuple later."""


_SINGLE_VALUES: Final = (bool, int, float, str, bytes, bytearray, Decimal, date, time, timedelta, UUID, type(None))


def check_results(result: Any, method: str) -> None:
    """Raise `TypeError` for a result that is not an iterable, or is itself a record.

    A tuple is a record if it holds a single value, such as a number. ``method`` names the function in the message.
    """
    is_record = hasattr(result, "_fields") or hasattr(result, "asDict")
    if type(result) is tuple:
        is_record = any(isinstance(item, _SINGLE_VALUES) for item in result)
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


def explain_tuple(error: Exception, result: Any, method: str) -> Exception:
    """Return the error of `check_results` if a row did not fit because a function returned one record as a tuple.

    In all other cases, return ``error``.
    """
    if type(result) is tuple and isinstance(error, RowMismatchError):
        try:
            check_results(result, method)
        except TypeError as advice:
            return advice
    return error
