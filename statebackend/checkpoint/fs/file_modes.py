"""The permissions of files with state: by default, only the user who runs the job reads and writes them.

State holds keys and values of the user's data. The environment variable ``STATEBACKEND_FILE_MODE``, in octal, sets
other permissions of files: ``640`` lets the group read them, ``660`` also lets it write. A directory can be entered by
those who may read the files in it. The umask of the process does not restrict the configured permissions.
"""

from __future__ import annotations

import os
import re
import stat
from typing import BinaryIO, Final

from statebackend.checkpoint.errors import StorageError

FILE_MODE_VARIABLE: Final = "STATEBACKEND_FILE_MODE"


def file_mode() -> int:
    """The permissions of a file. Raises `StorageError` if the environment variable is invalid."""
    text = os.environ.get(FILE_MODE_VARIABLE) or "600"
    if re.fullmatch("0?6[0246]{2}", text) is None:
        raise StorageError(
            f"{FILE_MODE_VARIABLE} is {text!r}; set it to octal file permissions that let the owner read and write "
            f"and nobody execute, such as 600, 640 or 660"
        )
    return int(text, 8)


def directory_mode() -> int:
    """The permissions of a directory of such files. Raises as `file_mode`."""
    mode = file_mode()
    return mode | (mode & 0o444) >> 2


def create_file(path: str, directory: int | None = None) -> BinaryIO:
    """Open a new file for writing. Raises `FileExistsError` if it exists, and as `file_mode`.

    ``directory`` is an open directory, to which ``path`` is relative.
    """
    mode = file_mode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    if mode != 0o600:
        os.fchmod(descriptor, mode)
    return open(descriptor, "wb")


def make_directory(path: str, directory: int | None = None) -> None:
    """Create a directory. Raises `FileExistsError` if the path exists, and as `file_mode`.

    ``directory`` is an open directory, to which ``path`` is relative.
    """
    mode = directory_mode()
    os.mkdir(path, 0o700, dir_fd=directory)
    if mode != 0o700:
        # A link that replaced the directory meanwhile is not followed.
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def take_file_mode(descriptor: int) -> None:
    """Set the permissions of an open file that another program created, if it belongs to this user."""
    mode = file_mode()
    status = os.fstat(descriptor)
    if stat.S_IMODE(status.st_mode) != mode and status.st_uid == os.geteuid():
        os.fchmod(descriptor, mode)
