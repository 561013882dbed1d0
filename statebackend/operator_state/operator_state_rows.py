"""The rows of operator state, kept in Parquet: what snapshots and savepoints are made of, on every backend.

    row := key binary or null, value binary or null

A list has one row per element, in order, with a null key. A broadcast state has one row per entry, in the order of its
map; a null value is the value None. The file's key-value metadata holds ``statebackend.operator_state.format`` = ``1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.errors import StateRestoreError
from statebackend.canonical.parquet_bounds import MAX_ROW_GROUP_ROWS, BoundedParquetFile, check_written
from statebackend.operator_state.operator_state_handles import FileSlice

FORMAT_KEY: Final = b"statebackend.operator_state.format"
FORMAT: Final = b"1"

SCHEMA: Final = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())], metadata={FORMAT_KEY: FORMAT})

BATCH_ROWS: Final = MAX_ROW_GROUP_ROWS
"""How many rows a batch and a row group hold at most."""

BATCH_BYTES: Final = 16 << 20
"""How many bytes of keys and values they hold at most, unless one row alone has more."""

OperatorStateRow = tuple["bytes | None", "bytes | None"]
"""Key and value."""


def encoded_rows(rows: Iterable[OperatorStateRow]) -> bytes:
    """The bytes of a Parquet file of the rows."""
    target = pa.BufferOutputStream()
    written: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        target, SCHEMA, compression="zstd", write_statistics=False, metadata_collector=written
    ) as writer:
        for batch in batches(rows):
            keys, values = (pa.array(column, pa.binary()) for column in zip(*batch, strict=True))
            writer.write_batch(pa.record_batch([keys, values], schema=SCHEMA), row_group_size=BATCH_ROWS)
    check_written(written[0])
    data: bytes = target.getvalue().to_pybytes()
    return data


def batches(rows: Iterable[OperatorStateRow]) -> Iterator[list[OperatorStateRow]]:
    """The rows in order, so many together that neither their number nor their bytes are too many."""
    batch: list[OperatorStateRow] = []
    size_bytes = 0
    for row in rows:
        row_bytes = sum(len(column) for column in row if column is not None)
        if batch and (len(batch) == BATCH_ROWS or size_bytes + row_bytes > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(row)
        size_bytes += row_bytes
    if batch:
        yield batch


def read_slice(file_system: CheckpointFileSystem, wanted: FileSlice) -> Iterator[OperatorStateRow]:
    """The rows of a slice; the file is read whole and its checksum verified.

    Raises `CheckpointError`s for a missing or damaged file and `StateRestoreError` for one that is not operator state,
    or is shorter than the slice; all name the file.
    """
    path = file_system.location(wanted.file.path)
    content = file_system.read_file(wanted.file)
    try:
        with BoundedParquetFile(pa.BufferReader(content)) as file:
            metadata = file.schema.metadata or {}
            if metadata.get(FORMAT_KEY) != FORMAT or not file.has_columns_of(SCHEMA):
                raise StateRestoreError(f"{path} does not hold operator state of format {FORMAT.decode()}")
            if file.metadata.num_rows < wanted.stop:
                raise StateRestoreError(
                    f"{path} has {file.metadata.num_rows} rows, but rows up to {wanted.stop} are referred to"
                )
            position = 0
            for row_group in range(file.metadata.num_row_groups):
                rows = file.rows_of_group(row_group)
                if position + rows <= wanted.start or position >= wanted.stop:
                    position += rows
                    continue
                for batch in file.batches(row_group, SCHEMA.names, BATCH_ROWS, BATCH_BYTES):
                    first, last = max(wanted.start - position, 0), min(wanted.stop - position, batch.num_rows)
                    position += batch.num_rows
                    if first < last:
                        selected = batch.slice(first, last - first)
                        yield from zip(selected.column(0).to_pylist(), selected.column(1).to_pylist(), strict=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StateRestoreError(f"{path} cannot be read as operator state: {error}") from error


def read_slices(file_system: CheckpointFileSystem, slices: Iterable[FileSlice]) -> Iterator[OperatorStateRow]:
    """The rows of the slices, in order."""
    for wanted in slices:
        yield from read_slice(file_system, wanted)
