"""Random job graphs and upgrade chains equal their models; a failing one is found and shortened.

300 seeds: 260 graphs and 40 chains of five versions. `make simulate` runs thousands.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from verification.simulation.generated import GENERATORS, failures_of, shortened_plan
from verification.simulation.graphs.functions import Running
from verification.simulation.graphs.plan import GraphPlan
from verification.simulation.upgrades import model
from verification.simulation.upgrades.plan import UpgradePlan

pytestmark = pytest.mark.slow

GRAPHS = 260
UPGRADES = 40


@pytest.mark.extended_after(2)
@pytest.mark.parametrize("part", range(10))
def test_graphs_emit_the_output_of_their_model(part: int) -> None:
    count = GRAPHS // 10
    failures: dict[int, str] = {}
    for seed in range(1 + part * count, 1 + (part + 1) * count):
        failures |= failures_of("graphs", [seed])
    assert not failures, f"python -m verification.simulation --of graphs --replay {min(failures)} shortens the first"


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("part", range(2))
def test_chains_of_versions_keep_the_values_of_their_model(part: int) -> None:
    count = UPGRADES // 2
    failures = failures_of("upgrades", range(1 + part * count, 1 + (part + 1) * count))
    assert not failures, f"python -m verification.simulation --of upgrades --replay {min(failures)} shortens the first"


def test_the_graphs_have_every_kind_of_node_and_both_kinds_of_plans() -> None:
    plans = [GraphPlan.of_seed(seed) for seed in range(1, 1 + GRAPHS)]
    kinds = {node.kind for plan in plans for node in plan.nodes}
    assert kinds == {
        *(
            "source",
            "map",
            "union",
            "running",
            "collect",
            "window",
            "multi",
            "interval",
            "cogroup",
            "broadcast",
            "async",
        )
    }
    shapes = {node["shape"] for plan in plans for node in plan.nodes if node.kind == "window"}
    assert shapes == {"tumbling", "sliding", "session", "global", "clock"}
    assert {plan.is_batched for plan in plans} == {True, False}
    cuts = [event for plan in plans for event in plan.events if event.kind == "cut"]
    assert {event.backend for event in cuts} == {"heap", "rocksdb"}
    assert {event.parallelism for event in cuts} == {
        1,
        2,
        3,
    }


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_creates_the_same_plan_every_time(name: str) -> None:
    of_seed = GENERATORS[name].of_seed
    assert [of_seed(seed).description() for seed in range(20)] == [of_seed(seed).description() for seed in range(20)]


def test_lost_state_is_found_and_the_graph_shortened(monkeypatch: Any) -> None:
    process = Running.process_element

    def forgetful(self: Any, value: Any, context: Any) -> Any:
        if value.v == 4:
            self.state.clear()
        return process(self, value, context)

    monkeypatch.setattr(Running, "process_element", forgetful)
    seed = next(seed for seed in range(1, 100) if failures_of("graphs", [seed]))
    plan, failure = shortened_plan("graphs", seed)
    assert failure is not None
    assert "every output is that of the model" in failure
    assert isinstance(plan, GraphPlan)
    assert len(plan.events) <= 4
    assert [node.kind for node in plan.nodes if node.kind in ("window", "interval", "cogroup", "collect")] == []


@pytest.mark.extended
def test_a_different_value_is_found_in_a_group_of_chains(monkeypatch: Any) -> None:
    monkeypatch.setattr(model, "_PROMOTIONS", dict.fromkeys(model._PROMOTIONS, lambda value: value))
    failures = failures_of("upgrades", range(1, 11))
    assert failures
    assert len(failures) < 10
    plan, failure = shortened_plan("upgrades", min(failures), max_attempts=20)
    assert failure is not None
    assert "every value is that of the model" in failure
    assert isinstance(plan, UpgradePlan)
    assert len(plan.versions) < len(UpgradePlan.of_seed(min(failures)).versions)


@pytest.mark.extended
def test_the_command_prints_a_plan() -> None:
    command = [sys.executable, "-m", "verification.simulation", "--of", "graphs", "--replay", "1"]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=True)
    assert done.stdout.endswith("graphs 1: equal to the model\n")
