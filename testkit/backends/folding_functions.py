"""The functions with which the contract folds values: sums, with accumulators of an immutable and a mutable type."""

from __future__ import annotations

import operator

import attrs

from statebackend import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.api.aggregate_function import AggregateFunction
from typeserializers.records.records import AttrsSerializer


class ImmutableSum(AggregateFunction[int, int, str]):
    """A number as the accumulator, and its text as the result."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> str:
        return str(accumulator)

    def merge(self, left: int, right: int) -> int:
        return left + right


@attrs.define
class Tally:
    """A mutable accumulator."""

    total: int = 0


class MutableSum(AggregateFunction[int, Tally, str]):
    """Changes the accumulators that it is given, all of them."""

    def create_accumulator(self) -> Tally:
        return Tally()

    def add(self, value: int, accumulator: Tally) -> Tally:
        accumulator.total += value
        return accumulator

    def get_result(self, accumulator: Tally) -> str:
        result = str(accumulator.total)
        accumulator.total = -1
        return result

    def merge(self, left: Tally, right: Tally) -> Tally:
        left.total += right.total
        right.total = -1
        return left


SUM: ReducingStateDescriptor[int] = ReducingStateDescriptor("sum", operator.add, int)
IMMUTABLE_SUM: AggregatingStateDescriptor[int, int, str] = AggregatingStateDescriptor(
    "immutable sum", ImmutableSum(), int
)
MUTABLE_SUM: AggregatingStateDescriptor[int, Tally, str] = AggregatingStateDescriptor(
    "mutable sum", MutableSum(), AttrsSerializer(Tally, name="statebackend.contract.Tally")
)
