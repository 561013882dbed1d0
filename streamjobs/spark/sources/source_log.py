"""Spark's source log of a job directory: in whose order it is, and how it comes into that of the job.

    spark/                     the log, with `source-order.json`
    spark-rearranged/          the whole log in the order of the job, until it has taken the place of the former
    set-aside/spark-<n>/       the former

Spark counts its sources by position: a log in another order would give each source what another has read. So when the
program has other sources than the log, or has them in another order, the log is written anew before Spark sees it (see
`source_rearrangement`): every batch that Spark still knows, also the one that it has planned and not ended, and those
that a fall-back may go back to.

The new log appears whole, beside the former. Then the former is moved away, and the new one to its place. A crash
before that leaves a new log that is taken away and written again, for the program may be another one by then; a crash
between the two moves leaves only the new log, which is the log from then on. So whoever looks finds one whole log at
any time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from attrs import evolve, frozen

from checkpointing.metadata.checkpoint_metadata import SOURCE_PROGRESS_DIRECTORY
from checkpointing.metadata.checkpoint_sections import ReadSource
from checkpointing.storage.checkpoint_directories import SET_ASIDE_DIRECTORY
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_origin import write_origin
from checkpointing.storage.savepoint_directory import SavedSourceProgress
from checkpointing.storage.time_epoch_file import end_time_epoch
from savepoints.restored_state import RestoredState
from streamjobs.errors import JobRestoreError, SourceProgressMismatchError
from streamjobs.runtime.checkpoint_writing import batch_of
from streamjobs.runtime.starting_point import StartingPoint
from streamjobs.spark.sources.source_matching import check_kept, former_sources, with_uids
from streamjobs.spark.sources.source_offsets import OffsetLines
from streamjobs.spark.sources.source_order_file import (
    SOURCE_ORDER_FILE_NAME,
    Schema,
    SourceOrder,
    read_source_order,
    source_order,
)
from streamjobs.spark.sources.source_progress import (
    STAGING_PREFIX,
    appear_at_once,
    newest_planned_batch,
    read_offsets,
    restore_source_progress,
    whole_source_log,
)
from streamjobs.spark.sources.source_rearrangement import RearrangedLog, Rearrangement
from streamjobs.spark.sources.source_schemas import check_schemas
from streamjobs.time.former_sources import without_sources

__all__ = [
    "SOURCE_LOG_DIRECTORY",
    "SourceLogPlan",
    "end_interrupted_rearrangement",
    "free_set_aside_name",
    "planned_source_log",
    "source_log_directory",
]

SOURCE_LOG_DIRECTORY: Final = "spark"
"""Where the log is in a job directory."""

_REARRANGED: Final = "spark-rearranged"


def source_log_directory(file_system: CheckpointFileSystem) -> str:
    """Where the log of the job directory at the root of ``file_system`` is now, which need not be there at all."""
    has_log = SOURCE_LOG_DIRECTORY in file_system.list_directories()
    return SOURCE_LOG_DIRECTORY if has_log or not file_system.list_files(_REARRANGED) else _REARRANGED


def end_interrupted_rearrangement(file_system: CheckpointFileSystem) -> None:
    """Puts the log in its place that a crash has left beside it, or takes away what it has left of one."""
    for name in file_system.list_directories():
        if name.startswith(f"{STAGING_PREFIX}{SOURCE_LOG_DIRECTORY}"):
            file_system.delete_directory(name)
    if source_log_directory(file_system) == _REARRANGED:
        file_system.move_directory(_REARRANGED, SOURCE_LOG_DIRECTORY)
    else:
        file_system.delete_directory(_REARRANGED)


def free_set_aside_name(file_system: CheckpointFileSystem) -> str:
    """A name below `set-aside/` for a log that is set aside."""
    taken = set(file_system.list_directories(SET_ASIDE_DIRECTORY))
    free = (f"{SOURCE_LOG_DIRECTORY}-{number}" for number in range(1, len(taken) + 2))
    return next(name for name in free if name not in taken)


@frozen(kw_only=True)
class SourceLogPlan:
    """What a start is to make of the log, and of what the state says of it.

    ``of_log`` is None if nobody knows whose its lines are, ``of_state`` if the state says nothing of it, or it does not
    count. ``schemas`` are those of the sources ``now``; none if they are not known.
    """

    now: tuple[ReadSource, ...]
    of_log: Rearrangement | None
    of_state: Rearrangement | None
    begins_from_savepoint: bool
    schemas: tuple[Schema, ...] = ()

    def state(self, state: RestoredState | None) -> RestoredState | None:
        """The state to go on from, whose positions and watermarks are those of the job's sources."""
        positions = None if state is None else state.metadata.source_positions
        if state is None or positions is None or self.of_state is None:
            return state
        watermarks = state.metadata.watermarks
        metadata = evolve(
            state.metadata,
            source_positions=evolve(positions, sources=self.now, offsets=self.of_state.offsets(positions.offsets)),
            watermarks=None if watermarks is None else without_sources(watermarks, self.of_state.begun_anew),
        )
        return RestoredState(metadata, state.file_system)

    def carry_out(
        self, file_system: CheckpointFileSystem, point: StartingPoint, job_files: CheckpointFileSystem
    ) -> None:
        """Puts the log in the order of the job, behind `end_interrupted_rearrangement`.

        The log is at the root of ``file_system``, the job directory at that of ``job_files``.

        A log that was begun for the same savepoint stays: it may hold an epoch that failed, which is then replayed with
        the same rows and the same time. The job directory is locked by the caller. Raises `SourceProgressError` if the
        log cannot be read; it is then as it was.
        """
        location = file_system.location(SOURCE_LOG_DIRECTORY)
        if point.is_new_origin and point.origin is not None:
            # In this order: a log that does not fit the origin must not outlive a crash in between.
            file_system.delete_directory(SOURCE_LOG_DIRECTORY)
            end_time_epoch(file_system)
            write_origin(job_files, point.origin)
        if self.begins_from_savepoint:
            assert point.state is not None
            assert self.of_log is not None
            file_system.delete_directory(SOURCE_LOG_DIRECTORY)
            saved = SavedSourceProgress(point.state.file_system, point.state.metadata)
            restore_source_progress(RearrangedLog(saved, self.of_log, self.schemas), location)
            return
        has_log = SOURCE_LOG_DIRECTORY in file_system.list_directories()
        if self.of_log is not None and not self.of_log.changes_nothing and has_log:
            has_begun = newest_planned_batch(location) is not None
            files = whole_source_log(location) if has_begun else {}
            appear_at_once(RearrangedLog(files, self.of_log, self.schemas), file_system.location(_REARRANGED))
            set_aside = f"{SET_ASIDE_DIRECTORY}/{free_set_aside_name(file_system)}"
            file_system.move_directory(SOURCE_LOG_DIRECTORY, set_aside)
            file_system.move_directory(_REARRANGED, SOURCE_LOG_DIRECTORY)
        else:
            found = read_source_order(file_system, SOURCE_LOG_DIRECTORY)
            if found is None or found.sources != self.now or (self.schemas and found.schemas != self.schemas):
                path = f"{SOURCE_LOG_DIRECTORY}/{SOURCE_ORDER_FILE_NAME}"
                file_system.write_file(path, source_order(self.now, self.schemas))


