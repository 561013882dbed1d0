"""Parquet files by epoch.

A visible epoch of a `ParquetSink` never changes. A visible epoch that this job has not completed is rejected: another
job wrote it, or this job before it was rolled back.

On a disk, one rename commits an epoch, so readers see all of it or nothing:

    <path>/epoch=000000000007/part-*.parquet     a committed epoch, as Spark wrote it
    <path>/epoch=000000000007/_committable       the attempt, as passed to `commit`
    <path>/_set_aside/epoch=000000000007-1/      an epoch that a rollback has hidden
    <path>/_staging/000000000007-<job>.<run>/    a staged epoch; Spark skips names with a leading underscore

On an S3-compatible store there is no rename, and listings may be stale. The committable, which is in the checkpoint,
names every file of the epoch with its size and checksum. `commit` uses these names only:

1. It copies each file from staging to its place within the store, writes `_committable`, then deletes the staged files.
2. After a crash, `commit` is called with the same committable and does the rest. Two processes that commit one epoch do
   the same, because only one attempt at an epoch is ever in a checkpoint.
3. `_committable` marks a complete epoch and names its attempt. Readers of a running job skip epochs without it.

    <path>/epoch=000000000007/part-<32 hex>.parquet      a file of a committed epoch
    <path>/_set_aside/epoch=000000000007-<job>.<run>/    an epoch that a rollback has hidden

There the tasks write with pyarrow, because Spark's JVM has no `s3://`: each writes a local file and uploads it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet
from attrs import frozen
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from statebackend.checkpoint.errors import CheckpointError, InvariantViolationError, MissingFileError, StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.local_storage import sync_directory
from statebackend.checkpoint.fs.store_uri import is_uri, scheme_of, without_secrets
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.spark.columns import to_arrow_schema
from statebackend.spark.plans.map_in_arrow import map_in_arrow
from statebackend.state.private_directory import temporary_directory
from statebackend.streaming.errors import format_value
from statebackend.streaming.sink import SinkError

__all__ = ["LocalEpochFiles", "ObjectEpochFiles", "ParquetSink"]


EPOCH_COLUMN: Final = "epoch"

STAGING: Final = "_staging"
SET_ASIDE: Final = "_set_aside"
COMMITTABLE: Final = "_committable"

_ATTEMPT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
STAGED: Final = re.compile(rf"(\d{{12,19}})-({_ATTEMPT.pattern})")
"""The directory of an attempt: its epoch, and the attempt."""


def epoch_name(epoch_id: int) -> str:
    """The directory of a visible epoch."""
    return f"{EPOCH_COLUMN}={epoch_id:012d}"


def check_attempt(attempt_id: str) -> None:
    """Raise `SinkError` unless it can be part of a directory's name."""
    if not _ATTEMPT.fullmatch(attempt_id):
        raise SinkError(f"{attempt_id!r} cannot be part of a directory's name")


def visible_already(place: str, epoch_id: int) -> SinkError:
    """The error of an epoch that was visible before its checkpoint."""
    return SinkError(
        f"{place} exists, but this job has not completed epoch {epoch_id}: another job wrote it, or this job before it "
        f"was rolled back to an older state. Write to another path, or remove the epochs from {epoch_id} on"
    )


def attempt_of(committable: bytes, epoch_id: int) -> str:
    """Return the attempt that staged the epoch on a disk. Raises `SinkError` for any other committable."""
    fields = committable_fields(committable, epoch_id, 1)
    return str(fields["attempt"])


