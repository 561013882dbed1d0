"""Rollback of a job directory to an older checkpoint: newer files are set aside, and the input is read again.

    rollback.json                 written first: only this rollback, or one further back, can be started now
    the sinks                      hide the output of later epochs, if they can
    set-aside/chk-<id>-<n>/        the newer checkpoints, newest first
    set-aside/spark-<n>/           Spark's source log as it was
    spark/                         cut after the batch of the checkpoint
    rollback.json                 removed last

Each step can continue after a crash, so the rollback is repeated until it succeeds.
"""

from __future__ import annotations

import contextlib
from itertools import chain

from attrs import frozen

from snapshots.errors import cut
from snapshots.loggers import logger_of
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.checkpoint_directories import SET_ASIDE_DIRECTORY, FoundCheckpoints
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_files import Rollback, end_roll_back, read_roll_back
from statebackend.spark.sources.offset_log import SOURCE_LOG_DIRECTORY, free_set_aside_name
from statebackend.spark.sources.progress import (
    QUERY_ID_FILE_NAME,
    SOURCE_ORDER_FILE_NAME,
    SourceProgressError,
    capture_source_progress,
    check_log_is_whole,
    new_query_id,
    newest_planned_batch,
    read_offsets,
    read_source_order,
)
from statebackend.streaming.runtime.checkpoint_writing import batch_of
from statebackend.streaming.runtime.job_sinks import JobSinks
from statebackend.streaming.runtime.source_offsets import OffsetLines
from statebackend.streaming.runtime.starting_point import roll_back_target

_COPY = f"{SET_ASIDE_DIRECTORY}/.copying-{SOURCE_LOG_DIRECTORY}"

_logger = logger_of(__name__)


@frozen(kw_only=True)
class RollbackReport:
    """What a rollback did: the epochs it removed, where they are now, and what is processed again.

    ``offsets_after`` are Spark's offsets of the checkpoint that the job continues from, ``offsets_before`` those it had
    reached. ``sinks`` are all sinks of the job, ``keeping`` those that cannot hide their output.
    """

    checkpoint_id: int
    abandoned: tuple[int, ...]
    set_aside: tuple[str, ...]
    offsets_after: str
    offsets_before: str
    sinks: tuple[str, ...]
    keeping: tuple[str, ...]

    @property
    def is_output_rolled_back(self) -> bool:
        """Whether all sinks have hidden their output of the removed epochs."""
        return not self.keeping

    def __str__(self) -> str:
        epochs = ", ".join(map(str, self.abandoned)) or "none"
        output = (
            ""
            if self.is_output_rolled_back or not self.abandoned
            else f" The sink {', '.join(self.keeping)} cannot hide its output of these epochs: make sure that their "
            f"new output replaces it."
        )
        return (
            f"rolled back to checkpoint {self.checkpoint_id}. Removed epochs: {epochs}; set aside: "
            f"{', '.join(self.set_aside)}. Their records are processed again: the source continues after "
            f"{self.offsets_after}; it had reached {self.offsets_before}.{output}"
        )


def check_log(found: FoundCheckpoints, spark_directory: str) -> None:
    """Raise `SourceProgressError` if Spark's log is damaged. It names the checkpoint to roll back to."""
    try:
        check_log_is_whole(spark_directory)
    except SourceProgressError as error:
        fix = _repair(found, spark_directory)
        raise SourceProgressError(f"Spark cannot continue its log: {error}. Nothing has changed. {fix}") from error


def _repair(found: FoundCheckpoints, spark_directory: str) -> str:
    targets = (one for one in sorted(found.retained, reverse=True) if _reaches(found, one, spark_directory))
    target = next(targets, None)
    if target is None:
        return "The log reaches no checkpoint: start in a new job directory, from a savepoint if there is one"
    return (
        f"To repair the log, start with roll_back_to={target}: the job continues from checkpoint {target}, "
        f"and reads again what was read after it"
    )


def _reaches(found: FoundCheckpoints, checkpoint_id: int, spark_directory: str) -> bool:
    """Whether Spark's log is whole up to a checkpoint."""
    try:
        capture_source_progress(spark_directory, batch_of(found.retained[checkpoint_id].metadata))
    except CheckpointError:
        return False
    return True


