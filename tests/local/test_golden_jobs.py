"""Flink's traces as jobs on each backend: every row, watermark and status is equal and in order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.local.golden_jobs import PLAYED, operators_of, play
from tests.streaming.time.golden_time_traces import GOLDEN, comparable, in_one_order, scenarios

pytestmark = pytest.mark.slow

SCENARIOS = [
    pytest.param(scenario, id=scenario["name"])
    for group in sorted(path.stem for path in GOLDEN.glob("*.json"))
    for scenario in scenarios(group)
    if "quirk" not in scenario and "operator" in scenario and operators_of(scenario)[0]["type"] in PLAYED
]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_job_emits_what_flink_emits(scenario: Any, backend: str) -> None:
    is_unordered = scenario.get("values_unordered", False)
    with_watermarks = not isinstance(scenario["operator"], list) and not scenario["name"].startswith("assign_")
    expected = scenario["expected"]
    actual = comparable(play(scenario, backend=backend), is_unordered, with_watermarks)
    wanted = comparable(expected, is_unordered, with_watermarks)
    assert in_one_order(actual, expected) == in_one_order(wanted, expected)
