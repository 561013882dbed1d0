"""What `make test` leaves out: examples of properties, and further combinations of what one case shows.

The setting ``STATEBACKEND_FUZZ`` is ``few`` there. Without it all tests run with all their examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

FUZZ = os.environ.get("STATEBACKEND_FUZZ", "")


def examples(number: int) -> int:
    """The number of examples in this run: a third of `number` with ``few``, else `number`."""
    return -(-number // 3) if FUZZ == "few" else number


def extended_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test. Those after the first `count` have the mark `extended`."""
    every = list(values)
    further = [value if isinstance(value, tuple) else (value,) for value in every[count:]]
    return [*every[:count], *(pytest.param(*value, marks=pytest.mark.extended) for value in further)]
