"""What every runtime shares: the start of a job, the subtask, and what each of them restores.

The epoch, as a table, is that of a runtime that is brought batches, as Spark's is. One whose subtasks stay open is
driven by `checkpointing.coordinator.job_checkpoints` instead.

A runtime is a rim around this: it brings records, runs tasks and stores what it is told to. No Spark here, no thread,
and no clock but those that are passed in.
"""
