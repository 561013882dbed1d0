"""Typing of value states; `make lint` checks it, and an unused ignore is an error too.

Nothing here is run. Each function shows one thing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import attrs

from statebackend import RuntimeContext, ValueState, ValueStateDescriptor
from typeserializers import LongSerializer

if TYPE_CHECKING:
    from typing_extensions import assert_type


@attrs.frozen
class Aircraft:
    flights: int = 0


@attrs.frozen
class Airport:
    flights: int = 0


@dataclass
class Leg:
    minutes: int = 0


class Weather(enum.Enum):
    CLEAR = 1


def a_value_without_default_may_be_none(context: RuntimeContext) -> None:
    assert_type(context.get_state(ValueStateDescriptor("count", int)).value(), "int | None")
    assert_type(context.get_state(ValueStateDescriptor("last", Aircraft)).value(), "Aircraft | None")


def a_value_with_default_is_never_none(context: RuntimeContext) -> None:
    assert_type(context.get_state(ValueStateDescriptor("count", int, default=0)).value(), int)
    assert_type(context.get_state(ValueStateDescriptor("mean", float, 0)).value(), float)
    assert_type(context.get_state(ValueStateDescriptor("day", date, date.min)).value(), date)
    assert_type(context.get_state(ValueStateDescriptor("last", Aircraft, default=Aircraft())).value(), Aircraft)
    assert_type(context.get_state(ValueStateDescriptor("leg", Leg, default=Leg())).value(), Leg)
    assert_type(context.get_state(ValueStateDescriptor("sky", Weather, default=Weather.CLEAR)).value(), Weather)
    assert_type(context.get_state(ValueStateDescriptor("all", list[int], default=[])).value(), "list[int]")
    assert_type(context.get_state(ValueStateDescriptor("long", LongSerializer(), default=0)).value(), int)


def a_default_of_another_type_is_an_error() -> None:
    ValueStateDescriptor("count", int, default="x")  # type: ignore[type-var]
    ValueStateDescriptor("last", Aircraft, default=Airport())  # type: ignore[type-var]
    ValueStateDescriptor("last", Aircraft, default="x")  # type: ignore[type-var]
    ValueStateDescriptor("leg", Leg, default=1)  # type: ignore[type-var]
    ValueStateDescriptor("all", list[int], default=["x"])  # type: ignore[type-var]
    ValueStateDescriptor("long", LongSerializer(), default="x")  # type: ignore[misc]


def the_type_of_a_variable_says_what_a_hint_that_is_no_class_holds(context: RuntimeContext) -> None:
    plain: ValueStateDescriptor[int | str] = ValueStateDescriptor("either", int | str)
    defaulted: ValueStateDescriptor[Any] = ValueStateDescriptor("either", int | str, default=1)
    assert_type(context.get_state(plain).value(), "int | str | None")
    assert_type(context.get_state(defaulted).value(), "Any | None")


def a_state_with_default_is_a_value_state(context: RuntimeContext) -> ValueState[int]:
    return context.get_state(ValueStateDescriptor("count", int, default=0))


def a_default_that_may_be_missing_is_no_default(default: Any) -> None:
    assert_type(ValueStateDescriptor("count", int, default=None), "ValueStateDescriptor[int]")
