"""Descriptors are compared by content, not by the equality of their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from statebackend import (
    KeyedProcessFunction,
    RuntimeContext,
    StateRegistrationError,
    StateTtlConfig,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment


@attrs.frozen
class Reading:
    degrees: float


@attrs.frozen(eq=False)
class Unequal:
    number: int

    def __eq__(self, other: object) -> bool:
        raise AssertionError("the equality of a value is its own affair")

    __hash__ = None  # type: ignore[assignment]


class ReadsTwice(KeyedProcessFunction[int, Any, Any]):
    def __init__(self, hint: Any, make_default: Any, **options: Any) -> None:
        self.hint, self.make_default, self.options = hint, make_default, options

    def open(self, context: RuntimeContext) -> None:
        self.first, self.second = [
            context.get_state(ValueStateDescriptor("state", self.hint, self.make_default(), **self.options))
            for _ in range(2)
        ]

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value[0], f"{self.first.value()} {self.second.value()}"


def run(function: ReadsTwice, backend: str) -> list[Any]:
    results: list[Any] = []
    environment = LocalStreamEnvironment(backend=backend)
    elements = environment.from_elements([(1,)], "key bigint").key_by("key")
    elements.process(function, uid="reads", schema="key bigint, value string").sink_to(results)
    environment.execute()
    return [row.value for row in results]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    ("hint", "make_default", "text"),
    [
        (float, lambda: float("nan"), "nan nan"),
        (list[float], lambda: [float("nan")], "[nan] [nan]"),
        (Reading, lambda: Reading(float("nan")), "Reading(degrees=nan) Reading(degrees=nan)"),
        (Unequal, lambda: Unequal(1), "Unequal(number=1) Unequal(number=1)"),
    ],
)
def test_a_state_with_an_unequal_default_may_be_registered_twice(
    backend: str, hint: Any, make_default: Any, text: str
) -> None:
    assert run(ReadsTwice(hint, make_default), backend) == [text]
    assert run(ReadsTwice(hint, make_default, ttl=StateTtlConfig(ttl_ms=1000)), backend) == [text]


def test_another_default_is_another_descriptor() -> None:
    defaults = iter([float("nan"), 0.0, float("nan"), 0.0])
    with pytest.raises(StateRegistrationError, match="registered twice, with different descriptors"):
        run(ReadsTwice(float, lambda: next(defaults)), "heap")


def test_equal_defaults_of_other_types_have_equal_descriptors() -> None:
    assert ValueStateDescriptor("state", float, 1) == ValueStateDescriptor("state", float, 1.0)
    assert ValueStateDescriptor("state", float, float("nan")) == ValueStateDescriptor("state", float, float("nan"))
    assert ValueStateDescriptor("state", float, 0.0) != ValueStateDescriptor("state", float)
