"""Joins by window and by interval, and timers of two inputs, in jobs of both environments, against models."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from json_source import add_file
from spark_job_fixture import memory_sink, pickled_by_value, rows_of

from statebackend import (
    JoinContext,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    OnTimerContext,
    ProcessContext,
    ProcessJoinFunction,
    RuntimeContext,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.data_stream import DataStream
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

LEFT, RIGHT = "k string, at bigint, v int", "who string, at bigint, w string"
PAIRS, COUNTS = "v int, w string", "k string, lefts bigint, rights bigint, until bigint"
SIZE, BEFORE, AFTER, WAIT = 10, 4, 7, 5


class Left(NamedTuple):
    k: str
    at: int
    v: int


class Right(NamedTuple):
    who: str
    at: int
    w: str


class Pair(ProcessJoinFunction[str, Any, Any, Any]):
    def process_element(self, left: Any, right: Any, context: JoinContext[str]) -> Iterator[Any]:
        assert context.timestamp == max(left.at, right.at)
        yield left.v, right.w


class Count(KeyedCoProcessFunction[str, Any, Any, Any]):
    """Counts both sides of a key for a period after a record, by a timer."""

    def open(self, context: RuntimeContext) -> None:
        self.sides = context.get_list_state(ListStateDescriptor("sides", int))

    def process_element1(self, value: Any, context: ProcessContext[str]) -> None:
        self._take(0, context)

    def process_element2(self, value: Any, context: ProcessContext[str]) -> None:
        self._take(1, context)

    def _take(self, side: int, context: ProcessContext[str]) -> None:
        assert context.timestamp is not None
        self.sides.add(context.timestamp * 2 + side)
        context.timer_service.register_event_time_timer(context.timestamp + WAIT)

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterator[Any]:
        # Read only the entries of this timer's time. They do not depend on how the streams are cut into epochs.
        due = [one % 2 for one in self.sides.get() if one // 2 == timestamp - WAIT]
        yield context.current_key, due.count(0), due.count(1), timestamp


def build(left: DataStream, right: DataStream, sinks: Sequence[Any]) -> None:
    """Four operators with two inputs each; the last one also gets the output of windows."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    left, right = (stream.assign_timestamps_and_watermarks(strategy) for stream in (left, right))
    windows = left.join(right).where("k").equal_to("who").window(TumblingEventTimeWindows.of(SIZE))
    joined = windows.apply(lambda left, right: (left.v, right.w), uid="windows", schema=PAIRS)
    grouped = left.co_group(right).where("k").equal_to("who").window(TumblingEventTimeWindows.of(SIZE))
    sizes = grouped.apply(sizes_of, uid="sizes", schema=COUNTS)
    near = left.key_by("k").interval_join(right.key_by("who")).between(-BEFORE, AFTER).upper_bound_exclusive()
    counted = left.connect(right).key_by("k", "who").process(Count(), uid="count", schema=COUNTS)
    again = sizes.connect(right).key_by("k", "who").process(Count(), uid="again", schema=COUNTS)
    streams = {
        "windows": joined,
        "sizes": sizes,
        "interval": near.process(Pair(), uid="interval", schema=PAIRS),
        "count": counted,
        "again": again,
    }
    for (uid, stream), sink in zip(streams.items(), sinks, strict=True):
        stream.sink_to(sink, uid=uid)


def sizes_of(lefts: list[Any], rights: list[Any]) -> Iterator[Any]:
    key = lefts[0].k if lefts else rights[0].who
    until = (lefts or rights)[0].at // SIZE * SIZE + SIZE
    yield key, len(lefts), len(rights), until


def counted(lefts: Sequence[tuple[str, int]], rights: Sequence[Right], watermark: int) -> list[Any]:
    times = {(key, at) for key, at in lefts} | {(row.who, row.at) for row in rights}
    return sorted(
        (key, sum(one == (key, at) for one in lefts), sum((row.who, row.at) == (key, at) for row in rights), at + WAIT)
        for key, at in times
        if at + WAIT <= watermark
    )


