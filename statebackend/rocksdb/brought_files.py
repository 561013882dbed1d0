"""Files of a checkpoint that several new subtasks of a host take their ranges from: each is brought once.

    <directory of the operator>/brought/<boot id>-<checksum>        the file, verified
    <directory of the operator>/brought/<boot id>-<checksum>.lock   held by who brings it; others wait

When the parallelism of a job rises, every new subtask needs a part of the same old files, and sorted files can only be
cut once they are here. On a remote store each subtask would read all of them. So the first subtask of a host that needs
a file brings it, and all of them link to it. The files stay until the operator's state is opened where it is, which is
the epoch after, for subtasks may come one after the other; on a local store they are links and take no room.

Nothing depends on a file that is there: if it is taken away meanwhile, or cannot be linked, it is brought anew. The
boot id is in the name because nothing here is synced to disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import Final

from checkpointing.errors import MissingFileError, StorageError
from checkpointing.handles.state_handles import FileHandle
from checkpointing.storage.file_lock import FileLock, open_lock_file
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.keyed.private_directory import make_private_directory

_DIRECTORY: Final = "brought"


class BroughtFiles:
    """Those of one operator on this host; ``directory`` is that which its subtasks' directories are in."""

    def __init__(self, directory: str, boot_id: str) -> None:
        self._path = os.path.join(directory, _DIRECTORY)
        self._boot_id = boot_id

    def bring(self, file_system: CheckpointFileSystem, handle: FileHandle, target: str) -> None:
        """Puts a file to ``target``, on the same device, which must not change it; raises as `download` does."""
        path = os.path.join(self._path, f"{self._boot_id}-{handle.checksum}")
        try:
            make_private_directory(self._path)
            descriptor = open_lock_file(f"{path}.lock")
            lock = FileLock(descriptor, fcntl.LOCK_EX)
            try:
                if not os.path.exists(path):
                    file_system.download(handle, path)
            finally:
                lock.release()
            os.link(path, target, follow_symlinks=False)
        except (OSError, MissingFileError, StorageError):
            # Taken away meanwhile, also while it was brought, or on a file system without links.
            file_system.download(handle, target)

    def discard(self) -> None:
        """Removes all of them."""
        shutil.rmtree(self._path, ignore_errors=True)
