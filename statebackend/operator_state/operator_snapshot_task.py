"""The writing of a snapshot of operator state: what was frozen at the barrier, and the task that writes it.

Each state is either written, copied, or only referred to. The digest of a snapshot is of names, modes and rows, and
does not tell which of the three it was: what two attempts at an epoch hold is the same if their rows are. The digest of
the rows of a part is kept with it, so rows that are only referred to are not read for it; where it is not known, it is
taken once from the table. It is looked whether the task was cancelled before each state and each batch of rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import xxhash
from attrs import evolve, frozen

from checkpointing.errors import CheckpointError
from checkpointing.handles.state_handles import FileHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.operator_state_descriptors import OperatorStateMode
from statebackend.keyed.snapshot_task import SnapshotTask
from statebackend.operator_state.operator_state_handles import (
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorStateSnapshot,
    StatePart,
    envelopes_of,
)
from statebackend.operator_state.operator_state_rows import OperatorStateRow, encoded_rows, read_slices
from statebackend.operator_state.operator_state_tables import FrozenRows, Serializers

FILE_SUFFIX: Final = ".parquet"

_CANCEL_CHECK_ROWS: Final = 1024


@frozen
class KeptParts:
    """A state that is already in the store: only referred to.

    ``table`` is what it holds, if that is known and a digest of the rows is not.
    """

    parts: tuple[StatePart, ...]
    table: FrozenOperatorTable | None = None


@frozen
class CopiedParts:
    """A state that nobody registered, in files that must not be referred to: copied, under the schemas it has."""

    parts: tuple[StatePart, ...]
    source: CheckpointFileSystem


@frozen
class FrozenOperatorTable:
    """A registered state as it was at the barrier, and duplicates of its serializers."""

    row_count: int
    rows: FrozenRows
    serializers: Serializers


@frozen
class FrozenOperatorState:
    """One state of a snapshot."""

    name: str
    mode: OperatorStateMode
    content: KeptParts | CopiedParts | FrozenOperatorTable


class OperatorStateSnapshotTask(SnapshotTask[OperatorStateSnapshot]):
    """See the module; ``when_done`` is told of a snapshot that is completely written."""

    def __init__(
        self,
        states: Sequence[FrozenOperatorState],
        file_system: CheckpointFileSystem,
        path_prefix: str,
        when_done: Callable[[OperatorStateHandle], None],
    ) -> None:
        super().__init__()
        self._states = states
        self._file_system = file_system
        self._path_prefix = path_prefix
        self._when_done = when_done
        self._files: list[FileHandle] = []
        self._rows = 0
        self._digest: Any = xxhash.xxh3_128()

    def write(self) -> OperatorStateSnapshot:
        handle = OperatorStateHandle(tuple(self._written(state) for state in self._states))
        written = sum(file.size_bytes for file in self._files)
        return OperatorStateSnapshot(handle, self._digest.hexdigest(), self._rows, written)

    def remove_written(self) -> None:
        for file in self._files:
            # The first error is the one to report; a file that stays behind is an orphan and harms nothing.
            with contextlib.suppress(CheckpointError):
                self._file_system.delete(file.path)

    def ended(self, snapshot: OperatorStateSnapshot | None) -> None:
        if snapshot is not None:
            self._when_done(snapshot.handle)

    def _written(self, state: FrozenOperatorState) -> OperatorStateMeta:
        self.raise_if_cancelled()
        # Lengths and counts go first throughout, so that no two contents look alike.
        self._digest.update(f"{len(state.name)} {state.name} {state.mode.value} ".encode("utf-8", "surrogatepass"))
        # The order of a map is not part of what it holds.
        new_digest = _UnorderedDigest if state.mode is OperatorStateMode.BROADCAST else _OrderedDigest
        return OperatorStateMeta(state.name, state.mode, _WRITERS[type(state.content)](self, state.content, new_digest))

    def _keep(self, content: KeptParts, new_digest: NewDigest) -> tuple[StatePart, ...]:
        parts = content.parts
        if content.table is not None:
            rows = content.table.rows(content.table.serializers)
            digest = _digest_of(self._counted(rows), new_digest())
            # Several parts under one schema are one in what a table writes.
            self._add(content.table.row_count, digest)
            return (evolve(parts[0], digest=digest),) if len(parts) == 1 else parts
        for part in parts:
            if part.digest is not None:
                self._add(part.row_count, part.digest)
            else:
                # Nobody has read these rows; every attempt refers to the same slices.
                self._digest.update(f"unread {len(part.slices)} ".encode())
                for one in part.slices:
                    self._digest.update(f"{one.file.checksum} {one.start} {one.stop} ".encode())
        return parts

    def _copy(self, content: CopiedParts, new_digest: NewDigest) -> tuple[StatePart, ...]:
        return tuple(
            self._write_rows(part.row_count, read_slices(content.source, part.slices), part.envelopes, new_digest())
            for part in content.parts
        )

    def _write_table(self, content: FrozenOperatorTable, new_digest: NewDigest) -> tuple[StatePart, ...]:
        part = self._write_rows(content.row_count, content.rows(content.serializers), {}, new_digest())
        # Taken after the rows were written, for serializers that learn from what they write.
        return (evolve(part, envelopes=envelopes_of(content.serializers)),)

    def _write_rows(
        self, row_count: int, rows: Iterator[OperatorStateRow], envelopes: Mapping[str, bytes], digest: RowDigest
    ) -> StatePart:
        slices: tuple[FileSlice, ...] = ()
        if row_count:
            data = encoded_rows(self._watched(rows, digest))
            file = self._file_system.write_file(f"{self._path_prefix}-{len(self._files)}{FILE_SUFFIX}", data)
            self._files.append(file)
            slices = (FileSlice(file, 0, row_count),)
        self._add(row_count, digest.value())
        return StatePart(envelopes, slices, digest.value())

    def _add(self, row_count: int, digest: bytes) -> None:
        self._digest.update(f"{row_count} ".encode() + digest)

    def _watched(self, rows: Iterator[OperatorStateRow], digest: RowDigest) -> Iterator[OperatorStateRow]:
        for row in self._counted(rows):
            self._rows += 1
            digest.add(row)
            yield row

    def _counted(self, rows: Iterator[OperatorStateRow]) -> Iterator[OperatorStateRow]:
        for number, row in enumerate(rows):
            if number % _CANCEL_CHECK_ROWS == 0:
                self.raise_if_cancelled()
            yield row


class RowDigest(Protocol):
    """The digest of rows, one after the other."""

    def add(self, row: OperatorStateRow) -> None:
        """Adds a row."""

    def value(self) -> bytes:
        """The digest of the rows so far, 16 bytes."""


class _OrderedDigest:
    def __init__(self) -> None:
        self._digest: Any = xxhash.xxh3_128()

    def add(self, row: OperatorStateRow) -> None:
        self._digest.update(_row_bytes(row))

    def value(self) -> bytes:
        digest: bytes = self._digest.digest()
        return digest


class _UnorderedDigest:
    def __init__(self) -> None:
        self._sum = 0

    def add(self, row: OperatorStateRow) -> None:
        self._sum += xxhash.xxh3_128_intdigest(_row_bytes(row))

    def value(self) -> bytes:
        return (self._sum % (1 << 128)).to_bytes(16, "big")


NewDigest = Callable[[], RowDigest]


def _digest_of(rows: Iterator[OperatorStateRow], digest: RowDigest) -> bytes:
    for row in rows:
        digest.add(row)
    return digest.value()


def _row_bytes(row: OperatorStateRow) -> bytes:
    # Lengths go first, so that no two rows look alike.
    return b"".join([b"\xff" if column is None else len(column).to_bytes(8, "big") + column for column in row])


_WRITERS: Final[Mapping[type, Callable[[OperatorStateSnapshotTask, Any, NewDigest], tuple[StatePart, ...]]]] = {
    KeptParts: OperatorStateSnapshotTask._keep,
    CopiedParts: OperatorStateSnapshotTask._copy,
    FrozenOperatorTable: OperatorStateSnapshotTask._write_table,
}
