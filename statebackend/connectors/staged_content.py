"""Stages the output of subtasks for targets without a staging area: in the committable, or in a separate file.

    committable := JSON header, "\\n", content compressed with zstd, which is empty if a file has it
    header      := {"version": 1, "size": <bytes>, "file": [path, bytes, checksum] or null, ...fields of the sink}

Files are in ``<directory>/<job id>/<sink uid>/<epoch>-<run id>/``. The directory may be on a disk that the driver and
all workers share, or in an object store.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from snapshots.errors import format_value
from snapshots.format_versions import newer_version
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import path_segment
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.streaming.sink import SinkEpoch, SinkError, SinkLineage

__all__ = ["StagedContent", "StagingArea", "json_text"]

_VERSION: Final = 1
_SMALL_BYTES: Final = 1 << 16
"""Content up to this size is always in the committable, also with a directory."""

MAX_INLINE_BYTES: Final = 16 << 20
"""The maximum size of compressed content in a committable. A checkpoint's metadata has at most 256 MiB."""


@frozen
class StagedContent:
    """The content of one committable, and the fields that the sink stored with it."""

    fields: Mapping[str, Any]
    content: bytes


class StagingArea:
    """The staging area of a sink. ``target`` is the sink's identity, for errors."""

    def __init__(self, target: str, directory: str | os.PathLike[str] | None) -> None:
        self._target = target
        self._files = None if directory is None else CheckpointFileSystem.from_uri(directory)

    def stage(self, epoch: SinkEpoch, subtask_index: int, fields: Mapping[str, Any], content: bytes) -> bytes:
        """Return a committable with this content. Raises `SinkError` for large content without a directory."""
        compressed: bytes = pa.compress(content, codec="zstd", asbytes=True)
        file: list[Any] | None = None
        if self._files is not None and len(compressed) > _SMALL_BYTES:
            path = f"{_directory(epoch.lineage)}/{_name(epoch)}/{subtask_index:05d}-{uuid.uuid4().hex}"
            with self._reporting(f"cannot stage {epoch}"):
                handle = self._files.write_file(path, compressed)
            file, compressed = [handle.path, handle.size_bytes, handle.checksum], b""
        elif len(compressed) > MAX_INLINE_BYTES:
            raise SinkError(
                f"{self._target}: subtask {subtask_index} has {len(compressed)} compressed bytes for {epoch}, and at "
                f"most {MAX_INLINE_BYTES} fit into a checkpoint. Pass staging=<a directory that the driver and all "
                f"workers share>, or make epochs smaller"
            )
        header = {"version": _VERSION, "size": len(content), "file": file, **fields}
        return json.dumps(header).encode() + b"\n" + compressed

    def read(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> list[StagedContent]:
        """Return the content of committables of an epoch. Raises `SinkError` for missing or damaged content."""
        return [self._content(epoch, one) for one in committables]

    def discard(self, epoch: SinkEpoch) -> None:
        """Delete the files that a run staged for an epoch. Best effort."""
        if self._files is not None:
            with contextlib.suppress(CheckpointError):
                self._files.delete_directory(f"{_directory(epoch.lineage)}/{_name(epoch)}")

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None, committed_epoch_id: int | None) -> None:
        """Delete the files of later epochs and of committed epochs of a lineage. Best effort."""
        if self._files is None:
            return
        directory = _directory(lineage)
        with contextlib.suppress(CheckpointError):
            for name in self._files.list_directories(directory):
                epoch_id = int(name.partition("-")[0])
                is_later = last_epoch_id is None or epoch_id > last_epoch_id
                if is_later or (committed_epoch_id is not None and epoch_id <= committed_epoch_id):
                    self._files.delete_directory(f"{directory}/{name}")

    def _content(self, epoch: SinkEpoch, committable: bytes) -> StagedContent:
        first_line, _, compressed = committable.partition(b"\n")
        try:
            header = json.loads(first_line)
            version = header["version"]
            if type(version) is int and version > _VERSION:
                raise SinkError(newer_version(f"{self._target}: the committable of {epoch}", version, _VERSION))
            if version != _VERSION:
                raise ValueError(version)
            size, file = header["size"], header["file"]
            handle = None if file is None else FileHandle(*file)
        except (ValueError, KeyError, TypeError, RecursionError, CheckpointError) as error:
            raise SinkError(
                f"{self._target}, {epoch}: {format_value(first_line, 100)} is not a committable of this sink"
            ) from error
        if handle is not None:
            if self._files is None:
                raise SinkError(
                    f"{self._target}, {epoch}: its rows are in the file {handle.path}, but the sink has no staging "
                    f"directory. Pass the directory of the run before as staging"
                )
            with self._reporting(f"cannot read the staged rows of {epoch}"):
                compressed = self._files.read_file(handle)
        try:
            with pa.CompressedInputStream(pa.BufferReader(compressed), "zstd") as stream:
                content = bytes(stream.read(size))
        except (OSError, TypeError, OverflowError, MemoryError) as error:
            raise SinkError(f"{self._target}, {epoch}: its staged rows are damaged: {error}") from error
        if len(content) != size:
            raise SinkError(f"{self._target}, {epoch}: its staged rows have {len(content)} bytes instead of {size}")
        return StagedContent(header, content)

    @contextlib.contextmanager
    def _reporting(self, what: str) -> Any:
        try:
            yield
        except CheckpointError as error:
            raise SinkError(f"{self._target} {what}: {error}") from error


def json_text(value: Any) -> str:
    """Return a value of a row as JSON: bytes as hex digits, times in ISO 8601. Raises `ValueError` for NaN."""
    return json.dumps(value, default=_json_value, allow_nan=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def _directory(lineage: SinkLineage) -> str:
    return f"{path_segment(lineage.job_id)}/{path_segment(lineage.sink_uid)}"


def _name(epoch: SinkEpoch) -> str:
    return f"{epoch.epoch_id:012d}-{path_segment(epoch.run_id)}"