def committable_fields(committable: bytes, epoch_id: int, expected_version: int) -> dict[str, Any]:
    """Return the fields of a committable of this epoch and version; `attempt` is a str. Else raises `SinkError`."""
    try:
        value = json.loads(committable)
        version, epoch, attempt = value["version"], value["epoch"], value["attempt"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SinkError(
            f"epoch {epoch_id}: {format_value(committable, 100)} is not a committable of a ParquetSink"
        ) from error
    if version != expected_version or epoch != epoch_id or not isinstance(attempt, str):
        raise SinkError(
            f"epoch {epoch_id}: {format_value(committable, 100)} is a committable of another epoch or version"
        )
    return dict(value)


def _left_attempts(
    names: Iterable[str], job_id: str, last_completed_epoch_id: int | None, is_visible: Callable[[int], bool]
) -> Iterator[str]:
    """The staging directories of the job that no commit needs: of later epochs, and of visible ones."""
    for name in names:
        matched = STAGED.fullmatch(name)
        if matched is None or not matched[2].startswith(f"{job_id}."):
            continue
        epoch_id = int(matched[1])
        if last_completed_epoch_id is None or epoch_id > last_completed_epoch_id or is_visible(epoch_id):
            yield name


class LocalEpochFiles:
    """Epochs below a directory of a disk that the driver and all workers share."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self._root = Path(os.path.abspath(path))
        self._files = CheckpointFileSystem.from_uri(self._root)
        self._options = dict(options)

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._root)

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Write the epoch to the directory of the attempt. Raises `SinkError` for a visible epoch."""
        target = self._committed(epoch_id)
        if target.exists():
            raise visible_already(str(target), epoch_id)
        staging = self._staging(epoch_id, attempt_id)
        # Not Path.as_uri(): Hadoop takes its percent signs literally.
        frame.write.mode("overwrite").options(**self._options).parquet(f"file://{staging}")
        committable = json.dumps({"version": 1, "epoch": epoch_id, "attempt": attempt_id}).encode()
        (staging / COMMITTABLE).write_bytes(committable)
        _sync_tree(staging)
        # Until the directory's own name is durable, a power loss could remove the rows of a completed epoch.
        for directory in (staging.parent, self._root, self._root.parent):
            sync_directory(str(directory))
        return committable

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Rename the staged epoch to its place, unless it is there. Raises `SinkError` if rows would be lost."""
        staging = self._staging(epoch_id, attempt_of(committable, epoch_id))
        target = self._committed(epoch_id)
        if target.exists():
            marker = target / COMMITTABLE
            if not marker.is_file() or marker.read_bytes() != committable:
                raise SinkError(
                    f"{target} was not written by the attempt that completed epoch {epoch_id}. The rows of that "
                    f"attempt are in {staging}, if it exists. Replace the others with them, or use another path"
                )
            return
        if not staging.is_dir():
            raise SinkError(
                f"the rows of epoch {epoch_id} are gone: neither {staging} nor {target} exists, but the checkpoint of "
                f"the epoch is complete. Restore the directory from a backup, or start from an earlier savepoint"
            )
        self._files.move_directory(self._relative(staging), target.name)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Remove what the attempt has staged."""
        self._remove(self._staging(epoch_id, attempt_id))

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Remove what the job has staged for later epochs and for visible ones."""
        staged = self._files.list_directories(STAGING)
        for name in _left_attempts(staged, job_id, last_completed_epoch_id, lambda one: self._committed(one).exists()):
            self._remove(self._root / STAGING / name)

    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Set aside the visible epochs after that one. Raises `SinkError` if the job did not write one of them."""
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
                    f"{found[epoch_id]} is later than epoch {last_epoch_id}, and this job did not write it. Move it "
                    f"away, or write to another path"
                )
        aside = self._root / SET_ASIDE
        for epoch_id in later:
            taken = self._files.list_directories(SET_ASIDE)
            names = (f"{found[epoch_id].name}-{number}" for number in range(1, len(taken) + 2))
            new_name = next(name for name in names if name not in taken)
            self._files.move_directory(found[epoch_id].name, f"{SET_ASIDE}/{new_name}")
        return [str(aside)] if later else []

    def _committed(self, epoch_id: int) -> Path:
        return self._root / epoch_name(epoch_id)

    def _relative(self, directory: Path) -> str:
        return directory.relative_to(self._root).as_posix()

    def _remove(self, directory: Path) -> None:
        """Remove a directory below the root without following links; what cannot be removed stays."""
        with contextlib.suppress(StorageError):
            self._files.delete_directory(self._relative(directory))

    def _staging(self, epoch_id: int, attempt_id: str) -> Path:
        check_attempt(attempt_id)
        return self._root / STAGING / f"{epoch_id:012d}-{attempt_id}"


def _attempt_at(directory: Path, epoch_id: int) -> str:
    """The attempt that wrote a visible epoch; empty if unknown."""
    try:
        return attempt_of((directory / COMMITTABLE).read_bytes(), epoch_id)
    except (OSError, SinkError):
        return ""


def _sync_tree(directory: Path) -> None:
    """Sync a directory's files, which Spark does not: a completed epoch must survive a power loss."""
    for parent, _, names in os.walk(directory):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(parent)


_VERSION: Final = 2
_COMPRESSIONS: Final = ("snappy", "gzip", "zstd", "lz4", "brotli", "none", "uncompressed")
_MOST_MISSING: Final = 16
"""The number of missing ids in a row after which no further epoch is expected."""

