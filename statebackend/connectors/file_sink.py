"""File sinks: each epoch is committed once to a directory of its own, as Parquet, CSV or JSON files."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import functools
import io
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from snapshots.errors import format_value
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import is_uri, scheme_of, without_secrets
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.connectors.epoch_files import EPOCH_COLUMN, EpochFiles, EpochMark, staging_of
from statebackend.connectors.sink_errors import check_names, checked_columns, reported
from statebackend.connectors.staged_parquet import partition_text, split_by_columns
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

_COMPRESSIONS: Final = ("snappy", "gzip", "zstd", "lz4", "brotli", "none", "uncompressed")
_MOST_OPEN: Final = 64
"""The maximum number of partitions that are written at the same time."""

_TARGET_FILE_BYTES: Final = 512 << 20
_MOST_NAME_BYTES: Final = 255
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile("[\x00-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")
_CSV_NULL: Final = b"\\N"
_TEXT_TYPES: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


class FileSink(Sink):
    """Writes each epoch once to its own directory ``epoch=<id>`` below ``path``.

    Each subtask with rows writes one file. On a disk, all files of an epoch become visible at once. In an S3-compatible
    store they appear one by one and ``_committable`` last, so readers of a running job must skip epochs without it. A
    rollback moves later epochs to ``_set_aside``.

    Args:
        path: A directory that the driver and all workers share, or ``s3://bucket/path``. It may start with ``~``.
        file_format: ``"parquet"``, ``"csv"`` with a header, or ``"json"`` with one object a line. In JSON, maps
            with text as keys are objects, and other maps are lists of pairs. In CSV, null is empty, and an empty text
            is ``""``. If a CSV file has one column, null is ``\\N``, because readers skip empty lines.
        compression: The codec of Parquet files.
        partition_by: The partition columns. The files of an epoch are below ``<column>=<value>``, as Spark writes them:
            their values are not in the files, and null and an empty text are ``__HIVE_DEFAULT_PARTITION__``.

    Raises:
        ValueError: The format, the codec or the kind of store is not supported.
        StorageError: The URI is invalid.
    """

    _name = "FileSink"

    def __init__(
        self,
        path: str | os.PathLike[str],
        file_format: Literal["parquet", "csv", "json"] = "parquet",
        *,
        compression: str = "snappy",
        partition_by: Sequence[str] = (),
    ) -> None:
        if file_format not in _WRITERS:
            raise ValueError(f"file_format is {file_format!r}; it is one of {', '.join(_WRITERS)}")
        self._format = file_format
        self._fs = CheckpointFileSystem.from_uri(_place(os.fspath(path), self._name))
        if compression.lower() not in _COMPRESSIONS:
            raise ValueError(f"{self}: compression is {compression!r}; it is one of {', '.join(_COMPRESSIONS)}")
        self._compression = compression.lower().replace("uncompressed", "none")
        self._partition_by = checked_columns(partition_by, self._name, "partition_by")
        self._files = EpochFiles(self._fs)

    def __repr__(self) -> str:
        return self.identity

    @property
    def identity(self) -> str:
        return f"{self._name}({self._fs.location('')!r})"

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        if EPOCH_COLUMN in map(str.lower, rows.schema.names):
            raise SinkError(f"{self} adds a column {EPOCH_COLUMN!r}, which the rows have already; rename theirs")
        check_names(self.identity, rows.schema)
        missing = [name for name in self._partition_by if name not in rows.schema.names]
        if missing:
            raise SinkError(f"{self}: the rows have no column {missing[0]!r} to partition by")
        if set(rows.schema.names) <= set(self._partition_by):
            raise SinkError(
                f"{self}: all columns are in partition_by, so the files would have no columns; leave one out"
            )
        with (
            reported(f"{self}: the rows of {epoch} cannot be written", "Check the path and its permissions"),
            contextlib.ExitStack() as stack,
        ):
            # Nobody removes the directory of an epoch without files, so create it with the first file.
            directory = functools.cache(lambda: stack.enter_context(self._files.writing(staging_of(epoch))))
            files = self._written(epoch, directory, rows)
        return EpochMark(epoch.epoch_id, epoch.attempt_id, files).encode() if files else b""

    def _written(self, epoch: SinkEpoch, directory: Callable[[], str], rows: pa.RecordBatchReader) -> list[FileHandle]:
        """Write a file per partition."""
        open_files: dict[str, tuple[str, str, Any]] = {}
        staged: list[FileHandle] = []
        schema = pa.schema([one for one in rows.schema if one.name not in self._partition_by])

        def opened(partition: str) -> Any:
            # Each attempt of a task writes other names. Only the files of the successful attempt are committed.
            name = f"part-{uuid.uuid4().hex}.{self._format}"
            local_path = os.path.join(directory(), f".tmp-{name}")
            writer = _WRITERS[self._format](local_path, schema, self._compression)
            open_files[partition] = local_path, f"{partition}{name}", writer
            return writer

        def close_oldest() -> None:
            local_path, path, writer = open_files.pop(next(iter(open_files)))
            writer.close()
            staged.append(self._files.add(local_path, staging_of(epoch), path))

        try:
            for batch in rows:
                for partition, part in self._split(batch):
                    if partition not in open_files and len(open_files) >= _MOST_OPEN:
                        close_oldest()
                    writer = open_files[partition][2] if partition in open_files else opened(partition)
                    writer.write_batch(part)
            if not staged and not open_files and self._format == "parquet" and not self._partition_by:
                # A Parquet file without rows keeps the schema.
                opened("")
            while open_files:
                close_oldest()
        finally:
            for _, _, writer in open_files.values():
                # An error is being raised already, such as that of a full disk.
                with contextlib.suppress(OSError):
                    writer.close()
        return staged

    def _split(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        """Split rows by the directory of their partition, which ends with a slash; empty without partitions."""
        if not batch.num_rows or not self._partition_by:
            return [("", batch)] if batch.num_rows else []
        rest = batch.select([name for name in batch.schema.names if name not in self._partition_by])
        return [
            ("".join(map(_partition_directory, self._partition_by, values)), part)
            for values, part in split_by_columns(rest, [batch.column(name) for name in self._partition_by])
        ]

    def compact(self, *, keep: int = 10, at_least: int = 10, target_file_bytes: int = _TARGET_FILE_BYTES) -> int:
        """Replace the files of committed epochs by few files per partition and schema.

        Call it in any process, while the job runs or not, but one call at a time. The rows get the number of the newest
        replaced epoch in the column ``epoch``. A compacted directory is replaced again if its files are small and the
        newer ones have at least half its bytes, so each row is rewritten a few times only. A rollback cannot return to
        a compacted epoch, so keep at least the epochs of the checkpoints that the job retains. A call that was killed
        is finished by the next one.

        Args:
            keep: The number of newest epochs to leave as they are.
            at_least: The number of epochs below which nothing is done.
            target_file_bytes: The size at which a file is full. Files are added to it whole, so it is larger only if
                one file of an epoch is.

        Returns:
            The number of replaced directories: epochs, and compacted ones.

        Raises:
            ValueError: ``target_file_bytes`` is not positive.
            SinkError: A file is missing or damaged, or a rollback or another compaction runs at the same time. The
                epochs are unchanged then.
        """
        if target_file_bytes < 1:
            raise ValueError(f"{self}: target_file_bytes is {target_file_bytes}; it must be positive")
        number, sources, compacted = self._files.compactable(max(keep, 1))
        if len(sources) < max(at_least, 2):
            return 0
        newest, size_bytes = sources[-1], sum(mark.size_bytes for mark in sources)
        for mark in reversed(compacted):
            is_small = 2 * mark.size_bytes < target_file_bytes * len(mark.files)
            if mark.epoch_id > newest.epoch_id or mark.size_bytes > 2 * size_bytes or not is_small:
                break
            sources.append(mark)
            size_bytes += mark.size_bytes
        sources.sort(key=lambda mark: mark.epoch_id)
        with self._files.staging_of_compaction(number) as staging:
            with (
                reported(f"{self}: the compacted files cannot be written", "Check the path and its permissions"),
                self._files.writing(staging) as directory,
            ):
                files = self._merged(staging, directory, sources, target_file_bytes)
            self._files.replace(number, staging, files, sources)
        return len(sources)

    def _merged(
        self, staging: str, directory: str, sources: Sequence[EpochMark], target_bytes: int
    ) -> list[FileHandle]:
        groups: dict[tuple[str, bytes], list[list[tuple[EpochMark, FileHandle]]]] = {}
        sizes: dict[tuple[str, bytes], int] = {}
        for mark in sources:
            for file in mark.files:
                with self._files.open_verified(mark, file) as source:
                    key = file.path.rpartition("/")[0], _HEADERS[self._format](io.BufferedReader(source))
                sizes[key] = sizes.get(key, target_bytes) + file.size_bytes
                if sizes[key] > target_bytes:
                    groups.setdefault(key, []).append([])
                    sizes[key] = file.size_bytes
                groups[key][-1].append((mark, file))
        files = []
        for (partition, _), lists in groups.items():
            for members in lists:
                name = f"part-{uuid.uuid4().hex}.{self._format}"
                local_path = os.path.join(directory, f".tmp-{name}")
                inputs = (self._files.open_input(mark, file) for mark, file in members)
                _MERGERS[self._format](local_path, inputs, self._compression)
                files.append(self._files.add(local_path, staging, f"{partition}/{name}" if partition else name))
        return files

    def files(self) -> list[str]:
        """Return the files that have each committed row once, as absolute paths or URIs without credentials.

        A reader of all of them sees one state of the output, even while the job commits or `compact` runs. If it does
        not find a file, `compact` has replaced it: list again.
        """
        return [self._fs.location(path) for path in self._files.visible_files()]

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        self._files.commit(epoch.epoch_id, committables)

    def abort(self, epoch: SinkEpoch) -> None:
        self._files.abort(epoch.epoch_id, epoch.attempt_id)

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        self._files.recover(last_epoch_id, lineage.job_id)

    def roll_back(self, lineage: SinkLineage, last_epoch_id: int) -> Sequence[str]:
        return self._files.roll_back(last_epoch_id, lineage.job_id)


class ParquetSink(FileSink):
    """A `FileSink` of Parquet files. ``spark.read.parquet(path)`` reads all epochs, and adds the column ``epoch``.

    Args:
        path: A directory that the driver and all workers share, or ``s3://bucket/path``. It may start with ``~``.
        options: ``{"compression": <codec>}``, as for Spark's Parquet writer.
        partition_by: The partition columns, as for `FileSink`.

    Raises:
        ValueError: The store or an option is not supported.
        StorageError: The URI is invalid.
    """

    _name = "ParquetSink"

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: Mapping[str, str] | None = None,
        *,
        partition_by: Sequence[str] = (),
    ) -> None:
        given = {name.lower(): value for name, value in (options or {}).items()}
        super().__init__(path, compression=given.pop("compression", "snappy"), partition_by=partition_by)
        if given:
            raise ValueError(f"{self} has only the option compression, not {', '.join(given)}")


def _place(path: str, name: str) -> str:
    """Return the path or the URI of a store that the sinks support."""
    if not is_uri(path) and not path.startswith("file:/"):
        return path
    parsed = urlparse(path)
    if parsed.scheme == "file" and parsed.netloc in ("", "localhost"):
        return unquote(parsed.path)
    if scheme_of(path) != "s3":
        raise ValueError(
            f"{name} writes to a local or mounted directory or to s3://, not to {without_secrets(path)!r}: committing "
            f"an epoch needs atomic renames or atomic puts. Use ForEachEpochSink with a writer that is idempotent per "
            f"epoch"
        )
    return path


def _partition_directory(column: str, value: Any) -> str:
    text = partition_text(column, value)
    if isinstance(value, datetime.datetime) and text is not None:
        # Spark writes no zeros at the end.
        text = text.rstrip("0").rstrip(".")
    name = f"{_escaped(column)}={_NULL_PARTITION if text is None else _escaped(text)}"
    if len(name.encode()) > _MOST_NAME_BYTES:
        raise SinkError(
            f"rows cannot be partitioned by column {column!r}: the value {format_value(text, 40)} is too long for the "
            f"name of a directory, which has at most {_MOST_NAME_BYTES} bytes. Shorten it, or use another column"
        )
    return f"{name}/"


def _escaped(text: str) -> str:
    """Escape text for the name of a directory, as Spark and Hive do."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _parquet_writer(path: str, schema: pa.Schema, compression: str) -> Any:
    return pyarrow.parquet.ParquetWriter(path, schema, compression=compression)


