"""Mistakes in a job, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from statebackend import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    JobDefinitionError,
    KeyedProcessFunction,
    NullKeyError,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    UserFunctionError,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.state.key_groups import KeyHashError
from statebackend.testing.jobs import HarnessJob, JobTestHarness

SCHEMA = "k string, v bigint"
YEAR_MS = 365 * 24 * 3600 * 1000


class Returns(KeyedProcessFunction[Any, Any, Any]):
    def __init__(self, result: Any) -> None:
        self.result = result

    def process_element(self, value: Any, context: Any) -> Any:
        return self.result


class Pair(NamedTuple):
    k: str
    v: int


def emitted_by(result: Any) -> list[Any]:
    def build(job: HarnessJob) -> None:
        stream = job.source("in", SCHEMA).key_by("k").process(Returns(result), uid="op", schema=SCHEMA)
        job.output("out", stream)

    with JobTestHarness(build) as harness:
        harness.source("in").send(("a", 1))
        return [tuple(row) for row in harness.taken_records("out")]


@pytest.mark.parametrize("record", [("a", 1), ("a", None), (None, 1), Pair("a", 1), {"k": "a", "v": 1}])
def test_a_returned_single_record_is_rejected(record: Any) -> None:
    with pytest.raises(
        UserFunctionError, match=r"process_element returned .*, which is one record and not an iterable"
    ):
        emitted_by(record)


def test_a_single_record_returned_by_the_second_function_of_a_window_is_rejected() -> None:
    def build(job: HarnessJob) -> None:
        windows = job.source("in", SCHEMA).key_by("k").count_window(1)
        job.output("out", windows.reduce(max, lambda key, window, row: Pair(key, row.v), uid="op", schema=SCHEMA))

    with (
        JobTestHarness(build) as harness,
        pytest.raises(UserFunctionError, match=r"the windows' function returned Pair\(.*, which is one record"),
    ):
        harness.source("in").send(("a", 1))


@pytest.mark.parametrize("result", [[("a", 1)], (("a", 1),), (Pair("a", 1),), ({"k": "a", "v": 1},)])
def test_a_list_or_tuple_of_records_is_accepted(result: Any) -> None:
    assert emitted_by(result) == [("a", 1)]
    assert emitted_by(()) == emitted_by([]) == emitted_by(None) == []


@pytest.mark.parametrize(("first", "second"), [(True, 1), (1, True), (False, 0), (0, False), (None, None)])
def test_the_keys_true_and_1_are_distinct(first: Any, second: Any) -> None:
    out: list[Any] = []

    def run(*keys: Any) -> None:
        env = LocalStreamEnvironment()
        stream = env.from_elements([{"k": key} for key in keys]).key_by("k")
        stream.process(Returns([("a", 1)]), uid="op", schema=SCHEMA).sink_to(out)
        env.execute()

    if first is None:
        run(True, False, True)
        assert len(out) == 3
        return
    with pytest.raises(
        KeyHashError, match=r"operator 'op': key column 0 is of type (boolean|bigint), which cannot hold"
    ):
        run(first, second)


def pair_of(record: Any) -> tuple[str, int]:
    return record["k"], 1


def list_of(record: Any) -> list[str] | None:
    return [record["k"]]


def text_of(record: Any) -> str:
    return record["k"], 1  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (pair_of, r"key_by\(\) was given a function that returns tuple\[str, int\]; .* key_by\(first, second\)"),
        (list_of, r"key_by\(\) was given a function that returns list\[str\]; .* key_by\(first, second\)"),
        (lambda record: (record["k"], 1), r"a function returned \('a', 1\), a tuple, .* key_by\(first, second\)"),
        (lambda record: 1.5, "a function returned 1.5, a float, which cannot be a key; keys are str, bool, int, bytes"),
        (text_of, r"key column 0 is of type string, which cannot hold \('a', 1\): it is a tuple"),
        (lambda record: None, "operator 'op': a record has a null key"),
    ],
)
def test_a_function_that_returns_no_key_is_reported(key: Callable[[Any], Any], message: str) -> None:
    def run() -> None:
        env = LocalStreamEnvironment()
        stream = env.from_elements([("a",)], "k string").key_by(key)
        stream.process(Returns([("a", 1)]), uid="op", schema=SCHEMA).sink_to([])
        env.execute()

    with pytest.raises((JobDefinitionError, KeyHashError, NullKeyError), match=message):
        run()


class Fired(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: list[Any]) -> Iterator[Any]:
        yield key, len(elements)


def windows(assigner: Any, trigger: Any) -> Callable[[HarnessJob], None]:
    def build(job: HarnessJob) -> None:
        stream = job.source("in", SCHEMA).key_by("k").window(assigner).trigger(trigger)
        job.output("out", stream.process(Fired(), uid="op", schema=SCHEMA))

    return build


@pytest.mark.parametrize(
    "assigner",
    [TumblingEventTimeWindows.of("3650 days"), GlobalWindows.create(), EventTimeSessionWindows.with_gap("3650 days")],
)
def test_one_watermark_fires_a_window_a_bounded_number_of_times(assigner: Any) -> None:
    with JobTestHarness(windows(assigner, ContinuousEventTimeTrigger.of("1 ms"))) as harness:
        source = harness.source("in")
        source.send(("a", 1), timestamp_ms=10)
        source.watermark(9 * YEAR_MS)
        times = [one.timestamp_ms for one in harness.taken() if hasattr(one, "record")]
        assert len(times) == 1_000
        # The trigger continues after the watermark.
        source.watermark(9 * YEAR_MS + 2)
        assert len(harness.taken_records("out")) == 2


def test_no_firing_is_left_out_below_the_bound() -> None:
    for interval, firings in ((1, 1_000), (2, 500), (7, 142)):
        trigger = ContinuousEventTimeTrigger.of(interval)
        with JobTestHarness(windows(TumblingEventTimeWindows.of("1 day"), trigger)) as harness:
            harness.source("in").send(("a", 1), timestamp_ms=0)
            harness.source("in").watermark(1_000)
            assert len(harness.taken_records("out")) == firings


def test_one_time_of_the_clock_fires_a_window_a_bounded_number_of_times() -> None:
    with JobTestHarness(windows(GlobalWindows.create(), ContinuousProcessingTimeTrigger.of("1 ms"))) as harness:
        harness.advance_processing_time(1)
        harness.source("in").send(("a", 1))
        harness.advance_processing_time(9 * YEAR_MS)
        assert len(harness.taken_records("out")) == 1_000
        harness.advance_processing_time(9 * YEAR_MS + 2)
        assert len(harness.taken_records("out")) == 2


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingProcessingTimeWindows.of(10),
        SlidingProcessingTimeWindows.of(10, 5),
        ProcessingTimeSessionWindows.with_gap(10),
    ],
)
def test_late_records_of_processing_time_windows_do_not_exist(assigner: Any) -> None:
    keyed = LocalStreamEnvironment().from_elements([], SCHEMA).key_by("k")
    with pytest.raises(
        JobDefinitionError, match=r"side_output_late_data\(\) requires event-time windows; no record is"
    ):
        keyed.window(assigner).side_output_late_data(OutputTag("late", SCHEMA))
