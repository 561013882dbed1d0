"""What an operator emits row by row, in order, until it is handed on in one piece.

Windows and timers fire one by one, most of them emitting one row. Handing each row on by itself would cost more than
making it, so rows are collected, and those that go to the same place one behind the other are one call. A row is
encoded when it is added, because the function may change it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from streamjobs.api.output_tag import OutputTag
from streamjobs.operators.operator import Emitter

__all__ = ["OrderedOutput"]


class OrderedOutput:
    """See the module."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._tag: OutputTag[Any] | None = None
        self._encoder = emitter.encoder(None)
        self._rows: list[Any] = []
        self._timestamps: list[int | None] = []

    @property
    def side_outputs(self) -> Collection[OutputTag[Any]]:
        """The side outputs that somebody reads."""
        return self._emitter.side_outputs

    def side_outputs_at(self, timestamp: Callable[[], int | None]) -> Mapping[OutputTag[Any], Callable[[Any], object]]:
        """What takes the rows of each of them, with the timestamp that there is at that time."""

        def into(tag: OutputTag[Any]) -> Callable[[Any], object]:
            return lambda value: self.add(tag, value, timestamp())

        return {tag: into(tag) for tag in self.side_outputs}

    def add(self, tag: OutputTag[Any] | None, row: Any, timestamp_ms: int | None) -> None:
        """Takes a row of the output or, with a tag, of that side output."""
        if tag is not self._tag:
            self.flush()
            self._tag = tag
            self._encoder = self._emitter.encoder(tag)
        encoder = self._encoder
        self._rows.append(row if row.__class__ in encoder.unchanged else encoder.encode(row))
        self._timestamps.append(timestamp_ms)

    def flush(self) -> None:
        """Hands on what there is."""
        if self._rows:
            rows, timestamps = self._rows, self._timestamps
            self._rows, self._timestamps = [], []
            self._emitter.emit(self._tag, rows, timestamps)
