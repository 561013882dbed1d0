"""Version 1 of the detector: for each card its payments, and alerts by rules that may change at any time.

It alerts in two cases:

- A payment breaks a rule (`examples.payments.payments.Rule`). Rules are broadcast to all subtasks.
- A card has more than `MOST_PAYMENTS` payments in one interval of `INTERVAL_MS`. A timer at the end of the interval
  decides, so payments may arrive out of order.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Final, NamedTuple

from attrs import evolve, frozen

from examples.payments.payments import Euros, Payment, Rule
from statebackend import (
    BroadcastStateDescriptor,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ValueStateDescriptor,
)

INTERVAL_MS: Final = 30 * 60 * 1000
MOST_PAYMENTS: Final = 3
RULES: Final = BroadcastStateDescriptor("rules", str, int)
NO_PAYMENT: Final = ""
"""The payment of an alert about an interval."""


class Alert(NamedTuple):
    """A suspicious payment, or an interval with many payments."""

    card: str
    reason: str
    payment: str
    at: datetime
    amount: Euros
    merchant: str


class Balance(NamedTuple):
    """What a card has spent."""

    card: str
    payments: int
    spent: Euros


ALERTS: Final = OutputTag("alerts", Alert)
BALANCE: Final = Balance


@frozen
class Card:
    """What is known about a card."""

    payments: int = 0
    spent: Decimal = Decimal(0)
    largest: Decimal | None = None


@frozen
class Interval:
    """The payments of a card in an interval."""

    payments: int = 0
    spent: Decimal = Decimal(0)


class DetectFraud(KeyedBroadcastProcessFunction[str, Payment, Rule, Balance]):
    """Emits the balance of the card after each payment, and alerts to a side output."""

    card = ValueStateDescriptor("card", Card, default=Card())
    intervals = MapStateDescriptor("intervals", int, Interval)

    def process_broadcast_element(self, rule: Rule, context: Any) -> None:
        """Store a rule, or its new factor."""
        context.get_broadcast_state(RULES).put(rule.name, rule.factor)

    def process_element(self, payment: Payment, context: Any) -> Iterator[Balance]:
        """Check a payment against the rules, and count it."""
        if payment.amount is None:
            return
        before = self.card.value()
        for name, factor in sorted(context.get_broadcast_state(RULES).items()):
            if before.largest is not None and payment.amount > factor * before.largest:
                context.output(
                    ALERTS, Alert(payment.card, name, payment.id, payment.at, payment.amount, payment.merchant)
                )
        end_ms = (context.timestamp // INTERVAL_MS + 1) * INTERVAL_MS - 1
        interval = self.intervals.get(end_ms) or Interval()
        self.intervals.put(end_ms, Interval(interval.payments + 1, interval.spent + payment.amount))
        context.timer_service.register_event_time_timer(end_ms)
        after = self.counted(before, payment)
        self.card.update(after)
        yield self.balance(payment.card, after)

    def on_timer(self, timestamp: int, context: Any) -> None:
        """Check the interval that has ended."""
        interval = self.intervals.get(timestamp)
        self.intervals.remove(timestamp)
        if interval is not None and interval.payments > MOST_PAYMENTS:
            at = datetime.fromtimestamp((timestamp + 1) / 1000, timezone.utc)
            context.output(
                ALERTS, Alert(context.current_key, "many payments", NO_PAYMENT, at, interval.spent, NO_PAYMENT)
            )

    def counted(self, card: Card, payment: Payment) -> Card:
        """Return the card after a payment."""
        assert payment.amount is not None
        largest = payment.amount if card.largest is None else max(card.largest, payment.amount)
        return evolve(card, payments=card.payments + 1, spent=card.spent + payment.amount, largest=largest)

    def balance(self, key: str, card: Card) -> Balance:
        """Return the row of a card."""
        return Balance(key, card.payments, card.spent)
