"""A savepoint of a small job, and changes to its files by an attacker, with correct sizes and checksums.

It follows the documented formats, and does not use the code that reads and writes them.
"""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import fastavro
import xxhash

from statebackend import SplitListStateDescriptor, ValueStateDescriptor
from statebackend.savepoint.rewrite import Plan, SavepointWriter

Record = dict[str, Any]

ENTRIES = [(f"shop {number}", number) for number in range(20)]

_CHECKSUM_KEY = "statebackend.checksum"
_NO_CHECKSUM = "xxh3:" + "0" * 32
_BLOCK = {
    "type": "record",
    "name": "Block",
    "fields": [
        {"name": "count", "type": "long"},
        {"name": "data", "type": "bytes"},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
    ],
}


def savepoint_of_shops(path: Path) -> Path:
    """A savepoint with the keyed state `sales` and the operator state `seen` of the operator `shops`."""
    plan = (
        Plan()
        .add_operator("shops", "string")
        .add_state("shops", ValueStateDescriptor("sales", int), ENTRIES)
        .add_operator_state("shops", SplitListStateDescriptor("seen", int), range(1000))
    )
    SavepointWriter.new(path, max_parallelism=8).write(plan)
    return path


def checksum_of(content: bytes) -> str:
    return f"xxh3:{xxhash.xxh3_128_hexdigest(content)}"


class ForgedMetadata:
    """The `_metadata` of a savepoint as a record that can be changed."""

    def __init__(self, savepoint: Path) -> None:
        self._path = savepoint / "_metadata"
        with self._path.open("rb") as source:
            reader = fastavro.reader(source)
            [self.record] = list(reader)
            self._schema = reader.writer_schema
            self._header = dict(reader.metadata)

    def encoded_record(self) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, self.record)
        return out.getvalue()

    def write(self, encoded_record: bytes | None = None) -> None:
        """Write the file with these bytes as its record."""
        content = self.encoded_record() if encoded_record is None else encoded_record
        header = {key: value for key, value in self._header.items() if not key.startswith("avro.")}
        header[_CHECKSUM_KEY] = _NO_CHECKSUM
        out, sync = io.BytesIO(), bytes(16)
        fastavro.writer(out, self._schema, [], codec="deflate", sync_marker=sync, metadata=header)
        fastavro.schemaless_writer(out, _BLOCK, {"count": 1, "data": zlib.compress(content)[2:-4], "sync": sync})
        data = out.getvalue()
        self._path.write_bytes(data.replace(_NO_CHECKSUM.encode(), checksum_of(data).encode(), 1))

    def subtasks(self) -> list[Record]:
        return [subtask for operator in self.record["operators"] for subtask in operator["subtasks"]]

    def replace_files(self, savepoint: Path, part: str, content: bytes) -> None:
        """Put this content into every file of the part `keyed` or `operator`, with its size and checksum."""
        for subtask in self.subtasks():
            for file in (subtask[part] or {"files": []})["files"]:
                (savepoint / file["path"]).write_bytes(content)
                file["size_bytes"], file["checksum"] = len(content), checksum_of(content)
