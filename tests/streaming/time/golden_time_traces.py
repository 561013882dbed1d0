"""Flink's traces of single components, and the notation of their output."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkElement, WatermarkStatus

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "time"


def scenarios(group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GOLDEN / f"{group}.json").read_text())["scenarios"]
    return [with_pairs_tied(one) for one in found]


def with_pairs_tied(scenario: dict[str, Any]) -> dict[str, Any]:
    """The trace with the pairs of a firing session marked as a tie, because their order is undefined."""
    operator = scenario["operator"]
    is_join = not isinstance(operator, list) and operator["type"] == "window_join"
    if not is_join or not scenario.get("values_unordered", False):
        return scenario

    def tied(entry: dict[str, Any]) -> dict[str, Any]:
        if "out" not in entry:
            return entry
        return {"tie": f"{entry['at']} {entry['out']['key']} {entry['ts']}", **entry}

    return {**scenario, "expected": [tied(entry) for entry in scenario["expected"]]}


def as_recorded(at: int, elements: Iterable[WatermarkElement]) -> list[dict[str, Any]]:
    return [
        {"at": at, "watermark": one.timestamp_ms} if isinstance(one, Watermark) else {"at": at, "status": one.value}
        for one in elements
    ]


def element_of(event: dict[str, Any]) -> WatermarkElement:
    if "watermark" in event or "end" in event:
        return Watermark(event.get("watermark", MAX_TIMESTAMP))
    return WatermarkStatus.IDLE if "idle" in event else WatermarkStatus.ACTIVE


def comparable(entries: list[dict[str, Any]], is_unordered: bool = False, with_watermarks: bool = True) -> list[Any]:
    """Entries for comparison: sorted where the order is undefined."""
    shown = []
    for entry in entries:
        entry = {name: item for name, item in entry.items() if name != "tie"}
        if not with_watermarks:
            entry.pop("wm", None)
        if "error" in entry:
            entry = {"at": entry["at"], "error": True}
        out = entry.get("out")
        if is_unordered and isinstance(out, dict):
            entry["out"] = {name: sorted(item) if isinstance(item, list) else item for name, item in out.items()}
        shown.append(entry)
    return shown


def in_one_order(entries: list[Any], expected: list[dict[str, Any]]) -> list[Any]:
    """The entries with ties sorted."""
    ordered = list(entries)
    start = 0
    while start < len(expected):
        end = start + 1
        tie = expected[start].get("tie")
        while tie is not None and end < len(expected) and expected[end].get("tie") == tie:
            end += 1
        ordered[start:end] = sorted(ordered[start:end], key=lambda entry: json.dumps(entry, sort_keys=True))
        start = end
    return ordered


def assert_as_in_flink(out: list[dict[str, Any]], scenario: Mapping[str, Any]) -> None:
    """Check equality with the recorded entries, in order."""
    expected = scenario["expected"]
    assert in_one_order(comparable(out), expected) == in_one_order(comparable(expected), expected)
