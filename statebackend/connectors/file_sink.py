"""A file sink with a directory per epoch: Parquet, CSV or JSON, in the layout of `statebackend.spark.ParquetSink`.

<path>/epoch=000000000007/part-<32 hex>.csv        a file of a committed epoch
<path>/epoch=000000000007/_committable             its attempt and files
<path>/_staging/000000000007-<job>.<run>/          a staged epoch
"""

from __future__ import annotations

import datetime
import decimal
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import is_uri, without_secrets
from statebackend.spark.parquet_sink import (
    EPOCH_COLUMN,
    STAGING,
    ObjectEpochFiles,
    check_attempt,
    epoch_name,
    visible_already,
)
from statebackend.state.private_directory import temporary_directory
from statebackend.streaming.sink import Sink, SinkEpoch, SinkError, SinkLineage

__all__ = ["FileSink"]

_VERSION: Final = 2


class FileSink(Sink):
    """Writes each epoch to its own directory ``epoch=<id>`` below ``path``.

    Each subtask with rows writes one file. An epoch is complete when its directory has the file ``_committable``.
    Readers must skip epochs without it while the job runs. A rollback moves later epochs to ``_set_aside``.

    Args:
        path: A directory that the driver and all workers share, or ``s3://bucket/path``.
        file_format: ``"parquet"``, ``"csv"`` with a header, or ``"json"`` with one object a line. In JSON, maps
            with text as keys are objects, and other maps are lists of pairs.
        compression: The codec of Parquet files.

    Raises:
        ValueError: The format is unknown.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        file_format: Literal["parquet", "csv", "json"] = "parquet",
        *,
        compression: str = "snappy",
    ) -> None:
        if file_format not in _WRITERS:
            raise ValueError(f"file_format is {file_format!r}; it is one of {', '.join(_WRITERS)}")
        given = os.fspath(path)
        uri = given if is_uri(given) else os.path.abspath(os.path.expanduser(given))
        self._format = file_format
        self._compression = compression
        self._identity = f"FileSink({without_secrets(uri)!r})"
        self._fs = CheckpointFileSystem.from_uri(uri)
        self._files = ObjectEpochFiles(self._fs, {})

    def __repr__(self) -> str:
        return self._identity

    @property
    def identity(self) -> str:
        return self._identity

    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        if EPOCH_COLUMN in map(str.lower, rows.schema.names):
            raise SinkError(f"{self} adds a column {EPOCH_COLUMN!r}, which the rows have already; rename theirs")
        check_attempt(epoch.attempt_id)
        # Each attempt of a task writes another name. Only the file of the successful attempt is committed.
        name = f"part-{uuid.uuid4().hex}.{self._format}"
        with temporary_directory() as directory:
            path = os.path.join(directory, name)
            if not _WRITERS[self._format](path, rows, self._compression):
                return b""
            target = f"{STAGING}/{epoch.epoch_id:012d}-{epoch.attempt_id}/{name}"
            handle = self._fs.upload(path, target, may_link=False)
        return json.dumps([name, handle.size_bytes, handle.checksum]).encode()

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        files = sorted(map(json.loads, committables))
        fields = {"version": _VERSION, "epoch": epoch.epoch_id, "attempt": epoch.attempt_id, "files": files}
        self._files.commit(epoch.epoch_id, json.dumps(fields).encode())

    def abort(self, epoch: SinkEpoch) -> None:
        self._files.abort(epoch.epoch_id, epoch.attempt_id)

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:
        last_id = -1 if last_epoch_id is None else last_epoch_id
        later = self._files.visible_after(last_id)
        if later:
            raise visible_already(self._fs.location(epoch_name(min(later))), min(later))
        self._files.recover(last_epoch_id, lineage.job_id)

    def roll_back(self, lineage: SinkLineage, last_epoch_id: int) -> Sequence[str]:
        return self._files.roll_back(last_epoch_id, lineage.job_id)


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
