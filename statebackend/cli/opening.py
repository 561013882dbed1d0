"""Opens the argument of a command, and shows progress on stderr: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from snapshots.errors import printable
from statebackend.cli.terminal import moved_directories, services_of
from statebackend.savepoint.progress_display import shown_progress
from statebackend.savepoint.savepoint import Savepoint
from statebackend.state.progress import ProgressListener

__all__ = ["open_savepoint", "open_with_progress", "show_progress"]


def open_savepoint(
    path: str, checkpoint: int | None = None, zookeeper: str | None = None, moved: Sequence[str] | None = None
) -> Savepoint:
    """Open the path, for a command that reads little."""
    services = services_of(zookeeper)
    return Savepoint.open(path, checkpoint, high_availability=services, moved=moved_directories(moved))


@contextmanager
def open_with_progress(
    path: str, checkpoint: int | None = None, zookeeper: str | None = None, moved: Sequence[str] | None = None
) -> Iterator[Savepoint]:
    """Open the path, for a command that reads all of it within the context."""
    with show_progress() as progress:
        services = services_of(zookeeper)
        directories = moved_directories(moved)
        yield Savepoint.open(path, checkpoint, high_availability=services, moved=directories, progress=progress)


@contextmanager
def show_progress() -> Iterator[ProgressListener]:
    """Show the progress reported within the context."""
    display = shown_progress(write_line=lambda line: print(printable(line), file=sys.stderr))
    try:
        yield display
    finally:
        display.close()
