"""Writes Parquet files for a table format: a file per partition, with statistics of its columns.

The files of an epoch have a directory: ``statebackend-<16 hex>/<epoch>/<run>-<subtask>-<32 hex>.parquet``. The hash is
of the lineage. So the files of an attempt that failed are found and deleted.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from attrs import field, frozen

from snapshots.format_versions import newer_version
from statebackend.checkpoint.fs.local_storage import sync_directory
from statebackend.checkpoint.fs.store_uri import secrets_of
from statebackend.streaming.sink import SinkEpoch, SinkError, SinkLineage

_MOST_OPEN: Final = 64
"""The maximum number of partitions that are written at the same time."""

MOST_OPEN_EPOCHS: Final = 16
"""The maximum number of epochs after the last complete one for which a crash may leave files."""

LINEAGE: Final = "statebackend.lineage"
EPOCH: Final = "statebackend.epoch"
_FILES: Final = "statebackend.files"
ROLLBACK: Final = "rollback"
"""The value in place of the number of files, in the entry of a rollback."""

_SECRET_OPTION: Final = re.compile(r"key|secret|token|password|sas|credential|account", re.IGNORECASE)


@frozen
class StagedFile:
    """A written file. ``path`` is relative to the table; ``partition`` is the key of its partition."""

    path: str
    size_bytes: int
    rows: int
    partition: Any = ()
    statistics: Mapping[str, Any] = field(factory=dict)


def lineage_directory(lineage: SinkLineage) -> str:
    """Return the directory of a job's files, relative to the table."""
    return f"statebackend-{hashlib.sha256(lineage.name.encode()).hexdigest()[:16]}"


def epoch_directory(lineage: SinkLineage, epoch_id: int) -> str:
    """Return the directory of an epoch's files, relative to the table."""
    return f"{lineage_directory(lineage)}/{epoch_id:012d}"


def history_entry(lineage: SinkLineage, epoch_id: int, files: str) -> dict[str, str]:
    """Return the properties of a commit in the history of the table."""
    return {LINEAGE: lineage.name, EPOCH: str(epoch_id), _FILES: files}


def committed_epochs(history: Iterable[Mapping[str, Any]], lineage: SinkLineage) -> set[int]:
    """Return the epochs in the history of a table, also those that were rolled back."""
    return {int(one[EPOCH]) for one in history if one.get(LINEAGE) == lineage.name and one[_FILES] != ROLLBACK}


def count_files_after(
    history: Iterable[tuple[Mapping[str, Any], bool]], lineage: SinkLineage, last_epoch_id: int
) -> tuple[int, bool]:
    """Count the files of later epochs, and return whether the history has all of these epochs.

    The newest entry is first. Each comes with whether it is the first of the table.
    """
    written, limit, is_complete = 0, sys.maxsize, False
    # An earlier rollback removed the epochs that were committed before it.
    for entry, is_first in history:
        is_complete = is_complete or is_first
        if entry.get(LINEAGE) != lineage.name:
            continue
        epoch_id = int(entry[EPOCH])
        if epoch_id <= last_epoch_id:
            return written, True
        if entry[_FILES] == ROLLBACK:
            limit = min(limit, epoch_id)
        elif epoch_id <= limit:
            written += int(entry[_FILES])
    return written, is_complete


