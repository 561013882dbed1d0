"""Write a frame of Spark as a savepoint: tasks sort their rows, and the driver merges them.

    task      stages its entries in `<target>-staging-<id>` (`statebackend.savepoint.rewrite.staged_entries`)
    driver    commit: merges them into a savepoint, complete with its metadata, then deletes the staging directory
              abort: deletes the staging directory

Only parts of committed tasks count; others are deleted with the rest. A driver that dies leaves staged files, and no
savepoint.

With ``source``, the new savepoint is a copy of that savepoint, checkpoint or job directory in which this state replaces
the one of its name. Without, it has this state only. The types come from the source, or from a descriptor that is named
by its module. Functions that fold are not stored, so a source is enough for reducing and aggregating state too.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from attrs import evolve, frozen
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.store_uri import parent_and_name, place_inside
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.rewrite.savepoint_writer import SavepointWriter
from statebackend.savepoint.rewrite.staged_entries import StagedEntries, StagedPart, stage_entries
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.state_location import find_state
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.savepoint.value_forms import stored_values
from statebackend.spark.state_tables.options import HOW_TO_SHIP, Program, StateTableError, WriteOptions
from statebackend.state.key_columns import columns_of_key, serializer_of_key
from statebackend.state.key_groups import DEFAULT_MAX_PARALLELISM
from statebackend.state.state_kind import StateDescriptor, StateKind
from statebackend.state.state_meta import KeyedStateMeta, StateMeta, decode_meta, encode_meta
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class WrittenState:
    """The state to write; picklable. ``meta`` is that of the source, None if a descriptor defines the types."""

    options: WriteOptions
    key_columns: tuple[str, ...]
    max_parallelism: int
    now_ms: int
    meta: bytes | None = None
    has_operator: bool = False

    @property
    def schema(self) -> EntrySchema:
        """The schema of the state; each call creates its record classes again.

        Raises `UnresolvableSerializerError` if a serializer of the stored state is unknown here.
        """
        stored = None if self.meta is None else EntrySchema.of_stored(*_state_and_key(self.meta))
        if self.options.descriptor is None:
            assert stored is not None
            stored.check_known()
            return stored
        namespaces = None if stored is None else stored.namespace_serializer
        return EntrySchema.of(
            _named_descriptor(self.options.descriptor), serializer_of_key(self.key_columns), namespaces
        )

    def entries(self, schema: EntrySchema, batches: Iterator[pa.RecordBatch]) -> Iterator[StateEntry]:
        """Yield the entries in batches of a frame. Raises `ColumnValueError` for a value that does not fit."""
        for batch in batches:
            nothing = [None] * batch.num_rows
            cells = {
                name: stored_values(schema.values_of(name), batch.column(name), f"column {name!r}")
                for name in schema.entry_columns
            }
            times: Sequence[Any] = nothing
            if "last_access_ms" in batch.schema.names:
                times = batch.column("last_access_ms").to_pylist()
            groups = [0] * batch.num_rows
            columns = (groups, cells["key"], cells.get("namespace", nothing), cells.get("user_key", nothing))
            yield from map(StateEntry, *columns, cells["value"], times)

    def write(self, staged: StagedEntries) -> None:
        """Write the savepoint; raises as `SavepointWriter.write`."""
        plan, options = Plan(), self.options
        if not self.has_operator:
            plan.add_operator(options.operator, self.key_columns)
        add = plan.add_state if self.meta is None else plan.replace_state
        add(options.operator, self.schema, staged, last_access_ms=self.now_ms)
        if options.source is None:
            writer = SavepointWriter.new(options.path, max_parallelism=self.max_parallelism)
        else:
            writer = SavepointWriter.copy_of(
                options.source,
                options.path,
                checkpoint_id=options.checkpoint,
                high_availability=options.high_availability,
            )
        writer.write(plan)


def written_state(options: WriteOptions, key_columns: Sequence[str], now_ms: int) -> WrittenState:
    """Return the state to write by these options; ``key_columns`` are the types of the frame's key columns.

    Raises `StateTableError` for options that contradict each other, and the errors of `Savepoint` for a wrong source.
    """
    if options.descriptor is not None:
        descriptor = _named_descriptor(options.descriptor)
        if descriptor.name != options.state:
            raise StateTableError(
                f"the descriptor {options.descriptor} is of a state {descriptor.name!r}, but the option state is "
                f"{options.state!r}"
            )
    if options.source is None:
        if options.descriptor is None:
            raise StateTableError(
                "the types of the state are unknown: name a savepoint or job that has the state with the option "
                "source, or a descriptor of the program with the option descriptor, such as shop.states:TOTALS"
            )
        max_parallelism = DEFAULT_MAX_PARALLELISM if options.max_parallelism is None else options.max_parallelism
        return WrittenState(options, tuple(key_columns), max_parallelism, now_ms)
    restored = find_state(options.source, options.checkpoint, options.high_availability)
    if options.max_parallelism not in (None, restored.max_parallelism):
        raise StateTableError(
            f"the state of {restored.where} has {restored.max_parallelism} key groups, but the option max_parallelism "
            f"is {options.max_parallelism}: leave it out, and change it with statebackend.savepoint.rewrite in Python"
        )
    # The frame was made of this checkpoint; the job may have newer ones at the commit.
    options = evolve(options, checkpoint=restored.metadata.checkpoint_id)
    has_operator = restored.operator(options.operator) is not None
    found = _stored_state(restored, options)
    return WrittenState(
        options,
        _key_columns(restored, options.operator) if has_operator else tuple(key_columns),
        restored.max_parallelism,
        now_ms,
        None if found is None else encode_meta(found),
        has_operator,
    )


def _key_columns(restored: RestoredState, operator_uid: str) -> tuple[str, ...]:
    metas = restored.keyed_metas_of(operator_uid)
    columns = columns_of_key(metas[0].key_snapshot.restore_serializer()) if metas else ()
    if not columns:
        raise StateTableError(
            f"operator {operator_uid!r} of {restored.where} has no keyed state, so its key is unknown: a frame can be "
            f"written as state of a new operator, or of one with keyed state"
        )
    return columns


def _state_and_key(meta: bytes) -> tuple[StateMeta, TypeSerializer[Any]]:
    decoded = decode_meta(meta, 0)
    return decoded.states[0], decoded.key_snapshot.restore_serializer()


def _stored_state(restored: RestoredState, options: WriteOptions) -> KeyedStateMeta | None:
    """The state of the source, None for a new one. Raises `UnknownStateError` without it and a descriptor."""
    for meta in restored.keyed_metas_of(options.operator):
        state = meta.state(options.state)
        if state is not None and not isinstance(state.kind, StateKind):
            raise StateTableError(f"state {state.name!r} is a {state.kind.name}, which no frame can be written as")
        if state is not None:
            return KeyedStateMeta(meta.key_snapshot, 0, (state.with_files(()),))
    if options.descriptor is None:
        # Its error lists the states that exist.
        Savepoint(restored).schema(options.operator, options.state)
    return None


def _named_descriptor(name: str) -> StateDescriptor:
    module, colon, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise StateTableError(f"the descriptor {name} cannot be found ({error}): {HOW_TO_SHIP}") from error
    if not isinstance(found, StateDescriptor):
        raise StateTableError(
            f"the option descriptor is the module and name of a descriptor, such as shop.states:TOTALS, not {name!r}"
        )
    return found


class _Staged(WriterCommitMessage):
    """The entries that one task has staged."""

    def __init__(self, part: StagedPart) -> None:
        self.part = part


class SavepointSink(DataSourceArrowWriter):
    """Writes a frame as a savepoint; pickled for the tasks and the commit."""

    def __init__(self, state: WrittenState, program: Program) -> None:
        self._state = state
        self._program = program
        self._parent, name = parent_and_name(state.options.path)
        self._directory = f"{name}-staging-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
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
        """Write the savepoint and delete the staged entries; errors of writing pass through."""
        self._program.install()
        parts = [message.part for message in messages if isinstance(message, _Staged)]
        try:
            self._state.write(StagedEntries(self._store, parts))
        finally:
            self._discard()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the staged entries."""
        self._discard()

    @property
    def _store(self) -> CheckpointFileSystem:
        return CheckpointFileSystem.from_uri(place_inside(self._parent, self._directory))

    def _discard(self) -> None:
        store: Any = CheckpointFileSystem.from_uri(self._parent)
        store.delete_directory(self._directory)
