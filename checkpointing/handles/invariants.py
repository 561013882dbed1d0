"""The checks that the value classes of this floor share: each says what is wrong with which field.

Values are shown as everywhere else (`snapshots.value_text`): short, and never failing.
"""

from __future__ import annotations

import re
from typing import Final

from checkpointing.errors import InvariantViolationError
from snapshots.value_text import shown

__all__ = [
    "MAX_ID",
    "MAX_NAME_LENGTH",
    "UUID_PATTERN",
    "check_encodable",
    "check_identifier",
    "check_integer",
    "check_optional_integer",
    "check_uuid",
    "require",
]

MAX_NAME_LENGTH: Final = 1024
"""Most characters of a uid, a name or any other identifier."""

MAX_ID: Final = (1 << 63) - 1
"""Largest id, and latest time: what fits into a long of Avro."""


UUID_PATTERN: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A UUID as Python writes it."""


def require(condition: bool, message: str) -> None:
    """Raise `InvariantViolationError(message)` unless `condition` holds."""
    if not condition:
        raise InvariantViolationError(message)


def check_identifier(what: str, value: object) -> None:
    """Require `value` to be a string of 1 to 1024 encodable characters; `what` names it in the message."""
    if not (isinstance(value, str) and 0 < len(value) <= MAX_NAME_LENGTH):
        raise InvariantViolationError(
            f"{what} must be a string of 1 to {MAX_NAME_LENGTH} characters, not {shown(value)}"
        )
    check_encodable(what, value)


def check_uuid(what: str, value: object) -> None:
    """Require `value` to be a UUID as text; `what` names it in the message."""
    if not (isinstance(value, str) and UUID_PATTERN.fullmatch(value)):
        raise InvariantViolationError(
            f"{what} must be a UUID such as '123e4567-e89b-12d3-a456-426614174000', not {shown(value)}"
        )


def check_encodable(what: str, value: str) -> None:
    """Require `value` to have a UTF-8 encoding, which lone surrogates have not."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvariantViolationError(f"{what} is not valid Unicode: {shown(value)}") from None


def check_integer(what: str, value: object, low: int, high: int) -> None:
    """Require `value` to be an int (not a bool) with low <= value <= high."""
    if type(value) is not int or not low <= value <= high:
        raise InvariantViolationError(f"{what} must be an integer from {low} to {high}, not {shown(value)}")


def check_optional_integer(what: str, value: object, low: int, high: int) -> None:
    """Require `value` to be None, or what `check_integer` requires."""
    if value is not None:
        check_integer(what, value, low, high)
