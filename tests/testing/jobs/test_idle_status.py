"""An idle status does not overtake the rows and watermarks that an operator holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from statebackend import (
    AsyncContext,
    AsyncDataStream,
    AsyncFunction,
    KeyedProcessFunction,
    OutputTag,
    TumblingEventTimeWindows,
    count,
)
from statebackend.testing.jobs import Emitted, EmittedStatus, EmittedWatermark, JobTestHarness

SCHEMA = "k string, n bigint"
LATE = OutputTag("late", SCHEMA)


class Answering(AsyncFunction[Any, Any]):
    """Answers when the test permits it."""

    answers: ClassVar = False

    async def async_invoke(self, value: Any, context: AsyncContext) -> list[Any]:
        while not Answering.answers:
            await asyncio.sleep(0)
        return [tuple(value)]


class Forward(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield tuple(value)


def asked(wait: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda stream: wait(stream, Answering(), "10 minutes", uid="held", schema=SCHEMA, **options)


HOLDING = {
    "ordered requests": asked(AsyncDataStream.ordered_wait),
    "unordered requests": asked(AsyncDataStream.unordered_wait),
    "carried requests": asked(AsyncDataStream.ordered_wait, carry_in_flight=True),
    "records to sort": lambda stream: stream.key_by("k").process(Forward(), uid="held", schema=SCHEMA, order_by="n"),
    "aggregates": lambda stream: stream.key_by("k").aggregate(n=count(), uid="held"),
}


def building(hold: Callable[[Any], Any]) -> Callable[[Any], None]:
    def build(job: Any) -> None:
        both = hold(job.source("a", SCHEMA)).union(job.source("b", SCHEMA))
        windows = both.key_by("k").window(TumblingEventTimeWindows.of(10)).side_output_late_data(LATE)
        counts = windows.count(uid="counts", schema="k string, start bigint, until bigint, n bigint")
        job.output("held", both)
        job.output("counts", counts)
        job.output("late", counts.get_side_output(LATE))

    return build


@pytest.fixture(params=[pytest.param(hold, id=name) for name, hold in HOLDING.items()])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    monkeypatch.setattr(Answering, "answers", False)
    return building(request.param)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_that_are_held_back_are_in_time_after_their_source_is_idle(
    build: Callable[[Any], None], parallelism: int, tmp_path: Path
) -> None:
    with JobTestHarness(build, parallelism=parallelism) as harness:
        a, b = harness.source("a"), harness.source("b")
        a.send(("x", 1), timestamp_ms=5)
        a.idle()
        b.watermark(100)
        Answering.answers = True
        snapshot = harness.snapshot(tmp_path / "snapshot")
        assert harness.taken_records("late") == []
        assert [tuple(row) for row in harness.taken_records("counts")] == [("x", 0, 10, 1)]
        assert harness.watermarks()["counts"] == 100
    with JobTestHarness(build, parallelism=parallelism, from_snapshot=snapshot) as harness:
        harness.source("b").watermark(200)
        assert harness.watermarks()["counts"] == 200


def test_rows_that_are_held_back_are_in_time_if_their_source_ends_while_it_is_idle(
    build: Callable[[Any], None],
) -> None:
    with JobTestHarness(build) as harness:
        a, b = harness.source("a"), harness.source("b")
        a.send(("x", 1), timestamp_ms=5)
        a.idle()
        Answering.answers = True
        a.end()
        b.watermark(100)
        assert [tuple(row) for row in harness.taken_records("counts")] == [("x", 0, 10, 1)]


def test_a_watermark_that_is_held_back_precedes_the_idle_status(build: Callable[[Any], None], tmp_path: Path) -> None:
    with JobTestHarness(build) as harness:
        a, b = harness.source("a"), harness.source("b")
        b.idle()
        a.send(("x", 1), timestamp_ms=5)
        a.watermark(50)
        a.idle()
        Answering.answers = True
        harness.snapshot(tmp_path / "snapshot")
        [counted, watermark, status] = [one for one in harness.taken() if one.output == "counts"]
        assert isinstance(counted, Emitted)
        assert tuple(counted.record) == ("x", 0, 10, 1)
        assert watermark == EmittedWatermark("counts", 50)
        assert isinstance(status, EmittedStatus)
        assert status.status.is_idle


def test_a_source_that_is_active_again_is_waited_for(build: Callable[[Any], None], tmp_path: Path) -> None:
    with JobTestHarness(build) as harness:
        a, b = harness.source("a"), harness.source("b")
        a.send(("x", 1), timestamp_ms=5)
        a.idle()
        a.active()
        b.watermark(100)
        Answering.answers = True
        harness.snapshot(tmp_path / "snapshot")
        assert harness.taken_records("counts") == []
        assert "counts" not in harness.watermarks()
        a.watermark(50)
        harness.snapshot(tmp_path / "later")
        assert [tuple(row) for row in harness.taken_records("counts")] == [("x", 0, 10, 1)]
