"""A job with every kind of state, which tests inspect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from statebackend import (
    BroadcastStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    ReducingStateDescriptor,
    RuntimeContext,
    SplitListStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from statebackend.local import LocalJob, LocalStreamEnvironment

__all__ = ["NOW_MS", "SALES", "Totals", "run_job"]

NOW_MS = 1_700_000_000_000
SHOPS = [f"shop {number}" for number in range(20)]
SALES = [{"shop": SHOPS[(7 * number) % 20], "amount": number} for number in range(100)]


@attrs.frozen
class Totals:
    sales: int
    turnover: float
    note: str | None = None


class SumPerShop(KeyedProcessFunction[str, Any, Any]):
    """Stores the same sales in every kind of state, and registers a timer a second after each amount."""

    def open(self, context: RuntimeContext) -> None:
        self.totals = context.get_state(ValueStateDescriptor("totals", Totals))
        self.timed = context.get_state(ValueStateDescriptor("timed", int, ttl=StateTtlConfig(60_000)))
        self.amounts = context.get_list_state(ListStateDescriptor("amounts", int))
        self.seen = context.get_list_state(ListStateDescriptor("seen", str, ttl=StateTtlConfig(60_000)))
        self.by_amount = context.get_map_state(MapStateDescriptor("by amount", int, str | None))
        self.largest = context.get_reducing_state(ReducingStateDescriptor("largest", max, int))
        self.handled = context.operator_state.get_list_state(SplitListStateDescriptor("handled", int))
        self.names = context.operator_state.get_broadcast_state(BroadcastStateDescriptor("names", str, int))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        before = self.totals.value() or Totals(0, 0.0)
        self.totals.update(Totals(before.sales + 1, before.turnover + value["amount"]))
        self.timed.update(value["amount"])
        self.amounts.add(value["amount"])
        self.seen.add(f"sale {value['amount']}")
        self.by_amount.put(value["amount"], None if value["amount"] % 2 else "even")
        self.largest.add(value["amount"])
        self.handled.add(value["amount"])
        self.names.put("all", 1)
        context.timer_service.register_processing_time_timer(NOW_MS + 1000 * value["amount"] + 1)
        return iter(())

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        return iter(())


def run_job(backend: str, job_directory: Path | None = None, epoch_size: int | None = 30) -> LocalJob:
    """Run the job to its end, with epochs of 30 records and two subtasks."""
    environment = LocalStreamEnvironment(
        backend=backend, parallelism=2, epoch_size=epoch_size, job_dir=job_directory, clock=lambda: NOW_MS
    )
    environment.from_elements(SALES, schema="shop string, amount bigint").key_by("shop").process(
        SumPerShop(), uid="per shop", schema="shop string"
    ).sink_to(lambda records: None)
    return environment.execute("sales")


def stored_in(directory: Path, backend: str, form: str) -> Path:
    """The job directory with its checkpoints, or a savepoint of the job. Both are in that directory."""
    job = run_job(backend, directory / "job")
    if form == "savepoint":
        job.savepoint(directory / form)
    return directory / form
