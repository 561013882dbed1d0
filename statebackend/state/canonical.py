"""The canonical form of keyed state: rows of bytes in Parquet that every backend can read.

    row := key_group int32, key binary, namespace binary, user_key binary or null, value binary or null

Rows are sorted by (key group, key, namespace, user key), as bytes. The value is written by the storage serializer of
the state: a value, a map entry's value (a flag byte first, because it may be null), or a chunk of list elements. A list
may take several rows, in order.

In a savepoint ``value`` is never null. In an increment a null value is a deletion: with a user key, of that map entry;
without one, of everything under that key and namespace.

The key-value metadata of the file holds ``statebackend.keyed_state`` = ``1``.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from statebackend.state.errors import StateRestoreError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.parquet_bounds import MAX_ROW_GROUP_ROWS, BoundedParquetFile, check_written

FORMAT_KEY: Final = b"statebackend.keyed_state"
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

BATCH_ROWS: Final = MAX_ROW_GROUP_ROWS
"""The limit of rows in a batch and a row group."""

BATCH_BYTES: Final = 16 << 20
"""A batch and a row group end at this many bytes of keys and values. A larger row is a batch by itself.

With `BATCH_ROWS` it bounds the memory of reading and writing."""

Address = tuple[int, bytes, bytes]
"""The address of state: key group, and the bytes of key and namespace."""

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
        """Create an empty batch."""
        return cls([], [], [], [], [])

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> CanonicalBatch:
        """Convert a batch of Arrow that has all columns."""
        return cls(*(batch.column(name).to_pylist() for name in SCHEMA.names))

    @classmethod
    def of_rows(cls, rows: Sequence[CanonicalRow]) -> CanonicalBatch:
        """Convert rows to columns."""
        return cls(*(list(column) for column in zip(*rows, strict=True))) if rows else cls.empty()

    def append(self, key_group: int, key: bytes, namespace: bytes, user_key: bytes | None, value: bytes | None) -> None:
        """Append one row."""
        self.key_groups.append(key_group)
        self.keys.append(key)
        self.namespaces.append(namespace)
        self.user_keys.append(user_key)
        self.values.append(value)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.keys)

    @property
    def size_bytes(self) -> int:
        """The total bytes of keys, namespaces, user keys and values."""
        present = chain(self.keys, self.namespaces, filter(None, self.user_keys), filter(None, self.values))
        return sum(map(len, present))

    @property
    def value_bytes(self) -> int:
        """The total bytes of the values."""
        return sum(len(value) for value in self.values if value is not None)


def batches_of(rows: Iterable[CanonicalRow]) -> Iterator[CanonicalBatch]:
    """Group rows into batches that are bounded in rows and bytes."""
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
            yield CanonicalBatch.of_rows(chunk)
            chunk, size_bytes = [], 0
    if chunk:
        yield CanonicalBatch.of_rows(chunk)


def bounded_batches(batches: Iterable[CanonicalBatch]) -> Iterator[CanonicalBatch]:
    """Join small batches and split large ones. Like `batches_of`, but most batches are never converted to rows."""
    joined, size_bytes = CanonicalBatch.empty(), 0
    for batch in batches:
        added_bytes = batch.size_bytes
        if joined.row_count + batch.row_count > BATCH_ROWS or size_bytes + added_bytes > BATCH_BYTES:
            yield from _split(joined, size_bytes)
            joined, size_bytes = CanonicalBatch.empty(), 0
        columns: Iterable[tuple[list[Any], list[Any]]] = zip(joined, batch, strict=True)
        for column, added in columns:
            column += added
        size_bytes += added_bytes
    yield from _split(joined, size_bytes)


def _split(batch: CanonicalBatch, size_bytes: int) -> Iterable[CanonicalBatch]:
    if batch.row_count > BATCH_ROWS or size_bytes > BATCH_BYTES:
        return batches_of(zip(*batch, strict=True))
    return (batch,) if batch.row_count else ()


def write_canonical(target: str | pa.NativeFile, batches: Iterable[CanonicalBatch]) -> int:
    """Write a Parquet file of canonical rows to a local path or an open file; return the number of rows."""
    return write_canonical_columns(target, (pa.record_batch(list(batch), schema=SCHEMA) for batch in batches))


def write_canonical_columns(target: str | pa.NativeFile, batches: Iterable[pa.RecordBatch]) -> int:
    """Like `write_canonical`, for batches of Arrow with the columns of `SCHEMA`. Each batch becomes a row group.

    The caller keeps them within `BATCH_ROWS` and `BATCH_BYTES`.
    """
    import pyarrow.parquet as pq

    rows = 0
    written: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        target,
        SCHEMA,
        compression="zstd",
        write_statistics=["key_group"],
        write_page_checksum=True,
        metadata_collector=written,
    ) as writer:
        for batch in batches:
            rows += batch.num_rows
            writer.write_batch(batch, row_group_size=BATCH_ROWS)
    check_written(written[0])
    return rows


def encoded_canonical(batches: Iterable[CanonicalBatch]) -> tuple[bytes, int]:
    """Encode canonical rows as a Parquet file; return its bytes and the number of rows."""
    target = pa.BufferOutputStream()
    rows = write_canonical(target, batches)
    return target.getvalue().to_pybytes(), rows


def read_canonical(path: str, key_groups: KeyGroupRange, content: bytes | None = None) -> Iterator[CanonicalBatch]:
    """Read the rows whose key group is in the range; skip other row groups.

    The file is the local one at ``path``, or ``content`` if given; messages then name it ``path``. Raises
    `StateRestoreError`, naming the file, if it does not hold canonical rows.
    """
    source = path if content is None else pa.BufferReader(content)
    for batch in read_canonical_columns(path, source, (key_groups,)):
        yield CanonicalBatch.of(batch)


def read_canonical_columns(
    path: str,
    source: str | pa.NativeFile,
    key_groups: Sequence[KeyGroupRange],
    columns: Sequence[str] = SCHEMA.names,
    *,
    checks_pages: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Read the rows whose key group is in one of the ranges, as batches of Arrow with these columns.

    ``columns`` must include the key group; pages of other columns are not read. ``path`` names the file in messages.
    ``checks_pages`` verifies the checksum of each page, for callers that did not verify the whole file. Raises as
    `read_canonical`.
    """
    try:
        with BoundedParquetFile(source, checks_pages=checks_pages) as file:
            problem = file.format_problem(SCHEMA, "canonical state", path)
            if problem is not None:
                raise StateRestoreError(problem)
            for row_group, held in _row_groups_from(file, min(one.start for one in key_groups)):
                wanted = [one for one in key_groups if held.overlaps(one)]
                is_wanted_whole = any(one.contains_range(held) for one in wanted)
                for batch in file.batches(row_group, columns, BATCH_ROWS, BATCH_BYTES) if wanted else ():
                    selected = batch if is_wanted_whole else rows_inside(batch, wanted)
                    if selected.num_rows:
                        yield selected
                if all(one.end < held.start for one in key_groups):
                    return
    except pa.ArrowMemoryError:
        # The file is not damaged.
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StateRestoreError(f"{path} cannot be read as canonical state: {error}") from error


