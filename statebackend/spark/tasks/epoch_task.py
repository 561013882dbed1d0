"""What Spark sends to the tasks of an operator for one epoch: references, and what is new in it.

The function and everything else that stays the same goes out once per run, see `statebackend.spark.tasks.epoch_task`;
what a subtask restores is read by its own task, see `statebackend.streaming.runtime.restore_plan_file`. So this takes
some hundred bytes whatever the function, the state and the parallelism are, and Spark never makes a broadcast file of
it.

The rows that a stateful processor begins with, as tasks get them: with the function, each takes its key groups'.

What runs in a Spark task: the partition of one subtask, its rows in and out of Arrow.

Spark calls the function once per partition with the partition's rows as Arrow batches; the partition id is the subtask
index. The subtask (`statebackend.streaming.runtime.subtask`) processes them, and then its acknowledgement is sent,
beside the rows. Opening and closing within one task is a must: Spark deals partitions to other workers in the next
epoch, and a database left open would lock them out.

What goes out to the workers once per run of a job: the functions, and the modules and classes of the program.

It is a broadcast variable of Spark, which each executor fetches once and the driver destroys at the end of the run. A
worker keeps the parts of the last few runs unpickled, for Spark may take a broadcast away from a worker between two
tasks.

Spark's workers collect cyclic garbage after every task, and look at every object that they have for it: modules,
classes and functions, some 50 ms of processor time for a task that itself takes 20. So when a worker gets to know a
run, what is there by then is set aside from the collector, until the next run comes.
"""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import Broadcast, SparkContext

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.spark.session import TaskIdentity, task_identity
from statebackend.spark.tasks.arrow_input import (
    KEY_GROUP_COLUMN,
    SUBTASK_COLUMN,
    ArrowBatch,
    InputColumns,
    InputReader,
    put_together,
    runs_of_inputs,
)
from statebackend.spark.tasks.channels import AcknowledgementSender, ProgressSender, acknowledge_what_has_come
from statebackend.spark.tasks.output_rows import OutputSchema, OutputWriter
from statebackend.spark.tasks.program_pickles import ProgramModules, naming_missing_modules, pickled, unpickled
from statebackend.state.key_groups import key_group_range_of_subtask, subtask_of_key_group
from statebackend.state.progress import ProgressListener, no_progress
from statebackend.streaming.errors import EpochError
from statebackend.streaming.operators.operator import InputBatch, place_of_input
from statebackend.streaming.runtime.local_state_root import LocalStateRoot
from statebackend.streaming.runtime.restore_plan import SubtaskRestore
from statebackend.streaming.runtime.restore_plan_file import RestorePlanSection
from statebackend.streaming.runtime.subtask import OperatorParts, Subtask, SubtaskEpoch
from statebackend.streaming.runtime.worker_functions import RunIdentity, functions_of_this_process
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP

__all__ = ["InitialRows", "OperatorTask", "PartitionTask"]


@frozen(eq=False)
class InitialRows:
    """All rows, with the key group of each beside it."""

    table: pa.Table
    columns: InputColumns
    max_parallelism: int
    operator_uid: str

    def batches(self, subtask_index: int, parallelism: int) -> Iterator[ArrowBatch]:
        """The rows of one subtask, with their keys."""
        groups = key_group_range_of_subtask(subtask_index, parallelism, self.max_parallelism)
        column = self.table.column(KEY_GROUP_COLUMN)
        own = pc.and_(pc.greater_equal(column, groups.start), pc.less_equal(column, groups.end))
        reader = InputReader(self.columns, place_of_input(self.operator_uid, 0, 1))
        for batch in self.table.filter(own).to_batches():
            if batch.num_rows:
                yield from reader.batches(batch)


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


KEPT_RUNS: Final = 4
"""Runs whose parts a worker keeps: workers outlive jobs, and some serve several at a time."""

_parts_by_run: OrderedDict[str, RunParts] = OrderedDict()
"""A cache of this worker: what is in it is what the run's broadcast holds."""