def planned_source_log(
    file_system: CheckpointFileSystem,
    point: StartingPoint,
    now: tuple[ReadSource, ...],
    allowed_dropped: Collection[str] = (),
    schemas: tuple[Schema, ...] = (),
) -> SourceLogPlan:
    """What a start from this point is to do; touches nothing.

    ``now`` is what the job reads, with these schemas, if they are known. Raises `JobRestoreError` if the state has read
    sources that the job does not have, or that are others now, or that had columns which do not go on (see
    `source_schemas`), or if the log does not have what the state has read, and `SourceProgressMismatchError` if it says
    that something else was read.
    """
    log = source_log_directory(file_system)
    origin, state = point.origin, point.state
    counts = state is not None and (point.is_own or (origin is not None and origin.with_source_progress))
    begun_anew: frozenset[str] = frozenset()
    if counts and not point.is_own and origin is not None:
        begun_anew = frozenset(origin.begun_anew)
    found = None if point.is_new_origin else read_source_order(file_system, log)
    order = None if found is None else found.sources
    of_state = None
    where = "" if state is None else state.file_system.location("")
    if counts and state is not None:
        former = former_sources(state.metadata.source_positions, order, now, where)
        if former is not None:
            check_kept([one for one in former if one.uid not in begun_anew], now, where, allowed_dropped)
            of_state = Rearrangement(former, now, begun_anew)
    if counts and not point.is_own and (point.is_new_origin or not file_system.exists(f"{log}/metadata")):
        of_log: Rearrangement | None = of_state or Rearrangement(now, now)
        assert of_log is not None
        assert state is not None
        _check_logs_known(of_log, where)
        _check_schemas(read_source_order(state.file_system, SOURCE_PROGRESS_DIRECTORY), now, schemas, where, begun_anew)
        return SourceLogPlan(now=now, of_log=of_log, of_state=of_state, begins_from_savepoint=True, schemas=schemas)
    of_log = of_state
    if order is not None:
        of_log = Rearrangement(with_uids(order, now), now)
        if newest_planned_batch(file_system.location(log)) is not None:
            # Of what it has planned of a source that is no more, no state knows.
            gone = {one.uid for one in order if one.uid is not None}
            check_kept(of_log.former, now, file_system.location(log), gone)
            _check_schemas(found, now, schemas, file_system.location(log))
    if of_log is not None:
        _check_logs_known(of_log, file_system.location(log))
    plan = SourceLogPlan(now=now, of_log=of_log, of_state=of_state, begins_from_savepoint=False, schemas=schemas)
    _check_log(file_system, log, plan, state)
    return plan


