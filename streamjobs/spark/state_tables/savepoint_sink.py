"""Frames of Spark as savepoints: each task sorts what it has, and the driver makes one savepoint of all of it.

    task      stages its entries beside the target, `<target>-staging-<id>` (`savepoints.writing.staged_entries`)
    driver    commit: merges them into a savepoint, whose metadata makes it complete; then removes what was staged
              abort: removes what was staged

Only parts whose tasks were committed count: what a task left that failed, or that Spark ran twice, is removed with the
rest. A driver that dies leaves what was staged, and no savepoint.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.store_uri import parent_and_name, place_inside
from savepoints.writing.staged_entries import StagedEntries, StagedPart, stage_entries
from streamjobs.spark.state_tables.program import Program
from streamjobs.spark.state_tables.written_state import WrittenState

__all__ = ["SavepointSink"]


class _Staged(WriterCommitMessage):
    """What one task has left."""

    def __init__(self, part: StagedPart) -> None:
        self.part = part


class SavepointSink(DataSourceArrowWriter):
    """See the module; travels to the tasks, and to where it is committed."""

    def __init__(self, state: WrittenState, program: Program) -> None:
        self._state = state
        self._program = program
        self._parent, name = parent_and_name(state.options.path)
        self._directory = f"{name}-staging-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of a task."""
        self._program.install()
        state, schema = self._state, self._state.schema
        part = stage_entries(
            self._store,
            schema,
            state.key_columns,
            state.entries(schema, iterator),
            max_parallelism=state.max_parallelism,
            last_access_ms=state.now_ms,
        )
        return _Staged(part)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Writes the savepoint; raises what writing one raises, and leaves nothing behind then."""
        self._program.install()
        parts = [message.part for message in messages if isinstance(message, _Staged)]
        try:
            self._state.write(StagedEntries(self._store, parts))
        finally:
            self._discard()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removes what was staged."""
        self._discard()

    @property
    def _store(self) -> CheckpointFileSystem:
        return CheckpointFileSystem.from_uri(place_inside(self._parent, self._directory))

    def _discard(self) -> None:
        store: Any = CheckpointFileSystem.from_uri(self._parent)
        store.delete_directory(self._directory)
