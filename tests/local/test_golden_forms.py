"""Hand-written traces of cases that Flink's traces do not include."""

from __future__ import annotations

from typing import Any

import pytest

from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.local.golden_jobs import play
from tests.streaming.time.golden_time_traces import comparable, in_one_order, with_pairs_tied

END = {"end": True}
NO_TIME = MIN_TIMESTAMP


def record(key: str, ts: int | None, value: int, **more: Any) -> dict[str, Any]:
    program = {"do": more.pop("do")} if "do" in more else {}
    return {"record": {"key": key, "ts": ts, "value": value, **program}, **more}


def pair(left: int, right: int) -> dict[str, Any]:
    return {"at": 4, "out": {"key": "a", "left": left, "right": right}, "ts": 17, "wm": 40}


def element(value: int, at: int, ts: int, wm: int, acc: int) -> dict[str, Any]:
    return {"at": at, "out": {"on": "element", "key": "a", "value": value, "acc": acc, "wm": wm}, "ts": ts, "wm": wm}


FIVES = {"type": "window", "assigner": {"type": "tumbling", "size": 5, "offset": 0}, "function": {"type": "reduce"}}

TRACES: list[dict[str, Any]] = [
    {
        "name": "window_join_session",
        "values_unordered": True,
        "operator": {"type": "window_join", "assigner": {"type": "session", "gap": 10}},
        "input": [
            record("a", 1, 1, input=0),
            record("a", 8, 2, input=0),
            record("a", 2, 3, input=1),
            {"watermark": 40, "input": 0},
            {"watermark": 40, "input": 1},
        ],
        "expected": [pair(2, 3), pair(1, 3), {"at": 4, "watermark": 40}],
    },
    {
        "name": "assign_monotonous",
        "operator": {"type": "assign_timestamps", "strategy": {"type": "monotonous", "idleness": 5}},
        "input": [record("a", None, 7), END],
        "expected": [
            {"at": 0, "out": {"key": "a", "values": [7]}, "ts": 7, "wm": NO_TIME},
            {"at": 1, "watermark": MAX_TIMESTAMP},
        ],
    },
    {
        "name": "window_then_keyed_process",
        "operator": [FIVES, {"type": "keyed_process", "onElement": [["add_value"], ["emit"]]}],
        "input": [record("a", 1, 1), record("a", 2, 2), record("a", 6, 4), {"watermark": 4}, END],
        "expected": [
            element(3, 3, 4, NO_TIME, 3),
            {"at": 3, "watermark": 4},
            element(4, 4, 9, 4, 7),
            {"at": 4, "watermark": MAX_TIMESTAMP},
        ],
    },
    {
        "name": "fail_in_process_element",
        "operator": {"type": "keyed_process"},
        "input": [record("a", 1, 1, do=[["add", 2], ["emit"], ["fail", "boom"], ["emit"]])],
        "expected": [element(1, 0, 1, NO_TIME, 2), {"at": 0, "error": "IllegalStateException"}],
    },
]


@pytest.mark.parametrize("trace", TRACES, ids=[one["name"] for one in TRACES])
def test_traces_of_other_forms_are_played(trace: dict[str, Any]) -> None:
    expected = with_pairs_tied(trace)["expected"]
    is_unordered = trace.get("values_unordered", False)
    actual, wanted = comparable(play(trace), is_unordered), comparable(expected, is_unordered)
    assert in_one_order(actual, expected) == in_one_order(wanted, expected)