def rows_inside(batch: pa.RecordBatch, key_groups: Sequence[KeyGroupRange]) -> pa.RecordBatch:
    """Filter the rows whose key group is in one of the ranges."""
    held = batch.column("key_group")
    inside = [pc.and_(pc.greater_equal(held, one.start), pc.less_equal(held, one.end)) for one in key_groups]
    return batch.filter(functools.reduce(pc.or_, inside))


def _row_groups_from(file: BoundedParquetFile, key_group: int) -> Iterator[tuple[int, KeyGroupRange]]:
    """The row groups that may have rows of this key group or a later one, each with its range of key groups."""
    held = functools.cache(functools.partial(_held_key_groups, file))
    filled = [index for index in range(file.metadata.num_row_groups) if file.rows_of_group(index)]
    # Rows are sorted by key group, so of thousands of row groups only a few are read.
    begin = bisect.bisect_left(filled, key_group, key=lambda index: held(index).end) if key_group else 0
    return ((index, held(index)) for index in filled[begin:])


def _held_key_groups(file: BoundedParquetFile, row_group: int) -> KeyGroupRange:
    """The range from the first to the last key group of a row group that has rows."""
    # Statistics would suffice, but reading those of a damaged file ends the process. The column itself is small,
    # because its values repeat.
    groups = file.column(row_group, "key_group")
    if groups.null_count:
        raise ValueError("there are rows without a key group")
    bounds = pc.min_max(groups).as_py()
    if bounds["min"] is None:
        raise ValueError("there are fewer rows than the file says")
    return KeyGroupRange(bounds["min"], bounds["max"])
