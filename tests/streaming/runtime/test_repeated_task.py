"""A repeated task with TTL state creates the same state, because its time is that of the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    StateTtlConfig,
    ValueStateDescriptor,
)
from statebackend.checkpoint import CheckpointFileSystem
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement
from statebackend.state.state_backend import state_backend
from statebackend.streaming.operators.keyed_process import KeyedProcessOperator
from statebackend.streaming.operators.operator import ObjectBatch
from statebackend.streaming.operators.subtask_context import planned_state
from statebackend.streaming.runtime.restore_plan import SubtaskRestore, continued_subtask
from statebackend.streaming.runtime.subtask import OperatorEpoch, OperatorParts, Subtask
from typeserializers import StringSerializer

TTL_MS = 1000
TTL = StateTtlConfig(TTL_MS)
COUNT = ValueStateDescriptor("count", int, default=0, ttl=TTL)
TIMES = ListStateDescriptor("times", int, ttl=TTL)
BY_NUMBER = MapStateDescriptor("by number", int, int, ttl=TTL)


class Count(KeyedProcessFunction[str, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(COUNT)
        self.times = context.get_list_state(TIMES)
        self.by_number = context.get_map_state(BY_NUMBER)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        self.times.add(self.count.value() or 0)
        self.by_number.put(self.count.value() or 0, 1)
        yield context.current_key, self.count.value(), len(self.times.get()), len(list(self.by_number.keys()))


class World:
    """Attempts at epochs, each on a different host."""

    def __init__(self, directory: Path, backend: str) -> None:
        self.directory = directory
        self.fs = CheckpointFileSystem.from_uri(directory / "job")
        self.attempts = 0
        self.parts = OperatorParts(
            job_id="job",
            run_id="run",
            operator_uid="words",
            operator_factory=KeyedProcessOperator,
            side_outputs=(),
            key_serializer=StringSerializer(),
            parallelism=1,
            max_parallelism=4,
            backend=state_backend(backend),
            planned={one.name: planned_state(one) for one in (COUNT, TIMES, BY_NUMBER)},
            planned_operator_state={},
            file_system=self.fs,
            keeps_backends=False,
        )

    def attempt(self, epoch_id: int, time_ms: int, restore: SubtaskRestore) -> tuple[list[Any], Acknowledgement]:
        self.attempts += 1
        subtask = Subtask(
            self.parts,
            OperatorEpoch(epoch_id=epoch_id, processing_time_ms=time_ms),
            subtask_index=0,
            attempt_id=f"attempt-{self.attempts}",
            restore=restore,
            local_directory=str(self.directory / f"host-{self.attempts}"),
        )
        keys = ["a", "b", "a"]
        rows = [
            row
            for emitted in subtask.run(Count, [(0, ObjectBatch(keys, keys, [0, 1, 0]))])
            for emission in emitted
            for row in emission.rows
        ]
        return rows, subtask.acknowledgement

    def behind(self, acknowledged: Acknowledgement) -> SubtaskRestore:
        return continued_subtask(acknowledged.state, self.fs)


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_a_repeated_task_emits_the_same_and_creates_the_same_state(tmp_path: Path, backend: str) -> None:
    world = World(tmp_path, backend)
    _, first = world.attempt(0, 5000, SubtaskRestore())
    assert world.attempt(0, 5000, SubtaskRestore())[1].digest == first.digest
    assert world.attempt(0, 5001, SubtaskRestore())[1].digest != first.digest, "the time is part of the state"
    rows, second = world.attempt(1, 5000 + TTL_MS - 1, world.behind(first))
    again, repeated = world.attempt(1, 5000 + TTL_MS - 1, world.behind(first))
    assert (again, repeated.digest) == (rows, second.digest)
    assert rows == [("a", 3, 3, 3), ("b", 2, 2, 2), ("a", 4, 4, 4)]


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_expiry_depends_on_the_time_of_the_epoch_only(tmp_path: Path, backend: str) -> None:
    world = World(tmp_path, backend)
    first_rows, first = world.attempt(0, 5000, SubtaskRestore())
    for time_ms, is_expired in ((5000, False), (5000 + TTL_MS - 1, False), (5000 + TTL_MS, True), (1 << 50, True)):
        rows, _ = world.attempt(1, time_ms, world.behind(first))
        assert (rows == first_rows) is is_expired
