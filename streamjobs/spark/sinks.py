"""Sinks for Spark: Parquet by epochs, nothing, a user's function, and memory for tests.

A `ParquetSink` on a disk is `streamjobs.spark.local_epoch_files`, one on an object store
`streamjobs.spark.object_epoch_files`; they say where the files of an epoch lie, and how it becomes visible.

Invariants: an epoch that is visible is never touched again. An epoch that is visible although this job has not
completed it was written by another job, or by this one before it went back to an older savepoint: it is refused,
neither kept in place of the new rows nor overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame

from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.store_uri import is_uri, scheme_of, without_secrets
from streamjobs.api.sink import SinkError
from streamjobs.spark.epoch_names import EPOCH_COLUMN
from streamjobs.spark.local_epoch_files import LocalEpochFiles
from streamjobs.spark.object_epoch_files import ObjectEpochFiles

__all__ = ["ForEachEpochSink", "MemorySink", "NoopSink", "ParquetSink"]


class _EpochFiles(Protocol):
    """Where a `ParquetSink` has its epochs; the methods are those of a sink that takes back."""

    @property
    def place(self) -> str: ...
    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes: ...
    def commit(self, epoch_id: int, committable: bytes) -> None: ...
    def abort(self, epoch_id: int, attempt_id: str) -> None: ...
    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None: ...
    def take_back(self, last_epoch_id: int, job_id: str) -> list[str]: ...


class ParquetSink:
    """Writes each epoch to its own directory of Parquet files below `path`, once.

    `spark.read.parquet(path)` reads all committed epochs and adds the partition column `epoch`. The path, which may
    begin with ``~``, is on a disk that the driver and all workers share, where an epoch becomes visible at once, or in
    an S3-compatible store (``s3://bucket/path``), where its files appear one by one and `_committable` last: who reads
    while a job writes leaves out epochs without it. Other stores are refused (`ValueError`); write to them, or to a
    table format, with `ForEachEpochSink`.
    """

    reads_once: ClassVar = True

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        """`options` are those of Spark's Parquet writer, for instance `{"compression": "zstd"}`, on S3 only that one.

        Raises `ValueError` for a store or an option that cannot be used, `StorageError` for a URI that is none.
        """
        self._files = _epoch_files(os.fspath(path), options or {})

    def __repr__(self) -> str:
        return f"ParquetSink({self._files.place!r})"

    @property
    def identity(self) -> str:
        """The directory that it writes to."""
        return repr(self)

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Writes the epoch to the attempt's own directory. Refuses an epoch that is visible already: `SinkError`."""
        if EPOCH_COLUMN in map(str.lower, frame.columns):
            raise SinkError(f"{self} adds a column {EPOCH_COLUMN!r}, which the rows have already; rename theirs")
        return self._files.stage(frame, epoch_id, attempt_id)

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Brings the staged epoch to its place; does nothing if it is there. `SinkError` if rows would be lost."""
        self._files.commit(epoch_id, committable)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Removes what the attempt has staged."""
        self._files.abort(epoch_id, attempt_id)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Removes what the job has staged for later epochs, and what is left of its attempts at visible ones."""
        self._files.recover(last_completed_epoch_id, job_id)

    def take_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Sets aside the visible epochs after that one. `SinkError` if one of them is not the job's."""
        return self._files.take_back(last_epoch_id, job_id)


def _epoch_files(path: str, options: Mapping[str, str]) -> _EpochFiles:
    if scheme_of(path) == "s3":
        return ObjectEpochFiles(CheckpointFileSystem.from_uri(path), options)
    if is_uri(path) or path.startswith("file:/"):
        parsed = urlparse(path)
        if parsed.scheme != "file" or parsed.netloc not in ("", "localhost"):
            raise ValueError(
                f"ParquetSink writes to a local or mounted directory or to s3://, not to {without_secrets(path)!r}: "
                f"committing an epoch needs a rename that is atomic, or puts that are. Use ForEachEpochSink with a "
                f"writer that is idempotent per epoch"
            )
        return LocalEpochFiles(unquote(parsed.path), options)
    return LocalEpochFiles(os.path.expanduser(path), options)


class NoopSink:
    """Computes every row and keeps none, by Spark's `noop` format: for benchmarks, and for jobs run for their state."""

    reads_once: ClassVar = True

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Runs the epoch."""
        frame.write.format("noop").mode("overwrite").save()
        return b""

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Nothing."""

    def take_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Nothing."""
        return []

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Nothing."""

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Nothing."""


class ForEachEpochSink:
    """Hands each epoch to a function `function(frame, epoch_id)`, as `foreachBatch` does.

    The rows are computed and kept, in memory and on the executors' disks, before the function is called. So it may run
    as many actions as it likes over all of the frame or a part of it, and the operators still run once. Its effect must
    be idempotent per epoch id: it runs before the checkpoint completes, so after a crash it is called again with the
    same id and the same rows.
    """

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        self._function = function

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Calls the function."""
        self._function(frame, epoch_id)
        return b""

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Nothing: the function has had its effect."""

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Nothing: the replay repeats the effect."""

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Nothing."""


class MemorySink:
    """Collects rows on the driver, for tests and notebooks; gone with the process, and so not for real output."""

    reads_once: ClassVar = True

    def __init__(self) -> None:
        self._staged: dict[tuple[int, str], list[Any]] = {}
        self._committed: dict[int, list[Any]] = {}

    @property
    def rows(self) -> list[Any]:
        """The rows of all committed epochs, in the order of epochs."""
        return [row for _, rows in sorted(self._committed.items()) for row in rows]

    @property
    def rows_by_epoch(self) -> dict[int, list[Any]]:
        """Committed epoch -> its rows."""
        return {epoch_id: list(rows) for epoch_id, rows in sorted(self._committed.items())}

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Collects the epoch."""
        self._staged[epoch_id, attempt_id] = frame.collect()
        return attempt_id.encode()

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Shows the epoch, once. An epoch staged by another process is not there any more; nothing is done."""
        rows = self._staged.pop((epoch_id, committable.decode()), None)
        if rows is not None:
            self._committed.setdefault(epoch_id, rows)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Forgets the attempt."""
        self._staged.pop((epoch_id, attempt_id), None)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Forgets attempts at later epochs."""
        for epoch_id, attempt_id in list(self._staged):
            if last_completed_epoch_id is None or epoch_id > last_completed_epoch_id:
                del self._staged[epoch_id, attempt_id]

    def take_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Forgets later epochs."""
        for epoch_id in [epoch_id for epoch_id in self._committed if epoch_id > last_epoch_id]:
            del self._committed[epoch_id]
        return []
