"""Golden files of a serializer: its snapshot and the bytes of some values, written once for each released version.

    <directory>/<version>/serializer-snapshot      the versioned snapshot
    <directory>/<version>/test-data                the values, one after the other
    <directory>/<version>/values                   one line per value: its length in bytes, and its repr for people

The data is written before the snapshot, because a serializer may learn while it writes. A version that exists is never
written again: what was released does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from snapshots.envelope import snapshot_from_bytes, snapshot_to_bytes
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.type_serializer import TypeSerializer

SNAPSHOT_FILE = "serializer-snapshot"
DATA_FILE = "test-data"
VALUES_FILE = "values"


@frozen
class GoldenVersion:
    """What one released version has written."""

    version: str
    snapshot_bytes: bytes
    encoded_values: tuple[bytes, ...]

    @property
    def snapshot(self) -> TypeSerializerSnapshot[Any]:
        """The snapshot, read anew."""
        return snapshot_from_bytes(self.snapshot_bytes)


@frozen
class GoldenFiles:
    """The golden files of one serializer in a directory of its own."""

    directory: Path

    def generate(self, version: str, serializer: TypeSerializer[Any], values: Sequence[Any]) -> GoldenVersion:
        """Writes the files of a version; raises `FileExistsError` if it has been written before."""
        folder = self.directory / version
        folder.mkdir(parents=True)
        encoded = tuple(serializer.to_bytes(value) for value in values)
        snapshot = snapshot_to_bytes(serializer.snapshot_configuration())
        (folder / DATA_FILE).write_bytes(b"".join(encoded))
        (folder / SNAPSHOT_FILE).write_bytes(snapshot)
        # A repr may have several lines, and a value has one.
        shown = [" ".join(ascii(value).split()) for value in values]
        lines = [f"{len(data)} {text}\n" for data, text in zip(encoded, shown, strict=True)]
        (folder / VALUES_FILE).write_text("".join(lines), encoding="ascii")
        return GoldenVersion(version, snapshot, encoded)

    def versions(self) -> Iterator[GoldenVersion]:
        """Every version there is, in the order of their names."""
        for folder in sorted(self.directory.iterdir()) if self.directory.is_dir() else ():
            if not (folder / SNAPSHOT_FILE).is_file():
                continue
            data, position, encoded = (folder / DATA_FILE).read_bytes(), 0, []
            for line in (folder / VALUES_FILE).read_text(encoding="ascii").splitlines():
                length = int(line.partition(" ")[0])
                encoded.append(data[position : position + length])
                position += length
            if position != len(data):
                raise ValueError(f"{folder}: the values have {position} bytes, the data {len(data)}")
            yield GoldenVersion(folder.name, (folder / SNAPSHOT_FILE).read_bytes(), tuple(encoded))