def decode_committable(committable: bytes, epoch: SinkEpoch, version: int, sink_name: str) -> dict[str, Any]:
    """Return the fields of a committable. Raises `SinkError` for one of another sink or version."""
    try:
        fields: dict[str, Any] = json.loads(committable)
        found = fields["version"]
        if type(found) is int and found > version:
            raise SinkError(newer_version(f"the committable of {epoch}", found, version))
        if found != version:
            raise ValueError(found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SinkError(f"{epoch}: its committable is not one of {sink_name}") from error
    return fields


def check_staged(
    target: str, file_system: pyarrow.fs.FileSystem, epoch: SinkEpoch, location: str, paths: Sequence[str]
) -> None:
    """Raise `SinkError` if staged files do not exist any longer. No reader could read a table with such files."""
    directory = epoch_directory(epoch.lineage, epoch.epoch_id)
    infos = file_system.get_file_info(pyarrow.fs.FileSelector(directory, allow_not_found=True))
    found = {os.path.basename(one.path) for one in infos}
    missing = [path for path in paths if os.path.basename(path) not in found]
    if missing:
        raise SinkError(
            f"{target}: {len(missing)} of {len(paths)} files of {epoch} do not exist any longer, such as "
            f"{location}/{missing[0]}: the table was deleted, or its unused files were removed too early. Restore "
            f"the files, or start from an earlier savepoint"
        )


def delete_staged(
    file_system: pyarrow.fs.FileSystem,
    directory: str,
    prefix: str = "",
    is_committed: Callable[[], bool] = lambda: False,
) -> None:
    """Delete the files of a directory whose names have a prefix, unless the epoch was committed.

    Earlier versions of the table, tags and branches have the files of an epoch that was rolled back. ``is_committed``
    is called only if there are files.
    """
    selector = pyarrow.fs.FileSelector(directory, allow_not_found=True)
    found = [one.path for one in file_system.get_file_info(selector) if os.path.basename(one.path).startswith(prefix)]
    if found and not is_committed():
        for path in found:
            file_system.delete_file(path)


def secret_values(*options: Mapping[str, str]) -> list[str]:
    """Return the values that no error may contain, the longest first."""
    found = [
        secret
        for mapping in options
        for name, value in mapping.items()
        for secret in ([value] if _SECRET_OPTION.search(name) else secrets_of(value))
    ]
    return sorted(filter(None, found), key=len, reverse=True)


def write_parquet(
    file_system: pyarrow.fs.FileSystem,
    epoch: SinkEpoch,
    subtask_index: int,
    rows: Iterable[pa.RecordBatch],
    *,
    split: Callable[[pa.RecordBatch], Iterable[tuple[Hashable, pa.RecordBatch]]] | None = None,
    statistics: Callable[[Any], Mapping[str, Any]],
    compression: str = "zstd",
    local_root: str | None = None,
) -> list[StagedFile]:
    """Write the rows of a subtask durably to one file, or to one file per partition.

    Args:
        file_system: The file system of the table.
        epoch: The epoch.
        subtask_index: The subtask.
        rows: Batches of one schema.
        split: Splits a batch by partition, and returns the key and the rows of each.
        statistics: Computes the statistics of a file from the metadata of Parquet.
        compression: The codec of Parquet.
        local_root: The directory of a table on a local disk. Its files are synced.
    """
    directory = epoch_directory(epoch.lineage, epoch.epoch_id)
    file_system.create_dir(directory)
    writers: dict[Hashable, _FileWriter] = {}
    staged: list[StagedFile] = []

    def close_oldest() -> None:
        key = next(iter(writers))
        staged.append(writers[key].close(statistics))
        del writers[key]

    try:
        for batch in rows:
            for key, part in [((), batch)] if split is None else split(batch):
                if key not in writers:
                    if len(writers) >= _MOST_OPEN:
                        close_oldest()
                    path = f"{directory}/{epoch.run_id}-{subtask_index:05d}-{uuid.uuid4().hex}.parquet"
                    writers[key] = _FileWriter(file_system, path, part.schema, compression, key, local_root)
                writers[key].write(part)
        while writers:
            close_oldest()
    finally:
        for writer in writers.values():
            writer.discard()
    if local_root is not None:
        parent = os.path.join(local_root, directory)
        while len(parent) >= len(local_root):
            sync_directory(parent)
            parent = os.path.dirname(parent)
    return staged


class _FileWriter:
    def __init__(
        self,
        file_system: pyarrow.fs.FileSystem,
        path: str,
        schema: pa.Schema,
        compression: str,
        key: Hashable,
        local_root: str | None,
    ) -> None:
        self._path = path
        self._key = key
        self._local_path = None if local_root is None else os.path.join(local_root, path)
        self._metadata: list[Any] = []
        self._stream = file_system.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._stream, schema, compression=compression, metadata_collector=self._metadata
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self, statistics: Callable[[Any], Mapping[str, Any]]) -> StagedFile:
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stream.close()
        if self._local_path is not None:
            descriptor = os.open(self._local_path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        [metadata] = self._metadata
        return StagedFile(self._path, size_bytes, metadata.num_rows, self._key, statistics(metadata))

    def discard(self) -> None:
        # An error is being raised already, such as that of a full disk. The file is deleted with its epoch. After an
        # error at its end, the writer raises RuntimeError.
        for part in (self._writer, self._stream):
            with contextlib.suppress(Exception):
                part.close()


def split_by_columns(batch: pa.RecordBatch, keys: Sequence[pa.Array]) -> list[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Split a batch by the values of columns, one value per row each. Returns the values and the rows of each part."""
    codes: Any = None
    distinct: list[list[Any]] = []
    for key in keys:
        if pa.types.is_nested(key.type):
            raise TypeError(f"rows cannot be partitioned by a column of {key.type}")
        encoded = pc.dictionary_encode(key, null_encoding="encode")
        distinct.append(encoded.dictionary.to_pylist())
        indices = encoded.indices.cast(pa.int64())
        codes = indices if codes is None else pc.add_checked(pc.multiply_checked(codes, len(distinct[-1])), indices)
    order = pc.sort_indices(codes)
    parts, start = [], 0
    for run in pc.value_counts(codes.take(order)).to_pylist():
        code, count = run["values"], run["counts"]
        values = []
        for column in reversed(distinct):
            code, index = divmod(code, len(column))
            values.append(column[index])
        part = batch if count == batch.num_rows else batch.take(order.slice(start, count))
        parts.append((tuple(reversed(values)), part))
        start += count
    return parts


def partition_text(column: str, value: Any) -> str | None:
    """Return a partition value as text; None for null and an empty text, which Delta and Hive do not distinguish."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, decimal.Decimal):
        # str() writes zeros of many digits with an exponent.
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    raise SinkError(
        f"rows cannot be partitioned by column {column!r} with values of {type(value).__name__}: use text, whole "
        f"numbers, decimals, booleans, dates or timestamps"
    )


_WIDER: Final[Mapping[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}


_SIGNED: Final[Mapping[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
}


def widened_type(data_type: pa.DataType, table_type: pa.DataType) -> pa.DataType:
    """Return the type of a table's column, if all values of a type can be converted to it; else the type itself."""
    is_wider = table_type in _WIDER.get(data_type, ())
    if pa.types.is_decimal(data_type) and pa.types.is_decimal(table_type):
        is_wider = data_type.scale == table_type.scale and data_type.precision <= table_type.precision
    return table_type if is_wider else data_type


def stored_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type in the files: timestamps are in UTC and microseconds, whole numbers are signed."""
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", None if data_type.tz is None else "UTC")
    if pa.types.is_unsigned_integer(data_type):
        return _SIGNED[data_type]
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(one.name, stored_type(one.type)) for one in data_type])
    if pa.types.is_list(data_type):
        return pa.list_(stored_type(data_type.value_type))
    if pa.types.is_map(data_type):
        return pa.map_(stored_type(data_type.key_type), stored_type(data_type.item_type))
    return data_type


def convert_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert the columns of a batch to the types of a schema with the same columns."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    return pa.RecordBatch.from_arrays(
        [
            column if column.type.equals(one.type) else column.cast(one.type)
            for column, one in zip(batch.columns, schema, strict=True)
        ],
        schema=schema,
    )