def _check_schemas(
    found: SourceOrder | None,
    now: tuple[ReadSource, ...],
    schemas: tuple[Schema, ...],
    where: str,
    begun_anew: Collection[str] = (),
) -> None:
    """Raises unless the columns of what ``where`` has read go on in those of the job, where both are known."""
    if found is not None and schemas:
        former = SourceOrder(with_uids(found.sources, now), found.schemas)
        check_schemas(former, SourceOrder(now, schemas), where, begun_anew)


def _check_logs_known(of_log: Rearrangement, where: str) -> None:
    """Raises unless it can be told which of the logs of sources belongs to which line."""
    names = [one.name for one in of_log.former]
    is_known = all(one.log is not None for one in of_log.former) or len(set(names)) == len(names)
    if not of_log.changes_nothing and not is_known:
        raise JobRestoreError(
            f"the sources of the job have changed, and {where} does not say which of Spark's files belong to which of "
            f"{', '.join(names)}: an earlier release wrote it. Start the job once with the sources that it had, in "
            f"their order"
        )


def _check_log(file_system: CheckpointFileSystem, log: str, plan: SourceLogPlan, state: RestoredState | None) -> None:
    """Raises unless the log has what the state has read."""
    if plan.of_log is None or plan.of_state is None or state is None:
        return
    known = {one.uid for one in plan.of_log.former}
    read = {one.uid for one, line in zip(plan.now, plan.of_state.lines, strict=True) if line is not None}
    lost = sorted(uid for uid in read if uid is not None and uid not in known)
    if lost:
        raise JobRestoreError(
            f"the state at {state.file_system.location('')} has read the source {lost[0]!r}, which "
            f"{file_system.location(log)} has nothing of: it was dropped since. The log as it was then is in "
            f"{file_system.location(SET_ASIDE_DIRECTORY)}; start without this source, with "
            f"allow_dropped_sources=[{lost[0]!r}], or begin a new job directory from a savepoint that has it"
        )
    batch_id = batch_of(state.metadata)
    if not file_system.exists(f"{log}/offsets/{batch_id}"):
        return
    has = plan.of_log.offsets(read_offsets(file_system.location(log), batch_id))
    says = plan.of_state.offsets(state.metadata.source_offsets)
    in_log, in_state = (OffsetLines.of(content).by_log(plan.of_state.logs) for content in (has, says))
    if in_log != in_state:
        raise SourceProgressMismatchError(
            f"{file_system.location(f'{log}/offsets/{batch_id}')} does not say what the state at "
            f"{state.file_system.location('')} has read, but {', '.join(in_log)} instead of {', '.join(in_state)}. "
            f"Put the right log back, or start from a savepoint in a new job directory"
        )
