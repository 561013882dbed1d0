"""The demonstration of examples/payments, and those of its parts that need no server."""

from __future__ import annotations

import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from examples.payments.expected import expected_rows
from examples.payments.payments import payments


def test_the_payments_are_equal_in_every_run_and_some_are_damaged() -> None:
    made = payments(500)
    assert made == payments(500)
    assert made[:100] != sorted(made, key=lambda one: one["at"])[:100]
    assert {len({one["id"] for one in made}), len(made)} == {500}
    assert any(one["amount"] is None for one in made)


def test_the_expected_rows_follow_the_rules() -> None:
    def payment(number: int, amount: str | None, minute: int = 0) -> dict[str, object]:
        at = f"2026-03-01T00:{minute:02d}:00+00:00"
        return {"id": f"p{number}", "card": "c", "at": at, "amount": amount, "merchant": "m01", "country": "DE"}

    first = [payment(0, "10"), payment(1, "20"), payment(2, None), payment(3, "201")]
    second = [payment(4, "605", 29), payment(5, "1", 30)]
    alerts, [balance] = expected_rows((first, second), ({"far": 10}, {"far": 10, "above": 3}))

    assert [(one.reason, one.payment, one.risk) for one in alerts] == [
        ("far", "p3", "medium"),
        ("above", "p4", "medium"),
        ("many payments", "", None),
    ]
    assert tuple(balance) == ("c", 5, Decimal(837), 0)


@pytest.mark.spark
@pytest.mark.usefixtures("kafka_server", "postgres_server")
def test_the_demonstration_ends_without_a_difference() -> None:
    command = [sys.executable, "-m", "examples.payments", "--parts", "4"]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=1800
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    printed = " ".join(ended.stdout.split())
    assert "SIGKILL to process" in printed
    assert re.search(r"PostgresSink\(.*\) cannot roll back to epoch \d+", printed)
    assert "renamed .largest_payment: was largest" in printed
    # The demonstration compares non-empty tables.
    rows = [int(count) for count in re.findall(r"\| (?:Delta Lake|PostgreSQL) +\| +(\d+)$", ended.stdout, re.M)]
    assert len(rows) == 4
    assert all(rows)
