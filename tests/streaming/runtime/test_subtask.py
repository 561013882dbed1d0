"""A single subtask: its acknowledgements, and its clean-up when abandoned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from statebackend import (
    KeyedProcessFunction,
    OutputTag,
    ProcessContext,
    RuntimeContext,
    UserFunctionError,
    ValueStateDescriptor,
    count,
)
from statebackend.checkpoint import ChannelTimestamp, CheckpointFileSystem
from statebackend.state.state_backend import state_backend
from statebackend.streaming.aggregates import AggregateDefinition, bound_aggregates, checked_aggregates
from statebackend.streaming.errors import EpochError
from statebackend.streaming.operators.aggregate import AggregateOperator
from statebackend.streaming.operators.keyed_process import KeyedProcessOperator
from statebackend.streaming.operators.operator import Emitter, ObjectBatch, Operator
from statebackend.streaming.operators.subtask_context import planned_state
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.runtime.restore_plan import SubtaskRestore, continued_subtask
from statebackend.streaming.runtime.subtask import OperatorEpoch, OperatorParts, Subtask
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from typeserializers import StringSerializer

COUNT = ValueStateDescriptor("count", int, default=0)
ODD = OutputTag[Any]("odd")


class Count(KeyedProcessFunction[str, Any, Any]):
    """Emits a key with its count, odd counts also to a side output; records its close."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(COUNT)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        if value == "poison":
            raise ArithmeticError("poison")
        self.count.update(self.count.value() + 1)
        if self.count.value() % 2:
            context.output(ODD, context.current_key)
        yield context.current_key, self.count.value()

    def close(self) -> None:
        self.calls.append("close")


class World:
    """An operator with one subtask, epoch after epoch."""

    def __init__(self, directory: Path, backend: str, keeps_backends: bool) -> None:
        self.directory = directory
        self.fs = CheckpointFileSystem.from_uri(directory / "job")
        self.calls: list[str] = []
        self.restore = SubtaskRestore()
        self.epoch_id = 0
        self.parts = OperatorParts(
            job_id="job",
            run_id="run",
            operator_uid="words",
            operator_factory=KeyedProcessOperator,
            side_outputs=(ODD,),
            key_serializer=StringSerializer(),
            parallelism=1,
            max_parallelism=4,
            backend=state_backend(backend),
            planned={"count": planned_state(COUNT)},
            planned_operator_state={},
            file_system=self.fs,
            keeps_backends=keeps_backends,
        )

    def subtask(self, watermark_ms: int = MIN_TIMESTAMP) -> Subtask:
        return Subtask(
            self.parts,
            OperatorEpoch(epoch_id=self.epoch_id, processing_time_ms=1000, watermark_ms=watermark_ms),
            subtask_index=0,
            attempt_id="attempt",
            restore=self.restore,
            local_directory=str(self.directory / "local"),
        )

    def batches(self, *records: str) -> list[tuple[int, ObjectBatch]]:
        return [(0, ObjectBatch([record], [record[0]], [1])) for record in records]

    def run(self, *records: str) -> list[Any]:
        subtask = self.subtask()
        run = subtask.run(lambda: Count(self.calls), self.batches(*records))
        emitted = [[(one.tag, one.rows) for one in part] for part in run]
        self.restore = continued_subtask(subtask.acknowledgement.state, self.fs)
        self.epoch_id += 1
        return emitted


@pytest.fixture(params=[("heap", True), ("heap", False), ("rocksdb", True)], ids=str)
def world(request: Any, tmp_path: Path) -> World:
    return World(tmp_path, *request.param)


def test_an_epoch_continues_from_the_former_acknowledgement(world: World) -> None:
    assert world.run("a", "b") == [[(None, [("a", 1)]), (ODD, ("a",))], [(None, [("b", 1)]), (ODD, ("b",))], []]
    assert world.run() == [[]]
    assert world.run("a") == [[(None, [("a", 2)])], []]
    assert world.calls == ["close"] * 3


def test_an_acknowledgement_has_the_subtask_and_its_cost(world: World) -> None:
    subtask = world.subtask()
    with pytest.raises(EpochError, match="subtask 0 of 'words' has not ended"):
        _ = subtask.acknowledgement
    for _ in subtask.run(lambda: Count(world.calls), world.batches("a")):
        with pytest.raises(EpochError, match="has not ended"):
            _ = subtask.acknowledgement
    reported = subtask.acknowledgement
    assert (reported.job_id, reported.run_id, reported.checkpoint_id) == ("job", "run", 0)
    assert (reported.operator_uid, reported.subtask_index, reported.attempt_id) == ("words", 0, "attempt")
    assert reported.metrics["entries_written"] == 1
    assert {"open_s", "process_s", "snapshot_s", "local_opens", "restores"} <= reported.metrics.keys()


def test_a_lease_ends_with_the_success_of_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, "heap", True)
    backend, reported = type(world.parts.backend), []
    give_back = backend.return_keyed_state_backend

    def noted(self: Any, *arguments: Any, succeeded: bool) -> None:
        reported.append(succeeded)
        give_back(self, *arguments, succeeded=succeeded)

    monkeypatch.setattr(backend, "return_keyed_state_backend", noted)
    world.run("a")
    with pytest.raises(UserFunctionError):
        list(world.subtask().run(lambda: Count(world.calls), world.batches("a", "poison")))
    abandoned = world.subtask().run(lambda: Count(world.calls), world.batches("a", "a"))
    next(abandoned)
    abandoned.close()
    world.run("a")
    assert reported == [True, False, False, True]


