"""The functions of the golden traces of keyed operators, and a player of a trace on one operator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from statebackend import BroadcastStateDescriptor, ValueStateDescriptor
from streamjobs import (
    BroadcastContext,
    BroadcastProcessFunction,
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
    StreamJobError,
)
from streamjobs.api.interval_join import IntervalJoin
from streamjobs.time.operator_watermarks import OperatorWatermarks
from streamjobs.time.watermark_elements import Watermark
from tests.streamjobs.operators.windows.window_harness import TimedRun
from tests.streamjobs.time import golden_time_traces
from tests.streamjobs.time.golden_time_traces import as_recorded, element_of

ACC = ValueStateDescriptor("acc", int)
RULES = BroadcastStateDescriptor("rules", str, int)


def scenarios(group: str, *types: str) -> list[Any]:
    """The traces of a group, those of these types of operators if any are named."""
    return [
        pytest.param(one, id=one["name"])
        for one in golden_time_traces.scenarios(group)
        if "quirk" not in one and (not types or one["operator"]["type"] in types)
    ]


class Program:
    """Runs the programs of the traces; what it emits says what ``also`` says too."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.at_timers = given.get("onTimer", {})

    def open(self, context: RuntimeContext) -> None:
        self.acc = context.get_state(ACC)

    def element(self, value: Any, context: Any, **also: Any) -> Iterable[Any]:
        said = {"on": "element", "key": context.current_key, **also, "value": value["value"]}
        return self._run(value.get("do", self.given.get("onElement", ())), said, context, value["value"])

    def timer(self, timestamp: int, context: Any, **also: Any) -> Iterable[Any]:
        said = {"on": "timer", "key": context.current_key, **also, "timer": timestamp}
        actions = self.at_timers.get(str(timestamp), self.at_timers.get("*", [["emit"]]))
        return self._run(actions, said, context, 0)

    def _run(self, actions: Sequence[Any], said: dict[str, Any], context: Any, value: int) -> Iterable[Any]:
        timers = context.timer_service
        for action, *given in actions:
            shown = {**said, "acc": self.acc.value(), "wm": timers.current_watermark()}
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
                yield shown
            elif action == "side":
                context.output(OutputTag(given[0]), shown)
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
            emitted.append({"on": "apply", "key": key, "acc": state.value()})
            state.update(state.value() + value["value"])

        if self.applies:
            context.apply_to_keyed_state(ACC, apply)
        return emitted

    def on_timer(self, timestamp: int, context: Any) -> Iterable[Any]:
        return self.program.timer(timestamp, context, rules=dict(context.get_broadcast_state(RULES).items()))


class KeylessBroadcastPlay(BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: ReadOnlyContext) -> Iterable[Any]:
        rules = dict(context.get_broadcast_state(RULES).items())
        yield {
            "on": "element",
            "key": value["key"],
            "value": value["value"],
            "wm": context.current_watermark(),
            "rules": rules,
        }

    def process_broadcast_element(self, value: Any, context: BroadcastContext) -> Iterable[Any]:
        yield followed_rule(value, context)


def followed_rule(value: Any, context: BroadcastContext) -> dict[str, Any]:
    rules = context.get_broadcast_state(RULES)
    if value["value"] < 0:
        rules.remove(value["key"])
    else:
        rules.put(value["key"], value["value"])
    said = {"on": "broadcast", "key": value["key"], "value": value["value"]}
    return {**said, "wm": context.current_watermark(), "rules": dict(rules.items())}


class ShowPair(ProcessJoinFunction[str, Any, Any, Any]):
    def process_element(self, left: Any, right: Any, context: JoinContext[str]) -> Iterable[Any]:
        yield {
            "key": context.current_key,
            "left": [context.left_timestamp, left["value"]],
            "right": [context.right_timestamp, right["value"]],
            "ctxTs": context.timestamp,
        }


