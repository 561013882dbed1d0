"""What comes out of a job under test: records, watermarks and statuses, each at an output that has a name."""

from __future__ import annotations

from typing import Any, TypeAlias

from attrs import frozen

from streamjobs.time.watermark_elements import WatermarkStatus

__all__ = ["Emitted", "EmittedElement", "EmittedStatus", "EmittedWatermark"]


@frozen
class Emitted:
    """A record that came out.

    ``timestamp_ms`` is its timestamp, None for a record without. ``watermark_ms`` is the watermark that the operator
    was at when it emitted the record, the smallest time (``-(1 << 63)``) if it had none.
    """

    output: str
    record: Any
    timestamp_ms: int | None
    watermark_ms: int


@frozen
class EmittedWatermark:
    """A watermark that came behind all the records in front of it."""

    output: str
    timestamp_ms: int


@frozen
class EmittedStatus:
    """The output became idle, or active again."""

    output: str
    status: WatermarkStatus


EmittedElement: TypeAlias = Emitted | EmittedWatermark | EmittedStatus
