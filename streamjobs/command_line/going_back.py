"""Going back to an older checkpoint from the command line: what is done at once, and what the next start has to do."""

from __future__ import annotations

from typing import Any

from checkpointing.errors import SavepointError
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.fall_back_file import write_fall_back
from checkpointing.storage.found_checkpoints import FoundCheckpoints
from streamjobs.runtime.job_upkeep import LedJob, go_back_at_once
from streamjobs.runtime.starting_point import check_no_fall_back

__all__ = ["went_back"]


def went_back(job: LedJob, fall_back_to: int | str, *, dry_run: bool) -> dict[str, Any]:
    """Goes back, or begins to, and says what is given up and processed again.

    Raises `CheckpointNotFoundError`, `CorruptMetadataError`, and `SavepointError` for a job in one process whose sinks
    have to take output back, of which only its program can make one.
    """
    found = job.records.pointers.find()
    target = found.fall_back_target(fall_back_to)
    is_spark = job.records.driver_files.exists("spark/metadata") or target.source_positions is not None
    return (_on_spark if is_spark else _in_process)(job, found, target, fall_back_to, dry_run)


def _in_process(
    job: LedJob, found: FoundCheckpoints, target: CheckpointMetadata, fall_back_to: int | str, dry_run: bool
) -> dict[str, Any]:
    check_no_fall_back(job.records.driver_files)
    given_up = [one for one in sorted(found.ids) if one > target.checkpoint_id]
    # What cannot be read does not say which sinks have written it: those of the job, as far as others know them.
    known = given_up if found.retained.keys() >= set(given_up) else list(found.retained)
    sinks = {name for one in known for name in found.retained[one].metadata.sink_committables}
    if sinks:
        raise SavepointError(
            f"the sinks {', '.join(sorted(sinks))} have written what is given up, and only the program of the job can "
            f"let them take it back: start it with execute(fall_back_to={target.checkpoint_id}). Nothing was changed"
        )
    places = () if dry_run else go_back_at_once(job, found, target.checkpoint_id)
    return {
        "status": "planned" if dry_run else "done",
        "checkpoint_id": target.checkpoint_id,
        "given_up": given_up,
        "processed_again": "what these epochs had read, where the source can give it again",
        "set_aside": list(places),
        "next": "start the job as always",
    }


def _on_spark(
    job: LedJob, found: FoundCheckpoints, target: CheckpointMetadata, fall_back_to: int | str, dry_run: bool
) -> dict[str, Any]:
    # Spark is imported for the jobs that run on it, and not for every command.
    from streamjobs.runtime.checkpoint_writing import batch_of
    from streamjobs.spark.driver.fall_back import planned_fall_back, shown_offsets
    from streamjobs.spark.sources.source_log import source_log_directory
    from streamjobs.spark.sources.source_progress import newest_planned_batch

    driver_files = job.records.driver_files
    source_log = driver_files.local_path(source_log_directory(driver_files))
    if source_log is None:
        raise SavepointError(
            f"the driver files of the job are in {driver_files.uri}, which is on no disk: give --driver-directory"
        )
    planned, target = planned_fall_back(found, driver_files, source_log, fall_back_to)
    after = shown_offsets(source_log, batch_of(target))
    before = shown_offsets(source_log, newest_planned_batch(source_log))
    if not dry_run:
        write_fall_back(driver_files, planned)
    return {
        "status": "planned" if dry_run else "begun",
        "checkpoint_id": target.checkpoint_id,
        "given_up": list(range(planned.checkpoint_id + 1, planned.newest_id + 1)),
        "processed_again": f"what lies after {after}, up to {before}",
        "set_aside": [],
        "next": f"start the job with execute(fall_back_to={target.checkpoint_id}), which lets its sinks take back what "
        f"they have shown, and sets the later epochs aside",
    }