def modelled(lefts: Sequence[Left], rights: Sequence[Right], watermark: int) -> list[list[Any]]:
    """The output of the operators at that watermark; nothing is late, because times increase in each stream."""

    def over(at: int) -> bool:
        return at // SIZE * SIZE + SIZE - 1 <= watermark

    pairs = [(left, right) for left in lefts for right in rights if left.k == right.who]
    windows = {(row[0], row[1] // SIZE * SIZE + SIZE) for row in [*lefts, *rights] if over(row[1])}
    sizes = sorted(
        (
            key,
            sum(row.k == key and row.at // SIZE * SIZE + SIZE == until for row in lefts),
            sum(row.who == key and row.at // SIZE * SIZE + SIZE == until for row in rights),
            until,
        )
        for key, until in windows
    )
    return [
        sorted((left.v, right.w) for left, right in pairs if left.at // SIZE == right.at // SIZE and over(left.at)),
        sizes,
        sorted((left.v, right.w) for left, right in pairs if -BEFORE <= right.at - left.at < AFTER),
        counted([(row.k, row.at) for row in lefts], rights, watermark),
        counted([(key, until - 1) for key, _, _, until in sizes], rights, watermark),
    ]


def rising(rows: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    at, risen = 0, []
    for key, step in rows:
        at += step
        risen.append((key, at))
    return risen


STREAM = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6)), min_size=1, max_size=14).map(rising)


@settings(max_examples=examples(15))
@given(STREAM, STREAM, st.integers(1, 15), st.integers(1, 3), st.sampled_from(["heap", "rocksdb"]))
def test_joins_and_timers_do_not_depend_on_the_cut_of_the_streams(
    left: list[tuple[str, int]], right: list[tuple[str, int]], size: int, parallelism: int, backend: str
) -> None:
    lefts = [Left(*row, place) for place, row in enumerate(left)]
    rights = [Right(*row, str(place)) for place, row in enumerate(right)]
    sinks: list[list[Any]] = [[] for _ in range(5)]
    env = LocalStreamEnvironment(epoch_size=size, parallelism=parallelism, backend=backend)
    streams = [
        env.from_elements([row._asdict() for row in rows], schema=schema, uid=uid)
        for uid, rows, schema in (("left", lefts, LEFT), ("right", rights, RIGHT))
    ]
    build(*streams, sinks)
    env.execute(drain=True)
    assert [sorted(map(tuple, sink)) for sink in sinks] == modelled(lefts, rights, MAX_TIMESTAMP)


@pytest.mark.spark
@pytest.mark.extended
def test_joins_and_timers_of_a_spark_job_survive_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark import SparkStreamEnvironment

    epochs = [
        ([Left("a", 1, 1), Left("b", 3, 2), Left("a", 8, 3)], [Right("a", 2, "p"), Right("b", 9, "q")]),
        ([Left("b", 9, 4), Left("a", 14, 5)], [Right("c", 11, "r"), Right("a", 13, "s"), Right("a", 13, "t")]),
        ([Left("c", 24, 6)], [Right("a", 18, "u")]),
        ([Left("a", 41, 7)], [Right("a", 37, "v"), Right("a", 38, "w")]),
    ]
    for number, epoch in enumerate(epochs):
        for name, rows in zip(("left", "right"), epoch, strict=True):
            add_file(tmp_path / name, number, (row._asdict() for row in rows))
    held_back = [tmp_path / name / "00003.json" for name in ("left", "right")]
    for file in held_back:
        file.rename(tmp_path / file.parent.name / "_00003.json")
    sinks = [memory_sink() for _ in range(5)]

    def run(parallelism: int) -> Any:
        env = SparkStreamEnvironment(
            spark,
            job_dir=tmp_path / "job",
            local_state_directory=tmp_path / "local",
            parallelism=parallelism,
            max_parallelism=16,
        )
        reader = spark.readStream.option("maxFilesPerTrigger", 1)
        build(
            *(
                env.from_dataframe(reader.schema(schema).json(str(tmp_path / name)), uid=name)
                for name, schema in (("left", LEFT), ("right", RIGHT))
            ),
            sinks,
        )
        with pickled_by_value(sys.modules[__name__]):
            job = env.execute("joins", trigger={"availableNow": True})
            job.await_termination()
        return job

    def expected(count: int) -> list[list[Any]]:
        lefts = [row for left, _ in epochs[:count] for row in left]
        rights = [row for _, right in epochs[:count] for row in right]
        return modelled(lefts, rights, min(max(row.at for row in lefts), max(row.at for row in rights)) - 1)

    run(2)
    assert [rows_of(sink) for sink in sinks] == expected(3)
    for file in held_back:
        (tmp_path / file.parent.name / "_00003.json").rename(file)
    job = run(3)
    assert [rows_of(sink) for sink in sinks] == expected(4)
    of_operators = dict.fromkeys(("windows", "sizes", "interval", "count", "again"), 37)
    assert job.watermarks() == {"left": 40, "right": 37, **of_operators}
