"""Random event-time programs against models, across restarts with another parallelism, backend and order of moves.

The records decide what a program does, so a model of a few lines computes the expected output. Between two events a job
may be abandoned and restored from its snapshot, with another parallelism and another backend.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import (
    BroadcastStateDescriptor,
    EventTimeSessionWindows,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ValueStateDescriptor,
)
from statebackend.state.states import AggregateFunction
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.testing.jobs import Emitted, HarnessJob, JobTestHarness

pytestmark = pytest.mark.slow

KEYS = st.sampled_from("abcde")
TIMES = st.integers(-30, 60)
SCHEMA = "k string, v bigint"
OUT = "k string, what string"
LATE: OutputTag[Any] = OutputTag("late", SCHEMA)
LATE_TOO: OutputTag[Any] = OutputTag("late-too", SCHEMA)

RESTARTS = st.tuples(
    st.just("restart"), st.integers(1, 4), st.sampled_from(["heap", "rocksdb"]), st.none() | st.integers(0, 99)
)


def programs(sources: int, *others: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Events of several sources: records with key and number, watermarks, restarts and others."""
    source = st.integers(0, sources - 1)
    record = st.tuples(st.just("record"), source, KEYS, TIMES, st.integers(0, 99))
    watermark = st.tuples(st.just("watermark"), source, TIMES)
    return st.lists(st.one_of(record, record, watermark, RESTARTS, *others), max_size=40)


def played(
    build: Callable[[HarnessJob], None], events: Sequence[Any], sources: int, check: Callable[[Any, list[Any]], None]
) -> None:
    """Play all events. ``check`` is called with each event and its output: (output, row, timestamp)."""
    with tempfile.TemporaryDirectory() as directory:
        harness = JobTestHarness(build, parallelism=2)
        try:
            for number, event in enumerate([*events, *(("end", index) for index in range(sources))]):
                kind, *given_to = event
                if kind == "restart":
                    parallelism, backend, seed = given_to
                    path = harness.snapshot(Path(directory) / f"{number}")
                    check(event, taken(harness))
                    harness.close()
                    harness = JobTestHarness(
                        build, parallelism=parallelism, backend=backend, seed=seed, from_snapshot=path
                    )
                elif kind == "record":
                    index, key, time, value = given_to
                    harness.source(f"{index}").send((key, value), time)
                else:
                    source = harness.source(f"{given_to[0]}")
                    getattr(source, kind)(*given_to[1:])
                check(event, taken(harness))
        finally:
            harness.close()


def taken(harness: JobTestHarness) -> list[Any]:
    return [(one.output, tuple(one.record), one.timestamp_ms) for one in harness.taken() if isinstance(one, Emitted)]


@define
class Inputs:
    """The watermark of an operator, computed from its inputs. Each input has one source.

    An input that ended while active does not count until all inputs have ended.
    """

    watermarks: list[int]
    idle: list[bool] = field(init=False)
    ended: list[bool] = field(init=False)
    now: int = MIN_TIMESTAMP

    def __attrs_post_init__(self) -> None:
        self.idle = [False] * len(self.watermarks)
        self.ended = [False] * len(self.watermarks)

    def take(self, event: Any) -> int:
        """The watermark after an event."""
        kind, *given_to = event
        if kind in ("watermark", "end"):
            index = given_to[0]
            if not self.idle[index]:
                time = MAX_TIMESTAMP if kind == "end" else given_to[1]
                self.watermarks[index] = max(self.watermarks[index], time)
        elif kind in ("idle", "active"):
            self.idle[given_to[0]] = kind == "idle"
        if kind == "end":
            self.ended[given_to[0]] = True
        counted = [
            (time, idle)
            for time, idle in zip(self.watermarks, self.idle, strict=True)
            if time < MAX_TIMESTAMP or all(self.ended)
        ]
        active = [time for time, idle in counted if not idle]
        self.now = max(self.now, min(active) if active else max(time for time, _ in counted))
        return self.now


