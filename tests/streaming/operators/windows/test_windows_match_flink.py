"""Windows with every trigger and evictor: a job emits what Flink defines, in that order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.local.golden_jobs import play
from tests.streaming.operators.windows.window_model import MAX_TIME, MIN_TIME, WindowModel
from tests.streaming.time.golden_time_traces import GOLDEN, comparable, in_one_order, scenarios

pytestmark = pytest.mark.slow

# The model does not cover records without timestamps, nor rejected jobs.
OTHERS = ("global_no_timestamp", "session_window_state_rejected")
RECORDED = [
    pytest.param(scenario, id=scenario["name"])
    for group in sorted(path.stem for path in GOLDEN.glob("windows_*.json"))
    for scenario in scenarios(group)
    if scenario["operator"]["type"] == "window" and "quirk" not in scenario and scenario["name"] not in OTHERS
    # A dynamic gap of 0 fails.
    if not any("error" in entry for entry in scenario["expected"])
]


def assert_equal(actual: list[Any], expected: list[Any], ties: list[Any], is_unordered: bool) -> None:
    shown = (in_one_order(comparable(entries, is_unordered), ties) for entries in (actual, expected))
    assert next(shown) == next(shown)


@pytest.mark.parametrize("scenario", RECORDED)
def test_the_rules_equal_flink(scenario: Any) -> None:
    expected = scenario["expected"]
    given = WindowModel(scenario["operator"]).play(scenario["input"])
    assert_equal(given, expected, expected, scenario.get("values_unordered", False))


ASSIGNERS: Final = {
    "tumbling": {"type": "tumbling", "size": 5, "offset": 2},
    "overlapping": {"type": "sliding", "size": 6, "slide": 4, "offset": -1},
    "gaps": {"type": "sliding", "size": 3, "slide": 5, "offset": 0},
    "sessions": {"type": "session", "gap": 3},
    "dynamic": {"type": "session_dynamic"},
    "global": {"type": "global"},
}
MERGING: Final = ("sessions", "dynamic")
TRIGGERS: Final = [
    {"type": "event_time"},
    {"type": "count", "n": 1},
    {"type": "count", "n": 3},
    {"type": "continuous", "interval": 3},
    {"type": "delta", "threshold": 2},
    {"type": "early_count", "n": 2},
    {"type": "early_at", "offset": 2},
    {"type": "early_at", "offset": 9},
]
NOT_FOR: Final = {
    "global": ("event_time", "early_count", "early_at"),
    **dict.fromkeys(MERGING, ("delta", "early_count")),
}
EVICTORS: Final = [
    *({"type": "count", "n": n} for n in (0, 2)),
    *({"type": "time", "size": size} for size in (0, 2)),
    *({"type": "delta", "threshold": threshold} for threshold in (0, 2)),
]
SHOWN: Final = {"windowState": True, "clearSide": "cleared"}


def cases() -> Iterator[Any]:
    """Every assigner with every allowed trigger, purging or not, and with every evictor."""
    functions = itertools.cycle(["process", "reduce", "aggregate_process", "reduce_process", "aggregate"])
    lateness = itertools.cycle([0, 4, 1, 9])
    for (name, assigner), trigger, purges in itertools.product(ASSIGNERS.items(), TRIGGERS, (False, True)):
        if trigger["type"] in NOT_FOR.get(name, ()):
            continue
        given = {"type": "purging", "of": trigger} if purges else trigger
        operator = {"type": "window", "assigner": assigner, "trigger": given, "function": {"type": next(functions)}}
        yield name, operator, next(lateness)
    for name, evictor, after in itertools.product(("overlapping", "global"), EVICTORS, (False, True)):
        # An evictor may leave no element, and the result of reducing none is undefined. So only process functions are
        # used.
        operator = {"type": "window", "assigner": ASSIGNERS[name], "evictor": {**evictor, "after": after}}
        operator |= {"trigger": {"type": "count", "n": 2}, "function": {"type": "process"}}
        yield name, operator, next(lateness)


def completed(name: str, operator: dict[str, Any], lateness: int) -> dict[str, Any]:
    """The operator with all allowed options."""
    if name != "global":
        operator = {**operator, "allowedLateness": lateness, "lateTag": "late"}
    if operator["function"]["type"] in ("reduce", "aggregate"):
        return operator
    shown = {key: item for key, item in SHOWN.items() if name not in MERGING or key != "windowState"}
    return {**operator, "function": {**operator["function"], **shown}}


def stream(seed: str, kind: str) -> list[dict[str, Any]]:
    """Records and watermarks around an advancing time, anywhere in the range of time.

    Values are the gaps of dynamic sessions. Otherwise they increase slowly, so that differences have both signs.
    """
    draw = random.Random(seed)
    now = draw.choice([0, 0, -30, 1000, MIN_TIME + 200, MAX_TIME - 300])
    events: list[dict[str, Any]] = []
    for number in range(60):
        if draw.random() < 0.25:
            events.append({"watermark": now + draw.randint(-9, 2)})
            continue
        value = draw.randint(1, 7) + (0 if kind == "session_dynamic" else number // 4)
        record = {"key": draw.choice("aab"), "ts": now + draw.randint(-11, 5), "value": value}
        events.append({"record": record})
        now += draw.choice([0, 0, 1, 2])
    # A global window that fires at intervals would do so until the end of time, so its stream only becomes idle.
    return [*events, {"idle": True}] if kind == "global" else [*events, {"end": True}]


CASES = [
    pytest.param(completed(name, operator, lateness), id=f"{name}-{number}")
    for number, (name, operator, lateness) in enumerate(cases())
]


@pytest.mark.parametrize("operator", CASES)
def test_a_job_emits_what_the_rules_define(operator: dict[str, Any], request: pytest.FixtureRequest) -> None:
    kind = operator["assigner"]["type"]
    events = stream(request.node.callspec.id, kind)
    expected = WindowModel(operator).play(events)
    assert any("out" in entry for entry in expected)
    actual = play({"operator": operator, "input": events}, backend="heap")
    for entry in (*actual, *expected):
        # The order of windows of a key that fire at the same time is undefined.
        entry.get("out", {}).pop("gfires", None)
    assert_equal(actual, expected, expected, kind.startswith("session"))
