"""A replayable source of JSON lines for the local runtime. Each file is a split; positions are byte offsets.

A file must be complete when it appears in the directory, and must not change, as for file sources of Spark.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.json as pa_json
import xxhash

from statebackend.checkpoint.fs.store_uri import is_uri, without_secrets
from statebackend.streaming.errors import JobDefinitionError, StreamJobError
from statebackend.streaming.rows.record_schema import output_schema
from statebackend.streaming.stream_graph import SplitRead

_MOST_HASHED_BYTES: Final = 1 << 16

_OTHER_TYPE: Final = re.compile(r"JSON parse error: Column\(/(.+)\) changed from (\w+) to (\w+) in row \d+")


class JsonLinesSource:
    """Reads files with one JSON object per line, in the order of their names.

    Fields are converted to the types of the schema, for example a string to a timestamp or a date. A missing field is
    null, and fields without a column are ignored. The source ends after the last file. The next start of the job reads
    new files.

    Args:
        directory: The directory of the files.
        schema: A record class, DDL or a ``StructType``.
        pattern: A glob pattern for the names of the files.

    Example:
        >>> source = JsonLinesSource("payments", Payment)  # doctest: +SKIP
        >>> payments = environment.from_source(source, Payment, uid="payments")  # doctest: +SKIP
    """

    reads_splits_one_by_one: Final = True

    def __init__(self, directory: str | os.PathLike[str], schema: Any, *, pattern: str = "*.jsonl") -> None:
        if not pattern or "/" in pattern:
            raise JobDefinitionError(f"JsonLinesSource: pattern is {pattern!r}; pass a pattern of file names")
        if is_uri(os.fspath(directory)):
            raise JobDefinitionError(
                f"JsonLinesSource: {without_secrets(os.fspath(directory))!r} is a URI; pass the path of a directory "
                f"on a disk"
            )
        self._directory = Path(directory)
        self._pattern = pattern
        self._identities: dict[str, str] = {}
        # The runtime checks nulls and names the record. Arrow's reader would reject the whole block.
        fields = [_nullable(field) for field in output_schema(schema, "JsonLinesSource", "").arrow]
        self._schema = pa.schema(fields)
        self._read = _schema_in_json(self._schema)
        try:
            _table(b"{}", self._schema, self._read)
        except pa.ArrowNotImplementedError as error:
            raise JobDefinitionError(
                f"JsonLinesSource: the schema has a type that it cannot read: {error}. Declare a struct "
                f"instead of a map, a string instead of a time, and a number or a string instead of an interval"
            ) from error

    def __repr__(self) -> str:
        return f"JsonLinesSource({str(self._directory)!r})"

    def splits(self) -> Mapping[str, int]:
        """Return the existing files. Raises `StreamJobError` if the directory does not exist."""
        if not self._directory.is_dir():
            raise StreamJobError(f"{self._directory} is not a directory; create it, or pass another one to the source")
        files = [path for path in sorted(self._directory.glob(self._pattern)) if path.is_file()]
        identities = ((path.name, _identity(path)) for path in files)
        self._identities = {name: one for name, one in identities if one is not None}
        return {path.name: 0 for path in files}

    def split_identities(self) -> Mapping[str, str]:
        """Return a hash of the first line of each file: a position does not fit another file of the same name."""
        return self._identities

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        """Return records of a file, as dicts by column. Raises `StreamJobError` with the file and an invalid line."""
        lines: list[tuple[int, bytes]] = []
        with (self._directory / split).open("rb") as file:
            file.seek(position)
            for line in itertools.islice(file, max_records):
                if line.strip():
                    lines.append((position, line))
                position += len(line)
            file.seek(position)
            is_at_end = not file.read(1)
        return SplitRead(self._parsed(split, lines), position, is_at_end)

    def _parsed(self, split: str, lines: list[tuple[int, bytes]]) -> list[dict[str, Any]]:
        """Parse lines with their positions. If this fails, parse them one by one to find the first invalid line."""
        if not lines:
            return []
        try:
            table = _table(b"".join(line for _, line in lines), self._schema, self._read)
            rows: list[dict[str, Any]] = table.to_pylist()
            return rows
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
            if len(lines) > 1:
                return [row for line in lines for row in self._parsed(split, [line])]
            reason, has_field = _OTHER_TYPE.subn(
                lambda match: f"{match[1]} is of type {match[3]}, not {match[2]}", str(error)
            )
            if isinstance(error, UnicodeDecodeError):
                reason = "it is not UTF-8"
            elif not has_field:
                reason = f"{self._field_of(lines[0][1])}{reason}"
            raise StreamJobError(
                f"{self._directory / split}: the line at byte {lines[0][0]} does not fit the schema: {reason}. "
                f"Correct the line, or change the schema"
            ) from error

    def _field_of(self, line: bytes) -> str:
        """Return the name of the first field that makes a line invalid. Empty if the line is no JSON object."""
        if _is_valid(line, pa.schema([])):
            return next(
                (f"field {field.name!r}: " for field in self._schema if not _is_valid(line, pa.schema([field]))), ""
            )
        return ""


def _schema_in_json(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_type_in_json(field.type)) for field in schema])


def _table(data: bytes, schema: pa.Schema, read: pa.Schema) -> pa.Table:
    """Parse lines by the schema ``read``, and convert them to ``schema``. Raises `ArrowInvalid`."""
    table = pa_json.read_json(
        io.BytesIO(data),
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data)),
        parse_options=pa_json.ParseOptions(
            explicit_schema=read, unexpected_field_behavior="ignore", newlines_in_values=False
        ),
    )
    return table if read == schema else table.cast(schema)


def _is_valid(line: bytes, schema: pa.Schema) -> bool:
    try:
        _table(line, schema, _schema_in_json(schema))
    except pa.ArrowInvalid:
        return False
    return True


def _identity(path: Path) -> str | None:
    with path.open("rb") as file:
        line = file.readline(_MOST_HASHED_BYTES)
    # Without its end, the line may still grow.
    return xxhash.xxh3_64_hexdigest(line) if line[-1:] == b"\n" or len(line) == _MOST_HASHED_BYTES else None


def _nullable(field: pa.Field) -> pa.Field:
    """Return the field with nulls allowed at every level."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(kind.field(index)) for index in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    return field.with_type(kind).with_nullable(True)


def _type_in_json(kind: pa.DataType) -> pa.DataType:
    """Return the type with text instead of dates and times, which Arrow's reader expects as numbers."""
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([field.with_type(_type_in_json(field.type)) for field in fields])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_json(kind.value_type)))
    return pa.string() if pa.types.is_date(kind) or pa.types.is_time(kind) else kind
