"""Operators of several inputs in local jobs: savepoints with buffers, timers and broadcast state."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    BroadcastStateDescriptor,
    EpochError,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    OnTimerContext,
    ProcessJoinFunction,
    RuntimeContext,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.local import LocalStreamEnvironment

RULES = BroadcastStateDescriptor("rules", str, int)
COUNT = ValueStateDescriptor("count", int)


class Limit(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    """Counts per key, and emits each count with the rules; a rule adds to the present counts."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(COUNT)
        self.subtask_index = context.subtask_index

    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        self.count.update((self.count.value() or 0) + 1)
        context.timer_service.register_event_time_timer(1_000)
        rules = context.get_broadcast_state(RULES)
        yield value.k, self.count.value(), ",".join(f"{name}={rules.get(name)}" for name in rules.keys())  # noqa: SIM118

    def process_broadcast_element(self, value: Any, context: KeyedBroadcastContext) -> None:
        context.get_broadcast_state(RULES).put(value.name, value.n)
        context.apply_to_keyed_state(COUNT, lambda key, count: count.update(count.value() + value.n))

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        yield context.current_key, self.count.value(), "timer"


def limited(
    records: list[Any], rules: list[Any], function: Any = None, execute: Any = None, **given: Any
) -> tuple[Any, list[Any]]:
    environment = LocalStreamEnvironment(epoch_size=2, max_parallelism=16, **given)
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps()
    timed = environment.from_elements(records, "k string, t bigint", uid="records").assign_timestamps_and_watermarks(
        strategy.with_timestamps("t")
    )
    named = environment.from_elements(rules, "name string, n bigint", uid="rules").assign_timestamps_and_watermarks(
        strategy.with_timestamps("n")
    )
    results: list[Any] = []
    stream = timed.key_by("k").connect(named.broadcast(RULES))
    stream.process(function or Limit(), uid="limit", schema="k string, n bigint, rules string").sink_to(results)
    job = environment.execute(**(execute or {}))
    job.environment = environment
    return job, sorted(tuple(row) for row in results)


@pytest.mark.parametrize(("before", "after"), [("heap", "rocksdb"), ("rocksdb", "heap")])
@pytest.mark.parametrize("parallelism", [1, 4])
def test_rules_counts_and_timers_survive_rescaling_and_a_backend_change(
    before: str, after: str, parallelism: int, tmp_path: Path
) -> None:
    keys = ["a", "b", "c", "d"]
    job, results = limited([(key, 1) for key in keys], [("r", 10), ("s", 20)], parallelism=3, backend=before)
    # The first epoch processes both rules, then the records of two keys, although the program names the records first.
    assert results == [(key, 1, "r=10,s=20") for key in keys]
    savepoint = job.savepoint(tmp_path / "savepoint").path
    _, results = limited(
        [(key, 5) for key in keys],
        [("r", 7)],
        parallelism=parallelism,
        backend=after,
        execute={"from_savepoint": savepoint, "drain": True},
    )
    # The new rule is added to the restored counts before the records of its epoch arrive.
    assert results == sorted((key, 9, what) for key in keys for what in ("r=7,s=20", "timer"))


class LimitBySubtask(Limit):
    def process_broadcast_element(self, value: Any, context: KeyedBroadcastContext) -> None:
        context.get_broadcast_state(RULES).put(value.name, self.subtask_index)


def test_different_rules_per_subtask_fail_the_epoch() -> None:
    with pytest.raises(EpochError, match="the copies of broadcast state 'rules' in subtasks 0 and 1 differ"):
        limited([("a", 1)], [("r", 10)], LimitBySubtask(), parallelism=2)


class Show(ProcessJoinFunction[str, Any, Any, Any]):
    def process_element(self, left: Any, right: Any, context: Any) -> Iterable[Any]:
        yield (
            context.current_key,
            left.asDict().get("note", "none") or "",
            context.left_timestamp,
            context.right_timestamp,
        )


def joined(
    lefts: list[Any], rights: list[Any], left_schema: str, execute: Any = None, **given: Any
) -> tuple[Any, list[Any]]:
    environment = LocalStreamEnvironment(max_parallelism=16, **given)
    strategy: Any = WatermarkStrategy.for_bounded_out_of_orderness(100)
    left, right = (
        environment.from_elements(elements, schema, uid=uid)
        .assign_timestamps_and_watermarks(strategy.with_timestamps("t"))
        .key_by("k")
        for uid, elements, schema in (("left", lefts, left_schema), ("right", rights, "k string, t bigint"))
    )
    results: list[Any] = []
    stream = left.interval_join(right).between(-5, 5)
    stream.process(Show(), uid="join", schema="k string, note string, l bigint, r bigint").sink_to(results)
    job = environment.execute(**(execute or {}))
    job.environment = environment
    return job, sorted(tuple(row) for row in results)


@pytest.mark.parametrize(("before", "after"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_records_waiting_in_a_join_match_after_a_schema_upgrade(before: str, after: str, tmp_path: Path) -> None:
    lefts = [(key, time) for key in "abc" for time in (10, 20)]
    job, results = joined(lefts, [("a", 12)], "k string, t bigint", parallelism=3, backend=before)
    assert results == [("a", "none", 10, 12)]
    savepoint = job.savepoint(tmp_path / "savepoint").path
    again, results = joined(
        [("new", 14, "a")],
        [("a", 13), ("b", 21), ("c", 300)],
        "note string, t bigint, k string",
        parallelism=2,
        backend=after,
        execute={"from_savepoint": savepoint, "drain": True},
    )
    assert results == [("a", "", 10, 13), ("a", "new", 14, 12), ("a", "new", 14, 13), ("b", "", 20, 21)]
    rows = again.savepoint(tmp_path / "after").rows["join"]
    assert not any(rows.values())
