"""Where the checkpoints of a job directory are noted, if not in the directory itself: `high-availability.json`.

A directory whose pointers are in ZooKeeper holds metadata files of checkpoints that never became complete, and a driver
that knew nothing of ZooKeeper would take it for one without checkpoints. So the directory says where they are, from the
moment on at which they are there, and a driver that looks elsewhere is refused.

`high-availability.json` is a sealed JSON file (see `sealed_json`) with the field `kept_in`, a text such as
`zookeeper:/statebackend/flights`. It is written once, when a job is first led so.
"""

from __future__ import annotations

from typing import Final

from checkpointing.errors import JobDirectoryMismatchError
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.sealed_json import corrupt, read_sealed_json, sealed_json

__all__ = [
    "HIGH_AVAILABILITY_FILE_NAME",
    "check_kept_in",
    "read_kept_in",
    "write_kept_in",
]

HIGH_AVAILABILITY_FILE_NAME: Final = "high-availability.json"

_FORMAT_VERSION: Final = 1


def read_kept_in(file_system: CheckpointFileSystem) -> str | None:
    """Where the checkpoints of the job directory are noted; None: in it. Raises `CorruptJobIdentityError`."""
    if not file_system.exists(HIGH_AVAILABILITY_FILE_NAME):
        return None
    content = read_sealed_json(file_system, HIGH_AVAILABILITY_FILE_NAME, _FORMAT_VERSION)
    kept_in = content.get("kept_in")
    if content.keys() != {"kept_in"} or not isinstance(kept_in, str) or not kept_in:
        corrupt(file_system, HIGH_AVAILABILITY_FILE_NAME, "does not say where the checkpoints are noted")
    return kept_in


def write_kept_in(file_system: CheckpointFileSystem, kept_in: str) -> None:
    """Say where they are from now on, durably."""
    file_system.write_file(HIGH_AVAILABILITY_FILE_NAME, sealed_json({"kept_in": kept_in}, _FORMAT_VERSION))


def check_kept_in(file_system: CheckpointFileSystem, kept_in: str | None) -> None:
    """Raise `JobDirectoryMismatchError` if a driver that looks there would miss them; None is in the directory.

    A directory that says nothing yet may come to be kept elsewhere.
    """
    said = read_kept_in(file_system)
    if said is not None and said != kept_in:
        looked = "in the directory alone" if kept_in is None else f"in {kept_in}"
        raise JobDirectoryMismatchError(
            f"the completed checkpoints of {file_system.uri} are noted in {said}, and this driver would look for them "
            f"{looked}. Start the job with the high availability that it had, or begin a new job directory from a "
            f"savepoint"
        )
