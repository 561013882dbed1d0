"""Finds a completed checkpoint or savepoint from the path that a user passes.

| Path | Result |
|---|---|
| a savepoint directory, with `_metadata` in it | the savepoint |
| `<job directory>/checkpoints/chk-<id>...` | that checkpoint; its files are elsewhere in the job directory |
| a job directory | its newest checkpoint, or the one with the given id |
| a savepoint or retained checkpoint of Flink | see `statebackend.savepoint.foreign.flink_files` |
| the checkpoint directory of a query of Spark | none: see `statebackend.spark.foreign_state` |

The high-availability services of the job know which checkpoints are complete: the directory itself, an object in it,
or ZooKeeper. A directory whose checkpoints are recorded elsewhere may contain metadata of incomplete checkpoints. It
is rejected unless the services of its job are passed.

Reading takes no lock and changes nothing. A running job may delete a checkpoint while it is read; the error then names
the missing file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from statebackend.checkpoint.errors import CheckpointNotFoundError, JobDirectoryMismatchError, SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import parent_and_name
from statebackend.checkpoint.ha.object_store import default_services
from statebackend.checkpoint.ha.services import JobServices
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.store.checkpoint_directories import (
    CHECKPOINTS_DIRECTORY,
    METADATA_FILE_NAME,
    FoundCheckpoints,
    metadata_path,
    read_metadata,
)
from statebackend.checkpoint.store.job_directory import JOB_FILE_NAME, JobDirectory
from statebackend.checkpoint.store.job_files import read_stored_in
from statebackend.checkpoint.store.savepoint_directory import not_a_savepoint
from statebackend.savepoint.errors import UnsupportedForeignStateError
from statebackend.savepoint.foreign.flink_files import is_flink_metadata, open_flink_savepoint
from statebackend.savepoint.restored_state import RestoredState


def find_state(
    uri: str | os.PathLike[str],
    checkpoint_id: int | None = None,
    services: JobServices | None = None,
    moved: Mapping[str, str] | None = None,
) -> RestoredState:
    """Return the state at a path or URI.

    Every file is checked for its presence and size now, and for its checksum when it is read.

    Args:
        uri: A savepoint, a checkpoint or a job directory.
        checkpoint_id: The checkpoint of a job directory; None for the newest.
        services: The high-availability services of the job; None for the default.
        moved: Directories that the metadata of a Flink checkpoint names, with their present places.

    Raises:
        SavepointError: There is no state at the path.
        CheckpointNotFoundError: The checkpoint does not exist. The message lists the existing ones.
        JobDirectoryMismatchError: The job records its checkpoints elsewhere.
        CorruptMetadataError: The metadata is damaged.
        MissingFileError: A file is missing.
    """
    file_system = CheckpointFileSystem.from_uri(uri)
    # Resolve names such as ".".
    place = file_system.local_path() or os.fspath(uri)
    if file_system.exists(METADATA_FILE_NAME):
        if is_flink_metadata(file_system):
            found = open_flink_savepoint(place, moved)
        else:
            found = _in_its_own_directory(place, file_system, services)
        if checkpoint_id not in (None, found.metadata.checkpoint_id):
            raise CheckpointNotFoundError(
                f"{file_system.uri} is {found.metadata.kind.value} {found.metadata.checkpoint_id} and holds no "
                f"checkpoint {checkpoint_id}: pass the directory of its job to choose a checkpoint"
            )
    elif file_system.exists(JOB_FILE_NAME):
        metadata = _chosen(completed_checkpoints(place, services), checkpoint_id)
        found = RestoredState(metadata, file_system)
    elif is_spark_checkpoint(file_system):
        raise UnsupportedForeignStateError(
            f"{file_system.uri} is the checkpoint directory of a query of Spark. Read its state with the command "
            f"show, or make a savepoint of it with the command import"
        )
    else:
        raise not_a_savepoint(file_system)
    found.file_system.verify_present(found.metadata.files)
    return found


def is_spark_checkpoint(file_system: CheckpointFileSystem) -> bool:
    """Whether a directory is the checkpoint location of a query of Spark."""
    return file_system.exists("metadata") and {"offsets", "commits"} <= set(file_system.list_directories())


def completed_checkpoints(job_dir: str, services: JobServices | None = None) -> FoundCheckpoints:
    """Return the completed checkpoints of a job directory. Changes nothing.

    Raises:
        JobDirectoryMismatchError: The job records its checkpoints where the services do not look.
        StorageError: The storage cannot be read.
    """
    file_system = CheckpointFileSystem.from_uri(job_dir)
    identity = JobDirectory.inspect(job_dir)
    led_by = default_services(job_dir) if services is None else services
    recorded = read_stored_in(file_system)
    given = None if identity is None else led_by.stored_in(identity.job_name)
    if recorded not in (None, given):
        raise JobDirectoryMismatchError(
            f"the completed checkpoints of {file_system.uri} are recorded in {recorded}, but the given services read "
            f"{given or 'the directory alone'}: pass the high availability that the job has (high_availability=...; "
            f"on the command line --zookeeper HOSTS/ROOT)"
        )
    with led_by.read_only(file_system, identity) as records:
        return records.pointers.find()


def _chosen(found: FoundCheckpoints, checkpoint_id: int | None) -> CheckpointMetadata:
    if checkpoint_id is not None:
        return found.roll_back_target(checkpoint_id)
    newest = found.newest()
    if newest is None:
        raise CheckpointNotFoundError(
            f"the job directory {found.file_system.uri} has no completed checkpoint: the job has not completed its "
            f"first epoch"
        )
    return newest


def _in_its_own_directory(place: str, file_system: CheckpointFileSystem, services: JobServices | None) -> RestoredState:
    metadata = read_metadata(file_system, "")
    if metadata.kind is CheckpointKind.SAVEPOINT:
        return RestoredState(metadata, file_system)
    # The paths in a checkpoint are relative to its job directory.
    checkpoints, name = parent_and_name(place)
    root, directory = parent_and_name(checkpoints)
    job = CheckpointFileSystem.from_uri(root)
    if directory != CHECKPOINTS_DIRECTORY or not job.exists(JOB_FILE_NAME):
        raise SavepointError(
            f"{file_system.uri} is a checkpoint of job {metadata.job_name!r} outside of its job directory, which has "
            f"its files: pass the job directory, or take a savepoint, which is self-contained"
        )
    found = completed_checkpoints(root, services)
    noted = found.retained.get(metadata.checkpoint_id)
    if noted is None or noted.metadata_file.path != metadata_path(f"{directory}/{name}"):
        raise CheckpointNotFoundError(
            f"{file_system.uri} is not a completed checkpoint of job {metadata.job_name!r}: its metadata was written, "
            f"but it did not complete, or was dropped. Those of the job are: "
            f"{', '.join(map(str, sorted(found.ids))) or 'none'}"
        )
    return RestoredState(noted.metadata, job)
