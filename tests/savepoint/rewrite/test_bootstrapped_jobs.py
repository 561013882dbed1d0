"""State that is written without a job, and jobs that start from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    Savepoint,
    StateTtlConfig,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.rewrite import Plan, SavepointWriter

SALES = ValueStateDescriptor("sales", int)


class CountSales(KeyedProcessFunction[str, Any, Any]):
    """Adds to the total of each shop."""

    def open(self, context: RuntimeContext) -> None:
        self.sales = context.get_state(SALES)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        self.sales.update((self.sales.value() or 0) + value["amount"])
        yield {"shop": value["shop"], "sales": self.sales.value()}


def run(savepoint: Path, records: list[dict[str, Any]], *, backend: str, max_parallelism: int = 128) -> list[Any]:
    environment = LocalStreamEnvironment(backend=backend, parallelism=2, max_parallelism=max_parallelism)
    output: list[Any] = []
    environment.from_elements(records, schema="shop string, amount bigint").key_by("shop").process(
        CountSales(), uid="per shop", schema="shop string, sales bigint"
    ).sink_to(output)
    environment.execute("sales", from_savepoint=savepoint)
    return [(row["shop"], row["sales"]) for row in output]


def bootstrap(path: Path, entries: Any, *, max_parallelism: int = 128, **options: Any) -> None:
    plan = Plan().add_operator("per shop", "string").add_state("per shop", SALES, entries, **options)
    SavepointWriter.new(path, max_parallelism=max_parallelism).write(plan)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_job_continues_from_state_that_no_job_has_written(tmp_path: Path, backend: str) -> None:
    bootstrap(tmp_path / "first", ((f"shop {number}", number) for number in reversed(range(500))))
    records = [{"shop": "shop 7", "amount": 1}, {"shop": "shop 499", "amount": 1}, {"shop": "another", "amount": 1}]
    assert sorted(run(tmp_path / "first", records, backend=backend)) == [
        ("another", 1),
        ("shop 499", 500),
        ("shop 7", 8),
    ]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("max_parallelism", [2, 1000, 32768])
def test_a_job_with_another_number_of_key_groups_continues_from_a_copy(
    tmp_path: Path, backend: str, max_parallelism: int
) -> None:
    bootstrap(tmp_path / "first", [(f"shop {number}", number) for number in range(100)])
    plan = Plan().change_max_parallelism(max_parallelism)
    SavepointWriter.copy_of(tmp_path / "first", tmp_path / "second").write(plan)
    records = [{"shop": f"shop {number}", "amount": 1} for number in range(100)]
    output = run(tmp_path / "second", records, backend=backend, max_parallelism=max_parallelism)
    assert sorted(output) == sorted((f"shop {number}", number + 1) for number in range(100))


def test_written_state_is_read_back(tmp_path: Path) -> None:
    bootstrap(tmp_path / "first", [("b", 2), ("a", 1)])
    assert {entry.key: entry.value for entry in Savepoint.open(tmp_path / "first").read("per shop", "sales")} == {
        "a": 1,
        "b": 2,
    }


class LastSale(KeyedProcessFunction):
    """Stores the last sale of a shop for a day."""

    def open(self, context: RuntimeContext) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", int, ttl=StateTtlConfig(24 * 3600 * 1000)))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        yield {"shop": value["shop"], "last": self.last.value()}


def test_entries_without_a_time_start_their_ttl_now(tmp_path: Path) -> None:
    last = ValueStateDescriptor("last", int, ttl=StateTtlConfig(24 * 3600 * 1000))
    plan = Plan().add_operator("per shop", "string").add_state("per shop", last, [("north", 5)])
    SavepointWriter.new(tmp_path / "first", max_parallelism=128).write(plan)
    environment, output = LocalStreamEnvironment(), list[Any]()
    environment.from_elements([{"shop": "north"}], schema="shop string").key_by("shop").process(
        LastSale(), uid="per shop", schema="shop string, last bigint"
    ).sink_to(output)
    environment.execute("sales", from_savepoint=tmp_path / "first")
    assert [(row["shop"], row["last"]) for row in output] == [("north", 5)]
