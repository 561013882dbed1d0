"""The table of all states that a checkpoint or savepoint holds: what each is, and how large.

One row a state, keyed or not. The entries are counted when the column is asked for: of a savepoint by reading next to
nothing, of a checkpoint by restoring the state. Of broadcast state one copy is counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from savepoints.reading.entry_counts import counted_columns, entries_in
from savepoints.savepoint import Savepoint, StateDescription, StoredOperator
from statebackend.api.operator_state_descriptors import OperatorStateMode
from streamjobs.spark.state_tables.key_pruning import EVERYTHING, KeyCondition
from streamjobs.spark.state_tables.keyed_parts import KeyedPart, keyed_parts

__all__ = ["MetadataTable"]

SCHEMA: Final = pa.schema(
    [
        pa.field("checkpoint_id", pa.int64(), nullable=False),
        pa.field("operator", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("types", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("subtasks", pa.int32(), nullable=False),
        pa.field("files", pa.int32(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("entries", pa.int64(), nullable=False),
    ]
)


@frozen
class _StateRow:
    """All columns of a state but the number of its entries, and what to count, or the number itself."""

    columns: Mapping[str, Any]
    counted: Sequence[KeyedPart] | int

    def entries(self) -> int:
        if isinstance(self.counted, int):
            return self.counted
        total = 0
        for part in self.counted:
            meta = part.meta
            state = meta.state(part.state_name)
            if state is not None:
                total += entries_in(state, part.rows(meta, state, counted_columns(state)))
        return total


@frozen
class MetadataTable:
    """The rows, each of which a task completes; see the module."""

    rows: tuple[_StateRow, ...]

    @classmethod
    def of(cls, savepoint: Savepoint, file_system: CheckpointFileSystem) -> MetadataTable:
        """The table of all states of a savepoint, or of the operators of it that are asked for."""
        rows: list[_StateRow] = []
        for operator in savepoint.operators.values():
            rows += _keyed_states(savepoint, operator, file_system)
            rows += _operator_states(savepoint, operator)
        return cls(tuple(rows))

    @property
    def schema(self) -> pa.Schema:
        """See the module."""
        return SCHEMA

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[_StateRow]:
        """One for each state."""
        return self.rows

    def batches(self, part: _StateRow, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The one row of a state."""
        row = dict(part.columns)
        if "entries" in columns:
            row["entries"] = part.entries()
        yield pa.record_batch(
            [pa.array([row[name]], SCHEMA.field(name).type) for name in columns],
            schema=pa.schema([SCHEMA.field(name) for name in columns]),
        )


def _keyed_states(
    savepoint: Savepoint, operator: StoredOperator, file_system: CheckpointFileSystem
) -> Iterator[_StateRow]:
    parts = list(operator.parts())
    handles: list[KeyedStateHandle] = [part.handle for part in parts]
    for name, schema in operator.states.items():
        files = {
            part.handle.files[file.index]
            for part in parts
            for state in part.meta.states
            if state.name == name
            for file in state.files
        }
        yield _StateRow(
            _columns(savepoint, operator, schema, files),
            keyed_parts(handles, name, file_system, savepoint.metadata.max_parallelism, EVERYTHING),
        )


def _operator_states(savepoint: Savepoint, operator: StoredOperator) -> Iterator[_StateRow]:
    for name, state in operator.operator_states.items():
        schema = operator.operator_state_schema(name)
        by_subtask = dict(operator.operator_state_parts(name))
        files = {one.file for parts in by_subtask.values() for part in parts for one in part.slices}
        rows = [sum(part.row_count for part in parts) for parts in by_subtask.values()]
        yield _StateRow(
            _columns(savepoint, operator, schema, files),
            max(rows, default=0) if state.mode is OperatorStateMode.BROADCAST else sum(rows),
        )


def _columns(
    savepoint: Savepoint, operator: StoredOperator, schema: StateDescription, files: Collection[FileHandle]
) -> dict[str, Any]:
    return {
        "checkpoint_id": savepoint.metadata.checkpoint_id,
        "operator": operator.uid,
        "state": schema.name,
        "kind": schema.kind,
        "types": [(role, one.name) for role, one in schema.types.items()],
        "subtasks": operator.parallelism,
        "files": len(files),
        "size_bytes": sum(file.size_bytes for file in files),
    }
