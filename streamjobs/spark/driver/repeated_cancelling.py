"""Cancels the Spark jobs of an epoch until it has ended.

Spark cancels what is running, and an epoch may just be planning its next job, which would run on. So what is running is
cancelled again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["cancel_until"]

_AGAIN_S: Final = 1.0
"""How long behind a cancellation the next one follows."""


def cancel_until(cancel: Callable[[], object], is_over: Callable[[float], bool]) -> None:
    """Calls ``cancel``, and again until ``is_over``, which waits for so many seconds at most, says that it is."""
    while True:
        cancel()
        if is_over(_AGAIN_S):
            return