def planned_roll_back(
    found: FoundCheckpoints, driver_files: CheckpointFileSystem, spark_directory: str, roll_back_to: int | str
) -> tuple[Rollback, CheckpointMetadata]:
    """Return the plan of a rollback and the checkpoint that it goes to; change nothing.

    Raises:
        SourceProgressError: Spark's log does not reach the checkpoint. The message names one that it reaches.
        CheckpointNotFoundError, CorruptMetadataError, JobRestoreError: As `roll_back_target`.
    """
    interrupted, target = read_roll_back(driver_files), roll_back_target(found, driver_files, roll_back_to)
    batch_id = batch_of(target)
    try:
        capture_source_progress(spark_directory, batch_id)
    except SourceProgressError as error:
        raise SourceProgressError(
            f"the job cannot roll back to checkpoint {target.checkpoint_id}, because Spark's log does not reach it: "
            f"{error}. Nothing has changed. {_repair(found, spark_directory)}"
        ) from error
    newest_batch_id = newest_planned_batch(spark_directory)
    planned = Rollback(
        checkpoint_id=target.checkpoint_id,
        newest_id=max(
            target.checkpoint_id,
            *found.ids,
            # Every batch after that of the target has had an id; no-data epochs may have had more.
            0 if newest_batch_id is None else target.checkpoint_id + newest_batch_id - batch_id,
            0 if interrupted is None else interrupted.newest_id,
        ),
        source_log=free_set_aside_name(driver_files) if interrupted is None else interrupted.source_log,
    )
    return planned, target


def roll_back(
    driver_files: CheckpointFileSystem,
    spark_directory: str,
    store: CompletedCheckpointStore,
    sinks: JobSinks,
    job_id: str,
    planned: Rollback,
) -> RollbackReport:
    """Roll back and report what was removed. The caller leads the job.

    Raises:
        SinkError: As `JobSinks.roll_back`.
    """
    before = frozenset(store.set_aside_places())
    has_copy = planned.source_log in driver_files.list_directories(SET_ASIDE_DIRECTORY)
    hidden = sinks.roll_back(driver_files, planned, job_id)
    store.recover(roll_back_to=planned.checkpoint_id)
    batch_id = batch_of(store.get(planned.checkpoint_id))
    copy = f"{SET_ASIDE_DIRECTORY}/{planned.source_log}"
    if not has_copy:
        _copy_source_log(driver_files, copy)
    copied = driver_files.location(copy)
    offsets_before = format_offsets(copied, newest_planned_batch(copied))
    _cut_source_log(driver_files, spark_directory, batch_id, batch_of(store.all()[0]))
    end_roll_back(driver_files)
    report = RollbackReport(
        checkpoint_id=planned.checkpoint_id,
        abandoned=tuple(range(planned.checkpoint_id + 1, planned.newest_id + 1)),
        set_aside=(
            *(place for place in store.set_aside_places() if place not in before),
            driver_files.location(copy),
            *chain.from_iterable(hidden.values()),
        ),
        offsets_after=format_offsets(spark_directory, batch_id),
        offsets_before=offsets_before,
        sinks=tuple(sinks.identities.values()),
        keeping=tuple(identity for uid, identity in sinks.identities.items() if uid not in hidden),
    )
    _logger.warning("%s", report)
    return report


def _copy_source_log(file_system: CheckpointFileSystem, target: str) -> None:
    """Copy or link each file of the log; Spark changes none of them."""
    file_system.delete_directory(_COPY)
    for path in file_system.list_files(SOURCE_LOG_DIRECTORY):
        file_system.copy_file(path, f"{_COPY}{path.removeprefix(SOURCE_LOG_DIRECTORY)}")
    file_system.move_directory(_COPY, target)


def _cut_source_log(
    file_system: CheckpointFileSystem, spark_directory: str, batch_id: int, oldest_batch_id: int
) -> None:
    names = {SOURCE_ORDER_FILE_NAME, *capture_source_progress(spark_directory, batch_id)}
    # The job may roll back to the older checkpoints later, as far as the log reaches them.
    with contextlib.suppress(SourceProgressError):
        for older in range(batch_id - 1, oldest_batch_id - 1, -1):
            names.update(capture_source_progress(spark_directory, older))
    kept = {f"{SOURCE_LOG_DIRECTORY}/{name}" for name in names}
    for path in file_system.list_files(SOURCE_LOG_DIRECTORY, include_temporary=True):
        if path not in kept:
            file_system.delete(path, durable=True)
    if QUERY_ID_FILE_NAME not in names:
        file_system.write_file(f"{SOURCE_LOG_DIRECTORY}/{QUERY_ID_FILE_NAME}", new_query_id())


def format_offsets(spark_directory: str, batch_id: int | None) -> str:
    """The offset of each source after a batch, of several with their uids; for a damaged file, the reason."""
    if batch_id is None:
        return "nothing"
    found = OffsetLines.of(read_offsets(spark_directory, batch_id))
    if found.damage is not None:
        return f"unknown offsets (offsets/{batch_id} of Spark's log is damaged: {found.damage})"
    order = read_source_order(CheckpointFileSystem.from_uri(spark_directory))
    if order is None or len(order.sources) == 1:
        return cut(", ".join(found.lines), 1000)
    offsets = found.by_log([source.log or "" for source in order.sources])
    named = (f"{source.uid or source.name}: {offset}" for source, offset in zip(order.sources, offsets, strict=False))
    return cut(", ".join(named), 1000)