_WRITTEN = StructType(
    [StructField("name", StringType()), StructField("size_bytes", LongType()), StructField("checksum", StringType())]
)


class ObjectEpochFiles:
    """Epochs below the root of a file system with atomic puts."""

    def __init__(self, file_system: CheckpointFileSystem, options: Mapping[str, str]) -> None:
        compression = {name.lower(): value for name, value in options.items()}
        chosen = compression.pop("compression", "snappy").lower()
        if compression or chosen not in _COMPRESSIONS:
            raise ValueError(
                f"ParquetSink on {file_system.location('')} has only the option compression, which is one of "
                f"{', '.join(_COMPRESSIONS)}; not {dict(options)!r}"
            )
        self._fs = file_system
        self._compression = "none" if chosen == "uncompressed" else chosen

    @property
    def place(self) -> str:
        """The place in the store."""
        return self._fs.location("")

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Let the tasks write their rows to the directory of the attempt. Raises `SinkError` for a visible epoch."""
        target = epoch_name(epoch_id)
        # The commit finds files that are not listed yet.
        if self._fs.exists(f"{target}/{COMMITTABLE}") or self._files_in(target):
            raise visible_already(self._fs.location(target), epoch_id)
        schema = to_arrow_schema(frame.schema)
        writer = _PartitionWriter(self._fs, _staging(epoch_id, attempt_id), self._compression)
        rows = map_in_arrow(frame, writer.write, _WRITTEN).collect()
        files = [[row.name, row.size_bytes, row.checksum] for row in rows]
        if not files:
            # A file without rows keeps the schema.
            files = [writer.upload(iter(()), schema)]
        committable = {"version": _VERSION, "epoch": epoch_id, "attempt": attempt_id, "files": sorted(files)}
        return json.dumps(committable).encode()

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Copy the staged files to their place and mark the epoch, unless it is marked."""
        attempt, files = _contents(committable, epoch_id)
        target, staging = epoch_name(epoch_id), _staging(epoch_id, attempt)
        mark = f"{target}/{COMMITTABLE}"
        with _as_sink_error(f"epoch {epoch_id}"):
            if self._fs.exists(mark):
                if self._fs.read_file(mark) != committable:
                    raise SinkError(
                        f"{self._fs.location(target)} was not written by the attempt that completed epoch {epoch_id}. "
                        f"The rows of that attempt are in {self._fs.location(staging)}, if it exists. Replace the "
                        f"others with them, or use another path"
                    )
            else:
                self._check_no_strangers(target, files, epoch_id)
                for file in files:
                    self._copy(file, staging, target, epoch_id)
                self._fs.write_file(mark, committable)
            self._delete(staging, files)
            # The store may have an object for the directory.
            self._fs.delete_directory(staging)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Remove the listed files of the attempt; the next start of the job removes the rest."""
        self._fs.delete_directory(_staging(epoch_id, attempt_id))

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Remove the listed files that the job has staged for later epochs and for visible ones."""

        def is_visible(epoch_id: int) -> bool:
            return self._fs.exists(f"{epoch_name(epoch_id)}/{COMMITTABLE}")

        staged = self._fs.list_directories(STAGING)
        for name in _left_attempts(staged, job_id, last_completed_epoch_id, is_visible):
            self._fs.delete_directory(f"{STAGING}/{name}")

    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Set aside the visible epochs after that one: copy the files, then delete them, and the mark last."""
        with _as_sink_error(f"the epochs after {last_epoch_id}"):
            later = sorted(self.visible_after(last_epoch_id), reverse=True)
            whole = {epoch_id: self._whole(epoch_id) for epoch_id in later}
            for epoch_id, contents in whole.items():
                self._check_own(epoch_id, contents, last_epoch_id, job_id)
            for epoch_id, contents in whole.items():
                target = epoch_name(epoch_id)
                mark = f"{target}/{COMMITTABLE}"
                if contents is None:
                    for path in self._files_in(target):
                        self._fs.delete(path)
                    continue
                attempt, files = contents
                aside = f"{SET_ASIDE}/{target}-{attempt}"
                for file in files:
                    self._copy(file, target, aside, epoch_id)
                self._fs.write_file(f"{aside}/{COMMITTABLE}", self._fs.read_file(mark))
                self._delete(target, files)
                self._fs.delete(mark, durable=True)
        return [self._fs.location(SET_ASIDE)] if later else []

    def visible_after(self, last_epoch_id: int) -> set[int]:
        """Return the visible epochs after that one, listed or not listed yet."""
        prefix = f"{EPOCH_COLUMN}="
        names = (name.removeprefix(prefix) for name in self._fs.list_directories() if name.startswith(prefix))
        # pyarrow leaves an empty object for a directory without files.
        listed = {int(name) for name in names if name.isdecimal() and self._files_in(f"{prefix}{name}")}
        found = {epoch_id for epoch_id in listed if epoch_id > last_epoch_id}
        epoch_id, missing = last_epoch_id, 0
        while missing < _MOST_MISSING:
            epoch_id += 1
            is_there = self._fs.exists(f"{epoch_name(epoch_id)}/{COMMITTABLE}")
            found.update([epoch_id] if is_there else ())
            missing = 0 if is_there else missing + 1
        return found

    def _whole(self, epoch_id: int) -> tuple[str, list[FileHandle]] | None:
        """The attempt and the files of a visible epoch; None for one without the mark."""
        with contextlib.suppress(MissingFileError):
            return _contents(self._fs.read_file(f"{epoch_name(epoch_id)}/{COMMITTABLE}"), epoch_id)
        return None

    def _check_own(
        self, epoch_id: int, contents: tuple[str, list[FileHandle]] | None, last_epoch_id: int, job_id: str
    ) -> None:
        """Raise `SinkError` unless the job has written the epoch, or the part of it that a crash has left."""
        target = epoch_name(epoch_id)
        if contents is None:
            # Staged files are deleted after the mark is written, so the files of a part are still staged.
            names = {path.rpartition("/")[2] for path in self._files_in(target)}
            stagings = [_staging(epoch_id, attempt) for attempt in self._attempts_of(job_id, epoch_id)]
            is_own = any(all(self._fs.exists(f"{staging}/{name}") for name in names) for staging in stagings)
        else:
            is_own = contents[0].startswith(f"{job_id}.")
        if not is_own:
            raise SinkError(
                f"{self._fs.location(target)} is later than epoch {last_epoch_id}, and this job did not write it. Move "
                f"it away, or write to another path"
            )

    def _attempts_of(self, job_id: str, epoch_id: int) -> list[str]:
        found = map(STAGED.fullmatch, self._fs.list_directories(STAGING))
        ours = [match[2] for match in found if match is not None and int(match[1]) == epoch_id]
        return [attempt for attempt in ours if attempt.startswith(f"{job_id}.")]

    def _files_in(self, directory: str) -> list[str]:
        """The files that are listed in a directory and exist."""
        return [path for path in self._fs.list_files(directory) if self._fs.exists(path)]

    def _check_no_strangers(self, target: str, files: list[FileHandle], epoch_id: int) -> None:
        known = {f"{target}/{file.path}" for file in files}
        strangers = [path for path in self._files_in(target) if path not in known]
        if strangers:
            raise SinkError(
                f"{self._fs.location(strangers[0])} is none of the files of epoch {epoch_id}, whose checkpoint is "
                f"complete: another job writes here. Move its files away and start the job again, or use another path"
            )

    def _copy(self, file: FileHandle, source: str, target: str, epoch_id: int) -> None:
        """Copy a file unless it exists."""
        try:
            self._fs.verify_present([_in(target, file)])
        except CheckpointError:
            try:
                self._fs.verify_present([_in(source, file)])
            except CheckpointError as error:
                raise SinkError(
                    f"rows of epoch {epoch_id} are gone: {self._fs.location(f'{source}/{file.path}')} is missing or "
                    f"damaged, but the checkpoint of the epoch is complete. Restore the file from a backup, or start "
                    f"from an earlier savepoint"
                ) from error
            self._fs.copy_file(f"{source}/{file.path}", f"{target}/{file.path}")

    def _delete(self, directory: str, files: list[FileHandle]) -> None:
        for file in files:
            self._fs.delete(f"{directory}/{file.path}")


@frozen
class _PartitionWriter:
    """Writes the rows of a partition as a file of an attempt; sent to the tasks."""

    file_system: CheckpointFileSystem
    directory: str
    compression: str

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the file that it wrote; nothing for a partition without rows."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        name, size_bytes, checksum = self.upload(itertools.chain([first], batches), first.schema)
        yield pa.RecordBatch.from_pylist(
            [{"name": name, "size_bytes": size_bytes, "checksum": checksum}], to_arrow_schema(_WRITTEN, "UTC")
        )

    def upload(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> list[str | int]:
        """Write a file of these rows; return its name, size and checksum."""
        # Attempts at a task write different names; only the file that the successful one returned counts.
        name = f"part-{uuid.uuid4().hex}.parquet"
        with temporary_directory() as directory:
            path = os.path.join(directory, name)
            with pyarrow.parquet.ParquetWriter(path, schema, compression=self.compression) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            handle = self.file_system.upload(path, f"{self.directory}/{name}", may_link=False)
        return [name, handle.size_bytes, handle.checksum]


def _staging(epoch_id: int, attempt_id: str) -> str:
    check_attempt(attempt_id)
    return f"{STAGING}/{epoch_id:012d}-{attempt_id}"


def _in(directory: str, file: FileHandle) -> FileHandle:
    return FileHandle(f"{directory}/{file.path}", file.size_bytes, file.checksum)


def _contents(committable: bytes, epoch_id: int) -> tuple[str, list[FileHandle]]:
    """Return the attempt and its files. Raises `SinkError` for any other committable."""
    fields = committable_fields(committable, epoch_id, _VERSION)
    try:
        files = [FileHandle(*file) for file in fields["files"]]
        check_attempt(fields["attempt"])
    except (InvariantViolationError, KeyError, TypeError) as error:
        raise SinkError(f"epoch {epoch_id}: its committable has invalid files ({error})") from error
    if any("/" in file.path or file.path.startswith("_") for file in files):
        raise SinkError(f"epoch {epoch_id}: its committable has files in other directories")
    return fields["attempt"], files


@contextlib.contextmanager
def _as_sink_error(what: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise SinkError(f"{what}: {error}") from error


class _EpochFiles(Protocol):
    """The storage of a `ParquetSink`, with the methods of a rollback sink."""

    @property
    def place(self) -> str: ...
    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes: ...
    def commit(self, epoch_id: int, committable: bytes) -> None: ...
    def abort(self, epoch_id: int, attempt_id: str) -> None: ...
    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None: ...
    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]: ...


class ParquetSink:
    """Writes each epoch once to its own directory of Parquet files below `path`.

    `spark.read.parquet(path)` reads all committed epochs and adds the partition column `epoch`. The path may start with
    ``~``. It is on a disk that the driver and all workers share, where an epoch becomes visible at once, or in an
    S3-compatible store (``s3://bucket/path``). There the files appear one by one and `_committable` last, so readers of
    a running job must skip epochs without it. Use `ForEachEpochSink` for other stores and for table formats.
    """

    reads_once: ClassVar = True

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        """Create the sink.

        Args:
            path: The directory of all epochs.
            options: Options of Spark's Parquet writer, such as `{"compression": "zstd"}`; on S3 only this one.

        Raises:
            ValueError: The store or an option is not supported.
            StorageError: The URI is invalid.
        """
        self._files = _epoch_files(os.fspath(path), options or {})

    def __repr__(self) -> str:
        return f"ParquetSink({self._files.place!r})"

    @property
    def identity(self) -> str:
        """The directory that it writes to."""
        return repr(self)

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Write the epoch to the directory of the attempt. Raises `SinkError` for a visible epoch."""
        if EPOCH_COLUMN in map(str.lower, frame.columns):
            raise SinkError(f"{self} adds a column {EPOCH_COLUMN!r}, which the rows have already; rename theirs")
        return self._files.stage(frame, epoch_id, attempt_id)

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Move the staged epoch to its place, unless it is there. Raises `SinkError` if rows would be lost."""
        self._files.commit(epoch_id, committable)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Remove what the attempt has staged."""
        self._files.abort(epoch_id, attempt_id)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Remove what the job has staged for later epochs and for visible ones."""
        self._files.recover(last_completed_epoch_id, job_id)

    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Set aside the visible epochs after that one. Raises `SinkError` if the job did not write one of them."""
        return self._files.roll_back(last_epoch_id, job_id)


def _epoch_files(path: str, options: Mapping[str, str]) -> _EpochFiles:
    if scheme_of(path) == "s3":
        return ObjectEpochFiles(CheckpointFileSystem.from_uri(path), options)
    if is_uri(path) or path.startswith("file:/"):
        parsed = urlparse(path)
        if parsed.scheme != "file" or parsed.netloc not in ("", "localhost"):
            raise ValueError(
                f"ParquetSink writes to a local or mounted directory or to s3://, not to {without_secrets(path)!r}: "
                f"committing an epoch needs atomic renames or atomic puts. Use ForEachEpochSink with a writer that is "
                f"idempotent per epoch"
            )
        return LocalEpochFiles(unquote(parsed.path), options)
    return LocalEpochFiles(os.path.expanduser(path), options)
