"""Reducing and aggregating state in a job: registered by its function, checked before the start, and restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from emitted_objects import OBJECT, collecting, emitting_objects

from statebackend import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    NoCurrentKeyError,
    ProcessContext,
    ReducingStateDescriptor,
    RuntimeContext,
    StateMigrationException,
    StateTtlConfig,
    UserFunctionError,
)
from statebackend.local import LocalStreamEnvironment

BACKENDS = ("heap", "rocksdb")


@attrs.frozen
class Sale:
    shop: str
    amount: int


@attrs.define
class Mean:
    total: float = 0.0
    count: int = 0


class MeanAmount(AggregateFunction[int, Mean, float]):
    def create_accumulator(self) -> Mean:
        return Mean()

    def add(self, value: int, accumulator: Mean) -> Mean:
        accumulator.total += value
        accumulator.count += 1
        return accumulator

    def get_result(self, accumulator: Mean) -> float:
        return accumulator.total / accumulator.count


class HighestAndMean(KeyedProcessFunction[str, Sale, tuple[str, int, float]]):
    def open(self, context: RuntimeContext) -> None:
        self.highest = context.get_reducing_state(ReducingStateDescriptor("highest", max, int))
        self.mean = context.get_aggregating_state(AggregatingStateDescriptor("mean", MeanAmount(), Mean))

    def process_element(self, value: Sale, context: ProcessContext[str]) -> Iterator[tuple[str, int, float]]:
        self.highest.add(value.amount)
        self.mean.add(value.amount)
        highest, mean = self.highest.get(), self.mean.get()
        assert highest is not None
        assert mean is not None
        yield context.current_key, highest, mean


SALES = [Sale("north", 3), Sale("south", 5), Sale("north", 4), Sale("south", 1), Sale("north", 2)]


def run(function: KeyedProcessFunction[Any, Any, Any], sales: list[Sale], backend: str, job_dir: Path) -> list[Any]:
    environment = LocalStreamEnvironment(backend=backend, job_dir=job_dir, epoch_size=2)
    results: list[Any] = []
    environment.from_elements(sales).key_by("shop").process(
        emitting_objects(function), uid="sales", schema=OBJECT
    ).sink_to(collecting(results))
    environment.execute("sales")
    return results


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_are_folded_across_epochs_and_runs(tmp_path: Path, backend: str) -> None:
    expected = [("north", 3, 3.0), ("south", 5, 5.0), ("north", 4, 3.5), ("south", 5, 3.0), ("north", 4, 3.0)]
    results = run(HighestAndMean(), SALES[:3], backend, tmp_path) + run(HighestAndMean(), SALES[3:], backend, tmp_path)
    assert sorted(results) == sorted(expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_accumulator_of_another_type_is_rejected_before_the_job_starts(tmp_path: Path, backend: str) -> None:
    class AnotherType(HighestAndMean):
        def open(self, context: RuntimeContext) -> None:
            self.highest = context.get_reducing_state(ReducingStateDescriptor("highest", max, int))
            other: Any = AggregatingStateDescriptor("mean", MeanAmount(), str)
            self.mean = context.get_aggregating_state(other)

    run(HighestAndMean(), SALES, backend, tmp_path)
    with pytest.raises(StateMigrationException, match="state 'mean'"):
        run(AnotherType(), SALES, backend, tmp_path)


class FailingMean(MeanAmount):
    def __init__(self, failing: str) -> None:
        self.failing = failing

    def add(self, value: int, accumulator: Mean) -> Mean:
        self._fail("add")
        return super().add(value, accumulator)

    def get_result(self, accumulator: Mean) -> float:
        self._fail("get_result")
        return super().get_result(accumulator)

    def _fail(self, name: str) -> None:
        if name == self.failing:
            raise ArithmeticError("no mean")


class Failing(HighestAndMean):
    """Raises in the function of one of its states."""

    def __init__(self, failing: str, ttl: StateTtlConfig | None) -> None:
        self.failing, self.ttl = failing, ttl

    def open(self, context: RuntimeContext) -> None:
        reduce: Any = divmod if self.failing == "reduce" else max
        # divmod by 0 raises in C code, so the traceback has no line of the program.
        self.highest = context.get_reducing_state(ReducingStateDescriptor("highest", reduce, int, ttl=self.ttl))
        mean = AggregatingStateDescriptor("mean", FailingMean(self.failing), Mean, ttl=self.ttl)
        self.mean = context.get_aggregating_state(mean)


@pytest.mark.parametrize("ttl", [None, StateTtlConfig(1000)], ids=["without ttl", "with ttl"])
@pytest.mark.parametrize(
    ("failing", "message"),
    [
        (
            "reduce",
            r"raised ZeroDivisionError: .*, in the reduce function of state 'highest' "
            r"\(test_folding_state.py, line \d+, in process_element\)",
        ),
        (
            "add",
            r"raised ArithmeticError: no mean, in add\(\) of the aggregate function of state 'mean' "
            r"\(test_folding_state.py, line \d+, in _fail\)",
        ),
        ("get_result", r"raised ArithmeticError: no mean, in get_result\(\) of the aggregate function of state 'mean'"),
    ],
)
def test_a_failing_function_is_named_with_its_state(
    tmp_path: Path, failing: str, message: str, ttl: StateTtlConfig | None
) -> None:
    with pytest.raises(UserFunctionError, match=message):
        run(Failing(failing, ttl), [Sale("north", 3), Sale("north", 0)], "heap", tmp_path)


@pytest.mark.parametrize("access", ["get", "add", "clear"])
@pytest.mark.parametrize("name", ["highest", "mean"])
def test_folding_state_cannot_be_used_in_open(tmp_path: Path, access: str, name: str) -> None:
    class UsedInOpen(HighestAndMean):
        def open(self, context: RuntimeContext) -> None:
            super().open(context)
            getattr(getattr(self, name), access)(*([1] if access == "add" else []))

    with pytest.raises(NoCurrentKeyError):
        run(UsedInOpen(), SALES, "heap", tmp_path)
