"""Version 2 of the detector: it also counts how often a card changed the country.

The record of a card has another name for its largest payment, and two fields more. The balances have a column more.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, NamedTuple

from attrs import evolve, field, frozen

from examples.payments import version_1
from examples.payments.payments import Euros, Payment
from statebackend import ValueStateDescriptor
from typeserializers import former_names


class Balance(NamedTuple):
    """What a card has spent, and how often it changed the country."""

    card: str
    payments: int
    spent: Euros
    journeys: int


BALANCE: Final = Balance


@frozen
class Card:
    """What is known about a card. Version 1 has no `country` and no `journeys`."""

    payments: int = 0
    spent: Decimal = Decimal(0)
    largest_payment: Decimal | None = field(default=None, metadata=former_names("largest"))
    country: str | None = None
    journeys: int = 0

    @property
    def largest(self) -> Decimal | None:
        """The largest payment, for the rules of version 1."""
        return self.largest_payment


class DetectFraud(version_1.DetectFraud):
    """Emits the balance of the card after each payment, and alerts to a side output."""

    card: Any = ValueStateDescriptor("card", Card, default=Card())

    def counted(self, card: Any, payment: Payment) -> Any:
        """Return the card after a payment."""
        assert payment.amount is not None
        has_moved = card.country is not None and card.country != payment.country
        return evolve(
            card,
            payments=card.payments + 1,
            spent=card.spent + payment.amount,
            largest_payment=payment.amount if card.largest is None else max(card.largest, payment.amount),
            country=payment.country,
            journeys=card.journeys + has_moved,
        )

    def balance(self, key: str, card: Any) -> Any:
        """Return the row of a card."""
        return Balance(key, card.payments, card.spent, card.journeys)
