"""The writing of a snapshot of operator state: what was frozen at the barrier, and the task that writes it.

Each state is either written, copied, or only referred to. It is looked whether the task was cancelled before each state
and each batch of rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import xxhash
from attrs import frozen

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
from statebackend.operator_state.operator_state_rows import Row, encoded_rows, read_slices
from statebackend.operator_state.operator_state_tables import FrozenRows, Serializers

FILE_SUFFIX: Final = ".parquet"

_CANCEL_CHECK_ROWS: Final = 1024


@frozen
class KeptParts:
    """A state that is already in the store: only referred to."""

    parts: tuple[StatePart, ...]


@frozen
class CopiedParts:
    """A state that nobody registered, in files that must not be referred to: copied, under the schemas it has."""

    parts: tuple[StatePart, ...]
    source: CheckpointFileSystem


@frozen
class FrozenTable:
    """A registered state as it was at the barrier, and duplicates of its serializers."""

    row_count: int
    rows: FrozenRows
    serializers: Serializers


@frozen
class FrozenState:
    """One state of a snapshot."""

    name: str
    mode: OperatorStateMode
    content: KeptParts | CopiedParts | FrozenTable


class OperatorStateSnapshotTask(SnapshotTask[OperatorStateSnapshot]):
    """See the module; ``when_done`` is told of a snapshot that is completely written."""

    def __init__(
        self,
        states: Sequence[FrozenState],
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
        self._is_ordered = True
        """Whether the order of the rows that are being written is part of what the state holds."""

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

    def _written(self, state: FrozenState) -> OperatorStateMeta:
        self.raise_if_cancelled()
        # Lengths and counts go first throughout, so that no two contents look alike.
        self._digest.update(f"{len(state.name)} {state.name} {state.mode.value} ".encode("utf-8", "surrogatepass"))
        self._is_ordered = state.mode is not OperatorStateMode.BROADCAST
        return OperatorStateMeta(state.name, state.mode, _WRITERS[type(state.content)](self, state.content))

    def _keep(self, content: KeptParts) -> tuple[StatePart, ...]:
        slices = [one for part in content.parts for one in part.slices]
        self._digest.update(f"kept {len(slices)} ".encode())
        for one in slices:
            self._digest.update(f"{one.file.checksum} {one.start} {one.stop} ".encode())
        return content.parts

    def _copy(self, content: CopiedParts) -> tuple[StatePart, ...]:
        return tuple(
            StatePart(part.envelopes, self._write_rows(part.row_count, read_slices(content.source, part.slices)))
            for part in content.parts
        )

    def _write_table(self, content: FrozenTable) -> tuple[StatePart, ...]:
        slices = self._write_rows(content.row_count, content.rows(content.serializers))
        # Taken after the rows were written, for serializers that learn from what they write.
        return (StatePart(envelopes_of(content.serializers), slices),)

    def _write_rows(self, row_count: int, rows: Iterator[Row]) -> tuple[FileSlice, ...]:
        self._digest.update(f"written {row_count} ".encode())
        if not row_count:
            return ()
        data = encoded_rows(self._watched(rows))
        file = self._file_system.write_file(f"{self._path_prefix}-{len(self._files)}{FILE_SUFFIX}", data)
        self._files.append(file)
        return (FileSlice(file, 0, row_count),)

    def _watched(self, rows: Iterator[Row]) -> Iterator[Row]:
        unordered = 0
        for row in rows:
            if self._rows % _CANCEL_CHECK_ROWS == 0:
                self.raise_if_cancelled()
            self._rows += 1
            row_bytes = b"".join(
                [b"\xff" if column is None else len(column).to_bytes(8, "big") + column for column in row]
            )
            if self._is_ordered:
                self._digest.update(row_bytes)
            else:
                unordered += xxhash.xxh3_128_intdigest(row_bytes)
            yield row
        if not self._is_ordered:
            self._digest.update((unordered % (1 << 128)).to_bytes(16, "big"))


_WRITERS: Final[Mapping[type, Callable[[OperatorStateSnapshotTask, Any], tuple[StatePart, ...]]]] = {
    KeptParts: OperatorStateSnapshotTask._keep,
    CopiedParts: OperatorStateSnapshotTask._copy,
    FrozenTable: OperatorStateSnapshotTask._write_table,
}
