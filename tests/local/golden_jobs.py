"""Flink's traces as jobs: the public API builds each scenario, and the job test harness plays it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from statebackend import KeyedProcessFunction, OutputTag, ProcessContext, StreamJobError, WatermarkStrategy
from statebackend.streaming.data_stream import DataStream, ProcessedStream
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from statebackend.streaming.time.watermark_generators import WatermarkGenerator, WatermarkOutput
from statebackend.testing.jobs import Emitted, EmittedElement, EmittedWatermark, JobTestHarness
from tests.streaming.operators.golden_traces import (
    RECORD,
    ROW_TYPE,
    RULES,
    BroadcastPlay,
    CoPlay,
    KeylessBroadcastPlay,
    Play,
    ShowPair,
)
from tests.streaming.operators.windows.golden_windows import ELEMENT, join_of, windows_of

Given = Mapping[str, Any]

OUT = "out"
"""The main output. Side outputs are named by their tags."""


def operators_of(scenario: Given) -> Sequence[Given]:
    """The operators of a scenario in order."""
    given = scenario["operator"]
    return given if isinstance(given, list) else [given]


class Punctuated(WatermarkGenerator[Any]):
    """Emits a watermark, a status or nothing, depending on the key of the record."""

    def on_event(self, event: Any, timestamp_ms: int, output: WatermarkOutput) -> None:
        if event.key == "w":
            output.emit_watermark(timestamp_ms)
        elif event.key == "i":
            output.mark_idle()
        elif event.key == "a":
            output.mark_active()


class Echo(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        yield value.key, [value.value]


def keyed_process(streams: Sequence[DataStream], given: Given, uid: str) -> ProcessedStream:
    return streams[0].key_by("key").process(Play(given), uid=uid, schema=ROW_TYPE)


def union_keyed_process(streams: Sequence[DataStream], given: Given, uid: str) -> ProcessedStream:
    return keyed_process([streams[0].union(*streams[1:])], given, uid)


def keyed_co_process(streams: Sequence[DataStream], given: Given, uid: str) -> ProcessedStream:
    first, second = (stream.key_by("key") for stream in streams)
    return first.connect(second).process(CoPlay(given), uid=uid, schema=ROW_TYPE)


def keyed_broadcast(streams: Sequence[DataStream], given: Given, uid: str) -> ProcessedStream:
    connected = streams[0].key_by("key").connect(streams[1].broadcast(RULES))
    return connected.process(BroadcastPlay(given), uid=uid, schema=ROW_TYPE)


def broadcast(streams: Sequence[DataStream], given: Given, uid: str) -> ProcessedStream:
    connected = streams[0].connect(streams[1].broadcast(RULES))
    return connected.process(KeylessBroadcastPlay(), uid=uid, schema=ROW_TYPE)


def interval_join(streams: Sequence[DataStream], given: Given, uid: str) -> ProcessedStream:
    left, right = (stream.key_by("key") for stream in streams)
    join = left.interval_join(right).between(given["lower"], given["upper"])
    if not given.get("lowerInclusive", True):
        join = join.lower_bound_exclusive()
    if not given.get("upperInclusive", True):
        join = join.upper_bound_exclusive()
    if "lateLeftTag" in given:
        join = join.side_output_left_late_data(OutputTag(given["lateLeftTag"], RECORD))
    if "lateRightTag" in given:
        join = join.side_output_right_late_data(OutputTag(given["lateRightTag"], RECORD))
    return join.process(ShowPair(), uid=uid, schema=ROW_TYPE)


def window_join(streams: Sequence[DataStream], given: Given, uid: str) -> ProcessedStream:
    return join_of(*streams, given, uid)


STRATEGIES: Mapping[str, Callable[[Given], WatermarkStrategy[Any]]] = {
    "bounded": lambda given: WatermarkStrategy.for_bounded_out_of_orderness(given["bound"]),
    "monotonous": lambda given: WatermarkStrategy.for_monotonous_timestamps(),
    "none": lambda given: WatermarkStrategy.no_watermarks(),
    "punctuated": lambda given: WatermarkStrategy.for_generator(Punctuated),
}


def strategy_of(given: Given) -> WatermarkStrategy[Any]:
    """The watermark strategy of a trace."""
    strategy = STRATEGIES[given["type"]](given)
    return strategy.with_idleness(given["idleness"]) if "idleness" in given else strategy


def assign_timestamps(streams: Sequence[DataStream], given: Given, uid: str) -> ProcessedStream:
    strategy = strategy_of(given["strategy"]).with_timestamps("value")
    timed = streams[0].assign_timestamps_and_watermarks(strategy)
    return timed.key_by("key").process(Echo(), uid=uid, schema=ELEMENT)


BUILDERS: Mapping[str, Callable[[Sequence[DataStream], Given, str], ProcessedStream]] = {
    "keyed_process": keyed_process,
    "union_keyed_process": union_keyed_process,
    "keyed_co_process": keyed_co_process,
    "keyed_broadcast": keyed_broadcast,
    "broadcast": broadcast,
    "interval_join": interval_join,
    "window_join": window_join,
    "co_group": window_join,
    "assign_timestamps": assign_timestamps,
}

WINDOWED = ("window", "window_join", "co_group")
"""Scenarios with windows. Their elements can be folded, so they are stored as records."""

PLAYED = ("window", *BUILDERS)


class TracedJob(Protocol):
    """Plays the sources of a scenario and records its outputs."""

    def source(self, name: str, schema: str) -> DataStream:
        """A stream of the scenario."""

    def output(self, name: str, stream: DataStream) -> None:
        """Records a stream as output."""


def build(scenario: Given, job: TracedJob, uid: str = "operator") -> None:
    """The job of a scenario; ``uid`` is the prefix of its operators."""
    operators = operators_of(scenario)
    schema = ELEMENT if operators[0]["type"] in WINDOWED else RECORD
    inputs = {0, *(event.get("input", 0) for event in scenario["input"])} | set(range(_inputs_of(operators[0])))
    streams = [job.source(str(index), schema) for index in sorted(inputs)]
    stream: DataStream = streams[0]
    for index, given in enumerate(operators):
        if given["type"] == "window":
            made = windows_of(stream.key_by("key"), given, f"{uid}-{index}")
            sides = {given.get("lateTag"): ELEMENT, given["function"].get("clearSide"): ROW_TYPE}
        else:
            made = BUILDERS[given["type"]]([stream] if index else streams, given, f"{uid}-{index}")
            sides = dict.fromkeys(given.get("sideTags", ()), ROW_TYPE)
            sides |= {given.get("lateLeftTag"): RECORD, given.get("lateRightTag"): RECORD}
        for tag, of_tag in sides.items():
            if tag is not None:
                job.output(tag, made.get_side_output(OutputTag(tag, of_tag)))
        stream = made
    job.output(OUT, stream)


def _inputs_of(given: Given) -> int:
    if given["type"] == "union_keyed_process":
        return int(given["inputs"])
    return 1 if given["type"] in ("window", "keyed_process", "assign_timestamps") else 2


def play(scenario: Given, **harness: Any) -> list[dict[str, Any]]:
    """The output in the form of the traces."""
    out: list[dict[str, Any]] = []
    at = 0
    try:
        with JobTestHarness(lambda job: build(scenario, job), **harness) as played:
            for at, event in enumerate(scenario["input"]):
                try:
                    kind = operators_of(scenario)[0]["type"]
                    feed(played, event, kind in WINDOWED, kind == "assign_timestamps")
                finally:
                    out += [shown for one in played.taken() if (shown := as_recorded(at, one)) is not None]
    except StreamJobError as error:
        out.append({"at": at, "error": str(error)})
    return out


def feed(harness: JobTestHarness, event: Given, is_element: bool, has_strategy: bool = False) -> None:
    """Play one event of a trace."""
    source = harness.source(str(event.get("input", 0)))
    if has_strategy and "record" not in event and "end" not in event and event.get("watermark") != MAX_TIMESTAMP:
        # Flink's strategies ignore watermarks and statuses of the source. The harness would apply them.
        return
    if "record" in event:
        record = event["record"]
        program = json.dumps(record["do"]) if "do" in record else None
        row = (record["key"], [record["value"]]) if is_element else (record["key"], record["value"], program)
        source.send(row, record["ts"])
    elif "watermark" in event:
        source.watermark(event["watermark"])
    elif "end" in event:
        source.end()
    elif "idle" in event:
        source.idle()
    else:
        source.active()


def as_recorded(at: int, one: EmittedElement) -> dict[str, Any] | None:
    """An element in the form of the traces. None for watermarks of side outputs, which are those of the main output."""
    if isinstance(one, Emitted):
        side = {} if one.output == OUT else {"side": one.output}
        shown = shown_record(one.record.asDict(), one.output != OUT)
        return {"at": at, **side, "out": shown, "ts": one.timestamp_ms, "wm": one.watermark_ms}
    if one.output != OUT:
        return None
    if isinstance(one, EmittedWatermark):
        return {"at": at, "watermark": one.timestamp_ms}
    return {"at": at, "status": one.status.value}


def shown_record(row: Mapping[str, Any], is_side: bool) -> Any:
    """A record of the main output or a side output in the form of the traces."""
    if "shown" in row:
        return json.loads(row["shown"])
    if "do" in row:
        return {"key": row["key"], "value": row["value"]}
    return {"key": row["key"], "value": sum(row["values"])} if is_side else dict(row)
