"""Flink's traces cut into epochs for Spark.

In a trace, each event is processed completely before the next one. In a Spark epoch, the watermark comes first and then
the records; the watermark follows from earlier epochs. So a trace is cut into epochs by these rules:

* A watermark ends the epoch in which it is read, and applies from the next one on. It is a separate row that advances
  the time of its source. All sources share one operator, and only that operator gets the row. Records of a trace do
  not advance time.
* In an epoch an operator reads its inputs in a fixed order, with broadcast inputs first. A record starts a new epoch if
  its input comes before that of the previous record. Records of a union have no order, so each change of input starts
  a new epoch.
* An input that ends before others has a watermark of one millisecond less than the final one. When the last input
  ends, the job is drained.
* Records of one source are in one file, so they are in order. Parallelism is 1, so the rows of an output are in order.

`left_out` returns the reason why a trace is not played. The tests compare the rows of each output in order. They also
compare the operator's watermark if the trace emits it. The time at which a row is emitted is checked only by its
order: forwarded watermarks and statuses are not rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.local.golden_jobs import OUT, PLAYED, WINDOWED, operators_of

Given = Mapping[str, Any]
Row = dict[str, Any]

SCHEMA = "moves bigint, ts bigint, key string, value bigint, do string, `values` array<bigint>"
"""A row of a source. It is a watermark if ``moves`` is set, and a record otherwise."""


def left_out(scenario: Given) -> str | None:
    """Why a trace is not played on Spark; None if it is played."""
    events = scenario["input"]
    if operators_of(scenario)[0]["type"] == "assign_timestamps":
        return "it shows what a generator emits at a record, and Spark learns of an epoch the largest timestamps alone"
    if any("idle" in event or "active" in event for event in events):
        return "a source says that it is idle, which on Spark follows from the clock"
    if any("error" in entry for entry in scenario["expected"]):
        return "it fails the job, and the traces that are played with it"
    if any(event.get("watermark") == MAX_TIMESTAMP for event in events):
        return "a source says that time is at its end and reads on, which on Spark a drain alone does, at the end"
    if "end" not in events[-1]:
        return "its inputs do not end with it, and a drain is one for all traces of a job"
    return None


def is_playable(scenario: Given) -> bool:
    """Whether `golden_jobs` builds the operators of a trace and the trace is played here."""
    is_of_job = "operator" in scenario and operators_of(scenario)[0]["type"] in PLAYED
    return is_of_job and "quirk" not in scenario and left_out(scenario) is None


@define
class Epochs:
    """The rows of each input in each epoch."""

    inputs: Sequence[int]
    rows: list[dict[int, list[Row]]] = field(factory=list)

    def of(self, index: int) -> list[list[Row]]:
        """The rows of an input, by epoch."""
        return [epoch.get(index, []) for epoch in self.rows]


def epochs_of(scenario: Given, inputs: Sequence[int]) -> Epochs:
    """Cut a trace into epochs; ``inputs`` are its inputs."""
    cut = Epochs(inputs)
    kind = operators_of(scenario)[0]["type"]
    left = set(inputs)
    last: int | None = None
    epoch: dict[int, list[Row]] = {}

    def end_epoch() -> None:
        nonlocal epoch, last
        if epoch:
            cut.rows.append(epoch)
        epoch, last = {}, None

    for event in scenario["input"]:
        index = event.get("input", 0)
        if "record" in event:
            place = _place(kind, index)
            if last is not None and (place < last or (place != last and kind == "union_keyed_process")):
                end_epoch()
            last = place
            epoch.setdefault(index, []).append(_record(event["record"], kind in WINDOWED))
            continue
        left.discard(index if "end" in event else None)
        if not left:
            break
        watermark = MAX_TIMESTAMP - 1 if "end" in event else event["watermark"]
        if watermark > MIN_TIMESTAMP:
            epoch.setdefault(index, []).append({"moves": watermark + 1})
        end_epoch()
    end_epoch()
    return cut


def _place(kind: str, index: int) -> int:
    """The position of an input in the order in which its operator reads inputs."""
    return -index if kind in ("broadcast", "keyed_broadcast") else index


def _record(given: Given, is_element: bool) -> Row:
    row = {"ts": given["ts"], "key": given["key"]}
    if is_element:
        return {**row, "values": [given["value"]]}
    return {**row, "value": given["value"], "do": json.dumps(given["do"]) if "do" in given else None}


def expected_outputs(scenario: Given) -> dict[str, list[Any]]:
    """The rows of each output, in the order of `ordered`."""
    outputs: dict[str, list[Given]] = {}
    for entry in scenario["expected"]:
        if "out" in entry:
            outputs.setdefault(entry.get("side", OUT), []).append(entry)
    return {name: ordered([one["out"] for one in entries], entries, scenario) for name, entries in outputs.items()}


def ordered(out: Sequence[Any], entries: Sequence[Given], scenario: Given) -> list[Any]:
    """The output in a fixed order where Flink defines none. ``entries`` are those of the trace."""
    shown = [_without_order(one) if scenario.get("values_unordered", False) else one for one in out]
    start = 0
    while start < len(entries):
        end = start + 1
        tie = entries[start].get("tie")
        while tie is not None and end < len(entries) and entries[end].get("tie") == tie:
            end += 1
        shown[start:end] = sorted(shown[start:end], key=lambda one: json.dumps(one, sort_keys=True))
        start = end
    return shown


def _without_order(one: Any) -> Any:
    return {name: sorted(item) if isinstance(item, list) else item for name, item in one.items()}
