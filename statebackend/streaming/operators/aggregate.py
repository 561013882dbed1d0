"""The operator of built-in aggregates without windows, and its output schema, derived from the schema of its input.

It folds the records of an epoch by key in memory. At the end of the epoch it writes each accumulator back once and
emits one row per key, so it holds watermarks back until then. The timestamp of a row is the largest one of its records.

If records are in columns and all aggregates are exact and commutative, Arrow first aggregates each batch by key. If all
have a vectorised form, accumulators stay in columns between the stored bytes and the emitted rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa
from attrs import evolve

from statebackend.savepoint.column_codecs import CodecMissError, column_codec, key_rows
from statebackend.state.key_batch import KeyBatch
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.streaming.aggregates import (
    AggregateDefinition,
    BoundAggregates,
    NamedAggregates,
    bound_aggregates,
    groups_alike,
)
from statebackend.streaming.errors import AggregateOverflowError, JobDefinitionError
from statebackend.streaming.operators.function_calls import of_key
from statebackend.streaming.operators.operator import BatchPlaces, Emitter, InputBatch, Operator
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.row_reader import UnreadableColumnError, column_values, keys_of_columns
from statebackend.streaming.stream_graph import KeyedInput, OperatorNode
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.windows.assigners import GlobalWindows
from statebackend.streaming.windows.window_definition import ColumnAggregates, WindowDefinition

__all__ = ["AggregateOperator", "aggregates_of", "resolved_node"]

ACCUMULATORS_NAME: Final = "accumulators"

_MOST_PARTIALS: Final = 1 << 20
"""More partial results are aggregated before the end of the epoch."""


class AggregateOperator(Operator):
    """Folds records by key and emits one row per key and epoch."""

    holds_watermarks: ClassVar = True

    def __init__(self, definition: AggregateDefinition, uid: str) -> None:
        self._definition = definition
        self._uid = uid
        self._held: dict[Any, list[Any]] = {}
        """The accumulators of the keys of this epoch. Their first item is the key group."""
        self._times: dict[Any, int] = {}
        """The largest timestamp of each key of this epoch."""
        self._tables: list[pa.Table] = []
        """Partial results of this epoch that are not in ``_held``."""
        self._watermark_ms = MIN_TIMESTAMP

    @property
    def holds_output(self) -> bool:
        return bool(self._held or self._tables) or self._watermark_ms != MIN_TIMESTAMP

    def open(self, context: Any, emitter: Emitter) -> None:
        where = f"operator {self._uid!r}"
        self._bound: BoundAggregates = bound_aggregates(self._definition.aggregates, context.input_schemas[0], where)
        if self._definition.ttl is None or self._bound.has_columns:
            context.access_in_bulk()
        self._state = context.register(
            ValueStateDescriptor(ACCUMULATORS_NAME, self._bound.serializer, ttl=self._definition.ttl)
        )
        serializer = self._state.row_serializer
        has_columns = serializer is not None and self._bound.has_columns and bool(self._definition.key_names)
        self._codec = column_codec(serializer) if has_columns else None
        self._emitter = emitter
        self._context = context
        self._set_key = context.key_setter()

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        try:
            self._process(batch)
        except UnreadableColumnError as error:
            raise UnreadableColumnError(f"operator {self._uid!r}: {error}") from error

    def _process(self, batch: InputBatch) -> None:
        if not (self._bound.is_exact and batch.places is not None and self._combine(batch, batch.places)):
            self._fold_tables()
            keys, key_groups = batch.keys, batch.key_groups
            columns = batch.columns
            values = self._bound.columns_of(batch.records) if columns is None else self._bound.arrow_columns_of(columns)
            self._fold(self._bound.fold, keys, key_groups, values)
            self._note_times(keys, batch.timestamps)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._watermark_ms = timestamp_ms
        if timestamp_ms == MAX_TIMESTAMP:
            self.prepare_snapshot()

    def prepare_snapshot(self) -> None:
        try:
            self._write_and_emit()
        except UnreadableColumnError as error:
            raise UnreadableColumnError(f"operator {self._uid!r}: {error}") from error
        if self._watermark_ms != MIN_TIMESTAMP:
            self._emitter.emit_watermark(self._watermark_ms)
            self._watermark_ms = MIN_TIMESTAMP

    let_watermarks_out = await_in_flight = prepare_snapshot

    def close(self) -> None:
        """Do nothing: `open` acquires no resources."""

    def _combine(self, batch: InputBatch, places: BatchPlaces) -> bool:
        """Fold a batch in columns. Returns False, without changes, if that is not possible."""
        assert batch.columns is not None
        if not groups_alike(places.keys):
            return False
        groups = [*places.keys, places.key_groups]
        table = self._bound.partial_results(batch.columns, groups, [("max", places.timestamps)])
        if table is None:
            return False
        self._tables.append(table)
        if sum(one.num_rows for one in self._tables) > _MOST_PARTIALS:
            self._put_tables_together()
            if self._codec is None or self._held:
                self._fold_tables()
        return True

    def _put_tables_together(self) -> None:
        """Aggregate the partial results of several batches, unless a sum may overflow."""
        if len(self._tables) > 1:
            group_count = self._tables[0].num_columns - len(self._bound.partials) - 1
            together = self._bound.partials_together(self._tables, group_count)
            self._tables = self._tables if together is None else [together]

    def _fold_tables(self) -> None:
        """Fold the partial results key by key."""
        self._put_tables_together()
        tables, self._tables = self._tables, []
        for table in tables:
            keys, values, times = self._parts_of(table)
            self._note_times(keys.keys, column_values(times))
            self._fold(self._bound.combine, keys.keys, keys.key_groups, list(map(column_values, values)))

    def _parts_of(self, table: pa.Table) -> tuple[KeyBatch, list[pa.Array], pa.Array]:
        """Return the keys of a table of partial results, these results, and the timestamps."""
        columns = [column.combine_chunks() for column in table.columns]
        count = table.num_columns - len(self._bound.partials) - 2
        key_groups, *values, times = columns[count:]
        encode = partial(key_rows, self._context.keyed.key_serializer, columns[:count], key_groups)
        keys = KeyBatch(keys_of_columns(columns[:count]), column_values(key_groups), self._set_key, encode)
        return keys, values, times

    def _write_columns(self) -> bool:
        """Write and emit the partial results in columns. Returns False, without changes, if that needs objects."""
        if self._codec is None:
            return False
        names, bound = self._definition.key_names, self._bound
        table = bound.partials_together(self._tables, len(names) + 1)
        if table is None:
            return False
        keys, values, times = self._parts_of(table)
        try:
            merged = bound.merge_columns(self._codec.decode(self._state.get_rows(keys)), values)
            results, rows = bound.result_columns(merged), self._codec.encode(merged)
        except (CodecMissError, pa.ArrowInvalid):
            return False
        self._state.put_rows(keys, rows)
        columns = [column.combine_chunks() for column in table.columns[: len(names)]]
        emitted: Any = pa.RecordBatch.from_arrays([*columns, *results.values()], names=[*names, *results])
        self._emitter.emit(None, emitted, column_values(times) if times.null_count < len(times) else None)
        self._tables = []
        return True

    def _fold(self, fold: Any, keys: Sequence[Any], key_groups: Sequence[int], columns: Sequence[list[Any]]) -> None:
        held, unpack = self._held, self._bound.unpack
        new = {key: key_group for key, key_group in zip(keys, key_groups, strict=True) if key not in held}
        default = self._bound.create_accumulator()
        records = self._state.get_many(KeyBatch(list(new), list(new.values()), self._set_key))
        for (key, key_group), record in zip(new.items(), records, strict=True):
            accumulators = held[key] = unpack(default if record is None else record)
            accumulators[0] = key_group
        fold(held, None, keys, key_groups, *columns)

    def _note_times(self, keys: Sequence[Any], timestamps: Sequence[int | None] | None) -> None:
        if timestamps is None:
            return
        times = self._times
        for key, time in zip(keys, timestamps, strict=True):
            if time is not None and time > times.get(key, MIN_TIMESTAMP):
                times[key] = time

    def _write_and_emit(self) -> None:
        if self._tables and (self._held or not self._write_columns()):
            self._fold_tables()
        if not self._held:
            return
        held_by_key, self._held = self._held, {}
        times, self._times = self._times, {}
        keys, bound = list(held_by_key), self._bound
        try:
            rows, records = bound.rows_and_records(held_by_key, keys[0].__class__ is tuple)
        except AggregateOverflowError as error:
            wrong = next(key for key, held in held_by_key.items() if not bound.fits(held))
            raise AggregateOverflowError(f"{of_key(self._uid, wrong)}: {error}") from None
        self._state.put_many(KeyBatch(keys, [held[0] for held in held_by_key.values()], self._set_key), records)
        encoder = self._emitter.encoder(None)
        encoded = rows if tuple in encoder.unchanged else list(map(encoder.encode, rows))
        self._emitter.emit(None, encoded, [times.get(key) for key in keys] if times else None)


def resolved_node(node: OperatorNode, schema: DeclaredSchema | None, key_types: Sequence[str] | None) -> OperatorNode:
    """Complete a node of built-in aggregates from the schema of its input. Other nodes are returned unchanged.

    Sets the schema of its output, and the sort columns if the order of records matters and the job sets no order.
    ``key_types`` are the types of its keys, None if unknown. Raises `JobDefinitionError`.
    """
    aggregates = aggregates_of(node.function)
    if aggregates is None:
        return node
    where = f"operator {node.uid!r}"
    bound = bound_aggregates(aggregates, schema, where)
    [read] = node.operator_inputs
    assert isinstance(read, KeyedInput)
    assert schema is not None
    if bound.order:
        # Records that order_by does not distinguish would be in the order of their arrival, which a replay may change.
        is_in_time_order = read.is_in_time_order or not read.order_by
        read = evolve(read, order_by=(*read.order_by, *bound.order), is_in_time_order=is_in_time_order)
    if node.schema is not None:
        return evolve(node, operator_inputs=(read,))
    if key_types is None:
        raise JobDefinitionError(f"{where}: the type of a key is not known; pass key_by(function, key_type=...)")
    function, key_names = node.function, _key_names(read.keys, schema)
    columns = list(zip(key_names, key_types, strict=True))
    if isinstance(function, WindowDefinition) and not isinstance(function.assigner, GlobalWindows):
        columns.append(("window", "struct<start: timestamp, end: timestamp>"))
    columns += bound.result_types.items()
    function = evolve(function, key_names=tuple(key_names))
    names = [name.lower() for name, _ in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise JobDefinitionError(f"{where}: its result has two columns {twice!r}; give the aggregate another name")
    ddl = ", ".join(f"`{name.replace('`', '``')}` {type_name}" for name, type_name in columns)
    return evolve(node, operator_inputs=(read,), schema=ddl, function=function)


def aggregates_of(function: Any) -> NamedAggregates | None:
    """Return the built-in aggregates of an operator's function, None for other functions."""
    if isinstance(function, AggregateDefinition):
        return function.aggregates
    if isinstance(function, WindowDefinition) and isinstance(function.contents, ColumnAggregates):
        return function.contents.aggregates
    return None


def _key_names(keys: Sequence[Any], schema: DeclaredSchema) -> list[str]:
    """Return the names of key columns, as in Spark: the name of the column, or the last name of a field's path."""
    names = []
    for index, key in enumerate(keys):
        if not isinstance(key, str):
            names.append("key" if len(keys) == 1 else f"key{index + 1}")
            continue
        column = schema.column(key)
        names.append(key.rpartition(".")[2] if column is None else column.name)
    return names
