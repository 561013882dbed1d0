"""Local subtasks: their work before key types are known, the order of records, and long chains."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    BroadcastStateDescriptor,
    JobDefinitionError,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    KeyedReadOnlyContext,
    OnTimerContext,
    ProcessContext,
)
from statebackend.testing.jobs import Emitted, EmittedWatermark, HarnessJob, JobTestHarness

RULES = BroadcastStateDescriptor("rules", str, int)
RECORD = "k string, v bigint"


class Scale(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    def process_element(self, value: Any, context: KeyedReadOnlyContext[str]) -> Iterable[Any]:
        yield value["k"], value["v"] * (context.get_broadcast_state(RULES).get("by") or 1)

    def process_broadcast_element(self, value: Any, context: KeyedBroadcastContext) -> None:
        context.get_broadcast_state(RULES).put("by", value["v"])


def scaled(job: HarnessJob) -> None:
    """A job whose key types are known only from records."""
    rules = job.source("rules").broadcast(RULES)
    made = job.source("records").key_by("k").connect(rules).process(Scale(), uid="scale", schema=RECORD)
    job.output("out", made)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_broadcast_records_wait_for_the_first_key(parallelism: int, tmp_path: Path) -> None:
    with JobTestHarness(scaled, parallelism=parallelism) as harness:
        harness.source("rules").send({"v": 10})
        for key in "abc":
            harness.source("records").send({"k": key, "v": 1})
        assert [tuple(row) for row in harness.taken_records("out")] == [(key, 10) for key in "abc"]
        path = harness.snapshot(tmp_path / "snapshot")
    with JobTestHarness(scaled, parallelism=2, from_snapshot=path) as harness:
        harness.source("records").send({"k": "d", "v": 2})
        assert [tuple(row) for row in harness.taken_records("out")] == [("d", 20)]


def test_records_that_a_checkpoint_would_lose_are_rejected(tmp_path: Path) -> None:
    with JobTestHarness(scaled) as harness:
        harness.source("rules").send({"v": 10})
        with pytest.raises(JobDefinitionError, match="'scale': it received broadcast records before any"):
            harness.snapshot(tmp_path / "snapshot")


class Echo(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        if context.timestamp is not None:
            context.timer_service.register_event_time_timer(context.timestamp)
        yield value.k, value.v

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        yield context.current_key, -timestamp


def sorted_echo(job: HarnessJob) -> None:
    keyed = job.source("in", RECORD).key_by("k")
    job.output("out", keyed.process(Echo(), uid="echo", schema=RECORD, order_by="v"))


def test_records_sent_together_are_sorted() -> None:
    with JobTestHarness(sorted_echo) as harness:
        source = harness.source("in")
        source.send_all([("a", value) for value in (3, 1, 2)], [5, 5, 5])
        assert [one.record.v for one in harness.taken() if isinstance(one, Emitted)] == [1, 2, 3]
        source.send_all([("a", 9), ("a", 7)], [8, 8])
        source.watermark(8)
        shown = [one.record.v if isinstance(one, Emitted) else one for one in harness.taken()]
        assert shown == [7, 9, -5, -8, EmittedWatermark("out", 8)]
        source.send_all([("a", 6), ("a", 5)])
        assert [row.v for row in harness.taken_records("out")] == [5, 6]


def test_a_chain_of_steps_has_no_length_limit() -> None:
    def build(job: HarnessJob) -> None:
        stream = job.source("in", RECORD)
        for _ in range(2000):
            stream = stream.flat_map(lambda row: [row])
        keyed = stream.key_by(lambda row: row.k)
        job.output("out", keyed.process(Echo(), uid="echo", schema=RECORD))

    with JobTestHarness(build) as harness:
        harness.source("in").send(("a", 1))
        harness.source("in").end()
        assert [tuple(row) for row in harness.taken_records("out")] == [("a", 1)]
