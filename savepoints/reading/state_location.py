"""From what a person types to a completed checkpoint or savepoint: the directory of either, or of the whole job.

    a savepoint                        its own directory, with `_metadata` in it
    a checkpoint                       <job directory>/checkpoints/chk-<id>, whose files lie elsewhere in the job's
    a job directory                    its newest checkpoint, or the one that is asked for by id

Looking needs no lock and changes nothing. A job that runs meanwhile may drop a checkpoint that is being read; the error
then says which file is gone. A savepoint is nobody's but the user's, and stays.
"""

from __future__ import annotations

import os
import posixpath

from checkpointing.errors import CheckpointNotFoundError, SavepointError
from checkpointing.metadata.checkpoint_metadata import CheckpointKind
from checkpointing.storage.checkpoint_directories import CHECKPOINTS_DIRECTORY
from checkpointing.storage.directory_checkpoint_store import DirectoryCheckpointStore
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_directory import JOB_FILE_NAME
from checkpointing.storage.metadata_file import METADATA_FILE_NAME, read_metadata
from checkpointing.storage.savepoint_directory import read_savepoint
from savepoints.restored_state import RestoredState

__all__ = ["find_state"]


def find_state(uri: str | os.PathLike[str], checkpoint_id: int | None = None) -> RestoredState:
    """The state at a path or URI; ``checkpoint_id`` chooses among the checkpoints of a job directory.

    Every file is checked to be there in its size, and by its checksum when it is read. Raises `SavepointError` for a
    place without state, `CheckpointNotFoundError` naming the checkpoints that there are, and what damaged metadata
    raises (`CorruptMetadataError`, `MissingFileError`, `CorruptFileError`).
    """
    file_system = CheckpointFileSystem.from_uri(uri)
    if file_system.exists(METADATA_FILE_NAME):
        found = _in_its_own_directory(os.fspath(uri), file_system)
        if checkpoint_id not in (None, found.metadata.checkpoint_id):
            raise CheckpointNotFoundError(
                f"{file_system.uri} is {found.metadata.kind.value} {found.metadata.checkpoint_id} and holds no "
                f"checkpoint {checkpoint_id}: give the directory of its job to choose among checkpoints"
            )
    elif file_system.exists(JOB_FILE_NAME):
        found = _in_job_directory(file_system, checkpoint_id)
    else:
        # Its error says of a savepoint that was not finished that it was not.
        savepoint_file_system, metadata = read_savepoint(uri)
        found = RestoredState(metadata, savepoint_file_system)
    found.file_system.verify_present(found.metadata.files)
    return found


def _in_its_own_directory(uri: str, file_system: CheckpointFileSystem) -> RestoredState:
    metadata = read_metadata(file_system, "")
    if metadata.kind is CheckpointKind.SAVEPOINT:
        return RestoredState(metadata, file_system)
    # The paths in a checkpoint are relative to its job directory.
    root = posixpath.dirname(posixpath.dirname(uri.rstrip("/")))
    job = CheckpointFileSystem.from_uri(root or ".")
    if posixpath.basename(posixpath.dirname(uri.rstrip("/"))) != CHECKPOINTS_DIRECTORY or not job.exists(JOB_FILE_NAME):
        raise SavepointError(
            f"{file_system.uri} is a checkpoint of job {metadata.job_name!r} outside of its job directory, in which "
            f"its files lie: give the job directory, or take a savepoint, which stands alone"
        )
    return RestoredState(metadata, job)


def _in_job_directory(file_system: CheckpointFileSystem, checkpoint_id: int | None) -> RestoredState:
    if checkpoint_id is not None:
        return RestoredState(DirectoryCheckpointStore.fall_back_target(file_system, checkpoint_id), file_system)
    newest = DirectoryCheckpointStore.peek(file_system)
    if newest is None:
        raise CheckpointNotFoundError(
            f"the job directory {file_system.uri} has no completed checkpoint: the job has not ended its first epoch"
        )
    return RestoredState(newest, file_system)
