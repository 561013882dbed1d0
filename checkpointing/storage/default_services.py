"""How a job is led where the program does not say it: by what the store of its directory has."""

from __future__ import annotations

from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_services import DirectoryServices, JobServices
from checkpointing.storage.object_store_high_availability import ObjectStoreHighAvailability

__all__ = ["default_services"]


def default_services(job_dir: str) -> JobServices:
    """The lock file of a directory on a disk; a lease on a store that has conditional writes.

    Raises `StorageError` for what is neither a path nor a URI that is known.
    """
    file_system = CheckpointFileSystem.from_uri(job_dir)
    return ObjectStoreHighAvailability() if file_system.has_conditional_writes else DirectoryServices()
