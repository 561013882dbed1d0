"""Ten aggregates over five columns in three forms, without Spark: rows per second of processor time of one subtask.

Batches have the columns that Spark sends. Each turn is an epoch with its checkpoint.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result
from statebackend import (
    BatchContext,
    BatchRuntimeContext,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    ValueStateDescriptor,
    count,
    max_,
    min_,
    sum_,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.spark.tasks.arrow_rows import KEY_GROUP_COLUMN, ArrowBatch, InputColumns, InputReader
from statebackend.state.state_backend import state_backend
from statebackend.streaming.aggregates import AggregateDefinition, checked_aggregates
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.runtime.restore_plan import SubtaskRestore, continued_subtask
from statebackend.streaming.runtime.state_registration import registered_states
from statebackend.streaming.runtime.subtask import OperatorEpoch, OperatorParts, Subtask
from typeserializers.scalars.fixed_width import LongSerializer

PEER = "per-record function"
BATCH_FUNCTION = "batch function"
AIM = 4.0
COLUMNS = "abcde"
KEY_GROUPS = 4

_CALLS: list[tuple[Any, str]] = [
    ([], "count_all"), ("a", "sum"), ("a", "min"), ("a", "max"), ("b", "sum"), ("b", "min"), ("c", "max"),
    ("c", "sum"), ("d", "sum"), ("e", "max"),
]  # fmt: skip
_KERNELS = {"count_all": pc.add, "sum": pc.add, "min": pc.min_element_wise, "max": pc.max_element_wise}


@attrs.frozen
class Ten:
    """Ten aggregates of a key."""

    rows: int
    sum_a: int
    min_a: int
    max_a: int
    sum_b: int
    min_b: int
    max_c: int
    sum_c: int
    sum_d: int
    max_e: int


TEN = ValueStateDescriptor("ten", Ten)
NAMES = [one.name for one in attrs.fields(Ten)]


class TenByBatch(KeyedBatchFunction[int, Any, Any]):
    """Folds a batch with Arrow kernels."""

    def open(self, context: BatchRuntimeContext) -> None:
        self.ten = context.get_state(TEN)

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[int]) -> pa.RecordBatch:
        groups = context.groups(batch)
        new = groups.aggregate(_CALLS)
        merged = []
        for before, added, (_, function) in zip(self.ten.get_many(groups).flatten(), new.columns, _CALLS, strict=True):
            added = added.cast(pa.int64())
            merged.append(pc.coalesce(_KERNELS[function](before, added), added))
        self.ten.put_many(groups, pa.StructArray.from_arrays(merged, NAMES))
        return pa.record_batch([groups.keys, *merged], ["key", *NAMES])


class TenByRecord(KeyedProcessFunction[int, Any, Any]):
    """Folds a record after the other."""

    def open(self, context: RuntimeContext) -> None:
        self.ten = context.get_state(TEN)

    def process_element(self, value: Any, context: ProcessContext[int]) -> Iterator[Any]:
        r, ten = value, self.ten.value()
        if ten is None:
            ten = Ten(1, r.a, r.a, r.a, r.b, r.b, r.c, r.c, r.d, r.e)
        else:
            ten = Ten(
                ten.rows + 1, ten.sum_a + r.a, min(ten.min_a, r.a), max(ten.max_a, r.a), ten.sum_b + r.b,
                min(ten.min_b, r.b), max(ten.max_c, r.c), ten.sum_c + r.c, ten.sum_d + r.d, max(ten.max_e, r.e),
            )  # fmt: skip
        self.ten.update(ten)
        yield (r.key, *attrs.astuple(ten))


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    """Compare the batch function and `aggregate()` with the per-record function."""
    aggregates = checked_aggregates(
        {
            "rows": count(), "sum_a": sum_("a"), "min_a": min_("a"), "max_a": max_("a"), "sum_b": sum_("b"),
            "min_b": min_("b"), "max_c": max_("c"), "sum_c": sum_("c"), "sum_d": sum_("d"), "max_e": max_("e"),
        }
    )  # fmt: skip
    functions = {BATCH_FUNCTION: TenByBatch(), "aggregate()": AggregateDefinition(aggregates), PEER: TenByRecord()}
    backend = arguments.backend
    with TemporaryDirectory(prefix="benchmark-forms-") as directory:
        turns = {
            form: _turn(function, Path(directory, str(number)), backend, arguments)
            for number, (form, function) in enumerate(functions.items())
        }
        measured = measure_alternating(turns, rounds=arguments.rounds, warm_up_rounds=2)
    for form in (BATCH_FUNCTION, "aggregate()"):
        is_aimed = (form, backend, arguments.keys) == (BATCH_FUNCTION, "rocksdb", 50_000)
        name = f"ten aggregates, {arguments.keys:,} keys, {backend}, {form}"
        ours, peer = measured[form].median, measured[PEER].median
        yield Result(name, ours, peer, PEER, "rows/s", AIM if is_aimed else None)


def _turn(function: Any, directory: Path, backend: str, arguments: argparse.Namespace) -> Callable[[], float]:
    schema = parsed_schema("key bigint, " + ", ".join(f"{name} int" for name in COLUMNS), "the benchmark")
    file_system = CheckpointFileSystem.from_uri(directory / "job")
    parts = OperatorParts(
        job_id="job",
        run_id="run",
        operator_uid="ten",
        operator_factory=operator_factory(function),
        side_outputs=(),
        key_serializer=LongSerializer(),
        parallelism=1,
        max_parallelism=KEY_GROUPS,
        backend=state_backend(backend),
        planned=registered_states(function, "ten", 1, (schema,)).planned,
        planned_operator_state={},
        file_system=file_system,
        input_schemas=(schema,),
    )
    reader = InputReader(InputColumns(("key", *COLUMNS), ("key",)), "the benchmark")
    chance = np.random.default_rng(1)
    restore, epoch_id = SubtaskRestore(), 0

    def turn() -> float:
        nonlocal restore, epoch_id
        keys = chance.integers(0, arguments.keys, arguments.rows)
        values = [chance.integers(0, 1000, arguments.rows).astype("i4") for _ in COLUMNS]
        columns = [pa.array(one) for one in (keys, *values, (keys % KEY_GROUPS).astype("i4"))]
        batch = pa.RecordBatch.from_arrays(columns, names=["key", *COLUMNS, KEY_GROUP_COLUMN])
        subtask = Subtask(
            parts,
            OperatorEpoch(epoch_id=epoch_id, processing_time_ms=0),
            subtask_index=0,
            attempt_id="attempt",
            restore=restore,
            local_directory=str(directory / "local"),
        )
        start = time.process_time()
        for _ in subtask.run(lambda: function, [(0, ArrowBatch(reader, batch))]):
            pass
        restore = continued_subtask(subtask.acknowledgement.state, file_system)
        epoch_id += 1
        return float(arguments.rows / (time.process_time() - start))

    return turn
