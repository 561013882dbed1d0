"""Finds the state that a start restores: a checkpoint of the job directory, a savepoint, or none.

A job directory with a checkpoint continues from it. A directory without a checkpoint restores the savepoint that it was
started from, also if the new start does not name it. Otherwise a job that failed in its first epoch would lose its
state. The directory stores the name of the savepoint before the first epoch
(`statebackend.checkpoint.store.job_directory`), and so do the checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Final

from attrs import evolve, frozen

from snapshots.errors import cut, format_value
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import endpoint_of, without_secrets
from statebackend.checkpoint.metadata import CheckpointMetadata, SavepointIdentity
from statebackend.checkpoint.store.checkpoint_directories import (
    METADATA_FILE_NAME,
    PREVIOUS,
    FoundCheckpoints,
    checkpoint_directory,
)
from statebackend.checkpoint.store.job_directory import ORIGIN_FILE_NAME, JobOrigin, read_origin
from statebackend.checkpoint.store.job_files import NO_SOURCE_LOG, read_roll_back
from statebackend.checkpoint.store.savepoint_directory import read_savepoint
from statebackend.savepoint.restored_state import RestoredState
from statebackend.streaming.errors import JobDefinitionError, JobRestoreError, SourceProgressMismatchError
from statebackend.streaming.runtime.checkpoint_writing import batch_of
from statebackend.streaming.runtime.source_offsets import (
    SOURCE_FORMAT,
    are_of_splits,
    sources_with_offsets,
    with_source_positions,
)


@frozen
class StartingPoint:
    """The checkpoint or savepoint that a start restores.

    ``state`` is None for a job without state. ``is_own`` is True for a checkpoint of this directory.
    ``origin`` is the savepoint that the job started from, ``is_new_origin`` is True if the directory does not
    store it yet, or stores it with another source progress.
    """

    state: RestoredState | None = None
    is_own: bool = False
    origin: JobOrigin | None = None
    is_new_origin: bool = False

    @property
    def identity(self) -> object:
        """A value that is equal for two starts that restore the same state."""
        return None if self.state is None else self.state.metadata, self.is_own, self.origin

    @property
    def restored_id(self) -> int | None:
        """The checkpoint or savepoint that the start restores, or None."""
        return None if self.state is None else self.state.metadata.checkpoint_id

    @property
    def own_checkpoint(self) -> CheckpointMetadata | None:
        """The checkpoint of this directory to continue from, or None."""
        return self.state.metadata if self.state is not None and self.is_own else None

    @property
    def restarted_sources(self) -> Collection[str]:
        """The uids of the sources that do not continue at their positions in the savepoint."""
        return () if self.is_own or self.origin is None else self.origin.restarted_sources

    @property
    def restarts_every_source(self) -> bool:
        """Whether all sources are read from their beginning, and event time starts again."""
        return not self.is_own and self.origin is not None and not self.origin.with_source_progress

    @property
    def restored_from(self) -> SavepointIdentity | None:
        """The identity of the savepoint that the job started from, as stored in its checkpoints."""
        own = self.own_checkpoint
        if own is not None:
            return own.restored_from
        return None if self.origin is None else self.origin.savepoint_identity


def starting_point(
    file_system: CheckpointFileSystem,
    newest: CheckpointMetadata | None,
    from_savepoint: str | os.PathLike[str] | None,
    restore_source_progress: bool | Mapping[str, bool],
    split_sources: Collection[str] = (),
    local_sources: Collection[str] | None = None,
) -> StartingPoint:
    """Return the state that a start in a job directory restores. Changes nothing.

    Args:
        file_system: The job directory.
        newest: Its newest checkpoint, if any.
        from_savepoint: The savepoint that the user passed, if any.
        restore_source_progress: Whether the sources continue at the positions of the savepoint. In a mapping by uid,
            sources that are missing continue.
        split_sources: The uids of the sources that are read by their splits: they continue on the other runtime.
        local_sources: The uids of all sources of a job of the local runtime; None on Spark.

    Raises:
        JobRestoreError: The directory started from another savepoint, its savepoint is missing, or a source would
            start over although it should continue.
        CheckpointError: `read_savepoint` cannot read the savepoint.
    """
    recorded = read_origin(file_system)
    if local_sources is not None and recorded is not None and not recorded.restarted_sources:
        # Version 0.1 of the local runtime stored False, and continued nevertheless. Later ones name the sources.
        recorded = evolve(recorded, with_source_progress=True)
    given = None if from_savepoint is None else _restored(os.fspath(from_savepoint))
    if newest is not None:
        if given is not None:
            _check_same_savepoint(newest, given, recorded, file_system)
        return StartingPoint(RestoredState(newest, file_system), is_own=True, origin=recorded)
    if given is None and recorded is None:
        return StartingPoint()
    savepoint = given
    if given is None and recorded is not None:
        savepoint = _recorded_savepoint(recorded, file_system)
    assert savepoint is not None
    with_progress, restarted = _requested_progress(restore_source_progress, local_sources or ())
    if given is None and recorded is not None:
        # A start that does not name the savepoint again keeps the stored source positions.
        with_progress, restarted = with_progress and recorded.with_source_progress, recorded.restarted_sources
    if local_sources is None:
        savepoint = with_source_positions(savepoint, split_sources)
        _check_has_progress(savepoint, with_progress)
    else:
        _check_continued(savepoint, local_sources, split_sources, restarted)
    origin = _origin_of(savepoint, with_progress, restarted)
    if recorded is None:
        return StartingPoint(savepoint, origin=origin, is_new_origin=True)
    if origin.savepoint_identity != recorded.savepoint_identity:
        raise JobRestoreError(
            f"the job directory {file_system.uri} was started from the savepoint "
            f"{without_secrets(recorded.savepoint_uri)} of epoch {recorded.savepoint_id}, not from "
            f"{origin.savepoint_uri} of epoch {origin.savepoint_id}. Start without from_savepoint to continue from "
            f"the former, or use a new job directory to start from the latter"
        )
    progress = (origin.with_source_progress, origin.restarted_sources)
    is_new = progress != (recorded.with_source_progress, recorded.restarted_sources)
    return StartingPoint(savepoint, origin=origin, is_new_origin=is_new)


def check_no_roll_back(file_system: CheckpointFileSystem) -> None:
    """Raise `JobRestoreError` if a rollback of the job directory was started and not finished."""
    started = read_roll_back(file_system)
    if started is not None:
        engine = "" if started.source_log == NO_SOURCE_LOG else "on Spark "
        raise JobRestoreError(
            f"the rollback to checkpoint {started.checkpoint_id} in {file_system.uri} is not finished: start "
            f"the job {engine}again with roll_back_to={started.checkpoint_id}"
        )


def roll_back_target(
    found: FoundCheckpoints, driver_files: CheckpointFileSystem, roll_back_to: int | str
) -> CheckpointMetadata:
    """Return the checkpoint that a rollback goes to, which may repeat an unfinished one or go back further.

    Raises:
        CheckpointNotFoundError, CorruptMetadataError: The checkpoint does not exist or is damaged.
        JobRestoreError: A rollback to an older checkpoint was interrupted.
    """
    started = read_roll_back(driver_files)
    if started is not None and roll_back_to == PREVIOUS:
        roll_back_to = started.checkpoint_id
    target = found.roll_back_target(roll_back_to)
    if started is not None and target.checkpoint_id > started.checkpoint_id:
        # Files of the epochs in between may be gone, and sinks may have hidden their output.
        check_no_roll_back(driver_files)
    return target


def check_has_every_epoch(point: StartingPoint, committed: int | None, file_system: CheckpointFileSystem) -> None:
    """Raise `SourceProgressMismatchError` if Spark committed a batch and its checkpoint is missing.

    ``committed`` is the last batch that Spark committed. Spark commits a batch after its epoch, except for batches in
    the source progress of a savepoint. Continuing from an older checkpoint would remove the files of the missing one.
    """
    own = point.own_checkpoint
    goes_on = own is not None or (
        point.origin is not None and (point.is_new_origin or point.origin.with_source_progress)
    )
    known = batch_of(point.state.metadata) if goes_on and point.state is not None else -1
    if committed is None or committed <= known:
        return
    there_is = "there is no checkpoint at all" if own is None else f"the newest checkpoint is {own.checkpoint_id}"
    # Each batch after the newest checkpoint has the next id.
    missing_id = committed if own is None else own.checkpoint_id + committed - known
    raise SourceProgressMismatchError(
        f"Spark's source log {file_system.location('spark')} says that batch {committed} is completed, but "
        f"{file_system.location(f'{checkpoint_directory(missing_id)}/{METADATA_FILE_NAME}')} is missing "
        f"({there_is}). Nothing was touched. Restore the file from a backup, or start from a savepoint in a new job "
        f"directory"
    )


def _restored(path: str) -> RestoredState:
    file_system, metadata = read_savepoint(path)
    return RestoredState(metadata, file_system)


def _recorded_savepoint(recorded: JobOrigin, file_system: CheckpointFileSystem) -> RestoredState:
    savepoint_uri = without_secrets(recorded.savepoint_uri)
    if endpoint_of(recorded.savepoint_uri) not in ("", endpoint_of(file_system.uri)):
        # A forged file could otherwise send the credentials of this program to another server.
        raise JobRestoreError(
            f"the job directory {file_system.uri} has no checkpoint yet, and its {ORIGIN_FILE_NAME} says that the job "
            f"starts from the savepoint {savepoint_uri}. The program does not name that store, so no request is sent "
            f"there. Pass from_savepoint={savepoint_uri!r} if that is right"
        )
    try:
        return _restored(recorded.savepoint_uri)
    except CheckpointError as error:
        raise JobRestoreError(
            f"the job directory {file_system.uri} has no checkpoint yet and was started from the savepoint "
            f"{savepoint_uri}, which cannot be read: {error} Restore it, or pass from_savepoint=<its "
            f"present path>"
        ) from error


def check_restored_progress(uids: Collection[str], restore_source_progress: bool | Mapping[str, bool]) -> None:
    """Raise `JobDefinitionError` for an invalid ``restore_source_progress``; ``uids`` are the job's sources."""
    if isinstance(restore_source_progress, bool):
        return
    if not isinstance(restore_source_progress, Mapping):
        raise JobDefinitionError(
            f"restore_source_progress is {format_value(restore_source_progress, 80)}; it takes True, False, or a dict "
            f"by uid such as {{'flights': False}}"
        )
    for uid, is_restored in restore_source_progress.items():
        if uid not in uids or not isinstance(is_restored, bool):
            raise JobDefinitionError(
                f"restore_source_progress has {format_value(uid, 80)}: {format_value(is_restored, 80)}; it takes True "
                f"or False for a source of the job, which has {', '.join(map(repr, uids))}"
            )


