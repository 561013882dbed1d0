"""State as data: what a checkpoint or savepoint holds, and the canonical export that makes a savepoint of a checkpoint.

Nothing here knows a stream, a running job or Spark: who takes a savepoint brings the completed checkpoint, and runs the
export's tasks where it likes. What a *job* may restore, and with which words it refuses, is in `streamjobs.runtime`.
"""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from savepoints.export import SavepointReport, export_tasks, finish_savepoint
from savepoints.handle_export import ExportedSubtask, ExportTask, ScratchSpace
from savepoints.reading.stored_entries import StateEntry
from savepoints.restored_state import RestoredState
from savepoints.savepoint import Savepoint
from savepoints.state_entries import StateEntries

__all__ = [
    "ExportTask",
    "ExportedSubtask",
    "RestoredState",
    "Savepoint",
    "SavepointReport",
    "ScratchSpace",
    "StateEntries",
    "StateEntry",
    "export_tasks",
    "finish_savepoint",
]
