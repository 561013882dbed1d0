"""The expected results, computed in plain Python from the payments in the order of their arrival.

It does not use epochs, state, timers or savepoints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

from examples.payments.merchants import RatedAlert
from examples.payments.payments import MERCHANTS
from examples.payments.version_1 import INTERVAL_MS, MOST_PAYMENTS, NO_PAYMENT
from examples.payments.version_2 import Balance

Fields = Mapping[str, Any]


def expected_rows(
    halves: Sequence[Sequence[Fields]], rules: Sequence[Mapping[str, int]]
) -> tuple[list[RatedAlert], list[Balance]]:
    """Return the alerts and the balances, sorted; there are payments and rules for each half.

    Version 2 counts journeys, so only the journeys of the second half count.
    """
    alerts: list[RatedAlert] = []
    largest: dict[str, Decimal] = {}
    counts: dict[str, list[Any]] = defaultdict(lambda: [0, Decimal(0), 0])
    country: dict[str, str] = {}
    intervals: dict[tuple[str, int], list[Any]] = defaultdict(lambda: [0, Decimal(0)])
    for half, payments in enumerate(halves):
        for payment in payments:
            if payment["amount"] is None:
                continue
            card, amount, at = payment["card"], Decimal(payment["amount"]), datetime.fromisoformat(payment["at"])
            for rule, factor in rules[half].items():
                if card in largest and amount > factor * largest[card]:
                    risk = MERCHANTS.get(payment["merchant"])
                    alerts.append(RatedAlert(card, rule, payment["id"], at, amount, payment["merchant"], risk))
            largest[card] = max(amount, largest.get(card, amount))
            one, start = counts[card], int(at.timestamp() * 1000) // INTERVAL_MS
            one[0], one[1] = one[0] + 1, one[1] + amount
            interval = intervals[card, start]
            interval[0], interval[1] = interval[0] + 1, interval[1] + amount
            if half == 1:
                one[2] += country.get(card, payment["country"]) != payment["country"]
                country[card] = payment["country"]
    for (card, start), (count, spent) in intervals.items():
        if count > MOST_PAYMENTS:
            end = datetime.fromtimestamp((start + 1) * INTERVAL_MS / 1000, timezone.utc)
            alerts.append(RatedAlert(card, "many payments", NO_PAYMENT, end, spent, NO_PAYMENT, None))
    return sorted(alerts, key=_order), sorted(Balance(card, *one) for card, one in counts.items())


def _order(alert: RatedAlert) -> Any:
    return (alert.card, alert.at, alert.reason)
