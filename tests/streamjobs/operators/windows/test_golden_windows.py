"""Flink's traces of windows, played on one operator over each backend: equal in every row, in order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from statebackend.heap import HeapStateBackend
from statebackend.rocksdb import RocksDBStateBackend
from streamjobs.api.output_tag import OutputTag
from streamjobs.errors import StreamJobError
from streamjobs.time.status_watermark_valve import StatusWatermarkValve
from streamjobs.time.timestamps import MAX_TIMESTAMP
from streamjobs.time.watermark_elements import Watermark, WatermarkStatus
from testkit.backends.harness import BackendHarness
from tests.streamjobs.operators.golden_traces import comparable, in_one_order
from tests.streamjobs.operators.windows.golden_windows import Element, stream_of
from tests.streamjobs.operators.windows.window_harness import Emitted, WindowRun
from tests.streamjobs.time.golden_time_traces import GOLDEN


def _scenarios() -> list[Any]:
    paths = [*sorted(GOLDEN.glob("windows_*.json")), GOLDEN / "pipelines.json", GOLDEN / "joins.json"]
    scenarios = [scenario for path in paths for scenario in json.loads(path.read_text())["scenarios"]]
    return [
        pytest.param(scenario, id=scenario["name"])
        for scenario in scenarios
        if "quirk" not in scenario and _operators(scenario)[0]["type"] in ("window", "window_join", "co_group")
    ]


def _operators(scenario: Mapping[str, Any]) -> list[Any]:
    operators = scenario["operator"]
    return operators if isinstance(operators, list) else [operators]


SCENARIOS = _scenarios()


class Stage:
    """One operator of a trace, which gives what it emits to the next."""

    def __init__(self, run: WindowRun, following: Stage | None, out: list[dict[str, Any]]) -> None:
        self.run = run
        self._following = following
        self._out = out
        self.at = 0

    def element(self, element: Element, time: int | None, input_index: int = 0) -> None:
        self.run.records((element.key, element, time), input_index=input_index)
        self._pass_on()

    def status(self, status: WatermarkStatus) -> None:
        if self._following is None:
            self._out.append({"at": self.at, "status": status.value})
        else:
            self._following.status(status)

    def watermark(self, watermark: int) -> None:
        self.run.watermark(watermark)
        self._pass_on()
        if self._following is None:
            self._out.append({"at": self.at, "watermark": watermark})
        else:
            self._following.watermark(watermark)

    def _pass_on(self) -> None:
        emitted, self.run.emitted[:] = list(self.run.emitted), []
        for one in emitted:
            if one.tag is None and self._following is not None:
                self._following.element(one.row, one.timestamp_ms)
            else:
                self._out.append(self._shown(one))

    def _shown(self, emitted: Emitted) -> dict[str, Any]:
        row, is_late = emitted.row, emitted.tag is not None and isinstance(emitted.row, Element)
        if is_late:
            row = {"key": row.key, "value": sum(row.values)}
        elif isinstance(row, Element):
            row = row._asdict()
        side = {} if emitted.tag is None else {"side": emitted.tag.name}
        return {"at": self.at, **side, "out": row, "ts": emitted.timestamp_ms, "wm": emitted.watermark}


def play(scenario: Mapping[str, Any], state_backend: Any, directory: str) -> tuple[list[dict[str, Any]], Stage]:
    """What comes out, and the first stage."""
    operators = _operators(scenario)
    out: list[dict[str, Any]] = []
    stages: list[Stage] = []
    following = None
    for index, given in reversed(list(enumerate(operators))):
        definition = stream_of(given, lambda definition, **_: definition)
        named = (given.get("lateTag"), given.get("function", {}).get("clearSide"))
        tags = [OutputTag(name) for name in named if name]
        run = WindowRun(BackendHarness(f"{directory}/{index}"), state_backend, definition, side_outputs=tags)
        following = Stage(run, following, out)
        stages.append(following)
    first = stages[-1]
    is_two = operators[0]["type"] != "window"
    valve: StatusWatermarkValve[int] = StatusWatermarkValve(range(1 + is_two))
    for at, event in enumerate(scenario["input"]):
        for stage in stages:
            stage.at = at
        try:
            index = event.get("input", 0)
            if "record" in event:
                record = event["record"]
                first.element(Element(record["key"], [record["value"]]), record["ts"], index)
                continue
            if "watermark" in event or "end" in event:
                sent = valve.input_watermark(index, event.get("watermark", MAX_TIMESTAMP))
            else:
                status = WatermarkStatus.IDLE if "idle" in event else WatermarkStatus.ACTIVE
                sent = valve.input_status(index, status)
            for element in sent:
                if isinstance(element, Watermark):
                    first.watermark(element.timestamp_ms)
                else:
                    first.status(element)
        except StreamJobError as error:
            out.append({"at": at, "error": str(error)})
            break
    return out, first


@pytest.mark.parametrize("state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_windows_emit_what_flink_emits(scenario: Mapping[str, Any], state_backend: Any, tmp_path: Path) -> None:
    out, _ = play(scenario, state_backend, str(tmp_path))
    is_unordered = scenario.get("values_unordered", False)
    with_watermarks = not isinstance(scenario["operator"], list)
    expected = scenario["expected"]
    actual = in_one_order(comparable(out, is_unordered, with_watermarks), expected)
    assert actual == in_one_order(comparable(expected, is_unordered, with_watermarks), expected)
