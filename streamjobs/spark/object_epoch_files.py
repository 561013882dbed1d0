"""The epochs of a `ParquetSink` on an S3-compatible store: files are copied to their place, and a mark ends them.

    <path>/epoch=000000000007/part-<32 hex>.parquet           a file of a committed epoch
    <path>/epoch=000000000007/_committable                    the epoch is whole: what `commit` was given
    <path>/_set_aside/epoch=000000000007-<job>.<run>/         an epoch that was visible before the job went back
    <path>/_staging/000000000007-<job>.<run>/                 an epoch on its way

A store of objects has no rename, and its listings may lag. So the committable, which is in the checkpoint, names every
file of the epoch with size and checksum, and commit works by these names alone:

1. It copies each file from its staging to its place (the store itself does, no byte comes here), puts `_committable`,
   and then deletes what was staged.
2. A crash in between leaves a part of that; `commit` comes again with the same committable and does the rest. Two who
   commit one epoch do the same, for only one attempt at an epoch is ever in a checkpoint.
3. `_committable` there means that all is there, and says which attempt it was. Who must know asks for it by its key.

Readers that list see files of an epoch before its mark is there. Whoever wants whole epochs while a job runs reads
those that have `_committable`.

The tasks write with pyarrow and not with Spark, whose JVM knows no `s3://` of its own: each task a local file, which it
uploads when it is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.parquet
from attrs import frozen
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from checkpointing.errors import CheckpointError, InvariantViolationError, MissingFileError
from checkpointing.handles.state_handles import FileHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.keyed.private_directory import temporary_directory
from streamjobs.api.sink import SinkError
from streamjobs.spark.arrow_rows import to_arrow_schema
from streamjobs.spark.epoch_names import (
    COMMITTABLE,
    EPOCH_COLUMN,
    SET_ASIDE,
    STAGED,
    STAGING,
    check_attempt,
    committable_fields,
    epoch_name,
    visible_already,
)
from streamjobs.spark.plans.map_in_arrow import map_in_arrow

__all__ = ["ObjectEpochFiles"]

_VERSION: Final = 2
_COMPRESSIONS: Final = ("snappy", "gzip", "zstd", "lz4", "brotli", "none", "uncompressed")
_MOST_MISSING: Final = 16
"""How many epochs behind one another may have no id of their own before it is believed that none follows."""

_WRITTEN = StructType(
    [StructField("name", StringType()), StructField("size_bytes", LongType()), StructField("checksum", StringType())]
)


class ObjectEpochFiles:
    """Those below the root of a file system whose puts are atomic."""

    def __init__(self, file_system: CheckpointFileSystem, options: Mapping[str, str]) -> None:
        compression = {name.lower(): value for name, value in options.items()}
        chosen = compression.pop("compression", "snappy").lower()
        if compression or chosen not in _COMPRESSIONS:
            raise ValueError(
                f"ParquetSink on {file_system.location('')} has the one option compression, which is one of "
                f"{', '.join(_COMPRESSIONS)}; not {dict(options)!r}"
            )
        self._fs = file_system
        self._compression = "none" if chosen == "uncompressed" else chosen

    @property
    def place(self) -> str:
        """The place in the store."""
        return self._fs.location("")

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Has the tasks write their rows to the attempt's own directory."""
        target = epoch_name(epoch_id)
        # What is not listed yet is met by the commit.
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
        """Copies the staged files to their place and marks the epoch; does nothing if it is marked so."""
        attempt, files = _contents(committable, epoch_id)
        target, staging = epoch_name(epoch_id), _staging(epoch_id, attempt)
        mark = f"{target}/{COMMITTABLE}"
        with _as_sink_error(f"epoch {epoch_id}"):
            if self._fs.exists(mark):
                if self._fs.read_file(mark) != committable:
                    raise SinkError(
                        f"{self._fs.location(target)} was not written by the attempt that completed epoch {epoch_id}. "
                        f"The rows of that attempt are in {self._fs.location(staging)}, if it exists; put them in "
                        f"place of the others, or use another path"
                    )
            else:
                self._check_no_strangers(target, files, epoch_id)
                for file in files:
                    self._bring(file, staging, target, epoch_id)
                self._fs.write_file(mark, committable)
            self._delete(staging, files)
            # What such a store keeps in the place of a directory.
            self._fs.delete_directory(staging)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Removes what is listed of what the attempt has staged; the rest goes when the job is started again."""
        self._fs.delete_directory(_staging(epoch_id, attempt_id))

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Removes what is listed of what the job has staged for later epochs, and for visible ones."""
        for name in self._fs.list_directories(STAGING):
            matched = STAGED.fullmatch(name)
            if matched is None or not matched[2].startswith(f"{job_id}."):
                continue
            epoch_id = int(matched[1])
            is_later = last_completed_epoch_id is None or epoch_id > last_completed_epoch_id
            if is_later or self._fs.exists(f"{epoch_name(epoch_id)}/{COMMITTABLE}"):
                self._fs.delete_directory(f"{STAGING}/{name}")

    def take_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Sets the visible epochs after that one aside: first copies, then the files, and the mark last."""
        with _as_sink_error(f"the epochs after {last_epoch_id}"):
            later = sorted(self._visible_after(last_epoch_id), reverse=True)
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
                    self._bring(file, target, aside, epoch_id)
                self._fs.write_file(f"{aside}/{COMMITTABLE}", self._fs.read_file(mark))
                self._delete(target, files)
                self._fs.delete(mark, durable=True)
        return [self._fs.location(SET_ASIDE)] if later else []

    def _visible_after(self, last_epoch_id: int) -> set[int]:
        """Those that are listed, and those that are not listed yet."""
        prefix = f"{EPOCH_COLUMN}="
        names = (name.removeprefix(prefix) for name in self._fs.list_directories() if name.startswith(prefix))
        # pyarrow leaves an empty object in the place of a directory whose files have gone.
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
        """The attempt and the files of a visible epoch; None for one that is not marked as whole."""
        with contextlib.suppress(MissingFileError):
            return _contents(self._fs.read_file(f"{epoch_name(epoch_id)}/{COMMITTABLE}"), epoch_id)
        return None

    def _check_own(
        self, epoch_id: int, contents: tuple[str, list[FileHandle]] | None, last_epoch_id: int, job_id: str
    ) -> None:
        """Raises `SinkError` unless the job has written the epoch, or the part of it that a crash has left."""
        target = epoch_name(epoch_id)
        if contents is None:
            # What is staged goes when the whole of it is visible and marked, so the files of a part are there too.
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
        """The files that are listed in a directory and are there."""
        return [path for path in self._fs.list_files(directory) if self._fs.exists(path)]

    def _check_no_strangers(self, target: str, files: list[FileHandle], epoch_id: int) -> None:
        known = {f"{target}/{file.path}" for file in files}
        strangers = [path for path in self._files_in(target) if path not in known]
        if strangers:
            raise SinkError(
                f"{self._fs.location(strangers[0])} is none of the files of epoch {epoch_id}, whose checkpoint is "
                f"complete: another job writes here. Move its files away and start the job again, or use another path"
            )

    def _bring(self, file: FileHandle, source: str, target: str, epoch_id: int) -> None:
        """Copies a file unless it is there."""
        try:
            self._fs.verify_present([_in(target, file)])
        except CheckpointError:
            try:
                self._fs.verify_present([_in(source, file)])
            except CheckpointError as error:
                raise SinkError(
                    f"rows of epoch {epoch_id} are gone: {self._fs.location(f'{source}/{file.path}')} is not there as "
                    f"it was written, though the epoch's checkpoint is complete. Bring it back, or go back to an "
                    f"earlier savepoint"
                ) from error
            self._fs.copy_file(f"{source}/{file.path}", f"{target}/{file.path}")

    def _delete(self, directory: str, files: list[FileHandle]) -> None:
        for file in files:
            self._fs.delete(f"{directory}/{file.path}")


@frozen
class _PartitionWriter:
    """Writes the rows of a partition as a file of an attempt; travels to the tasks."""

    file_system: CheckpointFileSystem
    directory: str
    compression: str

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the file that it wrote, nothing for a partition without rows."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        name, size_bytes, checksum = self.upload(_behind(first, batches), first.schema)
        yield pa.RecordBatch.from_pylist(
            [{"name": name, "size_bytes": size_bytes, "checksum": checksum}], to_arrow_schema(_WRITTEN, "UTC")
        )

    def upload(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> list[str | int]:
        """Writes a file of these rows; returns its name, size and checksum."""
        # No two attempts at a task give one name: of a repeated one, only what it returned counts.
        name = f"part-{uuid.uuid4().hex}.parquet"
        with temporary_directory() as directory:
            path = os.path.join(directory, name)
            with pyarrow.parquet.ParquetWriter(path, schema, compression=self.compression) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            handle = self.file_system.upload(path, f"{self.directory}/{name}", may_link=False)
        return [name, handle.size_bytes, handle.checksum]


def _behind(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _staging(epoch_id: int, attempt_id: str) -> str:
    check_attempt(attempt_id)
    return f"{STAGING}/{epoch_id:012d}-{attempt_id}"


def _in(directory: str, file: FileHandle) -> FileHandle:
    return FileHandle(f"{directory}/{file.path}", file.size_bytes, file.checksum)


def _contents(committable: bytes, epoch_id: int) -> tuple[str, list[FileHandle]]:
    """The attempt, and its files by name. Raises `SinkError` for what is no such committable."""
    fields = committable_fields(committable, epoch_id, _VERSION)
    try:
        files = [FileHandle(*file) for file in fields["files"]]
        check_attempt(fields["attempt"])
    except (InvariantViolationError, KeyError, TypeError) as error:
        raise SinkError(f"epoch {epoch_id}: its committable names files that cannot be ({error})") from error
    if any("/" in file.path or file.path.startswith("_") for file in files):
        raise SinkError(f"epoch {epoch_id}: its committable names files in other directories")
    return fields["attempt"], files


@contextlib.contextmanager
def _as_sink_error(what: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise SinkError(f"{what}: {error}") from error
