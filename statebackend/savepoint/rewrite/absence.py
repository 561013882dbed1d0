"""Verifies that data was removed from a savepoint. It reads all files, with other code than the writer.

| Search | Where |
|---|---|
| entries | keyed state and timers, by a predicate; an unreadable key or value also counts |
| elements | operator state, by a predicate |
| a marker | bytes unique to the data: in every file, every decompressed Parquet column, and the metadata |

A marker works for savepoints only: the files of a checkpoint are compressed by their backend. A text marker is searched
as UTF-8 and as the string serializer writes it. The result is only as good as the predicates and the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from attrs import fields, frozen, has

from snapshots.errors import format_value
from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.checkpoint.store.checkpoint_directories import METADATA_FILE_NAME
from statebackend.savepoint.errors import RemainsError
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.state_entries import OperatorStateElement
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.state.canonical import BATCH_BYTES, BATCH_ROWS
from statebackend.state.parquet_bounds import BoundedParquetFile
from typeserializers.scalars.strings import StringSerializer

_REPORTED = 20
_CHUNK_BYTES = 1 << 20


@frozen
class Remainder:
    """Data that was found: its operator and state, or its file, and a description."""

    place: str
    found: str


def require_absent(
    savepoint: Savepoint,
    *,
    entries: Callable[[StateEntry], bool] | None = None,
    elements: Callable[[OperatorStateElement], bool] | None = None,
    marker: bytes | str | None = None,
) -> None:
    """Raise `RemainsError` with the first 20 findings. Arguments as in `remains`."""
    found = []
    for one in remains(savepoint, entries=entries, elements=elements, marker=marker):
        found.append(f"{one.place}: {one.found}")
        if len(found) == _REPORTED:
            break
    if found:
        raise RemainsError(f"{savepoint.uri} still has data that should have been removed:\n" + "\n".join(found))


def remains(
    savepoint: Savepoint,
    *,
    entries: Callable[[StateEntry], bool] | None = None,
    elements: Callable[[OperatorStateElement], bool] | None = None,
    marker: bytes | str | None = None,
) -> Iterator[Remainder]:
    """Yield matching data that still exists. Reads everything, batch by batch.

    Args:
        savepoint: The savepoint to search.
        entries: A predicate for keyed state and timers.
        elements: A predicate for operator state.
        marker: Bytes or a string to search in all files.

    Raises:
        ValueError: There is nothing to search for, or the marker is invalid.
        SavepointError: A marker was passed for a checkpoint.
    """
    if entries is None and elements is None and marker is None:
        raise ValueError("pass what to search: entries, elements or a marker")
    if marker is not None and not isinstance(marker, (bytes, str)):
        raise ValueError(f"a marker must be bytes or a string, not {format_value(marker)}")
    if marker is not None and not marker:
        raise ValueError("the marker is empty; pass at least one byte or character")
    if marker is not None and savepoint.metadata.kind is not CheckpointKind.SAVEPOINT:
        raise SavepointError(
            f"{savepoint.uri} is a checkpoint, whose files its backend compresses: they may contain a marker whose "
            f"bytes cannot be found. Search a savepoint, or search for entries and elements"
        )
    if entries is not None:
        for uid, name in savepoint.states:
            for entry in savepoint.read(uid, name):
                if entries(entry):
                    yield Remainder(f"operator {uid!r}, state {name!r}", format_value(entry))
    if elements is not None:
        for uid, operator in savepoint.operators.items():
            for name in operator.operator_states:
                for element in savepoint.read_operator_state(uid, name):
                    if elements(element):
                        yield Remainder(f"operator {uid!r}, operator state {name!r}", format_value(element))
    if marker is not None:
        yield from _marked(savepoint, _bytes_of(marker))


def _bytes_of(marker: bytes | str) -> Sequence[bytes]:
    if isinstance(marker, bytes):
        return (marker,)
    try:
        texts = [marker.encode()]
    except UnicodeEncodeError:
        # UTF-8 cannot encode a lone surrogate.
        texts = []
    # The length prefix takes one byte for a short text, more for a longer one.
    stored = StringSerializer().to_bytes(marker)
    prefix = 1
    while stored[prefix - 1] & 0x80:
        prefix += 1
    return tuple(dict.fromkeys((*texts, stored[prefix:])))


def _marked(savepoint: Savepoint, markers: Sequence[bytes]) -> Iterator[Remainder]:
    file_system = savepoint.file_system
    paths = [file.path for file in savepoint.metadata.files]
    paths += [METADATA_FILE_NAME] if file_system.exists(METADATA_FILE_NAME) else []
    for path in paths:
        if _is_in_file(file_system, path, markers):
            yield Remainder(f"file {path}", "the marker, in the bytes of the file")
        if path.endswith(".parquet"):
            for column in _columns_with(file_system, path, markers):
                yield Remainder(f"file {path}", f"the marker, in the column {column}")
    # The metadata file is compressed, so search its content.
    for operator in savepoint.metadata.operators:
        for index, subtask in enumerate(operator.subtasks):
            if any(marker in part.meta for part in subtask.parts for marker in markers):
                yield Remainder(
                    f"operator {operator.uid!r}, subtask {index}", "the marker, in the metadata of its state"
                )
    for attribute in fields(CheckpointMetadata):
        texts = _texts_in(getattr(savepoint.metadata, attribute.name))
        if any(marker in one for one in texts for marker in markers):
            yield Remainder(attribute.name.replace("_", " "), "the marker, in what the metadata says of it")


def _texts_in(content: Any) -> Iterator[bytes]:
    """Yield all strings and bytes of a metadata section, without the state of subtasks."""
    if isinstance(content, str):
        yield content.encode("utf-8", "surrogatepass")
    elif isinstance(content, bytes):
        yield content
    elif isinstance(content, Mapping):
        yield from chain.from_iterable(_texts_in(part) for item in content.items() for part in item)
    elif isinstance(content, tuple):
        yield from chain.from_iterable(map(_texts_in, content))
    elif has(type(content)) and not isinstance(content, SubtaskState):
        yield from chain.from_iterable(_texts_in(getattr(content, part.name)) for part in fields(type(content)))


def _is_in_file(file_system: CheckpointFileSystem, path: str, markers: Sequence[bytes]) -> bool:
    overlap = max(map(len, markers)) - 1
    with file_system.open_input(path) as source:
        before = b""
        while chunk := source.read(_CHUNK_BYTES):
            window = before + chunk
            if any(marker in window for marker in markers):
                return True
            before = window[-overlap:] if overlap else b""
    return False


def _columns_with(file_system: CheckpointFileSystem, path: str, markers: Sequence[bytes]) -> Iterator[str]:
    found: dict[str, None] = {}
    with file_system.open_input(path) as source, BoundedParquetFile(source) as file:
        for row_group in range(file.metadata.num_row_groups):
            for batch in file.batches(row_group, file.schema.names, BATCH_ROWS, BATCH_BYTES):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if name not in found and pa.types.is_binary(column.type) and _is_in_column(column, markers):
                        found[name] = None
    yield from found


def _is_in_column(column: pa.Array, markers: Sequence[bytes]) -> bool:
    data = column.buffers()[2]
    if data is None or not any(marker in memoryview(data).tobytes() for marker in markers):
        return False
    # A match may span two values.
    return any(marker in value for value in column.to_pylist() if value is not None for marker in markers)
