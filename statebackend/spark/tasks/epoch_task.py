"""The tasks of an operator on Spark's workers: what is sent there, and what runs there.

Two things travel to the workers:

1. Once per run, a broadcast (`RunBroadcast`): the functions of all operators, the rows that stateful processors start
   with, and the registered modules and classes of the program. Each executor fetches it once, and the driver destroys
   it at the end of the run. Spark may take a broadcast from a worker between two tasks, so a worker keeps the unpickled
   parts of its last few runs.
2. Once per epoch, an `EpochTask` for each operator: a few hundred bytes of references and times, whatever the size of
   the function, the state and the parallelism. Each task reads what its own subtask restores
   (`statebackend.streaming.runtime.restore_plan`).

Spark calls `EpochTask.run` once per partition, with the rows as Arrow batches; the partition id is the subtask index.
The subtask opens and closes its state within one task: in the next epoch Spark assigns the partition to another worker,
which an open database would lock out. The acknowledgement is sent after the last row, by an accumulator.

PySpark's workers run the garbage collector after every task, over all modules, classes and functions: about 50 ms for a
task that takes 20. So a worker that learns of a run excludes all existing objects from collection (`gc.freeze`) until
the next run.
"""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import Broadcast, SparkContext

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.spark.session import task_identity
from statebackend.spark.tasks.arrow_rows import (
    KEY_GROUP_COLUMN,
    SUBTASK_COLUMN,
    ArrowBatch,
    InputColumns,
    InputReader,
    OutputSchema,
    OutputWriter,
    put_together,
    runs_of_inputs,
)
from statebackend.spark.tasks.channels import AcknowledgementSender, ProgressSender, acknowledge_what_has_come
from statebackend.spark.tasks.program_pickles import ProgramModules, naming_missing_modules, pickled, unpickled
from statebackend.state.key_groups import key_group_range_of_subtask, subtask_of_key_group
from statebackend.streaming.errors import EpochError, UserFunctionError
from statebackend.streaming.operators.operator import InputBatch, place_of_input
from statebackend.streaming.runtime.local_state_root import LocalStateRoot
from statebackend.streaming.runtime.restore_plan import RestorePlanSection, SubtaskRestore
from statebackend.streaming.runtime.subtask import OperatorEpoch, OperatorParts, Subtask
from statebackend.streaming.runtime.worker_functions import RunIdentity, functions_of_this_process

__all__ = [
    "KEPT_RUNS",
    "EpochTask",
    "InitialRows",
    "OperatorTask",
    "RunBroadcast",
    "RunParts",
    "RunReference",
]


@frozen(eq=False)
class InitialRows:
    """The rows that a stateful processor starts with, each with its key group; every task takes those it owns."""

    table: pa.Table
    columns: InputColumns
    max_parallelism: int
    operator_uid: str

    def batches(self, subtask_index: int, parallelism: int) -> Iterator[ArrowBatch]:
        """Return the rows of one subtask, with their keys."""
        groups = key_group_range_of_subtask(subtask_index, parallelism, self.max_parallelism)
        column = self.table.column(KEY_GROUP_COLUMN)
        own = pc.and_(pc.greater_equal(column, groups.start), pc.less_equal(column, groups.end))
        reader = InputReader(self.columns, place_of_input(self.operator_uid, 0, 1))
        for batch in self.table.filter(own).to_batches():
            if batch.num_rows:
                yield from reader.batches(batch)


@frozen(kw_only=True)
class OperatorTask:
    """What the tasks of one operator need in all epochs of a run; sent to the workers once."""

    parts: OperatorParts
    function_pickle: bytes
    inputs: tuple[InputColumns, ...]
    outputs: OutputSchema
    local_root: LocalStateRoot

    def function(self) -> Any:
        """The user's function, which this process keeps for the run after its setup()."""
        run = RunIdentity(self.parts.job_id, self.parts.run_id)
        make_function = partial(unpickled, self.function_pickle)
        return functions_of_this_process().function(run, self.parts.operator_uid, make_function)

    def records(self, batches: Iterator[pa.RecordBatch], subtask_index: int) -> Iterator[tuple[int, InputBatch]]:
        """The rows of one partition as batches of the operator's inputs, each with the index of its input."""
        uid, count = self.parts.operator_uid, len(self.inputs)
        readers = [InputReader(one, place_of_input(uid, index, count)) for index, one in enumerate(self.inputs)]
        for batch in put_together(self._checked(one, subtask_index) for one in batches):
            runs: Iterable[tuple[int, pa.RecordBatch]] = ((0, batch),) if count == 1 else runs_of_inputs(batch)
            for index, run in runs:
                for part in readers[index].batches(run):
                    yield index, part

    def _checked(self, batch: pa.RecordBatch, subtask_index: int) -> pa.RecordBatch:
        if batch.num_rows and (owner := self._owner(batch)) != subtask_index:
            # All rows of a batch belong to one subtask, so a step after the operator has changed the plan.
            raise EpochError(
                f"operator {self.parts.operator_uid!r}: task {subtask_index} received the rows of subtask {owner}. A "
                f"step after the operator, in transform_dataframe() or in the function of the sink, runs its "
                f"partitions in other tasks, as coalesce() and union() do. Use repartition(n) there instead of "
                f"coalesce(n)"
            )
        return batch

    def _owner(self, batch: pa.RecordBatch) -> int:
        """The subtask that the rows of a batch belong to."""
        if [bool(one.key) for one in self.inputs] == [True]:
            key_group: int = batch.column(KEY_GROUP_COLUMN)[0].as_py()
            return subtask_of_key_group(key_group, self.parts.parallelism, self.parts.max_parallelism)
        subtask_index: int = batch.column(SUBTASK_COLUMN)[0].as_py()
        return subtask_index


