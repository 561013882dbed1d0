"""Invariants of the files of a job in every environment."""

from __future__ import annotations

from collections.abc import Iterable

from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.metadata import CheckpointMetadata
from verification.simulation.host.disk import SimulatedDisk
from verification.simulation.violation import require_that

__all__ = ["check_files", "check_nothing_is_left"]


def check_files(disk: SimulatedDisk, root: str, metadata: CheckpointMetadata, *, must_be_synced: bool) -> None:
    """Check that all files of a checkpoint exist, complete, and durable where they must be."""
    for file in metadata.files:
        content = disk.files.get(f"{root}/{file.path}")
        require_that(
            content is not None and checksum_of_bytes(content) == file.checksum,
            f"every file of a checkpoint exists: {file.path} of {metadata.kind.value} "
            f"{metadata.checkpoint_id} {'does not exist' if content is None else 'has other content'}",
        )
        require_that(
            not must_be_synced or disk.synced.get(f"{root}/{file.path}") == content,
            f"a completed checkpoint is durable: {file.path} of {metadata.kind.value} "
            f"{metadata.checkpoint_id} is not synced",
        )


def check_nothing_is_left(disk: SimulatedDisk, root: str, retained: Iterable[CheckpointMetadata]) -> None:
    """Check that a start has left only files that its checkpoints need."""
    needed = {f"{root}/{file.path}" for metadata in retained for file in metadata.files}
    left = sorted(path for path in disk.files if path.startswith(f"{root}/shared/") and path not in needed)
    left += [
        path
        for path in disk.files
        if path.startswith(f"{root}/checkpoints/")
        and (path.startswith(f"{root}/checkpoints/.") or f"{path.rpartition('/')[0]}/_metadata" not in disk.files)
    ]
    require_that(not left, f"a start leaves no unused file: {', '.join(left)}")
