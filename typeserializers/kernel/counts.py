"""The bound on a count that was read: a hostile one must cost neither time nor memory.

A count of elements that take at least one byte each is limited by the bytes that follow. Elements that take no bytes
at all (a null value, a record without fields) are limited by a constant, in each list of them: lists may lie in lists,
so the constant bounds what one byte of the data can claim. Whoever writes keeps to it too.
"""

from __future__ import annotations

from typing import Any, Final

from snapshots.errors import MalformedDataError
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.kernel.type_serializer import TypeSerializer

MAX_EMPTY_ELEMENTS: Final = 1 << 10


def check_count(count: int, remaining: int, *parts: TypeSerializer[Any]) -> None:
    """Raises `MalformedDataError` unless ``count`` elements of these parts can lie in ``remaining`` bytes."""
    minimum = sum(part.minimum_length for part in parts)
    limit = remaining // minimum if minimum else MAX_EMPTY_ELEMENTS
    if not 0 <= count <= limit:
        raise MalformedDataError(
            f"a count of {count} cannot be right: the {remaining} bytes that follow hold at most {limit}"
        )


def check_written_count(count: int, element: TypeSerializer[Any]) -> None:
    """Raises `ValueError` for more elements than `check_count` lets through when they are read."""
    if count > MAX_EMPTY_ELEMENTS and not element.minimum_length:
        raise ValueError(
            f"{count} elements that take no bytes cannot be told from a damaged count: write at most "
            f"{MAX_EMPTY_ELEMENTS}, or their number"
        )


def check_distinct(read: int, kept: int) -> None:
    """Raises `MalformedDataError` unless all elements or keys that were read are different in Python.

    Java tells 0.0 from -0.0 and 1.0 from 1.00 in a decimal, Python does not; keeping one would lose the other unseen.
    """
    if read != kept:
        raise MalformedDataError(
            f"{read} elements or keys were read, but only {kept} of them differ in Python: "
            f"keeping those would lose the others"
        )


def emit_count_check(emitter: ReadEmitter, count: str, *parts: TypeSerializer[Any]) -> None:
    """Emits the check of a count that was read: a comparison, and the call only where it fails or says nothing."""
    minimum = sum(part.minimum_length for part in parts)
    function = emitter.function
    check = function.bind("check_count", check_count)
    names = ", ".join(function.bind("part", part) for part in parts)
    call = f"{check}({count}, len(data) - pos, {names})"
    emitter.line(f"if not 0 <= {count} * {minimum} <= len(data) - pos: {call}" if minimum else call)
