"""What a node of the graph holds for an operator of async I/O."""

from __future__ import annotations

from enum import Enum
from typing import Any

from attrs import frozen

from streamjobs.api.async_functions import AsyncFunction, AsyncRetryStrategy

__all__ = ["AsyncWaitDefinition", "EmissionOrder"]


class EmissionOrder(Enum):
    """In which order results are emitted, between two watermarks."""

    ORDERED = "ordered"
    """That of the records they belong to."""
    UNORDERED = "unordered"
    """That in which they are there."""


@frozen(kw_only=True)
class AsyncWaitDefinition:
    """What a node of the graph holds for an operator of async I/O; picklable."""

    function: AsyncFunction[Any, Any]
    order: EmissionOrder
    timeout_ms: int
    capacity: int
    retry: AsyncRetryStrategy | None
    carries_in_flight: bool
    is_keyed: bool

    @property
    def user_functions(self) -> tuple[Any, ...]:
        """The function."""
        return (self.function,)
