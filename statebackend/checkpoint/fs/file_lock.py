"""Locks on open files (`flock`). The kernel releases them when the process that holds them ends.

Such a lock belongs to the open file, not to the process: a forked child has a copy of the descriptor, and would keep
the lock after its parent's death. So every child closes its copies as soon as it runs. That may be after the parent has
closed its own, so the parent releases a lock explicitly instead of by closing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat


def open_lock_file(path: str) -> int:
    """Open or create a file to lock it; return its descriptor.

    Raises `OSError` unless it is a regular file with a single name. A symbolic or hard link could lead to a file of
    another user, which would then be locked and overwritten.
    """
    # Without O_NONBLOCK, opening a named pipe could wait for another process.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    status = os.fstat(descriptor)
    # Another process may just have removed the lock file, which then has no name.
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(
            errno.EINVAL, "a lock file must be a regular file without other hard links; remove this one", path
        )
    return descriptor


class FileLock:
    """A lock on an open file, held from construction until `release` or the end of the process.

    ``operation`` is that of `flock`. The lock owns the descriptor, and closes it even if the construction raises.
    """

    def __init__(self, descriptor: int, operation: int) -> None:
        self._descriptor: int | None = descriptor
        self._process = os.getpid()
        # Before locking, since a child may be forked in between.
        _open.add(self)
        try:
            fcntl.flock(descriptor, operation)
        except BaseException:
            self._close()
            raise

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock; a forked child holds none of its parent's."""
        return self._descriptor is not None and self._process == os.getpid()

    @property
    def descriptor(self) -> int:
        """The open file. Raises `ValueError` once the lock is released."""
        if self._descriptor is None:
            raise ValueError("the lock was released, and its file is closed")
        return self._descriptor

    def release(self) -> None:
        """Release the lock and close the file; may be called again. A forked child only closes its copy."""
        if self._descriptor is not None and self.is_held:
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        _open.discard(self)
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


_open: set[FileLock] = set()


def _close_copies_in_child() -> None:
    for lock in list(_open):
        lock.release()


os.register_at_fork(after_in_child=_close_copies_in_child)
