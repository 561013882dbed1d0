"""A worker that registers another state than the driver checked fails by name, before any record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessContext,
    RuntimeContext,
    SplitListStateDescriptor,
    StateRegistrationError,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.operators.subtask_context import check_is_as_planned, planned_state
from typeserializers import AttrsSerializer, PojoSerializer


class Elsewhere(KeyedProcessFunction[Any, Any, Any]):
    """Registers one state on the driver, and another in subtasks."""

    def __init__(self, driver: Any, worker: Any) -> None:
        self.driver, self.worker = driver, worker

    def open(self, context: RuntimeContext) -> None:
        descriptor = self.driver if context.epoch_id < 0 else self.worker
        if isinstance(descriptor, SplitListStateDescriptor):
            context.operator_state.get_list_state(descriptor)
        else:
            context.register(descriptor)

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        raise AssertionError("no record is processed")


def run(driver: Any, worker: Any) -> None:
    environment = LocalStreamEnvironment()
    elsewhere = Elsewhere(driver, worker)
    environment.from_elements([{"key": "a"}]).key_by("key").process(elsewhere, uid="op", schema="key string").sink_to(
        []
    )
    environment.execute()


@attrs.frozen
class Point:
    x: int


@attrs.frozen
class Wider:
    x: int
    y: int = 0


@pytest.mark.parametrize(
    ("driver", "worker", "reported"),
    [
        (ValueStateDescriptor("s", int), ValueStateDescriptor("s", str), "with the value serializer StringSer"),
        (
            ValueStateDescriptor("s", AttrsSerializer(Point, name="P")),
            ValueStateDescriptor("s", AttrsSerializer(Wider, name="P")),
            r"with the value serializer AttrsSerializer, but open\(\) on the driver.*y",
        ),
        (
            ValueStateDescriptor("s", int),
            ListStateDescriptor("s", int),
            "as list state, but open.* as value state",
        ),
        (SplitListStateDescriptor("s", int), SplitListStateDescriptor("s", str), "with the element serializer"),
    ],
)
def test_another_state_than_on_the_driver_is_rejected_by_name(driver: Any, worker: Any, reported: str) -> None:
    with pytest.raises(
        StateRegistrationError, match=rf"operator 'op': subtask 0 registers state 's' .*{reported}"
    ) as raised:
        run(driver, worker)
    assert "addPyFile" in str(raised.value)


@attrs.define
class Shape:
    name: str = ""


@attrs.define
class Circle(Shape):
    pass


def test_a_serializer_that_has_learned_in_this_process_is_not_another() -> None:
    fresh, learnt = PojoSerializer(Shape), PojoSerializer(Shape)
    planned = planned_state(ValueStateDescriptor("s", fresh))
    learnt.to_bytes(Circle("round"))
    descriptor = ValueStateDescriptor("s", learnt)
    assert planned_state(descriptor) != planned
    check_is_as_planned(planned, descriptor, "op", 0)
    check_is_as_planned(planned_state(descriptor), ValueStateDescriptor("s", fresh), "op", 0)
