"""The chaos test of sinks: its plan, and a run with two kills."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from examples.demonstration.comparison import DifferenceError
from verification.chaos import sinks
from verification.chaos.sinks import PARTITIONS, expected_results, kills, payments, run_sinks
from verification.chaos.sinks_driver import Result


def test_a_seed_repeats_its_kills_and_payments() -> None:
    assert kills(7, 50)[:10] == kills(7, 10) != kills(8, 10)
    first, again = (list(itertools.islice(payments(7), 500)) for _ in range(2))
    assert first == again
    partitions = {account: partition for partition, account, _ in first}
    assert all(partitions[account] == partition for partition, account, _ in first)
    assert set(partitions.values()) == set(range(PARTITIONS))


def test_each_payment_has_the_sum_of_its_account() -> None:
    fed = [(0, "a", 5), (1, "b", 2), (0, "a", 7)]
    assert expected_results(fed) == [Result("a", 1, 5), Result("a", 2, 12), Result("b", 1, 2)]


@pytest.mark.usefixtures("kafka_server", "postgres_server")
def test_a_job_that_is_killed_twice_loses_and_repeats_nothing(tmp_path: Path) -> None:
    reported_lines: list[str] = []
    run_sinks(tmp_path, 3, 2, reported_lines.append)
    assert [line.partition(":")[0] for line in reported_lines if "equal" in line] == [
        "Delta",
        "PostgreSQL, appended",
        "PostgreSQL, upserted",
        "Kafka",
    ]


@pytest.mark.usefixtures("kafka_server", "postgres_server")
def test_a_duplicate_row_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sinks._Job.rows

    def doubled(self: Any) -> Any:
        found = dict(rows(self))
        found["Kafka"] = sorted([*found["Kafka"], found["Kafka"][0]])
        return found

    monkeypatch.setattr(sinks._Job, "rows", doubled)
    with pytest.raises(DifferenceError, match=r"Kafka: expected 1,200 rows, found 1,201 \(1,200 distinct"):
        run_sinks(tmp_path, 3, 0, lambda line: None)
