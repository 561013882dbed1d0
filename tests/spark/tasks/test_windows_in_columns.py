"""Window aggregates over Arrow batches have the same output and state as over single records."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from attrs import frozen

from statebackend import TumblingEventTimeWindows, WatermarkStrategy, count, max_, sum_
from statebackend.checkpoint import CheckpointFileSystem
from statebackend.local import LocalStreamEnvironment
from statebackend.spark.tasks.arrow_rows import KEY_GROUP_COLUMN, TIME_COLUMN, InputColumns, InputReader
from statebackend.state.state_backend import state_backend
from statebackend.streaming.operators.aggregate import resolved_node
from statebackend.streaming.operators.operator import ObjectBatch
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.runtime.restore_plan import SubtaskRestore, continued_subtask
from statebackend.streaming.runtime.subtask import OperatorEpoch, OperatorParts, Subtask
from typeserializers import LongSerializer, StringSerializer, TupleSerializer

HOUR_MS = 3_600_000
KEYS = 1_500
"""More than a priority queue handles one by one."""

KEY_TYPES: dict[str, tuple[tuple[str, ...], Any]] = {
    "number": (("n",), LongSerializer()),
    "text": (("s",), StringSerializer()),
    "several": (("n", "s"), TupleSerializer((LongSerializer(), StringSerializer()))),
}
Record = tuple[int, str, int, int]


@frozen
class Epoch:
    """The sorted output of an epoch, and the digest of its state."""

    rows: list[tuple[Any, ...]]
    digest: str


def epochs_of(
    directory: Path, backend: str, key_type: str, lateness: str, epochs: list[list[Record]], in_columns: bool
) -> list[Epoch]:
    """Run epochs of one hour each. The watermark is that of the previous epoch, 10 minutes behind its records."""
    names, serializer = KEY_TYPES[key_type]
    environment = LocalStreamEnvironment(backend=backend)
    records = environment.from_elements([], "n bigint, s string, amount int, at bigint")
    timed = records.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    )
    windows = timed.key_by(*names).window(TumblingEventTimeWindows.of("1 hour")).allowed_lateness(lateness)
    windows.aggregate(times=count(), total=sum_("amount"), high=max_("amount"), uid="w").sink_to([])
    operator = environment._prepare().operators["w"]
    schemas = operator.states.input_schemas
    node = resolved_node(operator.node, schemas[0], ["bigint", "string"][: len(names)])
    file_system = CheckpointFileSystem.from_uri(directory / "job")
    parts = OperatorParts(
        job_id="job",
        run_id="run",
        operator_uid="w",
        operator_factory=operator_factory(node.function),
        side_outputs=(),
        key_serializer=serializer,
        parallelism=1,
        max_parallelism=4,
        backend=state_backend(backend),
        planned=operator.states.planned,
        planned_operator_state={},
        file_system=file_system,
        input_schemas=schemas,
    )
    reader = InputReader(InputColumns(("n", "s", "amount", "at"), names, has_time=True), "here")
    restore, watermark, results = SubtaskRestore(), -(1 << 63), []
    for number, rows in enumerate(epochs):
        before, watermark = watermark, number * HOUR_MS - 600_000
        subtask = Subtask(
            parts,
            OperatorEpoch(
                epoch_id=number, processing_time_ms=1000, watermark_ms=watermark, previous_watermark_ms=before
            ),
            subtask_index=0,
            attempt_id="attempt",
            restore=restore,
            local_directory=str(directory / "local"),
        )
        batches: list[Any] = list(reader.batches(arrow_batch(rows)))
        if not in_columns:
            keys = [row[0] if names == ("n",) else row[1] if names == ("s",) else row[:2] for row in rows]
            batches = [ObjectBatch(list(rows), keys, [row[0] % 4 for row in rows], [row[3] for row in rows])]
        emitted: list[tuple[Any, ...]] = []
        for part in subtask.run(lambda: node.function, [(0, batch) for batch in batches]):
            for one in part:
                is_columns = isinstance(one.rows, pa.RecordBatch)
                assert is_columns or not in_columns or lateness != "0 ms"
                of_part = zip(*one.rows.to_pydict().values(), strict=True) if is_columns else one.rows
                emitted += [tuple(tuple(v.values()) if isinstance(v, dict) else v for v in row) for row in of_part]
        state = subtask.acknowledgement.state
        restore = continued_subtask(state, file_system)
        emitted.sort(key=repr)
        results.append(Epoch(emitted, subtask.acknowledgement.digest))
    return results


def arrow_batch(rows: list[Record]) -> pa.RecordBatch:
    """A batch in the form in which Spark sends it."""
    numbers, texts, amounts, times = zip(*rows, strict=True)
    at = pa.array(times, pa.int64())
    none = pa.nulls(len(rows), pa.string())
    time = pa.StructArray.from_arrays(
        [at, none, none, pa.nulls(len(rows), pa.bool_())], names=["timestamp", "source", "channel", "early"]
    )
    columns = [pa.array(numbers), pa.array(texts), pa.array(amounts, pa.int32()), at]
    groups = pa.array([number % 4 for number in numbers], pa.int32())
    names = ["n", "s", "amount", "at", KEY_GROUP_COLUMN, TIME_COLUMN]
    return pa.RecordBatch.from_arrays([*columns, groups, time], names=names)


@pytest.mark.extended_after(2)
@pytest.mark.parametrize("lateness", ["0 ms", "30 minutes"])
@pytest.mark.parametrize("key_type", KEY_TYPES)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_windows_in_columns_equal_those_of_objects(tmp_path: Path, backend: str, key_type: str, lateness: str) -> None:
    chance = random.Random(f"{backend} {key_type} {lateness}")
    epochs = [
        [
            (key, f"{key} ä" if key == 7 else f"{key}", chance.randrange(1000), (hour - late) * HOUR_MS + key)
            for key in range(KEYS)
            for late in (0, 1)
            if chance.random() < 0.8
        ]
        for hour in range(4)
    ]
    both = [
        epochs_of(tmp_path / str(in_columns), backend, key_type, lateness, epochs, in_columns)
        for in_columns in (False, True)
    ]
    assert both[0] == both[1]
    assert all(epoch.rows for epoch in both[0][2:])
