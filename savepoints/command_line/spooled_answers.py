"""Answers of any number on their way from what finds them to what prints them: in a file, once they are many.

What is printed must not come between the bars of what is still being read, and memory need not hold it all.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from typing import IO, Any

__all__ = ["SpooledAnswers", "spooled_answers"]

_IN_MEMORY_BYTES = 1 << 20


class SpooledAnswers:
    """Answers as plain data, which are given again in their order; see `spooled_answers`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._count = 0

    def add(self, answer: dict[str, Any]) -> None:
        """One more; not while they are being given."""
        self._file.write(json.dumps(answer).encode() + b"\n")
        self._count += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._file.seek(0)
        return map(json.loads, self._file)


@contextlib.contextmanager
def spooled_answers() -> Iterator[SpooledAnswers]:
    """None yet; they are gone when the context ends."""
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, prefix="statebackend-answers-") as file:
        yield SpooledAnswers(file)
