"""The input: card payments and rules as JSON in Kafka, the same for every run, and the merchants that are known.

The payments of a card are in one partition, as Kafka's clients write them by key. Within a partition they are out of
order by less than `OUT_OF_ORDER`. Some are damaged: they have no amount.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Final, NamedTuple

from statebackend import ColumnType
from statebackend.connectors import KafkaRecord

PARTITIONS: Final = 3
CARDS: Final = 60
OUT_OF_ORDER: Final = "8 minutes"
_FIRST: Final = datetime(2026, 3, 1, tzinfo=timezone.utc)

MERCHANTS: Final = {f"m{number:02d}": ("low", "medium", "high")[number % 3] for number in range(20)}
"""The risk of each merchant. Payments also name merchants that are not known."""

Euros = Annotated[Decimal, ColumnType("decimal(12,2)")]


class Payment(NamedTuple):
    """A payment, with its place in Kafka: the order in which the payments of a card arrived."""

    id: str
    card: str
    at: datetime
    amount: Euros | None
    merchant: str
    country: str
    partition: int
    offset: int


class Rule(NamedTuple):
    """A payment is suspicious if it is more than ``factor`` times the largest payment of its card before."""

    name: str
    factor: int
    valid_until: datetime


def payment_of(record: KafkaRecord) -> Payment:
    """Decode a record of the topic of payments."""
    fields = json.loads(record.value or b"")
    amount = None if fields["amount"] is None else Decimal(fields["amount"])
    at = datetime.fromisoformat(fields["at"])
    return Payment(
        fields["id"], fields["card"], at, amount, fields["merchant"], fields["country"], record.partition, record.offset
    )


def rule_of(record: KafkaRecord) -> Rule:
    """Decode a record of the topic of rules."""
    fields = json.loads(record.value or b"")
    return Rule(fields["name"], fields["factor"], datetime.fromisoformat(fields["valid_until"]))


def payments(count: int) -> list[dict[str, Any]]:
    """Make payments of one day, in the order in which they arrive."""
    draw = random.Random(7)
    home = {f"card-{number:02d}": draw.choice(["DE", "FR", "US"]) for number in range(CARDS)}
    arriving = []
    for number in range(count):
        card, seconds = draw.choice(list(home)), 86_400 * number / count
        delay_s = draw.random() * 420 if draw.random() < 0.4 else 0
        at = _FIRST + timedelta(milliseconds=int(seconds * 1000))
        payment = {
            "id": f"p{number:05d}",
            "card": card,
            "at": at.isoformat(),
            "amount": None if draw.random() < 0.01 else f"{draw.lognormvariate(3, 1.2):.2f}",
            "merchant": f"m{draw.randrange(22):02d}",
            "country": home[card] if draw.random() < 0.97 else "BR",
        }
        arriving.append((seconds + delay_s, payment))
    return [payment for _, payment in sorted(arriving, key=lambda one: one[0])]


def produce(settings: dict[str, Any], topic: str, records: Sequence[dict[str, Any]], key: str) -> None:
    """Write records to a topic; those with the same key go to one partition."""
    from confluent_kafka import Producer

    producer = Producer(settings)
    for record in records:
        producer.produce(topic, json.dumps(record), key=record[key])
        producer.poll(0)
    assert producer.flush(60) == 0
