"""What a function of the user's may give for a record: an iterable of records, or None for none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import GeneratorType
from typing import Any, Final

from streamjobs.user_errors import cited

__all__ = ["PLAIN_RESULTS", "check_results"]

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
            f"{method} returned {cited(result, _CHARACTERS)}, which is one record and not an iterable of "
            f"records; yield it, or return a list of records"
        )
    if not isinstance(result, Iterable):
        raise TypeError(
            f"{method} returned {cited(result, _CHARACTERS)}, which is not an iterable of records; "
            f"yield the records, or return a list of them"
        )
