"""Flink's traces of the parts that are driven as objects, and how what they send is written there."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable
from typing import Any

from streamjobs.time.timestamps import MAX_TIMESTAMP
from streamjobs.time.watermark_elements import Watermark, WatermarkElement, WatermarkStatus

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "time"


def scenarios(group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GOLDEN / f"{group}.json").read_text())["scenarios"]
    return found


def as_recorded(at: int, elements: Iterable[WatermarkElement]) -> list[dict[str, Any]]:
    return [
        {"at": at, "watermark": one.timestamp_ms} if isinstance(one, Watermark) else {"at": at, "status": one.value}
        for one in elements
    ]


def element_of(event: dict[str, Any]) -> WatermarkElement:
    if "watermark" in event or "end" in event:
        return Watermark(event.get("watermark", MAX_TIMESTAMP))
    return WatermarkStatus.IDLE if "idle" in event else WatermarkStatus.ACTIVE
