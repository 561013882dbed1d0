"""Writes Parquet files for a table format: a file per partition, with the statistics for the table's log."""

from __future__ import annotations

import datetime
import decimal
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from attrs import field, frozen

from statebackend.checkpoint.fs.local_storage import sync_directory
from statebackend.streaming.sink import SinkError

__all__ = ["StagedFile", "write_parquet"]

_MOST_OPEN: Final = 64
"""The maximum number of partitions that are written at the same time."""

_INDEXED_COLUMNS: Final = 32
_LONGEST_TEXT: Final = 256
_LATEST_BOUND: Final = datetime.datetime.max.replace(microsecond=999_000)


@frozen
class StagedFile:
    """A written file. ``path`` is relative to the table; partition values are formatted as in Delta's log."""

    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str | None] = field(factory=dict)
    statistics: Mapping[str, Any] = field(factory=dict)


def write_parquet(
    file_system: pyarrow.fs.FileSystem,
    directory: str,
    rows: Iterable[pa.RecordBatch],
    *,
    prefix: str,
    partition_by: Sequence[str] = (),
    compression: str = "zstd",
    local_root: str | None = None,
) -> list[StagedFile]:
    """Write rows durably to one file, or to one file per partition.

    Args:
        file_system: The file system of the table.
        directory: The directory of the files, relative to the table.
        rows: Batches of one schema.
        prefix: The beginning of each file's name.
        partition_by: Columns that are stored in the table's log and not in the files.
        compression: The codec of Parquet.
        local_root: The directory of a table on a local disk. Its files are synced.
    """
    file_system.create_dir(directory)
    writers: dict[tuple[str | None, ...], _FileWriter] = {}
    staged: list[StagedFile] = []
    try:
        for batch in rows:
            for values, part in _by_partition(batch, partition_by):
                if values not in writers:
                    if len(writers) >= _MOST_OPEN:
                        # Close the partition that was opened first.
                        staged.append(writers.pop(next(iter(writers))).close())
                    path = f"{directory}/{prefix}-{uuid.uuid4().hex}.parquet"
                    partition = dict(zip(partition_by, values, strict=True))
                    writers[values] = _FileWriter(file_system, path, part.schema, compression, partition, local_root)
                writers[values].write(part)
        while writers:
            staged.append(writers.pop(next(iter(writers))).close())
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
        partition: Mapping[str, str | None],
        local_root: str | None,
    ) -> None:
        self._path = path
        self._partition = partition
        self._local_path = None if local_root is None else os.path.join(local_root, path)
        self._metadata: list[Any] = []
        self._stream = file_system.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._stream, schema, compression=compression, metadata_collector=self._metadata
        )

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> StagedFile:
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
        return StagedFile(self._path, size_bytes, metadata.num_rows, self._partition, _statistics(metadata))

    def discard(self) -> None:
        self._writer.close()
        self._stream.close()


def _by_partition(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterable[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    if not columns:
        return [((), batch)]
    rest = batch.select([name for name in batch.schema.names if name not in columns])
    by_name = [batch.column(name) for name in columns]
    texts = [[_partition_text(name, value) for value in values] for name, values in _python_values(columns, by_name)]
    indexes: dict[tuple[str | None, ...], list[int]] = {}
    for index, values in enumerate(zip(*texts, strict=True)):
        indexes.setdefault(values, []).append(index)
    if len(indexes) == 1:
        return [(values, rest) for values in indexes]
    return [(values, rest.take(pa.array(places))) for values, places in indexes.items()]


def _python_values(columns: Sequence[str], arrays: Sequence[pa.Array]) -> Iterable[tuple[str, list[Any]]]:
    for name, array in zip(columns, arrays, strict=True):
        # Convert distinct values only.
        encoded = pc.dictionary_encode(array, null_encoding="encode")
        distinct = encoded.dictionary.to_pylist()
        yield name, [distinct[index] for index in encoded.indices.to_pylist()]


def _partition_text(column: str, value: Any) -> str | None:
    if value is None or value == "":
        # Delta's log cannot represent an empty string.
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, decimal.Decimal)):
        return str(value)
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, datetime.date):
        return value.isoformat()
    raise SinkError(
        f"rows cannot be partitioned by column {column!r} with values of {type(value).__name__}: use text, whole "
        f"numbers, decimals, booleans, dates or timestamps"
    )


def _statistics(metadata: Any) -> dict[str, Any]:
    """Return the statistics of a file as in Delta's log, for the first columns that are not nested."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    null_counts: dict[str, int] = {}
    unknown: set[str] = set()
    for group_index in range(metadata.num_row_groups):
        group = metadata.row_group(group_index)
        for column_index in range(min(group.num_columns, _INDEXED_COLUMNS)):
            column = group.column(column_index)
            name, found = column.path_in_schema, column.statistics
            if "." in name or found is None or not found.has_null_count:
                unknown.add(name)
                continue
            null_counts[name] = null_counts.get(name, 0) + found.null_count
            if not found.has_min_max:
                if found.null_count != column.num_values:
                    unknown.add(name)
                continue
            low, high = found.min, found.max
            if _json_value(low, is_upper=False) is None or _json_value(high, is_upper=True) is None:
                unknown.add(name)
                continue
            least[name] = low if name not in least else min(least[name], low)
            greatest[name] = high if name not in greatest else max(greatest[name], high)
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: _json_value(one, is_upper=False) for name, one in least.items() if name not in unknown},
        "maxValues": {name: _json_value(one, is_upper=True) for name, one in greatest.items() if name not in unknown},
        "nullCount": {name: count for name, count in null_counts.items() if "." not in name},
    }


def _json_value(value: Any, *, is_upper: bool) -> Any:
    """Return a value as in Delta's log; None if the log cannot represent it exactly."""
    if isinstance(value, int) and not isinstance(value, bool):
        # Bounds of floats do not include NaN, so leave them out.
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    if isinstance(value, datetime.datetime):
        # The log has milliseconds, so round the upper bound up.
        rest = value.microsecond % 1000
        rounded = value - datetime.timedelta(microseconds=rest)
        if is_upper and rest:
            if value.replace(tzinfo=None) > _LATEST_BOUND:
                return None
            rounded += datetime.timedelta(milliseconds=1)
        zone = "Z" if value.tzinfo is not None else ""
        return rounded.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
    if isinstance(value, datetime.date):
        return value.isoformat()
    return None
