"""What first tests of a job rely on: separate outputs, immediate order, and controlled time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from statebackend import (
    KeyedProcessFunction,
    OutputTag,
    ProcessContext,
    ProcessWindowFunction,
    RuntimeContext,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowContext,
)
from statebackend.streaming.time.watermark_generators import WatermarkStatus
from statebackend.testing.jobs import EmittedStatus, EmittedWatermark, HarnessJob, JobTestHarness

PAYMENT = "account string, at bigint, amount bigint"
SUSPICIOUS: OutputTag[Any] = OutputTag("suspicious", PAYMENT)


class Balance(KeyedProcessFunction[str, Any, Any]):
    """Emits each payment with the new balance, and large payments to a side output too."""

    def open(self, context: RuntimeContext) -> None:
        self.balance = context.get_state(ValueStateDescriptor("balance", int, default=0))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        self.balance.update(self.balance.value() + value.amount)
        if value.amount > 100:
            context.output(SUSPICIOUS, value)
        yield value.account, value.at, self.balance.value()


def balances(job: HarnessJob, order_by: tuple[str, ...] = ()) -> None:
    payments = job.source("payments", PAYMENT).key_by("account")
    balance = payments.process(Balance(), uid="balance", schema=PAYMENT, order_by=order_by)
    job.output("balances", balance)
    job.output("suspicious", balance.get_side_output(SUSPICIOUS))


def ordered_twice(job: HarnessJob) -> None:
    payments = job.source("payments", PAYMENT).key_by("account")
    first = payments.process(Balance(), uid="first", schema=PAYMENT, order_by=["at"])
    second = first.key_by("account").process(Balance(), uid="second", schema=PAYMENT, order_by=["amount"])
    job.output("balances", second)


class Total(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any]:
        yield key, context.window.start, sum(row.amount for row in elements)


def totals(job: HarnessJob) -> None:
    strategy: WatermarkStrategy[Any] = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamps("at")
    payments = job.source("payments", PAYMENT).assign_timestamps_and_watermarks(strategy)
    windows = payments.key_by("account").window(TumblingEventTimeWindows.of(10))
    job.output("totals", windows.process(Total(), uid="totals", schema=PAYMENT))


def test_taking_records_of_one_output_keeps_those_of_another() -> None:
    with JobTestHarness(balances) as harness:
        harness.source("payments").send(("a", 1, 500))
        assert [tuple(row) for row in harness.taken_records("balances")] == [("a", 1, 500)]
        assert [tuple(row) for row in harness.taken_records("suspicious")] == [("a", 1, 500)]
        assert harness.taken_records("suspicious") == harness.taken_records("balances") == []
        harness.source("payments").watermark(7)
        harness.taken_records("balances")
        assert harness.taken() == [EmittedWatermark("suspicious", 7)]


def test_a_misspelt_output_is_an_error_and_not_an_empty_list() -> None:
    with JobTestHarness(balances) as harness, pytest.raises(KeyError, match="'balances', 'suspicious'"):
        harness.taken_records("balance")


@pytest.mark.parametrize("parallelism", [1, 3])
def test_order_by_sorts_records_sent_together_without_waiting(parallelism: int) -> None:
    with JobTestHarness(lambda job: balances(job, ("at",)), parallelism=parallelism) as harness:
        payments = harness.source("payments")
        payments.send_all([("a", 2, 10), ("a", 1, 1), ("a", 3, 100)])
        assert [tuple(row) for row in harness.taken_records("balances")] == [("a", 1, 1), ("a", 2, 11), ("a", 3, 111)]
        payments.send(("a", 0, 1000))
        assert [tuple(row) for row in harness.taken_records("balances")] == [("a", 0, 1111)]


def test_order_by_in_two_chained_operators_does_not_wait() -> None:
    with JobTestHarness(ordered_twice) as harness:
        harness.source("payments").send_all([("a", 2, -5), ("a", 1, 1)])
        # The first emits the balances 1 and -4, which the second sorts.
        assert [row.amount for row in harness.taken_records("balances")] == [-4, -3]


def test_a_watermark_of_the_test_counts_with_a_strategy() -> None:
    with JobTestHarness(totals) as harness:
        payments = harness.source("payments")
        payments.send_all([("a", 3, 1), ("a", 4, 2)])
        assert harness.taken() == []
        payments.watermark(9)
        assert [tuple(row) for row in harness.taken_records("totals")] == [("a", 0, 3)]
        assert harness.watermarks()["payments"] == 9
        # A lower watermark is ignored, and the strategy continues from the current one.
        payments.watermark(8)
        assert harness.taken() == []
        payments.send(("a", 30, 4))
        harness.advance_processing_time(200)
        assert harness.taken()[-1] == EmittedWatermark("totals", 24)


def test_a_source_with_a_strategy_becomes_idle_when_the_test_says_so() -> None:
    with JobTestHarness(totals) as harness:
        harness.source("payments").idle()
        assert harness.taken() == [EmittedStatus("totals", WatermarkStatus.IDLE)]
        harness.source("payments").active()
        assert harness.taken() == [EmittedStatus("totals", WatermarkStatus.ACTIVE)]
