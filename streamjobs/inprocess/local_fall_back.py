"""Going back to an older checkpoint in one process: what sinks have shown since is taken back, then it is the newest.

    fall-back.json    written first: from here on the only start is one that goes back as far, or further
    the sinks         take back what they have shown of later epochs, those that can
    set-aside/        the newer checkpoints, the newest first
    fall-back.json    removed last

Without it a start behind a crash would go on from the newest checkpoint, whose output is hidden. Where no sink can take
anything back there is no such moment, and no file.
"""

from __future__ import annotations

from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.fall_back_file import (
    NO_SOURCE_LOG,
    FallBack,
    end_fall_back,
    read_fall_back,
    write_fall_back,
)
from checkpointing.storage.found_checkpoints import PREVIOUS, FoundCheckpoints
from checkpointing.storage.job_services import JobRecords
from streamjobs.api.sink import SinkError
from streamjobs.inprocess.staged_sinks import StagedSinks
from streamjobs.runtime.starting_point import check_no_fall_back

__all__ = ["checkpoint_to_continue", "go_back"]


def checkpoint_to_continue(
    found: FoundCheckpoints, records: JobRecords, fall_back_to: int | str | None
) -> CheckpointMetadata | None:
    """The checkpoint that a start goes on from, None if there is none; touches nothing.

    Raises `JobRestoreError` if going back was begun before and this start does not go back as far; what finding the
    checkpoint raises.
    """
    begun = read_fall_back(records.driver_files)
    if begun is None:
        return found.newest() if fall_back_to is None else found.fall_back_target(fall_back_to)
    if fall_back_to is None or begun.source_log != NO_SOURCE_LOG:
        check_no_fall_back(records.driver_files)
    target = found.fall_back_target(begun.checkpoint_id if fall_back_to in (None, PREVIOUS) else fall_back_to)
    if target.checkpoint_id > begun.checkpoint_id:
        # Of the epochs in between something may have been given up already.
        check_no_fall_back(records.driver_files)
    return target


def go_back(
    records: JobRecords, store: CompletedCheckpointStore, sinks: StagedSinks, checkpoint_id: int, job_id: str
) -> None:
    """Makes a checkpoint the newest again, and lets the sinks take back what they have shown since.

    The job is led by the caller. Raises `SinkError` if a sink cannot; if another has hidden something by then, the
    fall-back has begun, and the same one is to be started again.
    """
    driver_files, begun = records.driver_files, read_fall_back(records.driver_files)
    for number, sink in enumerate(sinks.taking_back):
        if number == 0:
            newest_id = max(checkpoint_id, *records.pointers.find().ids, 0 if begun is None else begun.newest_id)
            planned = FallBack(checkpoint_id=checkpoint_id, newest_id=newest_id, source_log=NO_SOURCE_LOG)
            write_fall_back(driver_files, planned)
        try:
            sink.take_back(checkpoint_id, job_id)
        except SinkError:
            if number == 0 and begun is None:
                # It has hidden nothing, so nothing has been done.
                end_fall_back(driver_files)
            raise
    store.recover(fall_back_to=checkpoint_id)
    if read_fall_back(driver_files) is not None:
        end_fall_back(driver_files)
