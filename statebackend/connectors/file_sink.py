"""File sinks: each epoch is committed once to a directory of its own, as Parquet, CSV or JSON files."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import is_uri, scheme_of, without_secrets
from statebackend.connectors.epoch_files import EPOCH_COLUMN, EpochFiles, EpochMark
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

__all__ = ["FileSink", "ParquetSink"]

_COMPRESSIONS: Final = ("snappy", "gzip", "zstd", "lz4", "brotli", "none", "uncompressed")


class FileSink(Sink):
    """Writes each epoch once to its own directory ``epoch=<id>`` below ``path``.

    Each subtask with rows writes one file. On a disk, all files of an epoch become visible at once. In an S3-compatible
    store they appear one by one and ``_committable`` last, so readers of a running job must skip epochs without it. A
    rollback moves later epochs to ``_set_aside``.

    Args:
        path: A directory that the driver and all workers share, or ``s3://bucket/path``. It may start with ``~``.
        file_format: ``"parquet"``, ``"csv"`` with a header, or ``"json"`` with one object a line. In JSON, maps
            with text as keys are objects, and other maps are lists of pairs.
        compression: The codec of Parquet files.

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
    ) -> None:
        if file_format not in _WRITERS:
            raise ValueError(f"file_format is {file_format!r}; it is one of {', '.join(_WRITERS)}")
        self._format = file_format
        self._fs = CheckpointFileSystem.from_uri(_place(os.fspath(path), self._name))
        if compression.lower() not in _COMPRESSIONS:
            raise ValueError(f"{self}: compression is {compression!r}; it is one of {', '.join(_COMPRESSIONS)}")
        self._compression = compression.lower().replace("uncompressed", "none")
        self._files = EpochFiles(self._fs)

    def __repr__(self) -> str:
        return self.identity

    @property
    def identity(self) -> str:
        return f"{self._name}({self._fs.location('')!r})"

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        if EPOCH_COLUMN in map(str.lower, rows.schema.names):
            raise SinkError(f"{self} adds a column {EPOCH_COLUMN!r}, which the rows have already; rename theirs")
        # Each attempt of a task writes another name. Only the file of the successful attempt is committed.
        name = f"part-{uuid.uuid4().hex}.{self._format}"
        with self._files.writing(epoch) as directory:
            local_path = os.path.join(directory, f".tmp-{name}")
            count = _WRITERS[self._format](local_path, rows, self._compression)
            if not count and self._format != "parquet":
                os.unlink(local_path)
                return b""
            # A Parquet file without rows keeps the schema.
            file = self._files.add(local_path, epoch, name)
        return EpochMark(epoch.epoch_id, epoch.attempt_id, [file]).encode()

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

    Raises:
        ValueError: The store or an option is not supported.
        StorageError: The URI is invalid.
    """

    _name = "ParquetSink"

    def __init__(self, path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        given = {name.lower(): value for name, value in (options or {}).items()}
        super().__init__(path, compression=given.pop("compression", "snappy"))
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


def _write_parquet(path: str, rows: pa.RecordBatchReader, compression: str) -> int:
    count = 0
    with pyarrow.parquet.ParquetWriter(path, rows.schema, compression=compression) as writer:
        for batch in rows:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_csv(path: str, rows: pa.RecordBatchReader, compression: str) -> int:
    count = 0
    with pyarrow.csv.CSVWriter(path, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _write_json(path: str, rows: pa.RecordBatchReader, compression: str) -> int:
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        maps = ["strict" if _has_text_keys(one.type) else None for one in rows.schema]
        names = rows.schema.names
        for batch in rows:
            columns = [column.to_pylist(maps_as_pydicts=form) for column, form in zip(batch.columns, maps, strict=True)]
            for values in zip(*columns, strict=True):
                file.write(_json_line(dict(zip(names, values, strict=True))))
            count += batch.num_rows
    return count


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
        raise SinkError(f"a row has no form in JSON: {error}. Convert it, or use the format parquet") from error


def _json_text(value: Any) -> str:
    if isinstance(value, (datetime.date, datetime.time, decimal.Decimal)):
        return str(value)
    raise TypeError(f"a value of {type(value).__name__}")


_WRITERS: Final[Mapping[str, Callable[[str, Any, str], int]]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "json": _write_json,
}
