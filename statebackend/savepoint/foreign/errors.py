"""Errors of reading state that another engine wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from snapshots.data_views import DataInputView
from snapshots.errors import StateFormatError
from statebackend.checkpoint.errors import SavepointError

__all__ = ["ForeignFormatError", "UnsupportedForeignStateError", "naming_position"]


class ForeignFormatError(SavepointError):
    """A file of another engine is damaged or of an unknown version. The message names the file and the offset."""


class UnsupportedForeignStateError(SavepointError):
    """The savepoint is valid, but has unsupported state. The message describes what to do."""


@contextmanager
def naming_position(location: str, source: DataInputView, start: int = 0) -> Iterator[None]:
    """Raise errors of the view as `ForeignFormatError` with the file and the offset. ``start`` is the view's offset."""
    try:
        yield
    except StateFormatError as error:
        raise ForeignFormatError(f"{location}, byte {start + source.position}: {error}") from error
