"""Three hundred schedules satisfy all invariants; they are deterministic; a failing one is shortened.

`test_planted_defects` also runs the schedules that have found the planted defects. `make simulate` runs more.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.verification.simulation.planted_defects import DEFECTS
from verification.simulation.cluster.plan import ClusterPlan
from verification.simulation.jobs.plan import JobPlan
from verification.simulation.report import coverage
from verification.simulation.schedules import plan_of_seed, run_schedule, shortened

pytestmark = pytest.mark.slow

FIRST_SEED = 1
SCHEDULES = 300
PARTS = 4


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_satisfy_all_invariants(part: int) -> None:
    count = SCHEDULES // PARTS
    seeds = range(FIRST_SEED + part * count, FIRST_SEED + (part + 1) * count)
    outcomes = [run_schedule(plan_of_seed(seed)) for seed in seeds]
    failed = {one.plan.seed: one.failure for one in outcomes if one.failure is not None}
    assert not failed, f"python -m verification.simulation --replay {min(failed)} tells the steps of the first"
    assert len({one.interleaving for one in outcomes}) > 0.95 * count
    assert "fault points" in coverage(outcomes)


def test_both_kinds_of_schedules_are_simulated() -> None:
    assert {type(plan_of_seed(seed)) for seed in range(3)} == {ClusterPlan, JobPlan}


@pytest.mark.parametrize("seed", [3, 4, 6, 11])
def test_a_schedule_is_deterministic(seed: int) -> None:
    first, second = (run_schedule(plan_of_seed(seed), keeps_lines=True) for _ in range(2))
    assert first.lines == second.lines
    assert first.interleaving == second.interleaving


@pytest.mark.extended
def test_a_schedule_is_replayed_equally_in_another_process() -> None:
    lines = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "verification.simulation", "--replay", "6"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.endswith("schedule 6: every promise was kept\n")
        lines.append(done.stdout)
    assert lines[0] == lines[1]


@pytest.mark.extended
def test_a_failing_schedule_is_shortened_and_still_fails() -> None:
    [defect] = [one for one in DEFECTS if one.name == "capturing ends with the first barrier instead of the last"]
    with defect.patch():
        plan = next(plan for plan in map(plan_of_seed, range(1, 500)) if run_schedule(plan).failure is not None)
        short = shortened(plan)
        outcome = run_schedule(short, keeps_lines=True)
    assert outcome.failure is not None
    assert len(short.description()) <= len(plan.description())
    assert len(short.faults) <= len(plan.faults)
    assert any(" takes " in line for line in outcome.lines)
    assert run_schedule(plan).failure is None
