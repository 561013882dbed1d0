"""Schedules find each planted defect, and the documentation has the list."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.verification.simulation.planted_defects import DEFECTS, FIRST_SEED, MOST_SCHEDULES, Defect, is_of_the_patch
from verification.simulation.schedules import plan_of_seed, run_schedule

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "simulation.md"
ROW = re.compile(r"^\| ([^|]+?) \| (\d+) \| ([^|]+?) \|$", re.MULTILINE)


def documented() -> dict[str, int]:
    table = PAGE.read_text().partition("<!-- planted defects -->")[2]
    return {name: int(count) for name, count, _ in ROW.findall(table)}


def test_the_documentation_has_every_defect_with_its_number_of_schedules() -> None:
    assert list(documented()) == [one.name for one in DEFECTS]
    assert len(DEFECTS) >= 20
    assert max(documented().values()) <= MOST_SCHEDULES


@pytest.mark.extended
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_the_defect_is_found(defect: Defect) -> None:
    """The search starts with the schedule that found the defect when the page was written."""
    first = FIRST_SEED + documented()[defect.name] - 1
    with defect.patch():
        found = next(
            (
                seed
                for seed in range(first, FIRST_SEED + MOST_SCHEDULES)
                if defect.may_be_found_by(seed) and run_schedule(plan_of_seed(seed)).failure is not None
            ),
            None,
        )
        assert found is not None
        failure = run_schedule(plan_of_seed(found)).failure
    assert failure is not None
    assert not is_of_the_patch(failure)
    # Without the patch the same schedule passes, so the defect caused the failure.
    assert run_schedule(plan_of_seed(found)).failure is None
