"""Flink's traces cut into epochs as on Spark: the local runtime emits the same output as event by event."""

from __future__ import annotations

from typing import Any

import pytest
from golden_epochs import epochs_of, expected_outputs, is_playable, ordered

from statebackend.streaming.data_stream import DataStream
from statebackend.testing.jobs import Emitted, HarnessJob, JobTestHarness
from tests.local.golden_jobs import OUT, WINDOWED, build, operators_of, shown_record
from tests.streaming.time.golden_time_traces import GOLDEN, scenarios

PLAYED = [
    pytest.param(one, id=one["name"])
    for group in sorted(path.stem for path in GOLDEN.glob("*.json"))
    for one in scenarios(group)
    if is_playable(one)
]


class Noted:
    """A job that records the order in which inputs are read."""

    def __init__(self, job: HarnessJob, inputs: list[int]) -> None:
        self._job, self._inputs = job, inputs

    def source(self, name: str, schema: str) -> DataStream:
        self._inputs.append(int(name))
        return self._job.source(name, schema)

    def output(self, name: str, stream: DataStream) -> None:
        self._job.output(name, stream)


def test_most_traces_are_played() -> None:
    assert len(PLAYED) >= 80


@pytest.mark.parametrize("scenario", PLAYED)
def test_a_trace_cut_into_epochs_emits_the_same_as_the_whole_trace(scenario: Any) -> None:
    is_element = operators_of(scenario)[0]["type"] in WINDOWED
    inputs: list[int] = []
    with JobTestHarness(lambda job: build(scenario, Noted(job, inputs))) as harness:
        for epoch in epochs_of(scenario, inputs).rows:
            records = [(index, row) for index in epoch_order(scenario, inputs) for row in epoch.get(index, [])]
            for index, row in records:
                if "moves" not in row:
                    rest = (row["values"],) if is_element else (row["value"], row["do"])
                    harness.source(f"{index}").send((row["key"], *rest), row["ts"])
            for index, row in records:
                if "moves" in row:
                    harness.source(f"{index}").watermark(row["moves"] - 1)
        for index in inputs:
            harness.source(f"{index}").end()
        emitted = [one for one in harness.taken() if isinstance(one, Emitted)]
    found = {}
    for name in dict.fromkeys(one.output for one in emitted):
        rows = [shown_record(one.record.asDict(), name != OUT) for one in emitted if one.output == name]
        entries = [one for one in scenario["expected"] if "out" in one and one.get("side", OUT) == name]
        found[name] = ordered(rows, entries, scenario)
    assert found == expected_outputs(scenario)


def epoch_order(scenario: Any, inputs: list[int]) -> list[int]:
    """The inputs in the order in which an epoch processes them."""
    is_broadcast = operators_of(scenario)[0]["type"] in ("broadcast", "keyed_broadcast")
    return sorted(inputs, reverse=is_broadcast)
