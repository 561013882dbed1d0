"""Reads Parquet files of byte columns with memory bounds that follow from the size of the file.

A few bytes of Parquet can encode gigabytes: a page may decompress to 32,000 times its size, and one value of a
dictionary may be repeated in every row. pyarrow trusts the file. So this module checks a row group before pyarrow
decodes it, in three steps:

1. The page headers, which pyarrow follows, bound the decompressed size.
2. A dictionary is harmless if each of its values is used at most once, as in columns of unique values. The index pages
   show that without decoding the values.
3. Otherwise the lengths of the dictionary's values and their uses are added up.

A row group has at most `MAX_ROW_GROUP_ROWS` rows. Its rows take at most `_FREE_BYTES`, plus `_MAX_RATIO` bytes for each
byte of its pages.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from snapshots.format_versions import newer_version, pre_release
from statebackend.state.errors import StateBackendError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_PRE_RELEASE_KEYS: Final = (b"statebackend.format", b"statebackend.operator_state.format")

MAX_ROW_GROUP_ROWS: Final = 1 << 16
"""The limit of rows in a row group. No release has written more."""

_FREE_BYTES: Final = 128 << 20
_MAX_RATIO: Final = 1024

_STREAM_BYTES: Final = 1 << 20
"""How many bytes of a column are read from a file at a time."""

_HEADER_BYTES: Final = 1 << 10
_MAX_HEADER_BYTES: Final = 1 << 20
_MAX_FOOTER_BYTES: Final = 16 << 20
_MAX_NESTING: Final = 12
_MAX_INDEX_BYTES: Final = 1 << 18
"""Index pages above this are checked by the lengths of the values instead."""

# The numbers of fields in the structs of the format.
_ROW_GROUPS, _COLUMNS, _COLUMN_METADATA = 4, 1, 3
_CODEC, _NUM_VALUES, _TOTAL_COMPRESSED_SIZE, _DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 4, 5, 7, 9, 11

_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = range(4)
_ENCODINGS: Final = {0: "PLAIN", 2: "PLAIN_DICTIONARY", 3: "RLE", 8: "RLE_DICTIONARY"}
"""The encodings that writers use. In the delta encodings a value can repeat part of the one before it."""

_DICTIONARY_ENCODINGS: Final = (2, 8)
_RLE: Final = 3
_CODECS: Final = {1: "snappy", 2: "gzip", 6: "zstd"}


class BoundedParquetFile:
    """A Parquet file whose row groups are checked before they are decoded; close it.

    ``source`` is a local path or an open file. Raises `ValueError` for a file that breaks a bound, and what pyarrow
    raises.
    """

    def __init__(self, source: str | pa.NativeFile, *, checks_pages: bool = False) -> None:
        import pyarrow.parquet as pq

        self._options = {
            "buffer_size": _STREAM_BYTES,
            # Pages are read when needed: a row group of an earlier release may be larger than the memory.
            "pre_buffer": False,
            "page_checksum_verification": checks_pages,
        }
        with ExitStack() as opening:
            self._source = opening.enter_context(pa.OSFile(source)) if isinstance(source, str) else source
            self._file = opening.enter_context(pq.ParquetFile(self._source, **self._options))
            self.schema: pa.Schema = self._file.schema_arrow
            self.metadata: pq.FileMetaData = self._file.metadata
            # pyarrow ends the process if asked for the column chunks of some damaged files.
            self._row_groups = _row_groups_of(self._source)
            if len(self._row_groups) != self.metadata.num_row_groups:
                raise ValueError("the footer is damaged")
            self._closing = opening.pop_all()

    def __enter__(self) -> BoundedParquetFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def format_problem(self, expected: pa.Schema, what: str, path: str) -> str | None:
        """Why the file is not in the format of a schema, whose metadata is the key and the version. None if it is."""
        [(key, version)] = expected.metadata.items()
        metadata = self.schema.metadata or {}
        found = metadata.get(key, b"")
        if not found and any(one in metadata for one in _PRE_RELEASE_KEYS):
            return pre_release(path, "Use a checkpoint or savepoint of a released version.")
        if found.isdigit() and len(found) < 10 and int(found) > int(version):
            return newer_version(path, int(found), int(version))
        if found != version or self.schema.names != expected.names or self.schema.types != expected.types:
            return f"{path} does not hold {what} of format {version.decode()}"
        return None

    def rows_of_group(self, row_group: int) -> int:
        """The number of rows of a row group. Raises `ValueError` for more than a row group can have."""
        rows = int(self.metadata.row_group(row_group).num_rows)
        if not 0 <= rows <= MAX_ROW_GROUP_ROWS:
            raise ValueError(f"row group {row_group} has {rows} rows; the limit is {MAX_ROW_GROUP_ROWS}")
        return rows

    def column(self, row_group: int, name: str) -> pa.ChunkedArray:
        """One column of a row group, whose values have a fixed width."""
        self._checked_pages(row_group, [name])
        return self._file.read_row_group(row_group, columns=[name]).column(0)

    def batches(
        self, row_group: int, columns: Sequence[str], batch_rows: int, batch_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of a row group in batches of at most ``batch_rows`` rows and about ``batch_bytes`` bytes."""
        rows = self.rows_of_group(row_group)
        size_bytes, limit, dictionaries = self._checked_pages(row_group, columns)
        batch_rows = min(batch_rows, max(1, rows * batch_bytes // max(size_bytes, 1)))
        if sum(pages.dictionary_bytes for pages in dictionaries.values()) * rows > batch_bytes:
            dictionaries = {
                name: pages
                for name, pages in dictionaries.items()
                if pages.dictionary_bytes * rows * 8 <= batch_bytes or not self._uses_each_value_once(name, pages)
            }
        if sum(pages.dictionary_bytes for pages in dictionaries.values()) * rows > batch_bytes:
            longest = self._longest_row(row_group, dictionaries)
            if longest * rows > batch_bytes:
                dense_bytes = self._dense_bytes(row_group, dictionaries)
                if dense_bytes > limit:
                    raise ValueError(f"row group {row_group} decodes to {dense_bytes} bytes, but the limit is {limit}")
                batch_rows = min(batch_rows, max(1, rows * batch_bytes // max(dense_bytes, 1)))
                batch_rows = min(batch_rows, max(1, _FREE_BYTES // longest))
        yield from self._file.iter_batches(batch_size=batch_rows, row_groups=[row_group], columns=list(columns))

    def _checked_pages(self, row_group: int, columns: Sequence[str]) -> tuple[int, int, dict[str, _Pages]]:
        """The bytes of these columns, their limit, and the pages of the byte columns that have a dictionary."""
        rows = self.rows_of_group(row_group)
        chunks = self._row_groups[row_group]
        size_bytes, stored_bytes = 0, 0
        dictionaries: dict[str, _Pages] = {}
        for name in columns:
            index = self.schema.get_field_index(name)
            if index < 0 or self.schema.field(index).type not in (pa.int32(), pa.binary()):
                raise ValueError(f"column {name!r} is missing, or is of a type that is never written")
            if self.metadata.num_columns != len(self.schema) or len(chunks) != len(self.schema):
                raise ValueError(f"row group {row_group} has {len(chunks)} columns, not {len(self.schema)}")
            values = _number(chunks[index], _NUM_VALUES)
            if values != rows:
                raise ValueError(f"column {name!r} of row group {row_group} has {values} values, not {rows}")
            pages = _Pages(self._source, chunks[index])
            size_bytes += pages.size_bytes
            stored_bytes += pages.stored_bytes
            if pages.dictionary_bytes and self.schema.field(index).type == pa.binary():
                dictionaries[name] = pages
        limit = _FREE_BYTES + _MAX_RATIO * stored_bytes
        if size_bytes > limit:
            raise ValueError(
                f"row group {row_group} takes {size_bytes} bytes once it is decompressed; the limit for its "
                f"{stored_bytes} bytes is {limit}"
            )
        return size_bytes, limit, dictionaries

    def _uses_each_value_once(self, name: str, pages: _Pages) -> bool:
        """Whether the pages of the column are known to use each value of its dictionary at most once."""
        if pages.codec is None or pages.indexes is None:
            return False
        # The file's Arrow schema may contradict the levels that pyarrow decodes.
        has_levels = self.metadata.schema.column(self.schema.get_field_index(name)).max_definition_level > 0
        first = 0
        for page in pages.indexes:
            if max(page.size_bytes, page.stored_bytes) > _MAX_INDEX_BYTES:
                return False
            self._source.seek(page.position)
            stored = self._source.read(page.stored_bytes)
            if not _are_consecutive(stored, page.size_bytes, pages.codec, page.values, first, has_levels):
                return False
            first += page.values
        return True

    def _longest_row(self, row_group: int, columns: Iterable[str]) -> int:
        """The sum of the longest values in the dictionaries of the columns."""
        with self._as_dictionaries(columns) as file:
            first = next(file.iter_batches(batch_size=1, row_groups=[row_group], columns=list(columns)), None)
        if first is None:
            return 0
        return sum(pc.max(pc.binary_length(column.dictionary)).as_py() or 0 for column in first.columns)

    def _dense_bytes(self, row_group: int, columns: Iterable[str]) -> int:
        """The bytes of all values of the columns, without the values in memory."""
        total = 0
        with self._as_dictionaries(columns) as file:
            for batch in file.iter_batches(row_groups=[row_group], columns=list(columns)):
                for column in batch.columns:
                    lengths = pc.cast(pc.binary_length(column.dictionary), pa.int64())
                    total += pc.sum(lengths.take(column.indices)).as_py() or 0
        return total

    def _as_dictionaries(self, columns: Iterable[str]) -> pq.ParquetFile:
        return type(self._file)(
            self._source,
            metadata=self.metadata,
            read_dictionary=list(columns),
            **self._options,
        )


def check_written(metadata: pq.FileMetaData) -> None:
    """Raise `StateBackendError` if row groups could not be read again, because of a large value of zeros."""
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.total_byte_size > _FREE_BYTES:
            stored_bytes = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
            if group.total_byte_size > _FREE_BYTES + _MAX_RATIO * stored_bytes:
                raise StateBackendError(
                    f"a value of about {group.total_byte_size} bytes compresses to {stored_bytes} bytes. A reader "
                    f"rejects that as a decompression bomb. Split the value, or compress it before it becomes state"
                )


class _IndexPage(NamedTuple):
    """A page of indexes into a dictionary, after its header."""

    position: int
    stored_bytes: int
    size_bytes: int
    values: int


class _Pages:
    """The page headers of one column of a row group. Raises `ValueError` for unknown kinds of pages.

    ``indexes`` are the pages with indexes into the dictionary; None if one has a layout that writers do not use.
    """

    def __init__(self, source: pa.NativeFile, chunk: dict[int, Any]) -> None:
        self.indexes: list[_IndexPage] | None = []
        self.codec = _CODECS.get(_number(chunk, _CODEC))
        self.size_bytes = 0
        self.stored_bytes = 0
        self.dictionary_bytes = 0
        position = _number(chunk, _DATA_PAGE_OFFSET)
        if _DICTIONARY_PAGE_OFFSET in chunk and 0 < _number(chunk, _DICTIONARY_PAGE_OFFSET) < position:
            position = _number(chunk, _DICTIONARY_PAGE_OFFSET)
        end = position + _number(chunk, _TOTAL_COMPRESSED_SIZE)
        if not 0 <= position <= end <= source.size():
            raise ValueError(f"the pages of a column are at bytes {position} to {end} of {source.size()}")
        is_first = True
        while position < end:
            header, header_bytes = _read_header(source, position, end)
            kind, size_bytes, stored_bytes = (_number(header, field) for field in (1, 2, 3))
            if size_bytes < 0 or stored_bytes < 0:
                raise ValueError(f"the page at byte {position} has a negative size")
            if kind == _DICTIONARY_PAGE:
                if not is_first:
                    raise ValueError(f"the page at byte {position} is a dictionary after other pages")
                self.dictionary_bytes = size_bytes
                _check_encoding(header, 7, 2, position)
            elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
                field = 5 if kind == _DATA_PAGE else 8
                encoding = _check_encoding(header, field, 2 if kind == _DATA_PAGE else 4, position)
                if kind == _DATA_PAGE_V2 or _number(header[field], 3) != _RLE:
                    self.indexes = None
                elif self.indexes is not None and encoding in _DICTIONARY_ENCODINGS:
                    values = _number(header[field], 1)
                    self.indexes.append(_IndexPage(position + header_bytes, stored_bytes, size_bytes, values))
            elif kind != _INDEX_PAGE:
                raise ValueError(f"the page at byte {position} is of the unknown kind {kind}")
            self.size_bytes += size_bytes
            self.stored_bytes += header_bytes + stored_bytes
            position += header_bytes + stored_bytes
            is_first = False


def _check_encoding(header: dict[int, Any], field: int, encoding_field: int, position: int) -> int:
    details = header.get(field)
    if not isinstance(details, dict):
        raise ValueError(f"the header of the page at byte {position} is damaged")
    encoding = _number(details, encoding_field)
    if encoding not in _ENCODINGS:
        raise ValueError(f"the page at byte {position} is not encoded as {' or '.join(_ENCODINGS.values())}")
    return encoding


@functools.lru_cache(maxsize=32)
def _are_consecutive(stored: bytes, size_bytes: int, codec: str, count: int, first: int, has_levels: bool) -> bool:
    """Whether a page has no nulls, and its indexes are ``first``, ``first + 1``, and so on.

    Writers number the values of a dictionary in the order of their first use, so unique values have such indexes. Their
    pages are the same in every row group, which makes the cache useful. The encoding is Parquet's hybrid of repeated
    and bit-packed runs.
    """
    page = pa.decompress(stored, size_bytes, codec, asbytes=True)
    position = 0
    try:
        if has_levels:
            position = 4 + int.from_bytes(page[:4], "little")
            levels = _CompactReader(page[4:position])
            if levels.unsigned() != count << 1 or levels.byte() != 1:
                return False
        width = page[position]
        if width > 32 or count < 0 or first + count > 1 << width:
            return False
        runs = _CompactReader(page)
        runs.position = position + 1
        end = first + count
        while first < end:
            run = runs.unsigned()
            size = (run >> 1) * width if run & 1 else (width + 7) // 8
            used = min((run >> 1) * 8, end - first) if run & 1 else 1
            if not run & 1 and run >> 1 != 1:
                return False
            packed = int.from_bytes(page[runs.position : runs.position + size], "little")
            runs.skip(size)
            step, ramp = _packed_counts(width, used)
            if not used or packed & ((1 << used * width) - 1) != first * step + ramp:
                return False
            first += used
    except (IndexError, ValueError):
        return False
    return True


@functools.lru_cache(maxsize=256)
def _packed_counts(width: int, count: int) -> tuple[int, int]:
    """The integers 1, 1, 1, ... and 0, 1, 2, ..., packed in fields of ``width`` bits."""
    return sum(1 << index * width for index in range(count)), sum(index << index * width for index in range(count))


def _number(fields: object, field: int) -> int:
    value = fields.get(field) if isinstance(fields, dict) else None
    if type(value) is not int:
        raise ValueError("a number in the file's metadata is damaged")
    return value


def _row_groups_of(source: pa.NativeFile) -> list[list[dict[int, Any]]]:
    """The metadata of the column chunks of each row group, from the footer of the file."""
    end = source.size() - 8
    source.seek(max(0, end))
    size = int.from_bytes(source.read(4), "little")
    if not 0 <= size <= min(end, _MAX_FOOTER_BYTES):
        raise ValueError(f"the footer has {size} bytes; the limit is {_MAX_FOOTER_BYTES}")
    source.seek(end - size)
    try:
        footer = _CompactReader(source.read(size)).struct(0)
        return [[column[_COLUMN_METADATA] for column in group[_COLUMNS]] for group in footer[_ROW_GROUPS]]
    except (LookupError, TypeError) as error:
        raise ValueError("the footer is damaged") from error


def _read_header(source: pa.NativeFile, position: int, end: int) -> tuple[dict[int, Any], int]:
    """The header of the page at a position, and its size."""
    window = _HEADER_BYTES
    while True:
        source.seek(position)
        data = source.read(min(window, end - position))
        try:
            reader = _CompactReader(data)
            return reader.struct(0), reader.position
        except IndexError:
            if window >= _MAX_HEADER_BYTES or len(data) < window:
                raise ValueError(f"the header of the page at byte {position} is damaged") from None
            window *= 32


class _CompactReader:
    """Structs of Thrift's compact protocol: their integers, structs and lists by the number of their field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def struct(self, nesting: int) -> dict[int, Any]:
        """The struct at the position. Raises `IndexError` at the end of the data."""
        fields: dict[int, Any] = {}
        field = 0
        while byte := self.byte():
            field = field + (byte >> 4) if byte >> 4 else self._signed()
            kind = byte & 0x0F
            fields[field] = self._signed() if kind == 5 else self._value(kind, nesting)
        return fields

    def _value(self, kind: int, nesting: int) -> Any:
        if kind in (4, 5, 6):
            return self._signed()
        if kind in (1, 2):
            return None
        if kind == 3:
            return self.byte()
        if kind == 7:
            return self.skip(8)
        if kind == 8:
            return self.skip(self.unsigned())
        if kind in (9, 10) and nesting < _MAX_NESTING:
            header = self.byte()
            count = header >> 4 if header >> 4 < 15 else self.unsigned()
            if count > len(self._data) - self.position:
                raise IndexError
            if header & 0x0F in (1, 2):
                return self.skip(count)
            return [self._value(header & 0x0F, nesting + 1) for _ in range(count)]
        if kind == 12 and nesting < _MAX_NESTING:
            return self.struct(nesting + 1)
        raise ValueError("a struct of the file has a field of an unknown type")

    def byte(self) -> int:
        byte = self._data[self.position]
        self.position += 1
        return byte

    def unsigned(self) -> int:
        first = self._data[self.position]
        if first < 0x80:
            self.position += 1
            return first
        number = shift = 0
        while True:
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number
            if shift > 63:
                raise ValueError("a struct of the file has a number that is too large")

    def _signed(self) -> int:
        number = self.unsigned()
        return (number >> 1) ^ -(number & 1)

    def skip(self, size: int) -> None:
        self.position += size
        if self.position > len(self._data):
            raise IndexError
