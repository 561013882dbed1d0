"""Directories on the local disk that only this user can read or change, and their locks.

They hold state, and RocksDB trusts its files. A directory is created with mode 0700. An existing one is used only if it
is a real directory, belongs to this user, and no other user can write to it. Everything below it is then protected.

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
    """A directory for local files cannot be used: it is a link, belongs to another user, or others can write to it."""


def default_local_root() -> str:
    """The default directory of local files, one per user, because its first user would own a shared one."""
    return os.path.join(tempfile.gettempdir(), f"{_ROOT_PREFIX}{os.getuid()}")


def make_private_directory(path: str) -> None:
    """Create a directory with the mode 0700, and missing parents; make an existing directory private.

    Raises `PrivateDirectoryError` for a link, a file, a directory of another user, and one that others can write to,
    because they may have written its content.
    """
    while True:
        status = _made_or_checked(path)
        if status is None or not stat.S_IMODE(status.st_mode) & 0o077:
            return
        with contextlib.suppress(FileNotFoundError):
            os.chmod(path, 0o700)
            return


def make_given_directory(path: str) -> None:
    """Like `make_private_directory`, for a directory that the user named: the mode of an existing one is unchanged."""
    _made_or_checked(path)


def lock_directory(path: str, *, is_shared: bool = False) -> FileLock | None:
    """Create a private directory and lock it.

    An exclusive lock does not wait: it returns None if the directory is locked. A shared lock waits, since only a
    process that removes the directory keeps an exclusive lock; the directory is then created again. Raises as
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
    """Create a private directory below another for the duration of the context; raise as `make_private_directory`.

    First remove what killed processes left in ``parent``.
    """
    make_private_directory(parent)
    for name in _names_in(parent):
        if name.startswith(_SCRATCH_PREFIX):
            remove_if_unused(os.path.join(parent, name))
    path = os.path.join(parent, f"{_SCRATCH_PREFIX}{uuid.uuid4().hex}")
    # Wait: another process may remove it as a leftover before it is locked; it is then created again.
    lock = lock_directory(path, is_shared=True)
    assert lock is not None
    try:
        yield path
    finally:
        # In a child that was forked within the context, the directory belongs to the parent.
        if lock.is_held:
            shutil.rmtree(path, ignore_errors=True)
        lock.release()


@contextlib.contextmanager
def temporary_directory(directory: str | None = None) -> Iterator[str]:
    """Create a private directory below this user's own in an existing one, by default the system's temporary one.

    First remove what killed processes left there. Raises `FileNotFoundError` or `NotADirectoryError` if the given path
    is not a directory, otherwise as `make_private_directory`.
    """
    root = default_local_root() if directory is None else os.path.join(directory, f"{_ROOT_PREFIX}{os.getuid()}")
    # Missing directories are created below it, but a misspelt name is an error.
    os.scandir(os.path.dirname(root)).close()
    try:
        with scratch_directory(root) as path:
            yield path
    finally:
        if directory is not None:
            # Another process may be using it.
            with contextlib.suppress(OSError):
                os.rmdir(root)


def private_opener(path: str, flags: int) -> int:
    """The ``opener`` for a file that only this user can read and write."""
    return os.open(path, flags, 0o600)


def remove_if_unused(path: str) -> None:
    """Remove a directory whose lock is free. Do nothing if it is locked, or not a private directory."""
    try:
        lock = lock_directory(path)
    except PrivateDirectoryError:
        return
    if lock is not None:
        shutil.rmtree(path, ignore_errors=True)
        lock.release()


def _make(path: str) -> bool:
    """Create the directory; return whether something already existed at the path."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return True
    except FileNotFoundError:
        _make(os.path.dirname(os.path.abspath(path)))
        return _make(path)
    return False


def _made_or_checked(path: str) -> os.stat_result | None:
    """Create the directory and return None, or check the existing one and return its status."""
    while _make(path):
        # The holder of its lock may remove it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            return _checked_status(path)
    return None


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        # Another process has removed it, because it was empty.
        return []


def _checked_status(path: str) -> os.stat_result:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        wrong = "is a link, which leads wherever its owner likes"
    elif not stat.S_ISDIR(status.st_mode):
        wrong = "is not a directory"
    elif status.st_uid != os.geteuid():
        wrong = f"belongs to the user {status.st_uid}, and this process runs as {os.geteuid()}"
    elif status.st_mode & 0o022:
        wrong = f"can be written to by others (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return status
    raise PrivateDirectoryError(
        f"local files of state cannot be put into {path}: it {wrong}. Remove it if it is not needed, or name "
        f"another directory that you own or that does not exist yet (local_state_directory, or TMPDIR for the default)"
    )


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