KEPT_RUNS: Final = 4
"""Runs whose parts a worker caches. Workers outlive jobs, and some serve several at a time."""

_parts_by_run: OrderedDict[str, RunParts] = OrderedDict()
"""The cache of this worker: the unpickled broadcast of each run, least recently used first."""


@frozen
class RunParts:
    """The modules and classes that the program registered, and the tasks of all operators by uid."""

    program: ProgramModules
    operators: Mapping[str, OperatorTask]


@frozen
class RunReference:
    """The reference by which a task finds the parts of its run; small and picklable."""

    run_id: str
    broadcast: Broadcast[tuple[bytes, bytes]]

    def parts(self) -> RunParts:
        """Return the parts of the run on this worker, with the program's modules and classes registered.

        Raises:
            ModuleNotFoundError: A module is not on this worker. Any other error of unpickling passes through.
        """
        parts = _parts_by_run.get(self.run_id)
        if parts is None:
            modules, operators = self.broadcast.value
            program: ProgramModules = unpickled(modules)
            # Install first: unpickling the operators may need a class that is found by its registered name.
            program.install()
            parts = _parts_by_run[self.run_id] = RunParts(program, unpickled(operators))
            if len(_parts_by_run) > KEPT_RUNS:
                _parts_by_run.popitem(last=False)
            _freeze_objects()
        elif self.run_id != next(reversed(_parts_by_run)):
            # Another run may have registered another class under the same name, for instance from a notebook cell.
            parts.program.install()
            _parts_by_run.move_to_end(self.run_id)
        return parts


def _freeze_objects() -> None:
    """Exclude all live objects from garbage collection."""
    # Objects frozen before may be garbage by now: the parts of runs that left the cache.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class RunBroadcast:
    """The broadcast of a run on the driver, from the start of the run to `destroy`."""

    def __init__(self, context: SparkContext, run_id: str, operators: Iterable[OperatorTask]) -> None:
        """Create the broadcast; executors fetch it with their first task."""
        by_uid = {operator.parts.operator_uid: operator for operator in operators}
        modules, payload = pickled(ProgramModules.of_this_process()), pickled(by_uid)
        self.reference = RunReference(run_id, context.broadcast((modules, payload)))
        self._is_destroyed = False

    def destroy(self) -> None:
        """Remove it from the driver and all executors. Any thread may call it, more than once."""
        if self._is_destroyed:
            return
        self._is_destroyed = True
        # A session that was stopped has removed it.
        with contextlib.suppress(Py4JError, OSError, AttributeError):
            self.reference.broadcast.destroy()


@frozen(kw_only=True)
class EpochTask:
    """The tasks of one operator in one epoch; pickled and sent to the workers.

    ``restore`` is the section of the restore plan, None if there is nothing to restore. The files that it names are in
    ``restored_from``.
    """

    run_reference: RunReference
    operator_uid: str
    epoch: OperatorEpoch
    restore: RestorePlanSection | None
    restored_from: CheckpointFileSystem
    acknowledgements: AcknowledgementSender
    progress: ProgressSender

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs the subtask of this partition: yields the emitted rows, then sends the acknowledgement."""
        acknowledge_what_has_come()
        with naming_missing_modules(f"operator {self.operator_uid!r}"), self._reporting_exit():
            operator = self.run_reference.parts().operators[self.operator_uid]
            identity = task_identity()
            restore = self._restore(operator, identity.partition_id)
            with operator.local_root.open(operator.parts.parallelism) as local_directory:
                subtask = Subtask(
                    operator.parts,
                    self.epoch,
                    subtask_index=identity.partition_id,
                    attempt_id=identity.attempt_id,
                    restore=restore,
                    local_directory=local_directory,
                    progress=self.progress.send,
                )
                writer = OutputWriter(operator.outputs, self.operator_uid)
                records = operator.records(batches, identity.partition_id)
                with contextlib.closing(subtask.run(operator.function, records, writer.encoders)) as run:
                    for emitted in run:
                        for one in emitted:
                            yield from writer.batches(one.tag, one.rows, one.timestamps, is_early=one.is_early)
                self.acknowledgements.send(self.epoch.epoch_id, subtask.acknowledgement.encode())

    @contextlib.contextmanager
    def _reporting_exit(self) -> Iterator[None]:
        try:
            yield
        except SystemExit as error:
            # Spark would report the traceback alone.
            raise UserFunctionError(
                f"operator {self.operator_uid!r}: a function called sys.exit({error.code!r}), which cannot end the job "
                f"from a worker; raise an error instead"
            ) from error

    def _restore(self, operator: OperatorTask, subtask_index: int) -> SubtaskRestore:
        if self.restore is None:
            return SubtaskRestore()
        return self.restore.read(operator.parts.file_system, self.restored_from, subtask_index)
