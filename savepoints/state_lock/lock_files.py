"""Lock files on a disk: one beside the program, and a directory with every lock that there has been.

A directory of history holds the locks of releases in the order in which they came, `00001-<12 hex>.lock` and so on; the
digits behind the number are of the file's own SHA-256. Two branches that both add the next one add two files with
different names, so that git merges them. A file of history never changes, and is added only if its bytes are in no
other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from checkpointing.storage.store_uri import is_uri, without_secrets
from savepoints.errors import StateLockError
from savepoints.state_lock.lock_format import MAX_LOCK_BYTES, TITLE, WRITE_ANEW, lock_from_bytes, lock_to_bytes
from savepoints.state_lock.locked_state import StateLock
from savepoints.whole_files import whole_file

__all__ = [
    "add_to_history",
    "is_lock_file",
    "locks_of_history",
    "read_lock",
    "would_change",
    "write_lock",
    "write_locks",
]

_NAME: Final = re.compile(r"(\d{5})-([0-9a-f]{12})\.lock")
_MAX_LOCKS: Final = 10_000


def is_lock_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file at that path, which no savepoint is: those are directories."""
    return not is_uri(os.fspath(path)) and _place(path).is_file()


def read_lock(path: str | os.PathLike[str]) -> StateLock:
    """The lock in a file. Raises `StateLockError` if there is none, `OSError` where it cannot be read."""
    try:
        with _place(path).open("rb") as file:
            # One byte more, by which a file that is too large is told.
            data = file.read(MAX_LOCK_BYTES + 1)
    except FileNotFoundError as error:
        raise StateLockError(
            f"there is no lock {os.fspath(path)}; {WRITE_ANEW.replace(' anew', '')} {os.fspath(path)}"
        ) from error
    return lock_from_bytes(data, os.fspath(path))


def would_change(path: str | os.PathLike[str], lock: StateLock) -> bool:
    """Whether the file has other bytes than those of the lock, or is not there."""
    if not is_lock_file(path):
        return True
    with _place(path).open("rb") as file:
        return file.read(MAX_LOCK_BYTES + 1) != lock_to_bytes(lock)


def write_lock(path: str | os.PathLike[str], lock: StateLock) -> bool:
    """Writes the file, complete or not at all; returns whether its bytes are others than before.

    A lock that is there is replaced, and one that somebody has edited. Raises `StateLockError` for a file that never
    was one and for a lock that could not be read again, and `OSError`, as `whole_file`, where it cannot be written.
    """
    if not would_change(path, lock):
        return False
    data = lock_to_bytes(lock)
    lock_from_bytes(data, os.fspath(path))
    if is_lock_file(path):
        _check_was_a_lock(path)
    with whole_file(path, overwrite=True) as file:
        file.write(data)
    return True


def write_locks(
    path: str | os.PathLike[str], history: str | os.PathLike[str] | None, lock: StateLock
) -> tuple[bool, Path | None]:
    """Writes the file and adds it to a history, if one is named: both or neither; returns what either function does.

    Raises as `write_lock` and `add_to_history`.
    """
    if history is None:
        return write_lock(path, lock), None
    # The history comes first: what is added to it can be taken back, and what replaces a file cannot.
    with _directory_made(_place(history)):
        added = add_to_history(history, lock)
        try:
            return write_lock(path, lock), added
        except BaseException:
            if added is not None:
                added.unlink(missing_ok=True)
            raise


def add_to_history(directory: str | os.PathLike[str], lock: StateLock) -> Path | None:
    """Adds a lock to a history, which is made if there is none; returns its file, None if it has the lock already.

    Raises `StateLockError` if its file is there and not as it was written.
    """
    known = _files(directory)
    digest = _digest(lock_to_bytes(lock))
    for file in known:
        if _parsed(file)[1] == digest:
            _check_digest(file, file.read_bytes())
            return None
    number = max((_parsed(file)[0] for file in known), default=0) + 1
    path = _place(directory) / f"{number:05d}-{digest}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lock(path, lock)
    return path


def locks_of_history(directory: str | os.PathLike[str]) -> Iterator[tuple[Path, StateLock]]:
    """The locks of a history, the newest first, one at a time.

    Raises `StateLockError` for a directory without any, and for a file that is not the one its name says.
    """
    files = _files(directory)
    if not files:
        raise StateLockError(
            f"there is no history of locks at {os.fspath(directory)}: statebackend lock --history begins one"
        )
    for file in reversed(files):
        lock = read_lock(file)
        _check_digest(file, file.read_bytes())
        yield file, lock


@contextlib.contextmanager
def _directory_made(directory: Path) -> Iterator[None]:
    """Makes it, with what is missing above it; an error within the context takes away what was made, where empty."""
    missing = [one for one in (directory, *directory.parents) if not os.path.lexists(one)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for one in missing:
            with contextlib.suppress(OSError):
                one.rmdir()
        raise


def _check_was_a_lock(path: str | os.PathLike[str]) -> None:
    # Whatever else is there is somebody's: a program whose name was given for that of its lock.
    with _place(path).open("rb") as file:
        begin = file.read(len(TITLE))
    if begin and begin != TITLE.encode():
        raise StateLockError(f"{os.fspath(path)} is there and no lock of state; give another name, or remove it")


def _place(path: str | os.PathLike[str]) -> Path:
    """The path, which may begin with ``~``: shells leave that behind "=" as it is. A URI is a `StateLockError`."""
    if is_uri(os.fspath(path)):
        raise StateLockError(f"{without_secrets(os.fspath(path))} is a URI, and lock files are on a disk; give a path")
    # That of nobody's directory is a name as any other, as it is to whole files.
    return Path(os.path.expanduser(path))


def _files(directory: str | os.PathLike[str]) -> list[Path]:
    if not _place(directory).is_dir():
        return []
    found = sorted(file for file in _place(directory).iterdir() if _NAME.fullmatch(file.name) and file.is_file())
    if len(found) > _MAX_LOCKS:
        raise StateLockError(f"{os.fspath(directory)} has {len(found):,} locks, and {_MAX_LOCKS:,} at most are judged")
    return found


def _parsed(file: Path) -> tuple[int, str]:
    number, digest = _NAME.fullmatch(file.name).groups()  # type: ignore[union-attr]
    return int(number), digest


def _check_digest(file: Path, data: bytes) -> None:
    if _digest(data) != _parsed(file)[1]:
        raise StateLockError(
            f"{file} is not the lock that its name says: files of a history never change, so take it back from version "
            f"control"
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
