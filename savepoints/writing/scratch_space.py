"""Scratch space: a directory of the disk that is gone with its content when what needed it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from savepoints.writing.errors import PlanError
from snapshots.value_text import shown
from statebackend.keyed.private_directory import PrivateDirectoryError, temporary_directory

__all__ = ["scratch_space"]


@contextmanager
def scratch_space(directory: str | None) -> Iterator[str]:
    """A new directory inside of this one, or of the system's for such; raises `PlanError` where none can be made."""
    with ExitStack() as made:
        try:
            path = made.enter_context(temporary_directory(directory))
        except (OSError, TypeError, ValueError, PrivateDirectoryError) as error:
            place = "the system's temporary directory" if directory is None else shown(directory)
            raise PlanError(
                f"no scratch space can be made in {place}: {error}. Pass scratch_directory=<a directory with room for "
                f"all rows>. Nothing was written"
            ) from error
        yield path
