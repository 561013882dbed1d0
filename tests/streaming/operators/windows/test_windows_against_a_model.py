"""Random streams, cut into batches in many ways: windows equal a dict of windows."""

from __future__ import annotations

import tempfile
from typing import Any

import pytest
from attrs import define, field
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.states import AggregateFunction
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.windows.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from statebackend.streaming.windows.evictors import CountEvictor
from statebackend.streaming.windows.triggers import ContinuousEventTimeTrigger, CountTrigger, PurgingTrigger
from statebackend.streaming.windows.window_definition import WindowDefinition
from statebackend.streaming.windows.window_functions import ProcessWindowFunction
from statebackend.streaming.windows.windowed_stream import WindowedStream
from statebackend.testing.backends.harness import BackendHarness
from tests.streaming.operators.windows.window_harness import WindowRun
from typeserializers.times.timers import TimeWindow

pytestmark = pytest.mark.slow

LATE: OutputTag[Any] = OutputTag("late")
KEYS = ["a", "b", "c"]

ASSIGNERS = {
    "tumbling": TumblingEventTimeWindows.of(10, 3),
    "sliding": SlidingEventTimeWindows.of(10, 4, -1),
    "gaps": SlidingEventTimeWindows.of(4, 10),
    "sessions": EventTimeSessionWindows.with_gap(4),
}