class Gather(AggregateFunction[Any, "list[int]", Any]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return [*accumulator, value.v]

    def get_result(self, accumulator: list[int]) -> Any:
        return sorted(accumulator)

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return left + right


class Show(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: list[Any]) -> Iterator[Any]:
        yield key, f"{tuple(context.window)} {elements[0]}"


@define
class Sessions:
    """Sessions of a key as a list."""

    lateness: int
    gap: Callable[[int], int]
    watermark: int = MIN_TIMESTAMP
    open: list[tuple[str, int, int, list[int]]] = field(factory=list)

    def record(self, key: str, time: int, value: int) -> list[Any]:
        start, end, values = time, time + self.gap(value), [value]
        met = [one for one in self.open if one[0] == key and one[1] <= end and start <= one[2]]
        self.open = [one for one in self.open if one not in met]
        before = []
        for one in met:
            start, end = min(start, one[1]), max(end, one[2])
            before += one[3]
        if end - 1 + self.lateness <= self.watermark:
            return [("late", (key, value), time)] if time + self.lateness <= self.watermark else []
        self.open.append((key, start, end, before + values))
        return [self.shown(self.open[-1])] if end - 1 <= self.watermark else []

    def advance(self, watermark: int) -> list[Any]:
        due = [one for one in self.open if self.watermark < one[2] - 1 <= watermark]
        self.watermark = max(self.watermark, watermark)
        self.open = [one for one in self.open if one[2] - 1 + self.lateness > self.watermark]
        return [self.shown(one) for one in due]

    def shown(self, session: tuple[str, int, int, list[int]]) -> Any:
        key, start, end, values = session
        return "out", (key, f"{(start, end)} {sorted(values)}"), end - 1


@settings(max_examples=examples(20))
@given(programs(1), st.sampled_from([0, 6, 20]), st.booleans())
def test_late_extended_sessions_across_restarts(events: list[Any], lateness: int, is_dynamic: bool) -> None:
    gap: Callable[[int], int] = (lambda value: value % 9 + 1) if is_dynamic else (lambda value: 5)
    assigner: Any = (
        EventTimeSessionWindows.with_dynamic_gap(lambda row: gap(row.v))
        if is_dynamic
        else EventTimeSessionWindows.with_gap(5)
    )

    def build(job: HarnessJob) -> None:
        windows = job.source("0", SCHEMA).key_by("k").window(assigner).allowed_lateness(lateness)
        shown = windows.side_output_late_data(LATE).aggregate(Gather(), Show(), uid="sessions", schema=OUT)
        job.output("out", shown)
        job.output("late", shown.get_side_output(LATE))

    model = Sessions(lateness, gap)

    def check(event: Any, out: list[Any]) -> None:
        expected: list[Any] = []
        if event[0] == "record":
            expected = model.record(event[2], event[3], event[4])
        elif event[0] in ("watermark", "end"):
            expected = model.advance(event[2] if event[0] == "watermark" else MAX_TIMESTAMP)
        assert sorted(out) == sorted(expected), event

    played(build, events, 1, check)


class Pair(ProcessJoinFunction[Any, Any, Any, Any]):
    def process_element(self, left: Any, right: Any, context: Any) -> Iterator[Any]:
        yield left.k, f"{left.v} {right.v} {context.left_timestamp} {context.right_timestamp}"


@settings(max_examples=examples(20))
@given(programs(2), st.integers(-8, 8), st.integers(0, 12))
def test_an_interval_join_with_unordered_and_late_records_across_restarts(
    events: list[Any], lower: int, width: int
) -> None:
    upper = lower + width

    def build(job: HarnessJob) -> None:
        left, right = (job.source(name, SCHEMA).key_by("k") for name in "01")
        join = left.interval_join(right).between(lower, upper)
        join = join.side_output_left_late_data(LATE).side_output_right_late_data(LATE_TOO)
        paired = join.process(Pair(), uid="join", schema=OUT)
        for name, stream in (
            ("out", paired),
            ("late", paired.get_side_output(LATE)),
            ("late-too", paired.get_side_output(LATE_TOO)),
        ):
            job.output(name, stream)

    time = Inputs([MIN_TIMESTAMP] * 2)
    waiting: tuple[list[Any], list[Any]] = ([], [])
    kept = max(upper, 0), max(-lower, 0)

    def check(event: Any, out: list[Any]) -> None:
        expected: list[Any] = []
        if event[0] == "record":
            _, index, key, at, value = event
            if at < time.now != MIN_TIMESTAMP:
                expected = [(("late", "late-too")[index], (key, value), at)]
            else:
                for other, other_at, other_value in waiting[1 - index]:
                    one, two = (at, value), (other_at, other_value)
                    (left_at, left), (right_at, right) = (one, two) if index == 0 else (two, one)
                    if other == key and lower <= right_at - left_at <= upper:
                        row = key, f"{left} {right} {left_at} {right_at}"
                        expected.append(("out", row, max(left_at, right_at)))
                waiting[index].append((key, at, value))
        time.take(event)
        for index in range(2):
            waiting[index][:] = [one for one in waiting[index] if one[1] + kept[index] > time.now]
        assert sorted(out) == sorted(expected), event

    played(build, events, 2, check)


COUNT = ValueStateDescriptor("count", int, default=0)
LIMIT = 25


class Reminders(KeyedCoProcessFunction[str, Any, Any, Any]):
    """Registers and deletes timers by the numbers in records. A timer acts by the call count of its key."""

    def open(self, context: Any) -> None:
        self.calls = context.get_state(COUNT)

    def process_element1(self, value: Any, context: Any) -> Iterator[Any]:
        for time in registered_by(value.v, context.timestamp):
            context.timer_service.register_event_time_timer(time)
        yield value.k, f"heard {value.v} at {context.timer_service.current_watermark()}"

    def process_element2(self, value: Any, context: Any) -> Iterator[Any]:
        for time in registered_by(value.v, context.timestamp):
            context.timer_service.delete_event_time_timer(time)
        yield value.k, f"deleted {value.v} at {context.timer_service.current_watermark()}"

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        calls = self.calls.value() + 1
        self.calls.update(calls)
        deleted, added = changed_by(calls, timestamp)
        for time in deleted:
            context.timer_service.delete_event_time_timer(time)
        for time in added:
            context.timer_service.register_event_time_timer(time)
        yield context.current_key, f"timer {timestamp}, call {calls}, at {context.timer_service.current_watermark()}"


def registered_by(value: int, at: int) -> list[int]:
    return [at + value % 7, at + value % 13, at - value % 3]


def changed_by(calls: int, at: int) -> tuple[list[int], list[int]]:
    """The timers that a timer deletes and registers: itself, a due one, an existing one, a later one."""
    deleted = [at + calls % 4, at + calls % 5] if calls % 2 else []
    added = [[at], [at - 3, at + calls % 5], [at + 1], []][calls % 4] if calls < LIMIT else []
    return deleted, added


@settings(max_examples=examples(25))
@given(programs(2, st.tuples(st.sampled_from(["idle", "active"]), st.integers(0, 1))))
def test_timers_that_delete_and_register_timers_with_one_idle_input_across_restarts(events: list[Any]) -> None:
    def build(job: HarnessJob) -> None:
        first, second = (job.source(name, SCHEMA) for name in "01")
        both = first.connect(second).key_by("k").process(Reminders(), uid="reminders", schema=OUT)
        job.output("out", both)

    time = Inputs([MIN_TIMESTAMP] * 2)
    timers: dict[str, set[int]] = {}
    calls: dict[str, int] = {}

    def check(event: Any, out: list[Any]) -> None:
        expected: dict[str, list[Any]] = {}
        if event[0] == "record":
            _, index, key, at, value = event
            mine = timers.setdefault(key, set())
            if index == 0:
                mine.update(registered_by(value, at))
            else:
                mine.difference_update(registered_by(value, at))
            expected[key] = [("out", (key, f"{('heard', 'deleted')[index]} {value} at {time.now}"), at)]
        before, now = time.now, time.take(event)
        for key, mine in timers.items() if now > before else ():
            while mine and min(mine) <= now:
                at = min(mine)
                mine.discard(at)
                calls[key] = calls.get(key, 0) + 1
                deleted, added = changed_by(calls[key], at)
                mine.difference_update(deleted)
                mine.update(added)
                row = key, f"timer {at}, call {calls[key]}, at {now}"
                expected.setdefault(key, []).append(("out", row, at))
        shown: dict[str, list[Any]] = {}
        for one in out:
            shown.setdefault(one[1][0], []).append(one)
        assert shown == expected, event

    played(build, events, 2, check)


RULES = BroadcastStateDescriptor("rules", str, int)


class Ruled(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    """Counts by rules. A rule is a record that is added to the current counts."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        rules = context.get_broadcast_state(RULES)
        count = (self.count.value() or 0) + 1 + sum(factor for _, factor in rules.items())
        self.count.update(count)
        context.timer_service.register_event_time_timer(context.timestamp + 10)
        yield value.k, f"{count}"

    def process_broadcast_element(self, value: Any, context: Any) -> None:
        rules = context.get_broadcast_state(RULES)
        if value.v % 3 == 0:
            rules.remove(value.k)
        else:
            rules.put(value.k, value.v)
        context.apply_to_keyed_state(
            ValueStateDescriptor("count", int), lambda key, state: state.update(state.value() + value.v)
        )

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        names = sorted(name for name, _ in context.get_broadcast_state(RULES).items())
        yield context.current_key, f"timer {self.count.value()} {''.join(names)}"


@settings(max_examples=examples(20))
@given(programs(2))
def test_rules_and_their_effect_on_all_keys_across_restarts(events: list[Any]) -> None:
    def build(job: HarnessJob) -> None:
        records, rules = (job.source(name, SCHEMA) for name in "01")
        connected = records.key_by("k").connect(rules.broadcast(RULES))
        job.output("out", connected.process(Ruled(), uid="ruled", schema=OUT))

    time = Inputs([MIN_TIMESTAMP] * 2)
    rules: dict[str, int] = {}
    counts: dict[str, int] = {}
    timers: set[tuple[int, str]] = set()

    def check(event: Any, out: list[Any]) -> None:
        expected: list[Any] = []
        if event[0] == "record":
            _, index, key, at, value = event
            if index == 0:
                counts[key] = counts.get(key, 0) + 1 + sum(rules.values())
                timers.add((at + 10, key))
                expected.append(("out", (key, f"{counts[key]}"), at))
            else:
                if value % 3 == 0:
                    rules.pop(key, None)
                else:
                    rules[key] = value
                for one in counts:
                    counts[one] += value
        before, now = time.now, time.take(event)
        for at, key in sorted(timers) if now > before else ():
            if at <= now:
                timers.discard((at, key))
                expected.append(("out", (key, f"timer {counts[key]} {''.join(sorted(rules))}"), at))
        assert sorted(out) == sorted(expected), event

    played(build, events, 2, check)
