"""A job whose operators have two, three and broadcast inputs, for both environments, with a model.

The result of a function depends on the order of the records of a key. So it shows whether each input keeps its order.
It also shows whether an epoch processes the rules first, and then the other inputs in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from statebackend import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedMultipleInputFunction,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    ValueStateDescriptor,
)
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor
from statebackend.streaming.data_stream import DataStream

LEFT, RIGHT, RULES = (
    "k string, at bigint, v bigint",
    "at bigint, who string, v bigint",
    "at bigint, name string, f bigint",
)
MERGED, RULED, ALL = (
    "k string, side string, total bigint",
    "k string, v bigint, rules string",
    "k string, n int, t bigint",
)

RULE_STATE: BroadcastStateDescriptor[str, int] = BroadcastStateDescriptor("rules", str, int)


class InRow(NamedTuple):
    """A record of any of the streams."""

    key: str
    at: int
    value: int


class EpochInputs(NamedTuple):
    """The records of each source in an epoch."""

    left: Sequence[InRow] = ()
    right: Sequence[InRow] = ()
    rules: Sequence[InRow] = ()


class Merge(KeyedCoProcessFunction[str, Any, Any, Any]):
    """Folds the records of both sides into one number that depends on their order."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element1(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        yield self._folded("left", value, context)

    def process_element2(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        yield self._folded("right", value, context)

    def _folded(self, side: str, value: Any, context: ProcessContext[str]) -> tuple[str, str, int]:
        total = (self.total.value() * 7 + value.v) % 1009
        self.total.update(total)
        return context.current_key, side, total


class Pass(KeyedProcessFunction[str, Any, Any]):
    """Emits its input."""

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        yield value


class Rule(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    """Emits each record with the rules that hold for it. A negative rule removes its counterpart."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value.k, value.v, _shown(dict(context.get_broadcast_state(RULE_STATE).items()))

    def process_broadcast_element(self, value: Any, context: Any) -> Iterator[Any]:
        rules = context.get_broadcast_state(RULE_STATE)
        if value.f < 0:
            rules.remove(value.name)
        else:
            rules.put(value.name, ((rules.get(value.name) or 0) * 7 + value.f) % 1009)
        return iter(())


class RuleWithoutKeys(BroadcastProcessFunction[Any, Any, Any]):
    """Like `Rule`, over a stream without keys."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        return Rule().process_element(value, context)

    def process_broadcast_element(self, value: Any, context: Any) -> Iterator[Any]:
        return Rule().process_broadcast_element(value, context)


class All(KeyedMultipleInputFunction[str, Any]):
    """Like `Merge`, by the index of the input. It counts the records of the last input of earlier epochs."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, input_index: int, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        if input_index == 2:
            self.count.update(self.count.value() + 1)
            return
        total = (self.total.value() * 7 + value.v + input_index + self.count.value()) % 1009
        self.total.update(total)
        yield context.current_key, input_index, total


def build(left: DataStream, right: DataStream, rules: DataStream, sinks: Sequence[Any]) -> None:
    """Build the job over the three streams. The operators emit to these sinks, in the order of the model."""
    merged = (
        left.connect(right)
        .key_by("k", ["who"])
        .process(Merge(), uid="merge", schema=MERGED, first_order_by="at", second_order_by=["at"])
    )
    by_key = left.key_by("k")
    ruled = by_key.connect(rules.broadcast(RULE_STATE, order_by="at")).process(
        Rule(), uid="rule", schema=RULED, order_by="at"
    )
    spread = left.connect(rules.broadcast(RULE_STATE, order_by="at"))
    keyless = spread.process(RuleWithoutKeys(), uid="keyless", schema=RULED, order_by="at")
    passed = by_key.process(Pass(), uid="pass", schema=LEFT)
    everything = by_key.connect_all(right.key_by("who"), passed.key_by("k"))
    counted = everything.process(All(), uid="all", schema=ALL, order_by=["at", "at", ()])
    streams = {"merged": merged, "ruled": ruled, "all": counted, "keyless": keyless}
    for (uid, stream), sink in zip(streams.items(), sinks, strict=True):
        stream.sink_to(sink, uid=uid)


def modelled(epochs: Sequence[EpochInputs]) -> tuple[list[Any], ...]:
    """The expected output of the operators over these epochs, without order."""
    totals: dict[str, int] = {}
    every: dict[str, int] = {}
    counts: dict[str, int] = {}
    rules: dict[str, int] = {}
    merged, ruled, alls = [], [], []
    for epoch in epochs:
        ordered = [sorted(rows, key=lambda row: row.at) for rows in epoch]
        for index, side in enumerate(("left", "right")):
            for key, _, value in ordered[index]:
                totals[key] = (totals.get(key, 0) * 7 + value) % 1009
                merged.append((key, side, totals[key]))
        for name, _, factor in ordered[2]:
            if factor < 0:
                rules.pop(name, None)
            else:
                rules[name] = (rules.get(name, 0) * 7 + factor) % 1009
        ruled += [(key, value, _shown(rules)) for key, _, value in ordered[0]]
        for index in range(2):
            for key, _, value in ordered[index]:
                every[key] = (every.get(key, 0) * 7 + value + index + counts.get(key, 0)) % 1009
                alls.append((key, index, every[key]))
        for key, *_ in ordered[0]:
            counts[key] = counts.get(key, 0) + 1
    return sorted(merged), sorted(ruled), sorted(alls), sorted(ruled)


def as_left(row: InRow) -> dict[str, Any]:
    """A record of the left stream."""
    return {"k": row.key, "at": row.at, "v": row.value}


def as_right(row: InRow) -> dict[str, Any]:
    """A record of the right stream."""
    return {"at": row.at, "who": row.key, "v": row.value}


def as_rule(row: InRow) -> dict[str, Any]:
    """A record of the rules."""
    return {"at": row.at, "name": row.key, "f": row.value}


def _shown(rules: dict[str, int]) -> str:
    return ",".join(f"{name}={factor}" for name, factor in sorted(rules.items()))
