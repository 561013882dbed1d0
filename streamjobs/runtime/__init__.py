"""What every runtime shares: the start of a job, the epoch as a table, the subtask, and what each of them restores.

A runtime is a rim around this: it brings records, runs tasks and stores what it is told to. No Spark here, no thread,
and no clock but those that are passed in.
"""
