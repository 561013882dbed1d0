"""Programs whose state the tests of this folder lock and check. Commands import them by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import attrs

from statebackend import KeyedProcessFunction, RuntimeContext, StateTtlConfig, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment
from typeserializers import reads_fields


def totals_class() -> type:
    """The earlier version of the class of the totals."""
    return _totals()


def _totals(*names: str, sales: type = int, note: bool = True) -> type:
    fields: dict[str, Any] = {"sales": attrs.field(type=sales)}
    if note:
        fields["note"] = attrs.field(type=str, default="")
    made = attrs.make_class("Totals", fields, frozen=True)
    made.__qualname__ = "Totals"
    return made


class Keep(KeyedProcessFunction[str, Any, Any]):
    """A function that registers a state of each of these types, by name."""

    def __init__(self, states: dict[str, Any]) -> None:
        self.states = states

    def open(self, context: RuntimeContext) -> None:
        for name, value in self.states.items():
            context.get_state(ValueStateDescriptor(name, value))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        return iter(())


class Remind(Keep):
    """The same with timers."""

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        return iter(())


def _job(
    uid: str = "totals", key: str = "shop string", max_parallelism: int = 128, **states: Any
) -> LocalStreamEnvironment:
    env = LocalStreamEnvironment(max_parallelism=max_parallelism)
    keyed = env.from_elements([], f"{key}, amount bigint").key_by(key.split()[0])
    keyed.process(Keep(states), uid=uid, schema="shop string").sink_to([])
    return env


def as_it_was() -> LocalStreamEnvironment:
    return _job(totals=_totals(), count=int)


def with_timers() -> LocalStreamEnvironment:
    env = LocalStreamEnvironment()
    keyed = env.from_elements([], "shop string, amount bigint").key_by("shop")
    keyed.process(Remind({"totals": _totals(), "count": int}), uid="totals", schema="shop string").sink_to([])
    return env


def other_order() -> LocalStreamEnvironment:
    return _job(count=int, totals=_totals())


def wider() -> LocalStreamEnvironment:
    return _job(totals=_totals(sales=float), count=int)


def narrower() -> LocalStreamEnvironment:
    return _job(totals=_totals(sales=str), count=int)


def _converted(converter: Any) -> LocalStreamEnvironment:
    converted = _totals(note=False)
    converted.__schema_version__ = 2  # type: ignore[attr-defined]
    converted.__converters__ = {1: converter}  # type: ignore[attr-defined]
    return _job(totals=converted, count=int)


def _sales_alone(old: dict[str, Any]) -> dict[str, Any]:
    return {"sales": old["sales"]}


def converted() -> LocalStreamEnvironment:
    return _converted(_sales_alone)


def converted_and_declared() -> LocalStreamEnvironment:
    return _converted(reads_fields("note")(_sales_alone))


def without_a_field() -> LocalStreamEnvironment:
    return _job(totals=_totals(note=False), count=int)


def without_a_state() -> LocalStreamEnvironment:
    return _job(totals=_totals())


def another_uid() -> LocalStreamEnvironment:
    return _job(uid="sums", totals=_totals(), count=int)


def another_key() -> LocalStreamEnvironment:
    return _job(key="shop bigint", totals=_totals(), count=int)


def other_key_groups_and_narrower() -> LocalStreamEnvironment:
    return _job(max_parallelism=64, totals=_totals(sales=str), count=int)


def other_key_groups() -> LocalStreamEnvironment:
    return _job(max_parallelism=64, totals=_totals(), count=int)


def keys_unknown() -> LocalStreamEnvironment:
    env = LocalStreamEnvironment()
    env.from_elements([]).key_by("shop").process(Keep({}), uid="totals", schema="shop string").sink_to([])
    return env


def prints() -> LocalStreamEnvironment:
    sys.stdout.write("the program says hello\n")
    return as_it_was()


def raises() -> LocalStreamEnvironment:
    raise RuntimeError("no connection\nto anything")


def exits() -> LocalStreamEnvironment:
    sys.exit(7)


def returns_none() -> None:
    return None


def needs_an_argument(environment: Any) -> Any:
    return environment


def without_a_sink() -> LocalStreamEnvironment:
    return LocalStreamEnvironment()


def fails_in_open() -> LocalStreamEnvironment:
    return _job(totals=object)


def exits_in_open() -> LocalStreamEnvironment:
    class Exits(Keep):
        def open(self, context: RuntimeContext) -> None:
            sys.exit(9)

    env = LocalStreamEnvironment()
    env.from_elements([], "shop string").key_by("shop").process(Exits({}), uid="totals", schema="a int").sink_to([])
    return env


def expiring() -> LocalStreamEnvironment:
    class Expires(Keep):
        def open(self, context: RuntimeContext) -> None:
            context.get_state(ValueStateDescriptor("count", int, ttl=StateTtlConfig(1000)))

    env = LocalStreamEnvironment()
    keyed = env.from_elements([], "shop string").key_by("shop")
    keyed.process(Expires({}), uid="totals", schema="shop string").sink_to([])
    return env


not_a_factory = 7
made = as_it_was()
