"""A job continues unchanged with the open windows, watermarks and sources of a rewritten savepoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    EventTimeSessionWindows,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    Savepoint,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.rewrite.operator_writer import overlap_of_sessions
from statebackend.streaming.stream_graph import SplitRead
from typeserializers import TimeWindow

pytestmark = pytest.mark.slow

RECORDS = [("a", 1, 1), ("b", 2, 2), ("a", 12, 4), ("c", 13, 8), ("b", 19, 16)]
LATER = [("a", 15, 32), ("b", 24, 64), ("c", 50, 128)]

Row = tuple[str, int, int]


def run(
    records: Sequence[Row], windows: Any, *, start: Path | None = None, into: Path | None = None, **options: Any
) -> list[Any]:
    """The sums of all closed windows. With ``into``, the run also takes a savepoint of the open ones."""
    environment = LocalStreamEnvironment(**{"parallelism": 2, "epoch_size": 2, **options})
    rows: list[Any] = []
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("t")
    timed = environment.from_elements(records, "k string, t bigint, v bigint").assign_timestamps_and_watermarks(
        strategy
    )
    timed.key_by("k").window(windows).reduce(
        lambda one, other: (one.k, max(one.t, other.t), one.v + other.v),
        uid="sums",
        schema="k string, t bigint, v bigint",
    ).sink_to(rows)
    job = environment.execute("windows", from_savepoint=start, drain=into is None)
    if into is not None:
        job.savepoint(into)
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("windows", [TumblingEventTimeWindows.of(20), EventTimeSessionWindows.with_gap(5)])
@pytest.mark.parametrize("backends", [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_open_windows_move_with_their_keys(tmp_path: Path, windows: Any, backends: tuple[str, str]) -> None:
    before = run(RECORDS, windows, into=tmp_path / "first", backend=backends[0])
    plan = Plan().change_max_parallelism(9).change_keys("sums", lambda key: key, "string")
    SavepointWriter.copy_of(tmp_path / "first", tmp_path / "second").write(plan)
    after = run(LATER, windows, start=tmp_path / "second", backend=backends[1], max_parallelism=9)
    assert sorted(after) == sorted(run(LATER, windows, start=tmp_path / "first"))
    # Every counted value is emitted once.
    assert sum(value for *_, value in before + after) == 255


def test_keys_whose_sessions_overlap_cannot_be_merged(tmp_path: Path) -> None:
    run([("a", 1, 1), ("b", 4, 2)], EventTimeSessionWindows.with_gap(5), into=tmp_path / "first")
    merge = {"merging-window-set": lambda one, other: one + other, "window-contents": max}
    plan = Plan().change_keys("sums", lambda key: "all", "string", merge=merge)
    with pytest.raises(PlanError, match=r"merging-window-set.*'all'.*\(start=1, end=6\).*would become one.*drain=True"):
        SavepointWriter.copy_of(tmp_path / "first", tmp_path / "second").write(plan)
    assert not (tmp_path / "second").exists()


def test_sessions_with_a_gap_can_be_merged() -> None:
    early, late, touching = TimeWindow(1, 6), TimeWindow(7, 9), TimeWindow(6, 9)
    assert overlap_of_sessions([(late, late), (early, early)]) is None
    assert overlap_of_sessions([(touching, touching), (early, early)]) is not None
    assert overlap_of_sessions([(early, early), (early, early)]) is not None


def test_the_watermark_moves_to_the_new_uid(tmp_path: Path) -> None:
    run(RECORDS, TumblingEventTimeWindows.of(20), into=tmp_path / "first")
    SavepointWriter.copy_of(tmp_path / "first", tmp_path / "second").write(Plan().rename_operator("sums", "totals"))
    SavepointWriter.copy_of(tmp_path / "first", tmp_path / "third").write(Plan().drop_watermarks())
    first, second, third = (
        Savepoint.open(tmp_path / name).metadata.watermarks for name in ("first", "second", "third")
    )
    assert first is not None
    assert second is not None
    assert third is None
    assert (second.watermark_ms, second.channels) == (first.watermark_ms, first.channels)
    former = {node.node: node.watermark_ms for node in first.nodes}
    assert {node.node: node.watermark_ms for node in second.nodes} == {
        {"sums": "totals"}.get(name, name): watermark_ms for name, watermark_ms in former.items()
    }


class Numbers:
    """A source of two splits. Each counts up to a number."""

    def __init__(self, end: int) -> None:
        self._end = end

    def splits(self) -> Mapping[str, int]:
        return {"even": 0, "odd": 0}

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        behind = min(self._end, position + max_records)
        records = [{"k": split, "n": number} for number in range(position, behind)]
        return SplitRead(records, behind, behind == self._end)


class Sum(KeyedProcessFunction[str, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.sum = context.get_state(ValueStateDescriptor("sum", int))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        self.sum.update((self.sum.value() or 0) + value["n"])
        yield {"k": value["k"], "sum": self.sum.value()}


def summed(end: int, *, start: Path | None = None, into: Path | None = None, **options: Any) -> dict[str, int]:
    environment = LocalStreamEnvironment(**{"parallelism": 2, "epoch_size": 3, **options})
    rows: list[Any] = []
    numbers = environment.from_source(Numbers(end), uid="numbers", schema="k string, n bigint")
    numbers.key_by("k").process(Sum(), uid="sums", schema="k string, sum bigint").sink_to(rows)
    job = environment.execute("numbers", from_savepoint=start)
    if into is not None:
        job.savepoint(into)
    return {row["k"]: row["sum"] for row in rows}


def test_a_source_continues_at_its_position_or_from_its_start(tmp_path: Path) -> None:
    summed(10, into=tmp_path / "first")
    SavepointWriter.copy_of(tmp_path / "first", tmp_path / "on").write(Plan().change_max_parallelism(1))
    whole = sum(range(20))
    assert summed(20, start=tmp_path / "on", max_parallelism=1, parallelism=1) == {"even": whole, "odd": whole}
    SavepointWriter.copy_of(tmp_path / "first", tmp_path / "rewritten").write(Plan().remove_operator("numbers"))
    twice = whole + sum(range(10))
    assert summed(20, start=tmp_path / "rewritten") == {"even": twice, "odd": twice}


def run_two(into: Path, *, until: Mapping[str, int]) -> None:
    """Take a savepoint of a job whose operators have these watermarks. A third operator reads both."""
    environment = LocalStreamEnvironment(parallelism=1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("t")
    sums = []
    for uid, last in until.items():
        rows = [("a", 1, 1), ("b", last + 1, 2)]
        timed = environment.from_elements(rows, "k string, t bigint, v bigint", uid=f"rows of {uid}")
        windows = timed.assign_timestamps_and_watermarks(strategy).key_by("k").window(TumblingEventTimeWindows.of(20))
        schema = "k string, t bigint, v bigint"
        sums.append(windows.reduce(lambda one, other: one, uid=uid, schema=schema))
    both = sums[0].union(*sums[1:]).key_by("k").window(TumblingEventTimeWindows.of(20))
    both.reduce(lambda one, other: one, uid="both", schema="k string, t bigint, v bigint").sink_to([])
    environment.execute("two", drain=False).savepoint(into)


def watermarks(path: Path) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """The watermark of each operator, and the watermarks of the senders of the last one."""
    state = Savepoint.open(path).metadata.watermarks
    assert state is not None
    nodes = {node.node: node for node in state.nodes}
    channels = [channel for one in nodes["both"].inputs for channel in one.channels]
    own = {uid: node.watermark_ms for uid, node in nodes.items() if uid in ("a", "b", "all", "z")}
    return own, {channel.channel: channel.watermark_ms for channel in channels}


@pytest.mark.parametrize("into", ["a", "b", "all"])
def test_merged_operators_have_no_later_watermark_than_each_of_them(tmp_path: Path, into: str) -> None:
    until = {"a": 50, "b": 100}
    run_two(tmp_path / "first", until=until)
    assert watermarks(tmp_path / "first") == (until, until)
    plan = Plan().merge_operators(["a", "b"], into, merge={"window-contents": lambda one, other: one})
    SavepointWriter.copy_of(tmp_path / "first", tmp_path / "second").write(plan)
    assert watermarks(tmp_path / "second") == ({}, {into: 50})


def test_each_part_of_an_operator_has_its_watermark_also_under_the_former_uid(tmp_path: Path) -> None:
    run_two(tmp_path / "first", until={"a": 50, "b": 100})
    plan = Plan().split_operator("a", ["a", "z"], lambda key: "a" if key == "a" else "z")
    SavepointWriter.copy_of(tmp_path / "first", tmp_path / "second").write(plan)
    assert watermarks(tmp_path / "second") == ({"a": 50, "z": 50, "b": 100}, {"a": 50, "z": 50, "b": 100})
