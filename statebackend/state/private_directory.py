"""Directories on the local disk that only this user can read or change, and their locks.

They hold state, and RocksDB trusts its files. A directory is created with mode 0700. An existing one is used only if it
is a real directory, belongs to this user, and nobody else can write to it. Everything below it is then protected.

The lock is a kernel lock (`FileLock`) on the file ``lock`` in the directory; it ends with the process that holds it.
The holder of the exclusive lock may remove the directory. A removed file can still be locked, so a lock counts only if
the file still exists afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from typing import Final

from statebackend.checkpoint.fs.file_lock import FileLock, open_lock_file
from statebackend.state.errors import StateBackendError

LOCK_NAME: Final = "lock"

_ROOT_PREFIX: Final = "statebackend-"
_SCRATCH_PREFIX: Final = "scratch-"


class PrivateDirectoryError(StateBackendError):
    """A directory for local files cannot be used: a link, somebody else's, or open to others."""


def default_local_root() -> str:
    """Where local files are put if no directory is named: one for all users would belong to the first of them."""
    return os.path.join(tempfile.gettempdir(), f"{_ROOT_PREFIX}{os.getuid()}")


def make_private_directory(path: str) -> None:
    """Makes a directory with the mode 0700, and what is missing above it; one that is there is made private.

    Raises `PrivateDirectoryError` for a link, for what is no directory, for one of another user, and for one that
    others may write to: what is in it may be theirs.
    """
    while True:
        status = _made_or_checked(path)
        if status is None or not stat.S_IMODE(status.st_mode) & 0o077:
            return
        with contextlib.suppress(FileNotFoundError):
            os.chmod(path, 0o700)
            return


def make_given_directory(path: str) -> None:
    """As `make_private_directory`, for a directory that the user has named: if it is there, its mode is left alone."""
    _made_or_checked(path)


def lock_directory(path: str, *, is_shared: bool = False) -> FileLock | None:
    """Makes a private directory and locks it.

    An exclusive lock is not waited for: None if somebody holds another. A shared one is waited for, since an exclusive
    one is only held for good by who removes the directory, which is then made again. Raises as
    `make_private_directory`.
    """
    file = os.path.join(path, LOCK_NAME)
    while True:
        make_private_directory(path)
        try:
            descriptor = open_lock_file(file)
        except FileNotFoundError:
            continue
        try:
            lock = FileLock(descriptor, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        try:
            if _is_same_file(descriptor, file):
                return lock
        except BaseException:
            lock.release()
            raise
        lock.release()


@contextlib.contextmanager
def scratch_directory(parent: str) -> Iterator[str]:
    """A fresh private directory below another for as long as the context lasts; raises as `make_private_directory`.

    What processes that were killed have left in ``parent`` goes before that.
    """
    make_private_directory(parent)
    for name in _names_in(parent):
        if name.startswith(_SCRATCH_PREFIX):
            _remove_if_unused(os.path.join(parent, name))
    path = os.path.join(parent, f"{_SCRATCH_PREFIX}{uuid.uuid4().hex}")
    # Waited for: somebody may take it for one that was left before it is locked, and it is then made again.
    lock = lock_directory(path, is_shared=True)
    assert lock is not None
    try:
        yield path
    finally:
        # In a child that was forked within the context it is its parent's.
        if lock.is_held:
            shutil.rmtree(path, ignore_errors=True)
        lock.release()


@contextlib.contextmanager
def temporary_directory(directory: str | None = None) -> Iterator[str]:
    """A fresh private directory below this user's own in an existing one, by default that of the system for such.

    What processes that were killed have left there goes before that. Raises `FileNotFoundError` or `NotADirectoryError`
    for a directory that is none, else as `make_private_directory`.
    """
    root = default_local_root() if directory is None else os.path.join(directory, f"{_ROOT_PREFIX}{os.getuid()}")
    # What is missing is made below it, and a name that was misspelt is not.
    os.scandir(os.path.dirname(root)).close()
    try:
        with scratch_directory(root) as path:
            yield path
    finally:
        if directory is not None:
            # Another process may be at work in it.
            with contextlib.suppress(OSError):
                os.rmdir(root)


def private_opener(path: str, flags: int) -> int:
    """The ``opener`` of a file that only this user reads and writes."""
    return os.open(path, flags, 0o600)


def _remove_if_unused(path: str) -> None:
    try:
        lock = lock_directory(path)
    except PrivateDirectoryError:
        return
    if lock is not None:
        shutil.rmtree(path, ignore_errors=True)
        lock.release()


def _make(path: str) -> bool:
    """Makes the directory, and says whether there was something in its place."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return True
    except FileNotFoundError:
        _make(os.path.dirname(os.path.abspath(path)))
        return _make(path)
    return False


def _made_or_checked(path: str) -> os.stat_result | None:
    """Makes the directory, or checks the one that is there: None, or the status of the latter."""
    while _make(path):
        # Whoever holds its lock may remove it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            return _checked_status(path)
    return None


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        # Removed since by another process, to which nothing was left in it.
        return []


def _checked_status(path: str) -> os.stat_result:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        wrong = "is a link, which leads wherever its owner likes"
    elif not stat.S_ISDIR(status.st_mode):
        wrong = "is no directory"
    elif status.st_uid != os.geteuid():
        wrong = f"belongs to the user {status.st_uid}, and this process runs as {os.geteuid()}"
    elif status.st_mode & 0o022:
        wrong = f"can be written to by others (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return status
    raise PrivateDirectoryError(
        f"local files of state cannot be put into {path}: it {wrong}. Remove it if it is not needed, or name another "
        f"directory, one of your own or one that does not exist yet (local_state_directory, or TMPDIR for the default)"
    )


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