def _requested_progress(
    restore_source_progress: bool | Mapping[str, bool], every_source: Collection[str]
) -> tuple[bool, tuple[str, ...]]:
    """Whether the source progress is restored, and the uids of the sources that restart."""
    if isinstance(restore_source_progress, bool):
        return restore_source_progress, () if restore_source_progress else tuple(sorted(every_source))
    return True, tuple(sorted(uid for uid, is_restored in restore_source_progress.items() if not is_restored))


_FROM_THE_BEGINNING: Final = (
    "Pass restore_source_progress=False to take its state and read the source from the beginning; event time then "
    "starts again, and no record is late because of the time before"
)


def _check_has_progress(savepoint: RestoredState, with_source_progress: bool) -> None:
    metadata = savepoint.metadata
    if with_source_progress and not metadata.source_progress_files and not are_of_splits(metadata.source_positions):
        raise JobRestoreError(
            f"the savepoint {savepoint.where} contains no source progress: it was not taken of a job on Spark. "
            f"{_FROM_THE_BEGINNING}"
        )


def _check_continued(
    savepoint: RestoredState, uids: Collection[str], replayable: Collection[str], restarted: Collection[str]
) -> None:
    """Raise `JobRestoreError` if a replayable source of a local job would read again what Spark has read.

    ``uids`` are all sources of the job; ``restarted`` may read again.
    """
    positions = savepoint.metadata.source_positions
    if positions is None:
        return
    read = sources_with_offsets(positions)
    foreign = [one for one in read if one.name != SOURCE_FORMAT or one.uid not in uids]
    # With another uid, a source looks like a new one.
    is_unclear = positions.sources is None or any(one.uid not in uids for one in read)
    known = {one.uid for one in positions.sources or ()}
    unreadable = {one.uid for one in foreign}
    again = {uid for uid in replayable if uid in unreadable or (is_unclear and uid not in known)} - set(restarted)
    if not again:
        return
    spark = "does not name the sources of its positions"
    if foreign:
        spark = "has positions of " + cut(", ".join(f"{one.uid!r} ({one.name})" for one in foreign), 500)
    advice = _FROM_THE_BEGINNING
    if len(again) < len(uids):
        named = dict.fromkeys(sorted(again.union(restarted)), False)
        advice = (
            f"Pass restore_source_progress={named} to read these sources from the beginning while the others "
            f"continue; records before the watermark of their operator are then late. With "
            f"restore_source_progress=False, all sources and event time start again"
        )
    raise JobRestoreError(
        f"the savepoint {savepoint.where} contains no position at which the local runtime can continue the source "
        f"{', '.join(map(repr, sorted(again)))}: it was taken of a job on Spark, and {spark}. Records that are in the "
        f"state would be processed again. {advice}"
    )


def _origin_of(savepoint: RestoredState, with_source_progress: bool, restarted: tuple[str, ...] = ()) -> JobOrigin:
    metadata = savepoint.metadata
    return JobOrigin(
        savepoint_uri=savepoint.file_system.uri,
        savepoint_job_id=metadata.job_id,
        savepoint_id=metadata.checkpoint_id,
        savepoint_timestamp_ms=metadata.timestamp_ms,
        with_source_progress=with_source_progress,
        restarted_sources=restarted,
    )


def _check_same_savepoint(
    newest: CheckpointMetadata, given: RestoredState, recorded: JobOrigin | None, file_system: CheckpointFileSystem
) -> None:
    known = newest.restored_from or (recorded and recorded.savepoint_identity)
    if known != _origin_of(given, False).savepoint_identity:
        raise JobRestoreError(
            f"the job directory {file_system.uri} has checkpoints of its own (the newest is {newest.checkpoint_id}), "
            f"which do not come from the savepoint {given.file_system.location('')}. Start without from_savepoint to "
            f"continue them, or use a new job directory to start from the savepoint"
        )
