"""A subtask's directory on the local disk: the database, the version of the state in it, and shared downloads.

    <directory>/lock       held while a backend is open
    <directory>/VERSION    the snapshot and boot of the database, and its overlay
    <directory>/db/        the RocksDB database
    <directory>/files/     sorted files before ingestion or upload

    VERSION := 8 hex digits, space, JSON of the names of `LocalVersion` and the boot id, bytes in hex; the digits are
               the CRC-32 of the JSON

The version is written last, when the database is closed after a snapshot, and removed before the first change. So a
database with a version, plus the overlay in it (`statebackend.state.rocksdb.read_only_database`), is exactly what that
snapshot wrote. It is opened instead of restored; a database without a version is deleted. Nothing here is synced, so
files are trusted after a crash of the process, but not after a crash of the machine, which changes the boot id.

The lock separates two attempts. An attempt that finds it taken works in a private directory,
`<directory>-<32 hex digits>`. It removes that when it closes; after a kill, the next owner of the directory does.

Several new subtasks of a host share the files of a checkpoint. Each file is downloaded once, and all link to it:

    <directory of the operator>/downloads/<boot id>-<checksum>        the file, verified
    <directory of the operator>/downloads/<boot id>-<checksum>.lock   held by the subtask that downloads it; others wait

The files stay until the operator's state is next opened in place, one epoch later. On a local store they are links. A
file that is missing or cannot be linked is downloaded again.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from statebackend.checkpoint.errors import MissingFileError, StorageError
from statebackend.checkpoint.fs.file_lock import FileLock, open_lock_file
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.state.private_directory import (
    lock_directory,
    make_private_directory,
    private_opener,
    remove_if_unused,
)

_DIRECTORY: Final = "downloads"


class DownloadedFiles:
    """The downloaded files of one operator on this host; ``directory`` contains the directories of its subtasks."""

    def __init__(self, directory: str, boot_id: str) -> None:
        self._path = os.path.join(directory, _DIRECTORY)
        self._boot_id = boot_id

    def download(self, file_system: CheckpointFileSystem, handle: FileHandle, target: str) -> None:
        """Put a file at ``target``, on the same device. ``target`` must not be changed. Raises as `download` does."""
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
            # The file was removed, even during the download, or the file system has no links.
            file_system.download(handle, target)

    def discard(self) -> None:
        """Remove all downloaded files."""
        shutil.rmtree(self._path, ignore_errors=True)


_BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"


@frozen
class LocalVersion:
    """The content of a local database: the state id of the snapshot, and the column family of each state.

    ``lower_bounds`` are bytes below which a priority queue has no element, ``upper_bounds`` the known bytes above which
    it has none. ``heads`` are the known first entries of queues, empty bytes for an empty queue. ``last_namespaces``
    are the known bytes above which a state has no namespace. ``kept`` is the overlay: rows that are not yet in the
    database, None for a row to delete. ``changed_rows`` is how many rows the last use changed, as an estimate for the
    next use.
    """

    state_id: str
    column_families: Mapping[str, str]
    lower_bounds: Mapping[str, bytes] = field(factory=dict)
    heads: Mapping[str, bytes] = field(factory=dict)
    upper_bounds: Mapping[str, bytes] = field(factory=dict)
    last_namespaces: Mapping[str, bytes] = field(factory=dict)
    kept: Mapping[str, Mapping[bytes, bytes | None]] = field(factory=dict)
    changed_rows: int = 0


class LocalStateDirectory:
    """The local directory of a subtask, locked for this backend."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.downloads = DownloadedFiles(os.path.dirname(path), _boot_id())
        """The files that the operator's subtasks share on this host."""
        lock = lock_directory(path)
        self._is_private = lock is None
        if not self._is_private:
            _remove_abandoned(path)
        while lock is None:
            # Another backend may remove it as abandoned before it is locked.
            self.path = f"{path}-{uuid.uuid4().hex}"
            lock = lock_directory(self.path)
        self._lock = lock

    @property
    def database_path(self) -> str:
        return os.path.join(self.path, "db")

    def new_file(self, suffix: str) -> str:
        """A path for a file that does not exist yet, on the same device as the database."""
        return os.path.join(self._files_path(), f"{uuid.uuid4().hex}{suffix}")

    def scratch(self) -> tempfile.TemporaryDirectory[str]:
        """A directory on the same device for the duration of the context. `remove_files` deletes it after a kill."""
        return tempfile.TemporaryDirectory(dir=self._files_path())

    def read_version(self) -> LocalVersion | None:
        """The version of the database, or None if it must not be used."""
        try:
            with open(self._version_path, "rb") as file:
                checksum, _, written = file.read().partition(b" ")
            if checksum != _checksum(written) or not os.path.isdir(self.database_path):
                return None
            content = json.loads(written)
            if content["boot_id"] != _boot_id():
                return None
            bounds, heads, upper_bounds, last_namespaces = (
                {name: bytes.fromhex(known) for name, known in content[field_name].items()}
                for field_name in ("lower_bounds", "heads", "upper_bounds", "last_namespaces")
            )
            kept = {
                name: {
                    bytes.fromhex(key): None if value is None else bytes.fromhex(value) for key, value in rows.items()
                }
                for name, rows in content["kept"].items()
            }
            version = LocalVersion(
                content["state_id"],
                content["column_families"],
                bounds,
                heads,
                upper_bounds,
                last_namespaces,
                kept,
                content["changed_rows"],
            )
            return version if _is_sound(version) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def begin_change(self) -> None:
        """Remove the version before the database is changed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._version_path)

    def write_version(self, version: LocalVersion) -> None:
        """Write the version of the closed database, if the disk has room. Without a version the state is restored."""
        content = {
            "state_id": version.state_id,
            "boot_id": _boot_id(),
            "column_families": dict(version.column_families),
            "lower_bounds": {name: bound.hex() for name, bound in version.lower_bounds.items()},
            "heads": {name: head.hex() for name, head in version.heads.items()},
            "upper_bounds": {name: bound.hex() for name, bound in version.upper_bounds.items()},
            "last_namespaces": {name: last.hex() for name, last in version.last_namespaces.items()},
            "kept": {
                name: {key.hex(): None if value is None else value.hex() for key, value in rows.items()}
                for name, rows in version.kept.items()
            },
            "changed_rows": version.changed_rows,
        }
        written = json.dumps(content).encode()
        # A partial file is rejected by its checksum. Replacing the file would wait for the disk, since file systems
        # guarantee that one of both survives a crash of the machine.
        self.begin_change()
        with contextlib.suppress(OSError), open(self._version_path, "xb", opener=private_opener) as file:
            file.write(_checksum(written) + b" " + written)

    def wipe(self) -> None:
        """Remove database, version and leftover files; the lock stays."""
        self.remove_database()
        self.remove_files()

    def remove_files(self) -> None:
        """Remove the temporary files of a killed process."""
        shutil.rmtree(os.path.join(self.path, "files"), ignore_errors=True)

    def remove_database(self) -> None:
        """Remove database and version; temporary files stay."""
        self.begin_change()
        shutil.rmtree(self.database_path, ignore_errors=True)

    def close(self) -> None:
        """Release the lock, and remove a private directory. Does nothing in a forked child."""
        if not self._lock.is_held:
            return
        self.remove_files()
        if self._is_private:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()

    def _files_path(self) -> str:
        directory = os.path.join(self.path, "files")
        os.makedirs(directory, mode=0o700, exist_ok=True)
        return directory

    @property
    def _version_path(self) -> str:
        return os.path.join(self.path, "VERSION")


def _remove_abandoned(path: str) -> None:
    """Remove the private directories of killed backends next to a directory. Their locks are free."""
    parent, name = os.path.split(path)
    private = re.compile(re.escape(name) + "-[0-9a-f]{32}")
    for entry in os.listdir(parent):
        if private.fullmatch(entry) is not None:
            remove_if_unused(os.path.join(parent, entry))


def _is_sound(version: LocalVersion) -> bool:
    """Whether a version is valid for this release. An invalid one would fail every attempt.

    The name of a column family is a number and the name of its state, so states cannot be confused.
    """
    places = version.column_families
    numbers_and_names = {name: place.partition(":")[::2] for name, place in places.items()}
    return (
        type(version.state_id) is str
        and type(version.changed_rows) is int
        and all(number.isdecimal() and of == name for name, (number, of) in numbers_and_names.items())
        and places.keys()
        >= {*version.lower_bounds, *version.heads, *version.upper_bounds, *version.last_namespaces, *version.kept}
    )


def _checksum(written: bytes) -> bytes:
    return b"%08x" % zlib.crc32(written)


@functools.cache
def _boot_id() -> str:
    try:
        with open(_BOOT_ID_PATH, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        # Without a boot id, a crash of the machine cannot be detected, so only this process trusts the files.
        return uuid.uuid4().hex