def interval_join_of(given: Mapping[str, Any], add: Callable[..., Any], record_type: Any = None) -> Any:
    """What ``add`` makes of the definition of an interval join of a trace."""
    join = IntervalJoin(add).between(given["lower"], given["upper"])
    if not given.get("lowerInclusive", True):
        join = join.lower_bound_exclusive()
    if not given.get("upperInclusive", True):
        join = join.upper_bound_exclusive()
    if "lateLeftTag" in given:
        join = join.side_output_left_late_data(OutputTag(given["lateLeftTag"]))
    if "lateRightTag" in given:
        join = join.side_output_right_late_data(OutputTag(given["lateRightTag"]))
    return join.process(ShowPair(), uid="join", left_type=record_type, right_type=record_type)


def side_outputs(given: Mapping[str, Any]) -> list[OutputTag[Any]]:
    """The side outputs of an operator of a trace."""
    late = [given[name] for name in ("lateLeftTag", "lateRightTag") if name in given]
    return [OutputTag(name) for name in (*given.get("sideTags", ()), *late)]


ONE_INPUT: Sequence[Sequence[int]] = ((0,),)
TWO_INPUTS: Sequence[Sequence[int]] = ((0,), (1,))


def played(
    scenario: Mapping[str, Any], open_run: Callable[[], TimedRun], inputs: Sequence[Sequence[int]] = ONE_INPUT
) -> list[dict[str, Any]]:
    """What comes out of an operator; ``inputs`` says which inputs of the trace each of its inputs unites."""
    try:
        run = open_run()
    except StreamJobError as error:
        return [{"at": 0, "error": str(error)}]
    of_operator = {sender: index for index, senders in enumerate(inputs) for sender in senders}
    is_broadcast = "broadcast" in scenario["operator"]["type"]
    watermarks: OperatorWatermarks[int] = OperatorWatermarks(inputs)
    out: list[dict[str, Any]] = []
    for at, event in enumerate(scenario["input"]):
        sender = event.get("input", 0)
        index = of_operator[sender]
        passed: list[dict[str, Any]] = []
        try:
            if "record" in event:
                record = event["record"]
                if is_broadcast and index == 1:
                    run.broadcast((record, record["ts"]))
                else:
                    run.records((record["key"], record, record["ts"]), input_index=index)
            else:
                for element in watermarks.take(index, sender, element_of(event)):
                    if isinstance(element, Watermark):
                        run.watermark(element.timestamp_ms)
                    passed += as_recorded(at, [element])
        except StreamJobError as error:
            passed = [{"at": at, "error": str(error)}]
        for one in run.emitted:
            side = {} if one.tag is None else {"side": one.tag.name}
            out.append({"at": at, **side, "out": _shown(one.row), "ts": one.timestamp_ms, "wm": one.watermark})
        run.emitted.clear()
        out += passed
        if passed and "error" in passed[0]:
            break
    return out


def _shown(row: Any) -> Any:
    """A late record is shown by key and value."""
    return {"key": row["key"], "value": row["value"]} if "ts" in row else row


def comparable(entries: list[dict[str, Any]], is_unordered: bool = False, with_watermarks: bool = True) -> list[Any]:
    """Entries as they are compared: of what has no order, one order."""
    shown = []
    for entry in entries:
        entry = {name: item for name, item in entry.items() if name != "tie"}
        if not with_watermarks:
            entry.pop("wm", None)
        if "error" in entry:
            entry = {"at": entry["at"], "error": True}
        out = entry.get("out")
        if is_unordered and isinstance(out, dict):
            entry["out"] = {name: sorted(item) if isinstance(item, list) else item for name, item in out.items()}
        shown.append(entry)
    return shown


def in_one_order(entries: list[Any], expected: list[dict[str, Any]]) -> list[Any]:
    """The entries with those at the places of a tie sorted."""
    ordered = list(entries)
    start = 0
    while start < len(expected):
        end = start + 1
        tie = expected[start].get("tie")
        while tie is not None and end < len(expected) and expected[end].get("tie") == tie:
            end += 1
        ordered[start:end] = sorted(ordered[start:end], key=lambda entry: json.dumps(entry, sort_keys=True))
        start = end
    return ordered


def assert_as_in_flink(out: list[dict[str, Any]], scenario: Mapping[str, Any]) -> None:
    """Equal to what is recorded, in every entry, in order."""
    expected = scenario["expected"]
    assert in_one_order(comparable(out), expected) == in_one_order(comparable(expected), expected)