@frozen
class RunParts:
    """What the program has registered, and the tasks of all operators by uid."""

    program: ProgramModules
    operators: Mapping[str, OperatorTask]


@frozen
class RunReference:
    """Leads a task to the parts of its run; picklable, and small."""

    run_id: str
    broadcast: Broadcast[tuple[bytes, bytes]]

    def parts(self) -> RunParts:
        """The parts of the run, on a worker. What the program has registered is known from here on.

        Raises whatever unpickling them does: `ModuleNotFoundError` for a module that is not on this worker.
        """
        parts = _parts_by_run.get(self.run_id)
        if parts is None:
            modules, operators = self.broadcast.value
            program: ProgramModules = unpickled(modules)
            # First: unpickling the operators may already need a class that is found by its name.
            program.install()
            parts = _parts_by_run[self.run_id] = RunParts(program, unpickled(operators))
            if len(_parts_by_run) > KEPT_RUNS:
                _parts_by_run.popitem(last=False)
            _set_aside()
        elif self.run_id != next(reversed(_parts_by_run)):
            # The run before may know another class under the same name, such as one of a cell that was run again.
            parts.program.install()
            _parts_by_run.move_to_end(self.run_id)
        return parts


def _set_aside() -> None:
    """Keeps the collector from looking at what is there and is no garbage."""
    # What was set aside before may be garbage by now: parts of runs that are kept no more.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class RunBroadcast:
    """The driver's side: exists from the start of a run to `destroy`."""

    def __init__(self, context: SparkContext, run_id: str, operators: Iterable[OperatorTask]) -> None:
        """Sends nothing yet; Spark's executors fetch it with their first task."""
        by_uid = {operator.parts.operator_uid: operator for operator in operators}
        modules, payload = pickled(ProgramModules.of_this_process()), pickled(by_uid)
        self.reference = RunReference(run_id, context.broadcast((modules, payload)))
        self._is_destroyed = False

    def destroy(self) -> None:
        """Removes it from the driver's and all executors' disks and memory; may be called again, from any thread."""
        if self._is_destroyed:
            return
        self._is_destroyed = True
        # A session that has been stopped has taken it along.
        with contextlib.suppress(Py4JError, OSError, AttributeError):
            self.reference.broadcast.destroy()


@frozen(kw_only=True)
class EpochTask:
    """The tasks of one operator in one epoch; travels to the workers by pickling.

    ``restore`` says where their restore plan is, None if there is nothing to restore; ``restored_from`` holds the files
    that it names.
    """

    run_reference: RunReference
    operator_uid: str
    epoch_id: int
    processing_time_ms: int
    watermark_ms: int = MIN_TIMESTAMP
    previous_watermark_ms: int = MIN_TIMESTAMP
    restore: RestorePlanSection | None
    restored_from: CheckpointFileSystem
    acknowledgements: AcknowledgementSender
    progress: ProgressSender

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs the subtask of this partition: yields what it emits, and sends its acknowledgement."""
        acknowledge_what_has_come()
        with naming_missing_modules(f"operator {self.operator_uid!r}"):
            operator = self.run_reference.parts().operators[self.operator_uid]
            identity = task_identity()
            task = PartitionTask(
                operator=operator,
                epoch_id=self.epoch_id,
                processing_time_ms=self.processing_time_ms,
                watermark_ms=self.watermark_ms,
                previous_watermark_ms=self.previous_watermark_ms,
                identity=identity,
                restore=self._restore(operator, identity.partition_id),
                acknowledge=partial(self.acknowledgements.send, self.epoch_id),
                progress=self.progress.send,
            )
            yield from task.run(batches)

    def _restore(self, operator: OperatorTask, subtask_index: int) -> SubtaskRestore:
        if self.restore is None:
            return SubtaskRestore()
        return self.restore.read(operator.parts.file_system, self.restored_from, subtask_index)
