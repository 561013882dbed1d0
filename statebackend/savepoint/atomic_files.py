"""Atomic local files: tables, pages and lockfiles that commands write for a user.

A file is written under a temporary name in the same directory, synced, and renamed. Readers see the complete file or
the former one, also after an interrupt. Symbolic links are followed, and a path may begin with ``~``. A replaced file
keeps its permissions.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from typing import IO, Final

from statebackend.checkpoint.fs.file_modes import create_file
from statebackend.checkpoint.fs.store_uri import is_uri, without_secrets
from statebackend.savepoint.errors import ExportExistsError

_SHOWN_CHARACTERS: Final = 40


def check_place(path: str | os.PathLike[str], *, overwrite: bool) -> str:
    """Return the absolute path of a file to write. Call it before long work.

    Raises:
        ExportExistsError: The file exists and ``overwrite`` is False.
        FileNotFoundError: The directory does not exist.
        OSError: The path is a URI, a directory, ``-`` or no regular file.
    """
    if os.fspath(path) == "-":
        # Other programs write to stdout for "-". A file of that name is hard to remove.
        raise OSError(errno.EINVAL, "the output must be a file, not the standard output; name a file", "-")
    text = os.fspath(path)
    if isinstance(text, str) and is_uri(text):
        raise OSError(
            errno.EINVAL, "the output must be a file on a disk, not a URI; name a file", without_secrets(text)
        )
    named = os.path.abspath(os.path.expanduser(path))
    if not overwrite and os.path.lexists(named):
        raise ExportExistsError(f"{named} exists. Choose another name, or overwrite it (--overwrite, overwrite=True)")
    target = os.path.realpath(named)
    directory = os.path.dirname(target)
    if not os.path.isdir(directory):
        raise FileNotFoundError(
            errno.ENOENT, f"there is no directory to write {os.path.basename(target)} in", directory
        )
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, "the path is a directory; name a file in it", target)
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "the path is not a regular file; name one", target)
    return target


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, overwrite: bool, has_state: bool = False) -> Iterator[IO[bytes]]:
    """The file to write, which has its name when the context ends without an error.

    ``has_state`` says that it holds keys and values: a new file then has the permissions of state (`file_modes`), and
    otherwise those that the umask leaves.

    Raises what `check_place` raises, before anything is written, and `ExportExistsError` if another file has come to
    have the name meanwhile.
    """
    target = check_place(path, overwrite=overwrite)
    directory, name = os.path.split(target)
    # Truncate the name so that the temporary name is not too long.
    temporary = os.path.join(directory, f".{name[:_SHOWN_CHARACTERS]}.{uuid.uuid4().hex}.part")
    try:
        with create_file(temporary) if has_state else open(temporary, "xb") as file:
            _take_mode(target, file)
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, target)
        else:
            _appear(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _take_mode(target: str, file: IO[bytes]) -> None:
    """Copy the permissions of the file that is replaced."""
    with contextlib.suppress(FileNotFoundError):
        os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))


def _appear(temporary: str, target: str) -> None:
    """Rename without replacing a file that appeared meanwhile."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise ExportExistsError(f"{target} was created meanwhile; choose another name") from None
    except OSError:
        # The file system has no hard links.
        if os.path.lexists(target):
            raise ExportExistsError(f"{target} was created meanwhile; choose another name") from None
        os.replace(temporary, target)
