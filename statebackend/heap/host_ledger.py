"""What the processes of a host keep together, in bytes: each says what it keeps, and is told what the others do.

    <root>/heap-copies/lock            held while somebody counts
    <root>/heap-copies/<pid>-<32 hex>  decimal: the bytes that this process keeps

A process holds a lock on its file for as long as it lives. A file that nobody has locked was left by one that is gone,
and is removed by whoever finds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from attrs import frozen

from checkpointing.storage.file_lock import FileLock, open_lock_file
from statebackend.keyed.private_directory import LOCK_NAME, PrivateDirectoryError, make_private_directory

DIRECTORY_NAME: Final = "heap-copies"

_MAX_DIGITS: Final = 20


@frozen
class OtherProcesses:
    """The other processes of this host that keep something, or have done so: their number, and bytes of all."""

    count: int
    kept_bytes: int


class HostLedger:
    """One process's view of the ledger in a directory; see the module. Used by one thread at a time.

    ``root`` says where the directory is, when it is needed.
    """

    def __init__(self, root: Callable[[], str]) -> None:
        self._root = root
        self._directory: str | None = None
        self._own: tuple[str, FileLock] | None = None
        _ledgers.add(self)

    @contextlib.contextmanager
    def counted(self) -> Iterator[OtherProcesses]:
        """What others keep; within the context it stays like that, and `note` says what oneself keeps.

        Where there can be no such directory, a process is taken for one of as many as there are CPUs.
        """
        self._directory = None
        try:
            root = self._root()
            directory = os.path.join(root, DIRECTORY_NAME)
            make_private_directory(root)
            make_private_directory(directory)
            path = os.path.join(directory, LOCK_NAME)
            descriptor = open_lock_file(path)
        except (OSError, PrivateDirectoryError):
            yield OtherProcesses((os.cpu_count() or 1) - 1, 0)
            return
        lock = FileLock(descriptor, fcntl.LOCK_EX)
        try:
            self._directory = directory
            yield self._count(directory)
        finally:
            self._directory = None
            lock.release()

    def note(self, kept_bytes: int) -> None:
        """Says, while the others are counted, what this process keeps from here on."""
        if self._directory is None:
            return
        with contextlib.suppress(OSError):
            if self._own is not None and not os.path.lexists(self._own[0]):
                self.close()
            if self._own is None:
                path = os.path.join(self._directory, f"{os.getpid()}-{uuid.uuid4().hex}")
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                self._own = path, FileLock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._own[1].descriptor, str(kept_bytes).zfill(_MAX_DIGITS).encode(), 0)

    def close(self) -> None:
        """Takes the process off the ledger; a forked child does so with its copy, not its parent's."""
        own, self._own = self._own, None
        if own is not None:
            own[1].release()

    def _count(self, directory: str) -> OtherProcesses:
        count = kept_bytes = 0
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if name == LOCK_NAME or (self._own is not None and path == self._own[0]):
                continue
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    left = FileLock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    with open(path, "rb") as file:
                        kept_bytes += int(file.read(_MAX_DIGITS) or b"0")
                    count += 1
                else:
                    try:
                        os.unlink(path)
                    finally:
                        left.release()
        return OtherProcesses(count, kept_bytes)


_ledgers: weakref.WeakSet[HostLedger] = weakref.WeakSet()


def _close_all_in_child() -> None:
    for ledger in list(_ledgers):
        ledger.close()


os.register_at_fork(after_in_child=_close_all_in_child)
