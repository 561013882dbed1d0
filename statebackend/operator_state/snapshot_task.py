"""A snapshot of operator state in two parts: what was frozen at the barrier, and the writing of it.

    prepared --run--> running --all written--> done
    prepared --cancel--> cancelled
    running  --cancel--> cancelled     at the next state or batch of rows
    running  --error--> failed

Anything else is an error that changes nothing. A task that is cancelled or fails removes the files it wrote.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final

import xxhash
from attrs import frozen

from checkpoint.errors import CheckpointError
from checkpoint.file_system import CheckpointFileSystem
from checkpoint.handles import FileHandle
from statebackend.errors import StateBackendError
from statebackend.operator_state.descriptors import OperatorStateMode
from statebackend.operator_state.entries import Row, encoded_rows, read_slices
from statebackend.operator_state.handles import (
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorStateSnapshot,
    StatePart,
    envelopes_of,
)
from statebackend.operator_state.tables import FrozenRows, Serializers

FILE_SUFFIX: Final = ".parquet"

_CANCEL_CHECK_ROWS: Final = 1024


class SnapshotEvent(enum.Enum):
    """What can happen to a task."""

    RUN = "run"
    WRITTEN = "all written"
    CANCEL = "cancel"
    ERROR = "error"


class SnapshotTaskState(enum.Enum):
    """Where a task is."""

    PREPARED = "prepared"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


TRANSITIONS: Final[Mapping[tuple[SnapshotTaskState, SnapshotEvent], SnapshotTaskState]] = {
    (SnapshotTaskState.PREPARED, SnapshotEvent.RUN): SnapshotTaskState.RUNNING,
    (SnapshotTaskState.PREPARED, SnapshotEvent.CANCEL): SnapshotTaskState.CANCELLED,
    (SnapshotTaskState.RUNNING, SnapshotEvent.WRITTEN): SnapshotTaskState.DONE,
    (SnapshotTaskState.RUNNING, SnapshotEvent.CANCEL): SnapshotTaskState.CANCELLED,
    (SnapshotTaskState.RUNNING, SnapshotEvent.ERROR): SnapshotTaskState.FAILED,
}


class SnapshotTaskError(StateBackendError, RuntimeError):
    """A snapshot was told to do what it cannot do in its state."""


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


class OperatorStateSnapshotTask:
    """The asynchronous part; `run` may be called on any thread, once, and `cancel` on any thread at any time."""

    def __init__(
        self,
        states: Sequence[FrozenState],
        file_system: CheckpointFileSystem,
        path_prefix: str,
        when_done: Callable[[OperatorStateHandle], None],
    ) -> None:
        self._states = states
        self._file_system = file_system
        self._path_prefix = path_prefix
        self._when_done = when_done
        self._lock = threading.Lock()
        self._state = SnapshotTaskState.PREPARED
        self._files: list[FileHandle] = []
        self._rows = 0
        self._digest: Any = xxhash.xxh3_128()

    @property
    def state(self) -> SnapshotTaskState:
        """Where the task is."""
        return self._state

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen."""
        return self._state not in (SnapshotTaskState.PREPARED, SnapshotTaskState.RUNNING)

    def run(self) -> OperatorStateSnapshot:
        """Writes the files and returns the snapshot.

        Raises `concurrent.futures.CancelledError` if it is or was cancelled, `SnapshotTaskError` if it ran before, and
        what the store and the serializers raise.
        """
        self._raise_if_cancelled()
        self._move(SnapshotEvent.RUN)
        try:
            handle = OperatorStateHandle(tuple(self._written(state) for state in self._states))
            self._raise_if_cancelled()
            self._move(SnapshotEvent.WRITTEN)
        except BaseException as error:
            self._remove_files()
            if self._fail() is SnapshotTaskState.CANCELLED:
                raise CancelledError from error
            raise
        self._when_done(handle)
        written = sum(file.size_bytes for file in self._files)
        return OperatorStateSnapshot(handle, self._digest.hexdigest(), self._rows, written)

    def cancel(self) -> bool:
        """Cancels the task; returns whether it is cancelled now, which one that has ended is not."""
        with self._lock:
            following = TRANSITIONS.get((self._state, SnapshotEvent.CANCEL))
            if following is not None:
                self._state = following
            return self._state is SnapshotTaskState.CANCELLED

    def _move(self, event: SnapshotEvent) -> None:
        with self._lock:
            following = TRANSITIONS.get((self._state, event))
            if following is None:
                raise SnapshotTaskError(
                    f"event {event.value!r} cannot happen to a snapshot that is {self._state.value}; prepare another"
                )
            self._state = following

    def _fail(self) -> SnapshotTaskState:
        """Ends a task after an error; one that was cancelled stays cancelled."""
        with self._lock:
            self._state = TRANSITIONS.get((self._state, SnapshotEvent.ERROR), self._state)
            return self._state

    def _raise_if_cancelled(self) -> None:
        if self._state is SnapshotTaskState.CANCELLED:
            raise CancelledError

    def _written(self, state: FrozenState) -> OperatorStateMeta:
        self._raise_if_cancelled()
        # Lengths and counts go first throughout, so that no two contents look alike.
        self._digest.update(f"{len(state.name)} {state.name} {state.mode.value} ".encode("utf-8", "surrogatepass"))
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
        for row in rows:
            if self._rows % _CANCEL_CHECK_ROWS == 0:
                self._raise_if_cancelled()
            self._rows += 1
            for column in row:
                self._digest.update(b"\xff" if column is None else len(column).to_bytes(8, "big"))
                self._digest.update(column or b"")
            yield row

    def _remove_files(self) -> None:
        for file in self._files:
            # The first error is the one to report; a file that stays behind is an orphan and harms nothing.
            with contextlib.suppress(CheckpointError):
                self._file_system.delete(file.path)


_WRITERS: Final[Mapping[type, Callable[[OperatorStateSnapshotTask, Any], tuple[StatePart, ...]]]] = {
    KeptParts: OperatorStateSnapshotTask._keep,
    CopiedParts: OperatorStateSnapshotTask._copy,
    FrozenTable: OperatorStateSnapshotTask._write_table,
}
