"""docs/metrics.md contains every metric of the registry, and docs/observing.md every listener method."""

from __future__ import annotations

import re
from pathlib import Path

from statebackend.streaming.metrics import metrics_table
from statebackend.streaming.observing.job_events import JobListener

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "observing.md").read_text("utf-8")


def rows_below(heading: str) -> list[list[str]]:
    part = PAGE.partition(f"\n{heading}\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in part.splitlines()[1:]]


def test_the_table_of_metrics_equals_the_registry() -> None:
    assert f"\n\n{metrics_table()}\n\n" in (DOCS / "metrics.md").read_text("utf-8")


def test_every_listener_method_is_documented() -> None:
    methods = {name for name in vars(JobListener) if not name.startswith("_")}
    reported = {name for row in rows_below("| Method | Is called |") for name in re.findall(r"`(\w+)`", row[0])}
    assert reported == methods
