"""Sinks for Spark: Parquet by epochs, nothing, a user's function, and memory for tests.

Layout of a `ParquetSink`:

    <path>/epoch=000000000007/part-*.parquet     a committed epoch, as Spark wrote it
    <path>/epoch=000000000007/_committable       which attempt this was: what `commit` was given
    <path>/_set_aside/epoch=000000000007-1/      an epoch that was visible before the job went back to an older one
    <path>/_staging/000000000007-<job>.<run>/    an epoch on its way; Spark skips names with a leading underscore

Staging and committed epochs lie on one disk, and commit is one rename, so readers see an epoch whole or not at all.
An epoch without rows is a directory with a Parquet file of no rows, which keeps the schema.

Invariants: an epoch that is visible is never touched again. An epoch that is visible although this job has not
completed it was written by another job, or by this one before it went back to an older savepoint: it is refused,
neither kept in place of the new rows nor overwritten.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame

from checkpointing.storage.local_storage import sync_directory
from streamjobs.api.sink import SinkError
from streamjobs.user_errors import shown

__all__ = ["ForEachEpochSink", "MemorySink", "NoopSink", "ParquetSink"]

EPOCH_COLUMN: Final = "epoch"

_STAGING: Final = "_staging"
_SET_ASIDE: Final = "_set_aside"
_COMMITTABLE: Final = "_committable"
_ATTEMPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STAGED = re.compile(rf"(\d{{12,19}})-({_ATTEMPT.pattern})")


class ParquetSink:
    """Writes each epoch to its own directory of Parquet files below a local `path`, once.

    `spark.read.parquet(path)` reads all committed epochs and adds the partition column `epoch`. The path must be
    on a disk that the driver and all workers share. Stores without an atomic rename are refused (`ValueError`); write
    to them, or to a table format, with `ForEachEpochSink`.
    """

    reads_once: ClassVar = True

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        """`options` are those of Spark's Parquet writer, for instance `{"compression": "zstd"}`."""
        self._root = _local_path(os.fspath(path))
        self._options = dict(options or {})

    def __repr__(self) -> str:
        return f"ParquetSink({str(self._root)!r})"

    @property
    def identity(self) -> str:
        """The directory that it writes to."""
        return repr(self)

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Writes the epoch to the attempt's own directory. Refuses an epoch that is visible already: `SinkError`."""
        if EPOCH_COLUMN in map(str.lower, frame.columns):
            raise SinkError(f"{self} adds a column {EPOCH_COLUMN!r}, which the rows have already; rename theirs")
        target = self._committed(epoch_id)
        if target.exists():
            raise SinkError(
                f"{target} exists, but this job has not completed epoch {epoch_id}: another job wrote it, or this one "
                f"before it went back to an older state. Write to another path, or remove the epochs from {epoch_id} on"
            )
        staging = self._staging(epoch_id, attempt_id)
        # Not Path.as_uri(): Hadoop takes its percent signs literally.
        frame.write.mode("overwrite").options(**self._options).parquet(f"file://{staging}")
        committable = json.dumps({"version": 1, "epoch": epoch_id, "attempt": attempt_id}).encode()
        (staging / _COMMITTABLE).write_bytes(committable)
        _sync_tree(staging)
        # Until its own name is on the disk too, a power loss could take the rows of a completed epoch.
        for directory in (staging.parent, self._root, self._root.parent):
            sync_directory(str(directory))
        return committable

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Renames the staged epoch to its place; does nothing if it is there. `SinkError` if rows would be lost."""
        staging = self._staging(epoch_id, _attempt_of(committable, epoch_id))
        target = self._committed(epoch_id)
        if target.exists():
            marker = target / _COMMITTABLE
            if not marker.is_file() or marker.read_bytes() != committable:
                raise SinkError(
                    f"{target} was not written by the attempt that completed epoch {epoch_id}. The rows of that "
                    f"attempt are in {staging}, if it exists; put them in place of the others, or use another path"
                )
            return
        if not staging.is_dir():
            raise SinkError(
                f"the rows of epoch {epoch_id} are gone: neither {staging} nor {target} exists, though the epoch's "
                f"checkpoint is complete. Bring the directory back, or go back to an earlier savepoint"
            )
        os.rename(staging, target)
        sync_directory(str(self._root))

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Removes what the attempt has staged."""
        shutil.rmtree(self._staging(epoch_id, attempt_id), ignore_errors=True)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Removes what the job has staged for later epochs, and what is left of its attempts at visible ones."""
        staging = self._root / _STAGING
        for entry in sorted(staging.iterdir()) if staging.is_dir() else ():
            matched = _STAGED.fullmatch(entry.name)
            if matched is None or not matched[2].startswith(f"{job_id}."):
                continue
            epoch_id = int(matched[1])
            is_later = last_completed_epoch_id is None or epoch_id > last_completed_epoch_id
            if is_later or self._committed(epoch_id).exists():
                shutil.rmtree(entry, ignore_errors=True)

    def take_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Sets aside the visible epochs after that one. `SinkError` if one of them is not the job's."""
        prefix = f"{EPOCH_COLUMN}="
        found = {
            int(entry.name.removeprefix(prefix)): entry
            for entry in self._root.glob(f"{prefix}*")
            if entry.name.removeprefix(prefix).isdecimal()
        }
        later = [epoch_id for epoch_id in sorted(found, reverse=True) if epoch_id > last_epoch_id]
        for epoch_id in later:
            if not _attempt_at(found[epoch_id], epoch_id).startswith(f"{job_id}."):
                raise SinkError(
                    f"{found[epoch_id]} is later than epoch {last_epoch_id}, and this job did not write it, or a "
                    f"release did that left no sign of it. Move it away, or write to another path"
                )
        aside = self._root / _SET_ASIDE
        for epoch_id in later:
            aside.mkdir(exist_ok=True)
            taken = {entry.name for entry in aside.iterdir()}
            names = (f"{found[epoch_id].name}-{number}" for number in range(1, len(taken) + 2))
            os.rename(found[epoch_id], aside / next(name for name in names if name not in taken))
            sync_directory(str(aside))
            sync_directory(str(self._root))
        return [str(aside)] if later else []

    def _committed(self, epoch_id: int) -> Path:
        return self._root / f"{EPOCH_COLUMN}={epoch_id:012d}"

    def _staging(self, epoch_id: int, attempt_id: str) -> Path:
        if not _ATTEMPT.fullmatch(attempt_id):
            raise SinkError(f"{attempt_id!r} cannot be part of a directory's name")
        return self._root / _STAGING / f"{epoch_id:012d}-{attempt_id}"


