"""What Spark sends to the tasks of an operator for one epoch: references, and what is new in it.

The function and everything else that stays the same goes out once per run, see `streamjobs.spark.tasks.run_broadcast`;
what a subtask restores is read by its own task, see `streamjobs.runtime.restore_plan_file`. So this takes some hundred
bytes whatever the function, the state and the parallelism are, and Spark never makes a broadcast file of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from attrs import frozen

from checkpointing.storage.file_system import CheckpointFileSystem
from streamjobs.runtime.restore_plan import SubtaskRestore
from streamjobs.runtime.restore_plan_file import RestorePlanSection
from streamjobs.spark.session import task_identity
from streamjobs.spark.tasks.acknowledgement_channel import AcknowledgementSender
from streamjobs.spark.tasks.partition_task import OperatorTask, PartitionTask
from streamjobs.spark.tasks.program_modules import naming_missing_modules
from streamjobs.spark.tasks.progress_channel import ProgressSender
from streamjobs.spark.tasks.run_broadcast import RunReference
from streamjobs.spark.tasks.worker_connection import acknowledge_what_has_come
from streamjobs.time.timestamps import MIN_TIMESTAMP


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
