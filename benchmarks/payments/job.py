"""The fraud detector as a job for both runtimes.

State per card: a record with nested records, decimals and times with time zone, the last five payments as a list, and
totals per merchant with time-to-live. A timer fires after half an hour without payments, and sliding windows add up the
amounts. Both operators have side outputs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from statebackend import (
    AggregateFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    StateTtlConfig,
    ValueStateDescriptor,
    WatermarkStrategy,
)

__all__ = ["PAYMENTS", "detect_fraud"]

PAYMENTS: Final = (
    "payment_id string, card_id string, merchant string, amount decimal(12,2), currency string, at timestamp, "
    "country string, device struct<id: string, os: string>"
)
_PROFILED: Final = (
    "card_id string, payment_id string, at timestamp, amount decimal(12,2), reason string, seen bigint, score double"
)
_SUMS: Final = "card_id string, start timestamp, until timestamp, total decimal(14,2), n bigint"
_SILENT: Final[OutputTag[Any]] = OutputTag("silent", "card_id string, since timestamp, fired_at bigint")
_DAMAGED: Final[OutputTag[Any]] = OutputTag("damaged", "payment_id string, card_id string, why string")
_LATE: Final[OutputTag[Any]] = OutputTag("late", PAYMENTS)
_SILENCE_MS: Final = 30 * 60 * 1000
_WEEK_MS: Final = 7 * 24 * 3600 * 1000
_KEPT_PAYMENTS: Final = 5


@dataclass(frozen=True)
class Device:
    """The device of a payment."""

    id: str | None
    os: str | None


@dataclass(frozen=True)
class Payment:
    """The stored part of a payment."""

    id: str
    at: dt.datetime
    amount: Decimal
    merchant: str | None
    country: str | None
    device: Device | None


@dataclass(frozen=True)
class MerchantTotals:
    """Count and total of the payments of a card to one merchant."""

    n: int = 0
    amount: Decimal = Decimal(0)


@dataclass(frozen=True)
class CardProfile:
    """The profile of a card."""

    n_payments: int = 0
    score: int = 0
    last_country: str | None = None
    first_os: str | None = None
    max_amount: Decimal = Decimal(0)
    max_at: dt.datetime | None = None
    newest: Payment | None = None
    silent_at: int | None = None


class DetectFraud(KeyedProcessFunction[str, Any, Any]):
    """Compares each payment with the earlier payments of its card."""

    def open(self, context: Any) -> None:
        self.profile = context.get_state(ValueStateDescriptor("profile", CardProfile, default=CardProfile()))
        self.recent = context.get_list_state(ListStateDescriptor("recent", Payment))
        self.merchants = context.get_map_state(
            MapStateDescriptor("merchants", str, MerchantTotals, ttl=StateTtlConfig(_WEEK_MS))
        )

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        if value.amount is None:
            context.output(_DAMAGED, (value.payment_id, value.card_id, "no amount"))
            return
        device = None if value.device is None else Device(value.device.id, value.device.os)
        payment = Payment(value.payment_id, value.at, value.amount, value.merchant, value.country, device)
        before = self.profile.value()
        recent = list(self.recent.get())
        reasons = []
        if before.last_country and value.country and value.country != before.last_country:
            reasons.append("country")
        if recent and value.amount > 10 * sum(kept.amount for kept in recent) / len(recent):
            reasons.append("amount")
        self.recent.update([*recent, payment][-_KEPT_PAYMENTS:])
        if value.merchant is not None:
            totals = self.merchants.get(value.merchant) or MerchantTotals()
            self.merchants.put(value.merchant, MerchantTotals(totals.n + 1, totals.amount + value.amount))
        newest = payment if before.newest is None or payment.at >= before.newest.at else before.newest
        silent_at = int(newest.at.timestamp() * 1000) + _SILENCE_MS
        if before.silent_at != silent_at:
            if before.silent_at is not None:
                context.timer_service.delete_event_time_timer(before.silent_at)
            context.timer_service.register_event_time_timer(silent_at)
        is_largest = value.amount > before.max_amount
        after = CardProfile(
            before.n_payments + 1,
            before.score + len(reasons),
            value.country or before.last_country,
            before.first_os or (device.os if device else None),
            value.amount if is_largest else before.max_amount,
            value.at if is_largest else before.max_at,
            newest,
            silent_at,
        )
        self.profile.update(after)
        reason = ",".join(reasons) or None
        yield value.card_id, value.payment_id, value.at, value.amount, reason, after.n_payments, float(after.score)

    def on_timer(self, timestamp: int, context: Any) -> None:
        profile = self.profile.value()
        self.profile.update(replace(profile, silent_at=None))
        context.output(_SILENT, (context.current_key, profile.newest.at, timestamp))


@dataclass(frozen=True)
class SumAndCount:
    """The accumulator of a window."""

    total: Decimal = Decimal(0)
    n: int = 0


class AddUp(AggregateFunction[Any, SumAndCount, SumAndCount]):
    """Adds up the amounts, and counts the payments."""

    def create_accumulator(self) -> SumAndCount:
        return SumAndCount()

    def add(self, value: Any, accumulator: SumAndCount) -> SumAndCount:
        return SumAndCount(accumulator.total + (value.amount or 0), accumulator.n + 1)

    def get_result(self, accumulator: SumAndCount) -> SumAndCount:
        return accumulator

    def merge(self, left: SumAndCount, right: SumAndCount) -> SumAndCount:
        return SumAndCount(left.total + right.total, left.n + right.n)


class WithWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    """Adds card and window to the sums."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        for sums in elements:
            yield key, _time(context.window.start), _time(context.window.end), sums.total, sums.n


def detect_fraud(payments: Any, new_sink: Any) -> None:
    """Add the operators and sinks of the job; ``new_sink(name)`` creates a sink."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("10 minutes").with_timestamps("at")
    cards = payments.assign_timestamps_and_watermarks(strategy).key_by("card_id")
    profiled = cards.process(DetectFraud(), uid="profile", schema=_PROFILED, order_by=["at", "payment_id"])
    windows = cards.window(SlidingEventTimeWindows.of("10 minutes", "5 minutes")).side_output_late_data(_LATE)
    sums = windows.aggregate(AddUp(), WithWindow(), uid="per-10-minutes", schema=_SUMS)
    outputs = {
        "profiled": profiled,
        "windows": sums,
        "silent": profiled.get_side_output(_SILENT),
        "damaged": profiled.get_side_output(_DAMAGED),
        "late": sums.get_side_output(_LATE),
    }
    for name, stream in outputs.items():
        stream.sink_to(new_sink(name), uid=name)


def _time(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.timezone.utc)