def _local_path(path: str) -> Path:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        parsed = urlparse(path)
        if parsed.scheme != "file" or parsed.netloc not in ("", "localhost"):
            raise ValueError(
                f"ParquetSink writes to a local or mounted directory, not to {path!r}: committing an epoch needs a "
                f"rename that is atomic. Use ForEachEpochSink with a writer that is idempotent per epoch"
            )
        path = unquote(parsed.path)
    return Path(os.path.abspath(path))


def _attempt_at(directory: Path, epoch_id: int) -> str:
    """The attempt that wrote a visible epoch; empty if it does not say."""
    try:
        return _attempt_of((directory / _COMMITTABLE).read_bytes(), epoch_id)
    except (OSError, SinkError):
        return ""


def _attempt_of(committable: bytes, epoch_id: int) -> str:
    try:
        value = json.loads(committable)
        version, epoch, attempt = value["version"], value["epoch"], value["attempt"]
    except (ValueError, KeyError, TypeError) as error:
        raise SinkError(f"epoch {epoch_id}: {shown(committable, 100)} is not a committable of a ParquetSink") from error
    if version != 1 or epoch != epoch_id or not isinstance(attempt, str):
        raise SinkError(f"epoch {epoch_id}: {shown(committable, 100)} is a committable of another epoch or version")
    return attempt


def _sync_tree(directory: Path) -> None:
    """Brings a directory's files to the disk, as Spark does not: a completed epoch must survive a power loss."""
    for parent, _, names in os.walk(directory):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(parent)


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
