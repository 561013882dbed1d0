"""The functions of the golden traces of keyed operators, as described in their README.

They emit rows with one text, because the columns differ between objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statebackend import (
    BroadcastContext,
    BroadcastProcessFunction,
    BroadcastStateDescriptor,
    JoinContext,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedReadOnlyContext,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessJoinFunction,
    ReadOnlyContext,
    RuntimeContext,
    ValueStateDescriptor,
)

ACC = ValueStateDescriptor("acc", int)
RULES = BroadcastStateDescriptor("rules", str, int)


RECORD = "key string, value bigint, do string"
"""A record of the traces. ``do`` is its own program as a text, if it has one."""

ROW_TYPE = "shown string"


def row_of(shown: dict[str, Any]) -> tuple[str]:
    """An emitted object as a row of `ROW_TYPE`."""
    return (json.dumps(shown),)


class Program:
    """Runs the programs of the traces; its output includes that of ``also``."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.at_timers = given.get("onTimer", {})

    def open(self, context: RuntimeContext) -> None:
        self.acc = context.get_state(ACC)

    def element(self, record: Any, context: Any, **also: Any) -> Iterable[Any]:
        columns = record.asDict()
        # After a first stage, a record has the folded values.
        value = columns["value"] if "value" in columns else sum(columns["values"])
        own = columns.get("do")
        shown = {"on": "element", "key": context.current_key, **also, "value": value}
        return self._run(self.given.get("onElement", ()) if own is None else json.loads(own), shown, context, value)

    def timer(self, timestamp: int, context: Any, **also: Any) -> Iterable[Any]:
        shown = {"on": "timer", "key": context.current_key, **also, "timer": timestamp}
        actions = self.at_timers.get(str(timestamp), self.at_timers.get("*", [["emit"]]))
        return self._run(actions, shown, context, 0)

    def _run(self, actions: Sequence[Any], of_call: dict[str, Any], context: Any, value: int) -> Iterable[Any]:
        timers = context.timer_service
        for action, *given in actions:
            shown = {**of_call, "acc": self.acc.value(), "wm": timers.current_watermark()}
            if action == "timer":
                timers.register_event_time_timer(given[0])
            elif action == "timer+":
                timers.register_event_time_timer(context.timestamp + given[0])
            elif action == "timer_wm+":
                timers.register_event_time_timer(timers.current_watermark() + given[0])
            elif action == "delete":
                timers.delete_event_time_timer(given[0])
            elif action == "delete+":
                timers.delete_event_time_timer(context.timestamp + given[0])
            elif action in ("add", "add_value"):
                self.acc.update((self.acc.value() or 0) + (given[0] if given else value))
            elif action == "clear":
                self.acc.clear()
            elif action == "emit":
                yield row_of(shown)
            elif action == "side":
                context.output(OutputTag(given[0], ROW_TYPE), row_of(shown))
            else:
                assert action == "fail", action
                raise ArithmeticError(given[0])


class Play(KeyedProcessFunction[str, Any, Any]):
    def __init__(self, given: Mapping[str, Any]) -> None:
        self.program = Program(given)

    def open(self, context: RuntimeContext) -> None:
        self.program.open(context)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        return self.program.element(value, context)

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        return self.program.timer(timestamp, context)


class CoPlay(KeyedCoProcessFunction[str, Any, Any, Any]):
    def __init__(self, given: Mapping[str, Any]) -> None:
        self.program = Program(given)

    def open(self, context: RuntimeContext) -> None:
        self.program.open(context)

    def process_element1(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        return self.program.element(value, context, input=0)

    def process_element2(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        return self.program.element(value, context, input=1)

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        return self.program.timer(timestamp, context)


class BroadcastPlay(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    def __init__(self, given: Mapping[str, Any]) -> None:
        self.program = Program(given)
        self.applies = given.get("applyToKeyedState", False)

    def open(self, context: RuntimeContext) -> None:
        self.program.open(context)

    def process_element(self, value: Any, context: KeyedReadOnlyContext[str]) -> Iterable[Any]:
        return self.program.element(value, context, rules=dict(context.get_broadcast_state(RULES).items()))

    def process_broadcast_element(self, value: Any, context: KeyedBroadcastContext) -> Iterable[Any]:
        emitted = [followed_rule(value, context)]

        def apply(key: str, state: Any) -> None:
            emitted.append(row_of({"on": "apply", "key": key, "acc": state.value()}))
            state.update(state.value() + value["value"])

        if self.applies:
            context.apply_to_keyed_state(ACC, apply)
        return emitted

    def on_timer(self, timestamp: int, context: Any) -> Iterable[Any]:
        return self.program.timer(timestamp, context, rules=dict(context.get_broadcast_state(RULES).items()))


class KeylessBroadcastPlay(BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: ReadOnlyContext) -> Iterable[Any]:
        rules = dict(context.get_broadcast_state(RULES).items())
        shown = {"on": "element", "key": value["key"], "value": value["value"]}
        yield row_of({**shown, "wm": context.current_watermark(), "rules": rules})

    def process_broadcast_element(self, value: Any, context: BroadcastContext) -> Iterable[Any]:
        yield followed_rule(value, context)


def followed_rule(value: Any, context: BroadcastContext) -> tuple[str]:
    rules = context.get_broadcast_state(RULES)
    if value["value"] < 0:
        rules.remove(value["key"])
    else:
        rules.put(value["key"], value["value"])
    shown = {"on": "broadcast", "key": value["key"], "value": value["value"]}
    return row_of({**shown, "wm": context.current_watermark(), "rules": dict(rules.items())})


class ShowPair(ProcessJoinFunction[str, Any, Any, Any]):
    def process_element(self, left: Any, right: Any, context: JoinContext[str]) -> Iterable[Any]:
        pair = {"left": [context.left_timestamp, left["value"]], "right": [context.right_timestamp, right["value"]]}
        yield row_of({"key": context.current_key, **pair, "ctxTs": context.timestamp})
