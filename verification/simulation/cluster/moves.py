"""A move of the cluster: its description, its action, and its weight in the random choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statebackend.checkpoint.coordinator.messages import Acknowledged
from verification.simulation.cluster.channel import Record

__all__ = ["Move", "describe"]

Move = tuple[str, Callable[[], None], int]
"""Its description, its action, and its weight."""


def describe(content: Any) -> str:
    """An element of a channel, or a message, in a few words."""
    if isinstance(content, Record):
        return f"record {content.number}"
    checkpoint_id = getattr(content, "checkpoint_id", None)
    if isinstance(content, Acknowledged):
        one = content.acknowledgement
        return f"{one.task} acknowledge {one.checkpoint_id} of {one.run_id}"
    return f"{type(content).__name__} {checkpoint_id}"
