"""Opening what a command is asked about, and showing how far the reading of it is: on the error output, as a bar on a
terminal and as lines elsewhere, which come only if it takes long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from snapshots.errors import printable
from statebackend.cli.terminal import services_of
from statebackend.savepoint.progress_display import shown_progress
from statebackend.savepoint.savepoint import Savepoint
from statebackend.state.progress import ProgressListener

__all__ = ["opened", "opened_with_progress", "told_progress"]


def opened(path: str, checkpoint: int | None = None, zookeeper: str | None = None) -> Savepoint:
    """What is at the path, for who reads little of it."""
    return Savepoint.open(path, checkpoint, high_availability=services_of(zookeeper))


@contextmanager
def opened_with_progress(path: str, checkpoint: int | None = None, zookeeper: str | None = None) -> Iterator[Savepoint]:
    """What is at the path, for who reads all of it in this context."""
    with told_progress() as progress:
        yield Savepoint.open(path, checkpoint, high_availability=services_of(zookeeper), progress=progress)


@contextmanager
def told_progress() -> Iterator[ProgressListener]:
    """Shows what is told in this context, however it ends."""
    display = shown_progress(write_line=lambda line: print(printable(line), file=sys.stderr))
    try:
        yield display
    finally:
        display.close()
