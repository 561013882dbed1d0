"""What runs in a Spark task: the partition of one subtask, its rows in and out of Arrow.

Spark calls the function once per partition with the partition's rows as Arrow batches; the partition id is the subtask
index. The subtask (`streamjobs.runtime.subtask`) processes them, and then its acknowledgement is sent, beside the rows.
Opening and closing within one task is a must: Spark deals partitions to other workers in the next epoch, and a database
left open would lock them out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from attrs import frozen

from statebackend.api.key_groups import subtask_of_key_group
from statebackend.api.progress import ProgressListener, no_progress
from streamjobs.errors import EpochError
from streamjobs.operators.input_batch import place_of_input
from streamjobs.operators.operator import InputBatch
from streamjobs.runtime.local_state_root import LocalStateRoot
from streamjobs.runtime.restore_plan import SubtaskRestore
from streamjobs.runtime.subtask import OperatorParts, Subtask, SubtaskEpoch
from streamjobs.runtime.worker_functions import RunIdentity, functions_of_this_process
from streamjobs.spark.session import TaskIdentity
from streamjobs.spark.tasks.arrow_input import KEY_GROUP_COLUMN, InputColumns, InputReader, put_together
from streamjobs.spark.tasks.output_rows import OutputSchema, OutputWriter
from streamjobs.spark.tasks.program_pickles import unpickled
from streamjobs.spark.tasks.tagged_input import SUBTASK_COLUMN, runs_of_inputs

__all__ = ["OperatorTask", "PartitionTask"]


@frozen(kw_only=True)
class OperatorTask:
    """What the tasks of one operator need in all epochs of a run; goes out to the workers once per run."""

    parts: OperatorParts
    function_pickle: bytes
    inputs: tuple[InputColumns, ...]
    outputs: OutputSchema
    local_root: LocalStateRoot


@frozen(kw_only=True)
class PartitionTask:
    """One partition in one epoch; put together on the worker."""

    operator: OperatorTask
    epoch_id: int
    processing_time_ms: int
    watermark_ms: int
    previous_watermark_ms: int
    identity: TaskIdentity
    restore: SubtaskRestore
    acknowledge: Callable[[bytes], None]
    progress: ProgressListener = no_progress

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the partition: yields the emitted rows, and acknowledges behind the last of them."""
        task = self.operator
        with task.local_root.open(task.parts.parallelism) as local_directory:
            subtask = Subtask(
                task.parts,
                SubtaskEpoch(
                    subtask_index=self.identity.partition_id,
                    epoch_id=self.epoch_id,
                    processing_time_ms=self.processing_time_ms,
                    watermark_ms=self.watermark_ms,
                    previous_watermark_ms=self.previous_watermark_ms,
                    attempt_id=self.identity.attempt_id,
                    restore=self.restore,
                    local_directory=local_directory,
                    progress=self.progress,
                ),
            )
            writer = OutputWriter(task.outputs, task.parts.operator_uid)
            run = subtask.run(self._function, self._inputs(batches), writer.encoders)
            with contextlib.closing(run):
                for emitted in run:
                    for one in emitted:
                        yield from writer.batches(one.tag, one.rows, one.timestamps, is_early=one.is_early)
            self.acknowledge(subtask.acknowledgement.encode())

    def _function(self) -> Any:
        """The function of this task; what its setup() has made lives in this process as long as the run."""
        parts = self.operator.parts
        run = RunIdentity(parts.job_id, parts.run_id)
        make_function = partial(unpickled, self.operator.function_pickle)
        return functions_of_this_process().function(run, parts.operator_uid, make_function)

    def _inputs(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, InputBatch]]:
        uid, columns = self.operator.parts.operator_uid, self.operator.inputs
        readers = [InputReader(one, place_of_input(uid, index, len(columns))) for index, one in enumerate(columns)]
        for batch in put_together(map(self._checked, batches)):
            runs: Iterable[tuple[int, pa.RecordBatch]] = ((0, batch),) if len(readers) == 1 else runs_of_inputs(batch)
            for index, run in runs:
                for part in readers[index].batches(run):
                    yield index, part

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            if [bool(one.key) for one in self.operator.inputs] == [True]:
                self._check_routing(self._owner(batch.column(KEY_GROUP_COLUMN)[0].as_py()))
            else:
                self._check_routing(batch.column(SUBTASK_COLUMN)[0].as_py())
        return batch

    def _owner(self, key_group: int) -> int:
        parts = self.operator.parts
        return subtask_of_key_group(key_group, parts.parallelism, parts.max_parallelism)

    def _check_routing(self, owner: int) -> None:
        """A batch holds rows of one subtask; that it is not this one means that the plan was changed behind us."""
        parts, index = self.operator.parts, self.identity.partition_id
        if owner != index:
            raise EpochError(
                f"operator {parts.operator_uid!r}: the rows of subtask {owner} came to task "
                f"{index}. A step behind the operator, in transform() or in the sink's function, runs its "
                f"partitions in other tasks, as coalesce() and union() do; use repartition(n) there instead of "
                f"coalesce(n)"
            )
