"""A job of record classes: mypy knows the records from source to sink, and no schema is a text."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

from attrs import frozen
from typing_extensions import assert_type

from statebackend import (
    ColumnType,
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ProcessContext,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.local import LocalStreamEnvironment


@frozen
class Payment:
    card: str
    amount: Annotated[Decimal, ColumnType("decimal(10,2)")]
    at: datetime.datetime


@frozen
class Seen:
    payments: int = 0
    last: Payment | None = None


class Alert(NamedTuple):
    card: str
    amount: Decimal


LARGE = OutputTag("large", Payment)
BY_TEXT: OutputTag[Any] = OutputTag("by-text", "card string")
assert_type(LARGE, OutputTag[Payment])


class DetectFraud(KeyedProcessFunction[str, Payment, Alert]):
    seen = ValueStateDescriptor("seen", Seen, default=Seen())

    def process_element(self, payment: Payment, context: ProcessContext[str]) -> Iterator[Alert]:
        seen = assert_type(self.seen.value(), Seen)
        self.seen.update(Seen(seen.payments + 1, payment))
        context.output(LARGE, payment)
        context.output(LARGE, 5)  # type: ignore[misc]
        if seen.last is not None:
            yield Alert(context.current_key, payment.amount - seen.last.amount)


def bank(payment: Payment) -> str:
    return payment.card[:4]


def in_cents(payment: Payment) -> Alert:
    return Alert(payment.card, payment.amount * 100)


def totals(bank_name: str, window: Any, payments: list[Payment]) -> list[Alert]:
    return [Alert(bank_name, sum((one.amount for one in payments), Decimal()))]


def build(env: LocalStreamEnvironment, payments: list[Payment], alerts: list[Any]) -> None:
    rows = env.from_elements(payments, Payment)
    strategy: WatermarkStrategy[Any] = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamps("at")
    timed: DataStream = rows.assign_timestamps_and_watermarks(strategy)
    records = assert_type(timed.as_records(Payment), DataStream[Payment])
    large = assert_type(records.filter(lambda payment: payment.amount > 5), DataStream[Payment])
    records.filter(lambda payment: payment.amont > 5)  # type: ignore[attr-defined]
    detected = large.key_by(bank).process(DetectFraud(), uid="fraud", order_by="at")
    detected.sink_to(alerts, uid="alerts")
    detected.get_side_output(LARGE).as_records(Payment).map(in_cents).sink_to(alerts, uid="large")
    windows = records.key_by(bank).window(TumblingEventTimeWindows.of("1 hour"))
    windows.apply(totals, uid="totals").sink_to(alerts, uid="totals")