class _CsvWriter:
    def __init__(self, path: str, schema: pa.Schema, compression: str) -> None:
        for one in schema:
            if pa.types.is_nested(one.type):
                raise TypeError(f"column {one.name!r} is {one.type}, which CSV cannot store")
        self._stream = pa.OSFile(path, "wb")
        self._writer = pyarrow.csv.CSVWriter(self._stream, schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if batch.num_columns == 1 and batch.column(0).null_count:
            self._stream.write(_lines_with_nulls(batch.column(0)))
        else:
            self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()
        self._stream.close()


def _lines_with_nulls(column: pa.Array) -> bytes:
    """Return lines as the writer of pyarrow does, but with a text for null."""
    kind = column.type
    is_text = any(of(kind) for of in _TEXT_TYPES)
    if is_text:
        values = column.cast(pa.large_binary()).to_pylist()
        lines = [_CSV_NULL if one is None else b'"%b"' % one.replace(b'"', b'""') for one in values]
    else:
        lines = [_CSV_NULL if one is None else one.encode() for one in column.cast(pa.string()).to_pylist()]
    return b"".join(line + b"\n" for line in lines)


class _JsonWriter:
    def __init__(self, path: str, schema: pa.Schema, compression: str) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed below
        self._names = schema.names
        self._maps = ["strict" if _has_text_keys(one.type) else None for one in schema]

    def write_batch(self, batch: pa.RecordBatch) -> None:
        columns = [
            column.to_pylist(maps_as_pydicts=form) for column, form in zip(batch.columns, self._maps, strict=True)
        ]
        for values in zip(*columns, strict=True):
            self._file.write(_json_line(dict(zip(self._names, values, strict=True))))

    def close(self) -> None:
        self._file.close()


def _has_text_keys(data_type: pa.DataType) -> bool:
    """Whether all maps in a type have text as keys, so that they are objects in JSON. Others are lists of pairs."""
    if pa.types.is_map(data_type):
        key_type = data_type.key_type
        is_text = pa.types.is_string(key_type) or pa.types.is_large_string(key_type)
        return is_text and _has_text_keys(data_type.item_type)
    return all(_has_text_keys(data_type.field(index).type) for index in range(data_type.num_fields))


def _json_line(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row, default=_json_text, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise TypeError(f"a row has no form in JSON: {error}. Use the format parquet") from error


def _json_text(value: Any) -> str:
    if isinstance(value, (datetime.date, datetime.time, decimal.Decimal)):
        return str(value)
    raise TypeError(f"a value of {type(value).__name__}")


def _merge_parquet(path: str, inputs: Iterable[Any], compression: str) -> None:
    writer = None
    try:
        for source in inputs:
            with source, pyarrow.parquet.ParquetFile(source) as file:
                writer = writer or _parquet_writer(path, file.schema_arrow, compression)
                for batch in file.iter_batches():
                    writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()


def _first_line(source: Any) -> bytes:
    # The names of columns are quoted, and may contain line breaks.
    line = bytes(source.readline())
    while line.count(b'"') % 2 and (more := bytes(source.readline())):
        line += more
    return line


def _merge_lines(path: str, inputs: Iterable[Any], header: Callable[[Any], bytes]) -> None:
    is_first = True
    with open(path, "wb") as target:
        for source in inputs:
            with io.BufferedReader(source) as reader:
                names = header(reader)
                target.write(names if is_first else b"")
                is_first = False
                shutil.copyfileobj(reader, target)


_HEADERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "parquet": lambda source: bytes(pyarrow.parquet.read_schema(source).serialize()),
    "csv": _first_line,
    "json": lambda source: b"",
}
"""What files of one format must have in common to be merged."""

_MERGERS: Final[Mapping[str, Callable[[str, Iterable[Any], str], None]]] = {
    "parquet": _merge_parquet,
    "csv": lambda path, inputs, _: _merge_lines(path, inputs, _first_line),
    "json": lambda path, inputs, _: _merge_lines(path, inputs, _HEADERS["json"]),
}

_WRITERS: Final[Mapping[str, Callable[[str, pa.Schema, str], Any]]] = {
    "parquet": _parquet_writer,
    "csv": _CsvWriter,
    "json": _JsonWriter,
}
