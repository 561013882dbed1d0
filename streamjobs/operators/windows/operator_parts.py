"""What a window operator asks of whoever runs it, beyond the protocol of operators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from streamjobs.api.output_tag import OutputTag
from streamjobs.operators.operator import InputBatch

__all__ = ["TimedBatch", "TimedEmitter"]


class TimedBatch(InputBatch, Protocol):
    """Records with their timestamps."""

    @property
    def timestamps(self) -> Sequence[Any] | None:
        """The timestamp of each record in milliseconds, or None for one without; None if none has one."""


class TimedEmitter(Protocol):
    """Where rows go with their timestamps."""

    @property
    def side_outputs(self) -> Collection[OutputTag[Any]]:
        """The side outputs that somebody reads."""

    def emit(
        self, tag: OutputTag[Any] | None, rows: Sequence[Any], timestamps: Sequence[int | None] | None = None
    ) -> None:
        """Takes rows of the output or, with a tag, of that side output, with the timestamp of each."""
