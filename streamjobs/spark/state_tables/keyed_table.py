"""The table of one keyed state: a row for each value, each list, and each entry of a map.

The columns are those of `savepoints.tabular`, by the first subtask that has the state. A subtask that was written under
a schema of other columns is refused with a word on what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from attrs import evolve, frozen

from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from savepoints.restored_state import RestoredState
from savepoints.savepoint import Savepoint
from savepoints.tabular import ColumnForms
from savepoints.tabular.column_batches import ColumnBatches
from statebackend.keyed.state_meta import KeyedStateMeta, StateMeta, decode_meta
from streamjobs.spark.state_tables.key_pruning import KeyCondition, wanted_keys
from streamjobs.spark.state_tables.keyed_parts import KeyedPart, keyed_parts
from streamjobs.spark.state_tables.table_options import HOW_TO_SHIP, StateTableError, TableOptions

__all__ = ["KeyedTable", "keyed_table"]


@frozen
class KeyedTable:
    """See the module."""

    schema: pa.Schema
    state_name: str
    handles: tuple[KeyedStateHandle, ...]
    file_system: CheckpointFileSystem
    max_parallelism: int
    as_text: bool

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[KeyedPart]:
        """See `SparkTable`."""
        meta = _meta(self.handles[0])
        state = meta.state(self.state_name)
        key_serializer = meta.key_snapshot.restore_serializer()
        wanted = wanted_keys(conditions, key_paths(self.schema), key_serializer, self.max_parallelism)
        if state is None or state.form is None:
            # What stands for the key in a queue's row is its element; timers lie in the key groups of their keys.
            wanted = evolve(wanted, keys=None)
        return keyed_parts(self.handles, self.state_name, self.file_system, self.max_parallelism, wanted)

    def batches(self, part: KeyedPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `SparkTable`."""
        meta = part.meta
        state = meta.state(self.state_name)
        assert state is not None
        read = columns_of(meta, state, as_text=self.as_text)
        check_same_columns(self.schema, read.table.schema, self.state_name, read.table.notes)
        yield from read.batches(part.rows(meta, state, read.needed(columns)), columns)


def keyed_table(savepoint: Savepoint, restored: RestoredState, options: TableOptions) -> KeyedTable:
    """The table of the state that the options name; raises `StateTableError`, naming those there are."""
    operator_uid = chosen_operator(savepoint, options)
    names = list(savepoint.operators[operator_uid].states)
    if options.state is None:
        raise StateTableError(
            f"the option state is missing: operator {operator_uid!r} has the keyed states "
            f'{", ".join(names) or "none"}; .option("kind", "metadata") tells all of them'
        )
    # Its error names the states that there are.
    savepoint.schema(operator_uid, options.state)
    handles = [part.handle for part in savepoint.operators[operator_uid].parts()]
    holding = [handle for handle in handles if _meta(handle).state(options.state) is not None]
    meta = _meta(holding[0])
    state = meta.state(options.state)
    assert state is not None, "the savepoint says that there is such a state"
    schema = columns_of(meta, state, as_text=options.as_text).table.schema
    max_parallelism = savepoint.metadata.max_parallelism
    return KeyedTable(schema, options.state, tuple(holding), restored.file_system, max_parallelism, options.as_text)


def chosen_operator(savepoint: Savepoint, options: TableOptions) -> str:
    """The operator that is named, or the only one there is."""
    if options.operator is not None:
        # Raises `UnknownOperatorError`, naming those there are.
        savepoint.key_columns(options.operator)
        return options.operator
    if len(savepoint.operators) == 1:
        return next(iter(savepoint.operators))
    raise StateTableError(f"the option operator is missing: there are {', '.join(savepoint.operators) or 'none'}")


def columns_of(meta: KeyedStateMeta, state: StateMeta, *, as_text: bool) -> ColumnBatches:
    """The columns of a state of a subtask."""
    return ColumnBatches.of(meta, state, ColumnForms(as_text=as_text))


def key_paths(schema: pa.Schema) -> Sequence[tuple[str, ...]]:
    """The columns of the key: the column `key`, or its fields."""
    if "key" not in schema.names:
        return ()
    key_type = schema.field("key").type
    return [("key", one.name) for one in key_type] if pa.types.is_struct(key_type) else [("key",)]


def check_same_columns(expected: pa.Schema, found: pa.Schema, state_name: str, notes: Mapping[str, str]) -> None:
    """Raises `StateTableError` where a subtask has a state of other columns than the table, or seems to have.

    ``notes`` are those of what was found: a serializer that only the driver knows makes columns of bytes.
    """
    if not expected.equals(found):
        told = [f"{path}: {note}" for path, note in notes.items()]
        if told:
            raise StateTableError(
                f"state {state_name!r} cannot be read by this worker: {'; '.join(told)} ({HOW_TO_SHIP})"
            )
        raise StateTableError(
            f"the subtasks of state {state_name!r} differ in its types: {found} here, {expected} in the first; start "
            f"the job once and take a savepoint, which brings all of them to one"
        )


def _meta(handle: KeyedStateHandle) -> KeyedStateMeta:
    return decode_meta(handle.meta, len(handle.files))
