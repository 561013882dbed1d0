"""Opens the argument of a command, and shows progress on stderr: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from snapshots.errors import printable
from statebackend.checkpoint.errors import SavepointError
from statebackend.cli.terminal import moved_directories, services_of
from statebackend.savepoint.progress_display import shown_progress
from statebackend.savepoint.savepoint import Savepoint
from statebackend.state.progress import ProgressListener

if TYPE_CHECKING:
    from statebackend.spark.foreign_state import SparkCheckpoint


def open_savepoint(
    path: str, checkpoint: int | None = None, zookeeper: str | None = None, moved: Sequence[str] | None = None
) -> Savepoint:
    """Open the path, for a command that reads little."""
    services = services_of(zookeeper)
    return Savepoint.open(path, checkpoint, high_availability=services, moved=moved_directories(moved))


def spark_checkpoint(path: str) -> SparkCheckpoint:
    """Open the checkpoint of a query of Spark. Only then is pyspark imported."""
    try:
        from statebackend.spark.foreign_state import open_spark_checkpoint
    except ModuleNotFoundError as error:
        raise SavepointError(
            f"{path} is a checkpoint of Spark, which Spark itself reads, and {error.name} is not installed: "
            f"pip install pyspark"
        ) from error
    return open_spark_checkpoint(path)


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
