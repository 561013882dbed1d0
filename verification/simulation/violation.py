"""A broken promise of a failing schedule."""

from __future__ import annotations

__all__ = ["Violation", "require_that"]


class Violation(AssertionError):
    """A promise was broken."""


def require_that(condition: bool, promise: str) -> None:
    """Raise `Violation` if the condition is false."""
    if not condition:
        raise Violation(promise)
