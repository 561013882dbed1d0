"""Local operators with two, three and broadcast inputs: order, restarts, rescaling, and rejected definitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from several_inputs import (
    LEFT,
    MERGED,
    RIGHT,
    RULE_STATE,
    RULES,
    EpochInputs,
    InRow,
    Merge,
    Rule,
    RuleWithoutKeys,
    as_left,
    as_right,
    as_rule,
    build,
    modelled,
)

from statebackend import JobDefinitionError, NullKeyError, TumblingEventTimeWindows, WatermarkStrategy
from statebackend.local import LocalJob, LocalStreamEnvironment
from statebackend.state.errors import StateMigrationException
from statebackend.state.key_groups import KeyHashError

pytestmark = pytest.mark.slow

Sinks = tuple[list[Any], list[Any], list[Any], list[Any]]


def run(
    epochs: Sequence[EpochInputs], size: int, sinks: Sinks, from_savepoint: Path | None = None, **options: Any
) -> LocalJob:
    """Run the job over these epochs, each with at most ``size`` records of a source."""
    env = LocalStreamEnvironment(epoch_size=size, **options)
    left = env.from_elements([as_left(row) for epoch in epochs for row in epoch.left], schema=LEFT, uid="left")
    right = env.from_elements([as_right(row) for epoch in epochs for row in epoch.right], schema=RIGHT, uid="right")
    rules = env.from_elements([as_rule(row) for epoch in epochs for row in epoch.rules], schema=RULES, uid="rules")
    build(left, right, rules, sinks)
    return env.execute(from_savepoint=from_savepoint)


def results(sinks: Sinks) -> tuple[list[Any], ...]:
    return tuple(sorted(map(tuple, sink)) for sink in sinks)


def cut(rows: Sequence[Sequence[InRow]], size: int) -> list[EpochInputs]:
    """The epochs of sources with these records and this many records per epoch."""
    most = max(map(len, rows))
    return [EpochInputs(*(source[start : start + size] for source in rows)) for start in range(0, most, size)]


KEYS = st.sampled_from(["a", "b", "c", "d", "e"])


def records(smallest: int = 0) -> st.SearchStrategy[list[InRow]]:
    """Records of one source with distinct times, because records with equal times have no defined order."""
    drawn = st.lists(st.tuples(KEYS, st.integers(0, 1000), st.integers(smallest, 99)), max_size=12)
    return drawn.map(lambda rows: [InRow(key, at * 16 + place, value) for place, (key, at, value) in enumerate(rows)])


@settings(max_examples=examples(15))
@given(
    st.tuples(records(), records(), records(smallest=-20)).filter(lambda rows: any(rows)),
    st.integers(1, 13),
    st.integers(1, 4),
    st.sampled_from(["heap", "rocksdb"]),
)
def test_an_operator_reads_its_inputs_in_order_for_any_cut_into_epochs(
    rows: tuple[list[InRow], list[InRow], list[InRow]], size: int, parallelism: int, backend: str
) -> None:
    sinks: Sinks = ([], [], [], [])
    epochs = cut(rows, size)
    run(epochs, size, sinks, parallelism=parallelism, backend=backend)
    assert results(sinks) == modelled(epochs)


ROWS = (
    [InRow("abcde"[n % 5], 100 - n, n) for n in range(20)],
    [InRow("abcdx"[n % 5], n, 2 * n) for n in range(15)],
    [InRow("rs"[n % 2], n, 3 * n - 5) for n in range(9)],
)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_both_sides_and_the_rules_survive_rescaling_up_and_down(tmp_path: Path, backend: str) -> None:
    epochs = cut(ROWS, 3)
    sinks: Sinks = ([], [], [], [])
    path = None
    for number, (part, parallelism) in enumerate([(epochs[:2], 2), (epochs[2:4], 5), (epochs[4:], 1)]):
        options = {"parallelism": parallelism, "backend": backend, "job_dir": tmp_path / f"{number}"}
        job = run(part, 3, sinks, from_savepoint=path, **options)
        path = tmp_path / f"savepoint-{number}"
        job.savepoint(path)
    assert results(sinks) == modelled(epochs)


def test_keys_of_different_types_are_rejected_with_both_inputs_and_types() -> None:
    env = LocalStreamEnvironment()
    left = env.from_elements([{"k": 1}], schema="k bigint", uid="left")
    right = env.from_elements([{"who": "a"}], schema="who string", uid="right")
    left.connect(right).key_by("k", "who").process(Merge(), uid="merge", schema="k string").sink_to([])
    message = (
        "operator 'merge': the key of its first input has the type bigint, and the key of its second input has string"
    )
    with pytest.raises(JobDefinitionError, match=message):
        env.execute()


def test_a_stream_without_schema_gets_the_key_types_of_the_other() -> None:
    env = LocalStreamEnvironment(parallelism=3)
    left = env.from_elements([{"k": 5, "v": 1}], schema="k int, v bigint", uid="left")
    right = env.from_elements([{"k": 5, "v": 2}], uid="right").flat_map(lambda row: [_Plain(row["k"], row["v"])])
    out: list[Any] = []
    left.connect(right).key_by("k", "k").process(Merge(), uid="merge", schema="k int, s string, t bigint").sink_to(out)
    env.execute()
    assert [tuple(row) for row in out] == [(5, "left", 1), (5, "right", 9)]


class _Plain:
    def __init__(self, k: int, v: int) -> None:
        self.k, self.v = k, v


def test_invalid_connections_are_rejected_in_the_program() -> None:
    env = LocalStreamEnvironment()
    left, right = (env.from_elements([{"k": 1}], uid=uid) for uid in ("left", "right"))

    def rejected(match: str) -> Any:
        return pytest.raises(JobDefinitionError, match=match)

    with rejected("needs keys"):
        left.connect(right).process(Merge(), uid="m", schema="k string")
    with rejected("takes an instance of a KeyedCoProcessFunction, not the class Merge"):
        left.connect(right).key_by("k", "k").process(Merge, uid="m")  # type: ignore[arg-type]
    with rejected("its first input has a key of 1 columns and its second input one of 2"):
        left.connect(right).key_by("k", ["k", "l"]).process(Merge(), uid="m", schema="k string")
    with rejected("takes another keyed stream or a broadcast one"):
        left.key_by("k").connect(right)  # type: ignore[call-overload]
    with rejected("call key_by\\(\\) on this stream too"):
        left.connect(right.key_by("k"))  # type: ignore[arg-type]
    rules = right.broadcast(RULE_STATE)
    with rejected("Rule is a KeyedBroadcastProcessFunction, and the stream has no keys"):
        left.connect(rules).process(Rule(), uid="m", schema="k string")
    with rejected("RuleWithoutKeys is a BroadcastProcessFunction, which has no key"):
        left.key_by("k").connect(rules).process(RuleWithoutKeys(), uid="m", schema="k string")
    with rejected("has no uid"):
        left.connect(right).key_by("k", "k").process(Merge(), schema="k string")


def test_other_key_types_than_the_restored_ones_are_rejected(tmp_path: Path) -> None:
    def start(key: Any, schema: str) -> LocalJob:
        env = LocalStreamEnvironment(job_dir=tmp_path / "job")
        sides = [env.from_elements([{"k": key, "v": 1}], schema=schema, uid=uid) for uid in ("left", "right")]
        merged = sides[0].connect(sides[1]).key_by("k", "k").process(Merge(), uid="merge", schema=MERGED)
        merged.sink_to([])
        return env.execute()

    start("a", "k string, v bigint")
    with pytest.raises(StateMigrationException, match="key"):
        start(1, "k bigint, v bigint")


def test_a_record_without_key_is_reported_with_its_input() -> None:
    def start(key: Any) -> None:
        env = LocalStreamEnvironment()
        left = env.from_elements([{"k": 1, "v": 1}], schema="k bigint, v bigint", uid="left")
        right = env.from_elements([{"k": 1, "v": 1}, {"k": key, "v": 1}], uid="right")
        left.connect(right).key_by("k", "k").process(
            Merge(), uid="merge", schema="k bigint, s string, t bigint"
        ).sink_to([])
        env.execute()

    with pytest.raises(NullKeyError, match="operator 'merge', its second input: a record has a null key"):
        start(None)
    with pytest.raises(KeyHashError, match="operator 'merge', its second input: key column 0 is of type bigint"):
        start(True)


def test_a_stream_can_be_connected_to_itself() -> None:
    env = LocalStreamEnvironment(parallelism=3, epoch_size=2)
    stream = env.from_elements([as_left(row) for row in ROWS[0]], schema=LEFT)
    doubled: list[Any] = []
    merged = (
        stream.connect(stream)
        .key_by("k", "k")
        .process(Merge(), uid="merge", schema=MERGED, first_order_by="at", second_order_by="at")
    )
    merged.sink_to(doubled, uid="doubled")
    env.execute()
    cuts = cut((ROWS[0], ROWS[0], []), 2)
    assert sorted(map(tuple, doubled)) == modelled(cuts)[0]


def test_records_of_each_window_input_have_the_order_of_their_own_columns() -> None:
    env = LocalStreamEnvironment()
    timed = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    rows = [("a", 1, 3, 5), ("a", 2, 1, 4), ("a", 3, 2, 6)]
    left, right = (
        env.from_elements(rows, "k string, at bigint, v bigint, w bigint", uid=uid).assign_timestamps_and_watermarks(
            timed
        )
        for uid in ("left", "right")
    )
    grouped = left.co_group(right).where("k").equal_to("k")
    seen: list[Any] = []
    grouped.window(TumblingEventTimeWindows.of(10), first_order_by="v", second_order_by="w").apply(
        lambda lefts, rights: [([row.v for row in lefts], [row.w for row in rights])],
        uid="grouped",
        schema="vs array<bigint>, ws array<bigint>",
    ).sink_to(seen)
    env.execute(drain=True)
    assert list(map(tuple, seen)) == [([1, 2, 3], [4, 5, 6])]
