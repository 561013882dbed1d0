"""What a schedule that fails has broken."""

from __future__ import annotations

__all__ = ["Violation", "require_that"]


class Violation(AssertionError):
    """A promise that was not kept."""


def require_that(condition: bool, promise: str) -> None:
    """Raises `Violation` unless it is so."""
    if not condition:
        raise Violation(promise)
