"""The canonical form of keyed state: rows of bytes that every backend can read, kept in Parquet.

    row := key_group int32, key binary, namespace binary, user_key binary or null, value binary or null

Rows are sorted by (key group, key, namespace, user key), as bytes. The value is what the storage serializer of the
state writes: a value; one map entry's value, which may be null in itself (a flag byte goes first); a chunk of list
elements. A list may take several rows, in order. In a savepoint ``value`` is never null. In an increment a null value
says that something is gone: with a user key, that entry; without, everything under that key and namespace.

The file's key-value metadata holds ``statebackend.format`` = ``1``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from statebackend.api.errors import StateRestoreError
from statebackend.api.key_groups import KeyGroupRange

FORMAT_KEY: Final = b"statebackend.format"
FORMAT: Final = b"1"

SCHEMA: Final = pa.schema(
    [
        pa.field("key_group", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("namespace", pa.binary(), nullable=False),
        pa.field("user_key", pa.binary()),
        pa.field("value", pa.binary()),
    ],
    metadata={FORMAT_KEY: FORMAT},
)

BATCH_ROWS: Final = 1 << 16
"""The most rows of a batch and a row group."""

BATCH_BYTES: Final = 16 << 20
"""The bytes of keys and values from which on a batch and a row group end; what is larger by itself is one of its own.

With `BATCH_ROWS` it bounds the memory of reading and writing."""

_STREAM_BYTES: Final = 1 << 20
"""How much of a column is read from a file at a time."""

Address = tuple[int, bytes, bytes]
"""Where the state of a key is: key group, and the bytes of key and namespace."""

CanonicalRow = tuple[int, bytes, bytes, "bytes | None", "bytes | None"]
"""Key group, key, namespace, user key, value."""


class CanonicalBatch(NamedTuple):
    """Rows as columns of equal length."""

    key_groups: list[int]
    keys: list[bytes]
    namespaces: list[bytes]
    user_keys: list[bytes | None]
    values: list[bytes | None]

    @classmethod
    def empty(cls) -> CanonicalBatch:
        """A batch to append to."""
        return cls([], [], [], [], [])

    def append(self, key_group: int, key: bytes, namespace: bytes, user_key: bytes | None, value: bytes | None) -> None:
        """Appends one row."""
        self.key_groups.append(key_group)
        self.keys.append(key)
        self.namespaces.append(namespace)
        self.user_keys.append(user_key)
        self.values.append(value)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.keys)


def batches_of(rows: Iterable[CanonicalRow]) -> Iterator[CanonicalBatch]:
    """The rows in batches of bounded size, in rows and in bytes."""
    chunk: list[CanonicalRow] = []
    size_bytes = 0
    for row in rows:
        _, key, namespace, user_key, value = row
        chunk.append(row)
        size_bytes += len(key) + len(namespace)
        if user_key is not None:
            size_bytes += len(user_key)
        if value is not None:
            size_bytes += len(value)
        if size_bytes >= BATCH_BYTES or len(chunk) >= BATCH_ROWS:
            yield _columns(chunk)
            chunk, size_bytes = [], 0
    if chunk:
        yield _columns(chunk)


def _columns(rows: list[CanonicalRow]) -> CanonicalBatch:
    return CanonicalBatch(*(list(column) for column in zip(*rows, strict=True)))


def write_canonical(target: str | pa.NativeFile, batches: Iterable[CanonicalBatch]) -> int:
    """Writes a Parquet file of canonical rows to a local path or an open file; returns the number of rows."""
    rows = 0
    with pq.ParquetWriter(target, SCHEMA, compression="zstd", write_statistics=["key_group"]) as writer:
        for batch in batches:
            rows += batch.row_count
            writer.write_batch(pa.record_batch(list(batch), schema=SCHEMA), row_group_size=BATCH_ROWS)
    return rows


def encoded_canonical(batches: Iterable[CanonicalBatch]) -> tuple[bytes, int]:
    """The bytes of a Parquet file of canonical rows, and the number of rows."""
    target = pa.BufferOutputStream()
    rows = write_canonical(target, batches)
    return target.getvalue().to_pybytes(), rows


def read_canonical(
    path: str, key_groups: KeyGroupRange, content: bytes | None = None, local_copy: str | None = None
) -> Iterator[CanonicalBatch]:
    """The rows of a Parquet file whose key group is in the range; skips row groups that hold none.

    The file is the local one at ``path``, or ``content`` or the one at ``local_copy`` if that is given, which ``path``
    then names in messages.
    Raises `StateRestoreError`, naming the file, for anything that is not canonical rows.
    """
    try:
        # Pages are read as they are needed: a row group of an earlier release may be larger than the memory.
        source = (local_copy or path) if content is None else pa.BufferReader(content)
        with pq.ParquetFile(source, buffer_size=_STREAM_BYTES, pre_buffer=False) as file:
            metadata = file.schema_arrow.metadata or {}
            if metadata.get(FORMAT_KEY) != FORMAT or file.schema_arrow.names != SCHEMA.names:
                raise StateRestoreError(f"{path} does not hold canonical state of format {FORMAT.decode()}")
            for row_group in range(file.num_row_groups):
                held = _held_key_groups(file, row_group)
                if held is None or not held.overlaps(key_groups):
                    continue
                is_wanted_whole = key_groups.contains_range(held)
                for batch in _batches_of_row_group(file, row_group):
                    selected = batch if is_wanted_whole else _rows_inside(batch, key_groups)
                    if selected.num_rows:
                        yield CanonicalBatch(*(selected.column(name).to_pylist() for name in SCHEMA.names))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StateRestoreError(f"{path} cannot be read as canonical state: {error}") from error


def _batches_of_row_group(file: pq.ParquetFile, row_group: int) -> Iterator[pa.RecordBatch]:
    """The rows of a row group in batches whose number of rows follows from their mean size."""
    metadata = file.metadata.row_group(row_group)
    rows = max(1, metadata.num_rows * BATCH_BYTES // max(metadata.total_byte_size, 1))
    yield from file.iter_batches(batch_size=min(rows, BATCH_ROWS), row_groups=[row_group])


def _rows_inside(batch: pa.RecordBatch, key_groups: KeyGroupRange) -> pa.RecordBatch:
    groups = batch.column("key_group")
    return batch.filter(pc.and_(pc.greater_equal(groups, key_groups.start), pc.less_equal(groups, key_groups.end)))


def _held_key_groups(file: pq.ParquetFile, row_group: int) -> KeyGroupRange | None:
    """From the first to the last key group that a row group has rows of."""
    # Statistics would do, but the library ends the process when it is asked for those of a damaged file. The column
    # itself takes next to nothing: its values repeat.
    groups = file.read_row_group(row_group, columns=["key_group"]).column(0)
    if groups.null_count:
        raise ValueError("there are rows without a key group")
    bounds = pc.min_max(groups).as_py()
    return None if bounds["min"] is None else KeyGroupRange(bounds["min"], bounds["max"])
