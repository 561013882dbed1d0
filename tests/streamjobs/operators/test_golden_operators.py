"""Flink's traces of operators with several inputs, played on one operator over each backend: equal in every row."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from statebackend.heap import HeapStateBackend
from statebackend.rocksdb import RocksDBStateBackend
from streamjobs.api.broadcast_functions import BroadcastProcessDefinition
from streamjobs.operators.operator_factories import operator_factory
from testkit.backends.harness import BackendHarness
from tests.streamjobs.operators.golden_traces import (
    RULES,
    TWO_INPUTS,
    BroadcastPlay,
    CoPlay,
    KeylessBroadcastPlay,
    Play,
    assert_as_in_flink,
    interval_join_of,
    played,
    scenarios,
    side_outputs,
)
from tests.streamjobs.operators.windows.window_harness import TimedRun
from typeserializers.opaque.pickles import PickleSerializer

SCENARIOS = [
    *scenarios("two_inputs"),
    *scenarios("broadcast"),
    *scenarios("joins", "interval_join"),
]

FUNCTIONS: Mapping[str, Any] = {
    "keyed_co_process": CoPlay,
    "union_keyed_process": Play,
    "keyed_broadcast": lambda given: BroadcastProcessDefinition(BroadcastPlay(given), (RULES,)),
    "broadcast": lambda given: BroadcastProcessDefinition(KeylessBroadcastPlay(), (RULES,)),
    "interval_join": lambda given: interval_join_of(given, lambda definition, **_: definition, PickleSerializer(dict)),
}


@pytest.mark.parametrize("state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_operators_of_several_inputs_emit_what_flink_emits(
    scenario: Mapping[str, Any], state_backend: Any, tmp_path: Path
) -> None:
    given = scenario["operator"]

    def opened() -> TimedRun:
        function = copy.deepcopy(FUNCTIONS[given["type"]](given))
        operator = operator_factory(function)(function, "operator")
        harness = BackendHarness(str(tmp_path))
        schemas = (None, None)
        return TimedRun(harness, state_backend, operator, side_outputs=side_outputs(given), schemas=schemas)

    united = given["type"].startswith("union")
    assert_as_in_flink(played(scenario, opened, [range(given["inputs"])] if united else TWO_INPUTS), scenario)
