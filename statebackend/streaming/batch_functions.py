"""Functions over batches of a keyed stream, with bulk state.

A `KeyedBatchFunction` receives the records of a subtask as Arrow record batches, and reads and writes the state of all
keys of a batch at once. State, checkpoints and savepoints are those of a `KeyedProcessFunction` with the same
descriptors. docs/batch-functions.md specifies batches, keys, order and late rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from snapshots.errors import format_value
from statebackend.savepoint.value_forms import ColumnForm
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.key_batch import KeyBatch
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.streaming.bulk_states import (
    BULK_STATES,
    BulkAggregatingState,
    BulkListState,
    BulkMapState,
    BulkReducingState,
    BulkValueState,
    Keys,
)
from statebackend.streaming.functions import (
    DelegatingContext,
    RuntimeContext,
    TimeDomain,
    TimerService,
    WorkerLifecycle,
)
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.record_serializer import with_rows_of

K = TypeVar("K")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")

Rows: TypeAlias = "pa.RecordBatch | pa.Table"
"""Rows that a batch function emits."""


class Groups(Keys):
    """The distinct keys of a batch, in the order of their first rows, and the rows of each key."""

    def __init__(
        self,
        batch: KeyBatch,
        form: ColumnForm,
        index: pa.Array,
        columns: pa.RecordBatch,
        distinct: pa.Array | None = None,
    ) -> None:
        super().__init__(batch, form, distinct)
        self.index = index
        """The group of each row: the position of its key, as int32."""
        self._columns = columns

    @cached_property
    def of_rows(self) -> Keys:
        """The key of each row, in the order of the batch."""
        return self.take(self.index)

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """The rows sorted by group. The rows of a group keep their order in the batch."""
        return self._columns.take(pc.array_sort_indices(self.index))

    @cached_property
    def sizes(self) -> pa.Array:
        """The number of rows of each group, as int64."""
        return self.aggregate([([], "count_all")]).column(0)

    def aggregate(self, aggregations: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
        """Aggregate the rows of each group. Row i of the result belongs to key i.

        Args:
            aggregations: As for ``pyarrow.TableGroupBy.aggregate``, such as ``("amount", "sum")``.
        """
        name = "__statebackend_group"
        table = pa.Table.from_arrays([self.index, *self._columns.columns], [name, *self._columns.schema.names])
        # One thread keeps the groups in the order of their first rows, which is that of the keys.
        result = table.group_by(name, use_threads=False).aggregate(list(aggregations)).drop_columns([name])
        batches = result.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], result.schema)


class BatchTimerService:
    """Time, and the timers of many keys. Times are as those of `TimerService`: one for all keys, or one per key."""

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self.current_watermark = timers.current_watermark
        """Returns the watermark in milliseconds, or -(1 << 63) before the first one."""
        self.current_processing_time = timers.current_processing_time
        """Returns the processing time in milliseconds since 1970. It is constant within an epoch."""

    def register_event_time_timers(self, keys: Keys, times: Any) -> None:
        """Call ``on_timers`` for each key when the watermark reaches its time.

        Args:
            keys: The keys.
            times: An array or list of milliseconds since 1970, an array of timestamps, or one time for all keys. A
                null time registers nothing.
        """
        _each(self._timers.register_event_time_timer, keys, times)

    def delete_event_time_timers(self, keys: Keys, times: Any) -> None:
        """Delete the event-time timer of each key, if it exists."""
        _each(self._timers.delete_event_time_timer, keys, times)

    def register_processing_time_timers(self, keys: Keys, times: Any) -> None:
        """Call ``on_timers`` for each key when the clock reaches its time."""
        _each(self._timers.register_processing_time_timer, keys, times)

    def delete_processing_time_timers(self, keys: Keys, times: Any) -> None:
        """Delete the processing-time timer of each key, if it exists."""
        _each(self._timers.delete_processing_time_timer, keys, times)


def _each(call: Callable[[Any], None], keys: Keys, times: Any) -> None:
    if isinstance(times, (pa.Array, pa.ChunkedArray)):
        if pa.types.is_timestamp(times.type):
            times = times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())
            # Parts of a millisecond are rounded up, as in `time_ms`.
            times = [None if time_us is None else -(-time_us // 1000) for time_us in times.to_pylist()]
        else:
            times = times.to_pylist()
    elif not isinstance(times, (list, tuple)):
        times = [times] * len(keys)
    if len(times) != len(keys):
        raise ValueError(f"{len(times)} times were given for {len(keys)} keys")
    for _, time in zip(keys.batch.each(), times, strict=True):
        if time is not None:
            call(time)


class BatchContext(Generic[K]):
    """The argument of `process_batch` and `on_timers` of a `KeyedBatchFunction`, valid during the call."""

    def __init__(
        self,
        epoch_id: int,
        groups: Callable[[pa.RecordBatch, pa.Array | None], Groups],
        emit: Callable[[OutputTag[Any] | None, Rows, Any], None],
        timer_service: BatchTimerService,
    ) -> None:
        self.epoch_id = epoch_id
        self.timestamps: pa.Array | None = None
        """The timestamp of each row in milliseconds, or None if no row has one."""
        self.time_domain: TimeDomain | None = None
        """The time domain of the timers in `on_timers`."""
        self.timer_service = timer_service
        """Time, and the timers of many keys."""
        self._groups = groups
        self._emit = emit

    def groups(self, batch: pa.RecordBatch, where: pa.Array | None = None) -> Groups:
        """Return the distinct keys of the batch of this call.

        Args:
            batch: The batch or the timers that the function received.
            where: A mask that selects rows. The other rows are left out.
        """
        return self._groups(batch, where)

    def output(self, tag: OutputTag[Any] | None, rows: Rows, timestamps: Any = None) -> None:
        """Emit rows to a side output or, without a tag, to the output.

        Args:
            tag: The side output. Its rows are dropped if nothing reads it.
            rows: A record batch or table with the columns of the output's schema, in any order.
            timestamps: The event time of each row in milliseconds, as an array or list. Without it rows have none.
        """
        if tag is not None and not isinstance(tag, OutputTag):
            given: object = tag
            raise TypeError(f"output() takes an OutputTag or None first, not {format_value(given, 80)}")
        self._emit(tag, rows, timestamps)


class BatchRuntimeContext(DelegatingContext):
    """The argument of `KeyedBatchFunction.open`: registers bulk state."""

    def __init__(self, context: RuntimeContext, input_schemas: Sequence[DeclaredSchema | None]) -> None:
        super().__init__(context)
        self._input_schemas = input_schemas

    def register(self, descriptor: StateDescriptor) -> Any:
        # A bulk state converts columns by the serializers of its descriptor, so these must be complete.
        descriptor = with_rows_of(descriptor, self._input_schemas, self.operator_uid)
        return BULK_STATES[descriptor.kind](self._context.register(descriptor), descriptor)

    def register_operator_state(self, descriptor: Any) -> Any:
        return self._context.register_operator_state(descriptor)

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> BulkValueState[T]:  # type: ignore[override]
        """Register a value state. Raises as `RuntimeContext.get_state`."""
        state: BulkValueState[T] = self._register(descriptor, ValueStateDescriptor.kind)
        return state

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> BulkListState[T]:  # type: ignore[override]
        """Register a list state."""
        state: BulkListState[T] = self._register(descriptor, ListStateDescriptor.kind)
        return state

    def get_map_state(self, descriptor: MapStateDescriptor[K, V]) -> BulkMapState[K, V]:  # type: ignore[override]
        """Register a map state."""
        state: BulkMapState[K, V] = self._register(descriptor, MapStateDescriptor.kind)
        return state

    def get_reducing_state(  # type: ignore[override]
        self, descriptor: ReducingStateDescriptor[T]
    ) -> BulkReducingState[T]:
        """Register a reducing state."""
        state: BulkReducingState[T] = self._register(descriptor, ReducingStateDescriptor.kind)
        return state

    def get_aggregating_state(  # type: ignore[override]
        self, descriptor: AggregatingStateDescriptor[I, Any, O]
    ) -> BulkAggregatingState[I, O]:
        """Register an aggregating state."""
        state: BulkAggregatingState[I, O] = self._register(descriptor, AggregatingStateDescriptor.kind)
        return state


class KeyedBatchFunction(WorkerLifecycle, ABC, Generic[K, I, O]):
    """Processes the records of a keyed stream in batches, with bulk state.

    Instances travel to the subtasks by pickling and hold configuration only, as those of `KeyedProcessFunction`.

    Example:
        ```python
        class Count(KeyedBatchFunction[str, Flight, tuple[str, int]]):
            counts = ValueStateDescriptor("count", int, default=0)

            def process_batch(self, batch, context):
                groups = context.groups(batch)
                counts = pc.add(self.counts.get_many(groups), groups.sizes)
                self.counts.put_many(groups, counts)
                return pa.record_batch({"tailnum": groups.keys, "flights": counts})
        ```
    """

    def open(self, context: BatchRuntimeContext) -> None:
        """Register all state. Called before the first batch of an epoch, and once on the driver."""

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[K]) -> Rows | Iterable[Rows] | None:
        """Process a batch of records. It has at least one row.

        Returns:
            The rows to emit: yield record batches and tables, or return one, a list of them, or None.
        """

    def on_timers(self, timers: pa.RecordBatch, context: BatchContext[K]) -> Rows | Iterable[Rows] | None:
        """Handle due timers of one time domain, in the order of their times. Returns rows as `process_batch` does.

        Only a function that overrides this method may register timers.

        Args:
            timers: The columns ``timestamp`` in milliseconds and ``key``. These timers are no longer registered.
            context: The context. ``context.groups(timers)`` returns the distinct keys.
        """
        return None

    def close(self) -> None:
        """Called after the last batch of an epoch, also after a failure."""