class Gather(AggregateFunction[int, "list[int]", Any]):
    """Collects its input in a mutable list."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> Any:
        return accumulator

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return left + right


class GatherText(AggregateFunction[int, str, "list[int]"]):
    """Collects its input in a text: an immutable accumulator."""

    def create_accumulator(self) -> str:
        return ""

    def add(self, value: int, accumulator: str) -> str:
        return f"{accumulator}{value} "

    def get_result(self, accumulator: str) -> list[int]:
        return list(map(int, accumulator.split()))

    def merge(self, left: str, right: str) -> str:
        return left + right


class ShowAll(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
        values = elements[0] if elements and isinstance(elements[0], list) else elements
        yield key, tuple(context.window), sorted(values)


@define
class Model:
    """Windows in a dict."""

    assigner: Any
    lateness: int
    windows: dict[tuple[str, TimeWindow], list[int]] = field(factory=dict)
    watermark: int = MIN_TIMESTAMP
    emitted: list[Any] = field(factory=list)
    late: list[int] = field(factory=list)

    def record(self, key: str, value: int, time: int) -> None:
        is_late = True
        for window in self.assigner.assign_windows(value, time):
            window = self.merged(key, window)
            if window.max_timestamp + self.lateness <= self.watermark:
                self.windows.pop((key, window), None)
                continue
            is_late = False
            self.windows.setdefault((key, window), []).append(value)
            if window.max_timestamp <= self.watermark:
                self.fire(key, window)
        if is_late and time + self.lateness <= self.watermark:
            self.late.append(value)

    def merged(self, key: str, window: TimeWindow) -> TimeWindow:
        if not self.assigner.merges_windows:
            return window
        values = []
        for other in [one for of_key, one in self.windows if of_key == key and one.intersects(window)]:
            values += self.windows.pop((key, other))
            window = window.cover(other)
        if values:
            self.windows[key, window] = values
        return window

    def fire(self, key: str, window: TimeWindow) -> None:
        self.emitted.append((key, tuple(window), sorted(self.windows[key, window])))

    def advance(self, watermark: int) -> None:
        for key, window in sorted(self.windows, key=lambda one: one[1].max_timestamp):
            if self.watermark < window.max_timestamp <= watermark:
                self.fire(key, window)
        self.watermark = max(self.watermark, watermark)
        for key, window in list(self.windows):
            if window.max_timestamp + self.lateness <= self.watermark:
                del self.windows[key, window]

    def taken(self) -> tuple[list[Any], list[int]]:
        emitted, self.emitted = self.emitted, []
        late, self.late = self.late, []
        return sorted(emitted), late


def definition_of(assigner: Any, lateness: int, kind: str) -> WindowDefinition:
    stream = WindowedStream.of(lambda definition, **_: definition, assigner)
    stream = stream.allowed_lateness(lateness).side_output_late_data(LATE)
    if kind == "aggregate":
        return stream.aggregate(Gather(), ShowAll())
    if kind == "text":
        return stream.aggregate(GatherText(), ShowAll())
    if kind == "evictor":
        return stream.evictor(CountEvictor.of(1000)).aggregate(Gather(), ShowAll(), element_type=int)
    return stream.process(ShowAll(), element_type=int)


events = st.lists(
    st.one_of(
        st.tuples(st.just("record"), st.sampled_from(KEYS), st.integers(-40, 60)),
        st.tuples(st.just("watermark"), st.integers(-40, 70)),
        st.tuples(st.just("cut")),
        st.tuples(st.just("restore")),
    ),
    max_size=40,
)


@pytest.mark.parametrize("state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"])
@pytest.mark.parametrize("assigner", ASSIGNERS.values(), ids=ASSIGNERS.keys())
@settings(max_examples=examples(10))
@given(
    events=events,
    lateness=st.sampled_from([0, 7, 10]),
    kind=st.sampled_from(["aggregate", "text", "process", "evictor"]),
)
def test_windows_equal_a_dict_of_windows_for_any_cut(
    state_backend: Any, assigner: Any, events: list[Any], lateness: int, kind: str
) -> None:
    model = Model(assigner, lateness)
    definition = definition_of(assigner, lateness, kind)
    with tempfile.TemporaryDirectory() as directory:
        harness = BackendHarness(directory)
        run = WindowRun(harness, state_backend, definition, side_outputs=[LATE])
        batch: list[Any] = []

        def feed() -> None:
            for key, value, time in batch:
                model.record(key, value, time)
            run.records(*batch)
            batch.clear()
            taken = sorted(run.rows()), [one.row for one in run.emitted if one.tag == LATE]
            assert taken == model.taken()
            run.emitted.clear()

        for number, event in enumerate([*events, ("watermark", MAX_TIMESTAMP)]):
            if event[0] == "record":
                batch.append((event[1], number, event[2]))
                continue
            feed()
            if event[0] == "watermark":
                model.advance(event[1])
                run.watermark(event[1])
                feed()
            elif event[0] == "restore":
                handle, now = run.snapshot(), run.timers.current_watermark()
                run = WindowRun(harness, state_backend, definition, handle, side_outputs=[LATE], watermark=now)
        assert run.entries() == {}
        harness.close()


@pytest.mark.parametrize("state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"])
@pytest.mark.parametrize("assigner", ASSIGNERS.values(), ids=ASSIGNERS.keys())
@settings(max_examples=examples(6))
@given(
    events=events,
    trigger=st.sampled_from([CountTrigger.of(2), ContinuousEventTimeTrigger.of(3)]),
    lateness=st.sampled_from([0, 7]),
    purges=st.booleans(),
)
def test_no_trigger_leaves_state(
    state_backend: Any, assigner: Any, events: list[Any], trigger: Any, lateness: int, purges: bool
) -> None:
    stream = WindowedStream.of(lambda definition, **_: definition, assigner).allowed_lateness(lateness)
    stream = stream.trigger(PurgingTrigger.of(trigger) if purges else trigger)
    with tempfile.TemporaryDirectory() as directory:
        harness = BackendHarness(directory)
        run = WindowRun(harness, state_backend, stream.process(ShowAll(), element_type=int))
        for number, event in enumerate(events):
            if event[0] == "record":
                run.records((event[1], number, event[2]))
            elif event[0] == "watermark":
                run.watermark(event[1])
        run.watermark(MAX_TIMESTAMP)
        assert run.entries() == {}
        harness.close()
