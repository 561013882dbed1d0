"""Changing state as data: a savepoint written by a plan, from nothing or from another; no job runs, nor Spark.

A *plan* (`plan`) is a list of changes, which are data (`changes`): operators and states that are added, removed,
renamed, split and merged, entries that are left out, values and keys that become others. Writing it (`SavepointWriter`)
goes in this order, and what is refused is refused before anything is at the target:

    1. look       the target is absent or empty; the source is there, with all its files
    2. draft      the changes are carried out on drafts (`drafts`), which refer to stored state and read none of it:
                  what is misnamed, taken or does not fit is told, all of it together
    3. work       in scratch space: entries are read, changed, placed in key groups and sorted (`state_tasks`), and each
                  part of each state becomes a file. Here a function may fail, a value may not fit, and two entries may
                  turn out to have one key. What nobody changed is not read
    4. place      the target is reserved (`_in_progress`), every file is given its place, from scratch space or, byte by
                  byte, from the source; on one disk both are links
    5. complete   `_metadata` is written, last, when all files are there in their sizes

A crash in 1 to 3 leaves nothing at the target, one in 4 or 5 a directory with `_in_progress` and without `_metadata`,
which nothing reads as a savepoint and the next writing refuses, saying why. An exception, Ctrl-C among them, leaves the
target empty. The scratch directory goes with the process, or is the system's to clear away after a SIGKILL.

**Memory** holds `MEMORY_BYTES` of rows while they are collected (`sorted_rows`), then a batch of each sorted run, and
always the largest entry: a list that is changed, or two that are merged, are whole. Operator state is in memory, as it
is in a job. Scratch space holds all rows that are written, and once more those that are sorted.

**Tasks** share nothing but files, so they run in this process or in several (`task_running`), by ranges of key groups.
Tasks on other hosts leave their entries, sorted, in a store (`staged_entries`), from which one writer takes them.
"""

from savepoints.writing.absence import Remainder, remains, require_absent
from savepoints.writing.entry_schema import EntrySchema
from savepoints.writing.plan import Plan
from savepoints.writing.savepoint_writer import SavepointWriter, WrittenSavepoint
from savepoints.writing.staged_entries import StagedEntries, StagedPart, discard_staged, stage_entries

__all__ = [
    "EntrySchema",
    "Plan",
    "Remainder",
    "SavepointWriter",
    "StagedEntries",
    "StagedPart",
    "WrittenSavepoint",
    "discard_staged",
    "remains",
    "require_absent",
    "stage_entries",
]