def test_an_abandoned_or_failed_subtask_keeps_the_former_state(world: World) -> None:
    world.run("a")
    abandoned = world.subtask()
    run = abandoned.run(lambda: Count(world.calls), world.batches("a", "a"))
    next(run)
    run.close()
    failed = world.subtask()
    with pytest.raises(UserFunctionError, match=r"operator 'words', key 'p', record 'poison'.*ArithmeticError"):
        list(failed.run(lambda: Count(world.calls), world.batches("a", "poison")))
    for subtask in (abandoned, failed):
        with pytest.raises(EpochError, match="has not ended"):
            _ = subtask.acknowledgement
    assert world.calls == ["close"] * 3
    assert world.run("a") == [[(None, [("a", 2)])], []]


def test_the_largest_timestamp_of_each_channel_is_acknowledged(world: World) -> None:
    subtask = world.subtask()
    batches = [
        (0, ObjectBatch(["a"], ["a"], [1], channel_timestamps=tuple(ChannelTimestamp(*one) for one in seen)))
        for seen in ([("s", "x", 5), ("s", "y", 9)], [("s", "x", 7), ("t", "x", 1)], [("s", "x", 6), ("s", "y", 8)])
    ]
    list(subtask.run(lambda: Count(world.calls), batches))
    seen = {(one.source, one.channel): one.timestamp_ms for one in subtask.acknowledgement.channel_timestamps}
    assert seen == {("s", "x"): 7, ("s", "y"): 9, ("t", "x"): 1}


class HoldsBack(Operator):
    """Buffers its input until a watermark or a snapshot."""

    holds_watermarks = True

    def __init__(self, function: Any, uid: str) -> None:
        self.held: list[Any] = []

    def open(self, context: Any, emitter: Emitter) -> None:
        self.emitter = emitter

    def process_batch(self, input_index: int, batch: Any) -> None:
        self.held += batch.records

    def let_watermarks_out(self) -> None:
        self.emitter.emit(None, self.held)
        self.held = []

    def prepare_snapshot(self) -> None:
        self.let_watermarks_out()

    def close(self) -> None:
        """Does nothing."""


def test_output_buffered_before_the_watermark_of_the_epoch_is_early(tmp_path: Path) -> None:
    world = World(tmp_path, "heap", True)
    world.parts = evolve(world.parts, operator_factory=HoldsBack, planned={}, side_outputs=())
    subtask = world.subtask(watermark_ms=5)
    early, later = (ObjectBatch([record], ["a"], [1], is_early=record == "early") for record in ("early", "later"))
    emitted = [one for part in subtask.run(lambda: None, [(0, early), (0, later)]) for one in part]
    assert [(one.rows, one.is_early) for one in emitted] == [(["early"], True), (["later"], False)]


def test_aggregates_of_early_records_are_early(tmp_path: Path) -> None:
    schema = parsed_schema("word string", "")
    aggregates = checked_aggregates({"n": count()})
    accumulators = bound_aggregates(aggregates, schema, "here").serializer
    world = World(tmp_path, "heap", True)
    world.parts = evolve(
        world.parts,
        operator_factory=AggregateOperator,
        planned={"accumulators": planned_state(ValueStateDescriptor("accumulators", accumulators))},
        side_outputs=(),
        input_schemas=(schema,),
    )
    subtask = world.subtask(watermark_ms=5)
    early, later = (ObjectBatch([("a",)], ["a"], [1], [time], is_early=time == 5) for time in (5, 6))
    run = subtask.run(lambda: AggregateDefinition(aggregates), [(0, early), (0, later)])
    emitted = [(one.rows, one.timestamps, one.is_early) for part in run for one in part]
    assert emitted == [([("a", 1)], [5], True), ([("a", 2)], [6], False)]


def timed(*keys: str, is_early: bool) -> tuple[int, ObjectBatch]:
    return 0, ObjectBatch(list(keys), list(keys), [1] * len(keys), is_early=is_early)


class Telling(KeyedProcessFunction[str, Any, Any]):
    """Emits a key with its watermark."""

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        yield context.current_key, context.timer_service.current_watermark()


def reported(world: World, *batches: tuple[int, ObjectBatch]) -> list[Any]:
    """The output of an epoch with watermark 7."""
    world.parts = evolve(world.parts, planned={})
    subtask = world.subtask(watermark_ms=7)
    return [row for part in subtask.run(Telling, batches) for one in part for row in one.rows]


def test_early_records_have_the_former_watermark_with_or_without_others(tmp_path: Path) -> None:
    early, late = timed("a", is_early=True), timed("b", is_early=False)
    at_first = [("a", MIN_TIMESTAMP)]
    assert reported(World(tmp_path / "1", "heap", False), early) == at_first
    assert reported(World(tmp_path / "2", "heap", False), early, late) == [*at_first, ("b", 7)]
    assert reported(World(tmp_path / "3", "heap", False), late) == [("b", 7)]


def test_early_records_after_the_watermark_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(EpochError, match="'words': early records came after other records"):
        reported(World(tmp_path, "heap", False), timed("b", is_early=False), timed("a", is_early=True))
