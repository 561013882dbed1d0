"""The table of a state without keys: a row for each element of a list, or each entry of a broadcast state.

`operator` tells which subtask has a row, and of broadcast state the copy of every subtask; `broadcast` tells one copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from attrs import frozen

from checkpointing.storage.file_system import CheckpointFileSystem
from savepoints.errors import UnknownStateError
from savepoints.restored_state import RestoredState
from savepoints.savepoint import Savepoint
from savepoints.tabular import ColumnForms
from savepoints.tabular.operator_state_columns import OperatorStateColumns
from statebackend.api.operator_state_descriptors import OperatorStateMode
from statebackend.operator_state.operator_state_handles import StatePart
from statebackend.operator_state.operator_state_rows import batches, read_slices
from streamjobs.spark.state_tables.key_pruning import KeyCondition
from streamjobs.spark.state_tables.keyed_table import check_same_columns, chosen_operator
from streamjobs.spark.state_tables.state_table import SparkTable
from streamjobs.spark.state_tables.table_options import StateTableError, TableOptions

__all__ = ["ElementsTable", "broadcast_table", "operator_table"]


@frozen
class _SubtaskPart:
    """What one subtask has under one schema."""

    subtask: int
    part: StatePart


@frozen
class ElementsTable:
    """See the module."""

    schema: pa.Schema
    state_name: str
    file_system: CheckpointFileSystem
    subtask_parts: tuple[_SubtaskPart, ...]
    as_text: bool

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[_SubtaskPart]:
        """See `SparkTable`."""
        return [one for one in self.subtask_parts if one.part.slices]

    def batches(self, part: _SubtaskPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `SparkTable`."""
        held = OperatorStateColumns.of(self.state_name, part.part, ColumnForms(as_text=self.as_text))
        whole = held.schema(has_subtask="subtask" in self.schema.names)
        check_same_columns(self.schema, whole, self.state_name, {})
        schema = pa.schema([self.schema.field(name) for name in columns])
        for rows in batches(read_slices(self.file_system, part.part.slices)):
            yield held.batch(part.subtask, rows, schema)


def operator_table(savepoint: Savepoint, restored: RestoredState, options: TableOptions) -> SparkTable:
    """The table of a state without keys, of all subtasks; raises what says which states there are."""
    return _table(savepoint, restored, options, is_one_copy=False)


def broadcast_table(savepoint: Savepoint, restored: RestoredState, options: TableOptions) -> SparkTable:
    """The table of one copy of a broadcast state; raises as `operator_table`."""
    return _table(savepoint, restored, options, is_one_copy=True)


def _table(savepoint: Savepoint, restored: RestoredState, options: TableOptions, *, is_one_copy: bool) -> SparkTable:
    operator_uid = chosen_operator(savepoint, options)
    operator = savepoint.operators[operator_uid]
    known = {
        name: meta
        for name, meta in operator.operator_states.items()
        if not is_one_copy or meta.mode is OperatorStateMode.BROADCAST
    }
    kind = "broadcast" if is_one_copy else "operator"
    if options.state is None or options.state not in known:
        error = StateTableError if options.state is None else UnknownStateError
        said = "the option state is missing" if options.state is None else f"there is no {kind} state {options.state!r}"
        raise error(f"{said}: operator {operator_uid!r} has the {kind} states {', '.join(known) or 'none'}")
    held = [
        _SubtaskPart(index, part) for index, parts in operator.operator_state_parts(options.state) for part in parts
    ]
    if is_one_copy:
        held = [one for one in held if one.subtask == held[0].subtask]
    columns = OperatorStateColumns.of(
        options.state, known[options.state].parts[-1], ColumnForms(as_text=options.as_text)
    )
    return ElementsTable(
        columns.schema(has_subtask=not is_one_copy), options.state, restored.file_system, tuple(held), options.as_text
    )
