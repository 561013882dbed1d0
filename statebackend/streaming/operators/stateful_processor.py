"""The operator of Spark's stateful processors: one call for all records of a key in an epoch, as on Spark.

Records arrive sorted by key, possibly in several batches. The last key of a batch stays open until another key follows,
event time advances, or the epoch ends; only the records of one key are in memory. Timers fire after the records. In
event time a record is late if it is not after the watermark of the epoch *before*, as in Spark; late records are
dropped. That watermark is operator state, equal in every subtask.

Rows have Spark's form: Arrow's struct is a dict, its map a list of pairs. Emitted rows are read by column name; a
missing column is null, and other fields are ignored.

State values are tuples of the fields of a schema, stored as records that evolve by field name. As in Spark, a list or a
Row is read by position and a dict by name. An instant is returned without a zone, in local time, and stored in UTC, so
equal instants have equal bytes; a decimal has the scale of its type. State with a TTL expires per value, list element
or map entry, counted from its last write. ``init`` also runs on the driver, where states are registered but not usable.

Timers: a runtime calls due timers before the records of an epoch, but Spark calls the processor for records first, and
timers deleted then do not fire. So a due timer waits (`take`) and fires after the records (`due`):

    registered                        pending -> waiting -> fired
    registered, already due           -> waiting, if registered for a record; pending, if registered by a timer, so
                                      that it fires in the next epoch
    deleted before it fires           forgotten

A map state lists the timers of a key. A waiting timer fires once, and only if the key still lists it. It is listed
until its call returns. Spark's watermark T is the largest timestamp minus the delay: records up to T are late, timers
at T are due. The watermark of this runtime is W = T - 1, and a processor sees T. Its timer for T is stored as T - 1;
timers of older versions are stored as T.
"""

from __future__ import annotations

import datetime
import decimal
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, Final, NoReturn

import pyarrow as pa

from snapshots.errors import format_value
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor
from statebackend.state.states import BroadcastState, ListState, MapState, ValueState
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.functions import OperatorStateStore, RuntimeContext
from statebackend.streaming.operators.function_calls import call_failure, call_user, of_key
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator
from statebackend.streaming.rows.declared_schema import DeclaredSchema, place_of_output
from statebackend.streaming.rows.record_schema import output_schema
from statebackend.streaming.rows.record_serializer import stored_records
from statebackend.streaming.stateful_processor import (
    ExpiredTimerInfo,
    InitialState,
    StatefulProcessorFunction,
    TimeMode,
    TimerValues,
)
from statebackend.streaming.time.internal_timer_service import InternalTimerService
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, clamped
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.column_names import attribute_of_column, displayed_names
from typeserializers.scalars.fixed_width import BooleanSerializer, LongSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer

__all__ = [
    "RESERVED_PREFIX",
    "ProcessorHandle",
    "ProcessorListState",
    "ProcessorMapState",
    "ProcessorSchema",
    "ProcessorTimers",
    "ProcessorValueState",
    "StatefulProcessorOperator",
]


_SHOWN_CHARACTERS: Final = 200


class ProcessorSchema:
    """A schema, passed as DDL or as Spark's ``StructType``; ``where`` starts error messages.

    Raises `JobDefinitionError` for an unreadable schema or an unsupported type.
    """

    __slots__ = (
        "_before",
        "_from_instants",
        "_names",
        "_to_row",
        "_to_stored",
        "_to_values",
        "arrow",
        "serializer",
        "where",
    )

    def __init__(self, declared: object, where: str) -> None:
        arrow = output_schema(declared, where, "a schema").arrow
        records = stored_records(arrow, where)
        self.where = where
        self.arrow = arrow
        self.serializer: TypeSerializer[Any] = records.serializer
        """The serializer of stored values."""
        self._names = tuple(arrow.names)
        self._to_stored = records.to_stored
        self._to_row = records.to_row
        self._to_values = records.to_values
        instants = {index: _local for index, one in enumerate(arrow) if _is_instant(one.type)}
        before: dict[int, Callable[[Any], Any]] = dict.fromkeys(instants, _in_utc)
        before |= {
            index: partial(_with_scale, one.type) for index, one in enumerate(arrow) if pa.types.is_decimal(one.type)
        }
        self._before: Callable[[Any], Any] | None = partial(_changed, before) if before else None
        self._from_instants: Callable[[Any], Any] | None = partial(_changed, instants) if instants else None

    def stored(self, value: Any) -> Any:
        """Return the stored form of a value. Raises `TypeError` or `ValueError` if it does not match the schema."""
        if not isinstance(value, tuple):
            value = self._tuple_of(value)
        if len(value) != len(self._names):
            raise ValueError(
                f"{self.where}: {format_value(value, _SHOWN_CHARACTERS)} has "
                f"{len(value)} values, and the schema has the "
                f"{len(self._names)} fields {', '.join(self._names)}"
            )
        return self._to_stored(value if self._before is None else self._before(value))

    @property
    def has_columns(self) -> bool:
        """Whether `stored_column` accepts columns of this schema."""
        return all(one.type in _AS_IN_COLUMNS for one in self.arrow)

    def stored_column(self, values: pa.StructArray) -> pa.StructArray:
        """Return the stored form of values without null. They may lack fields, which are then null."""
        given = {field.name: index for index, field in enumerate(values.type)}
        columns = values.flatten()
        return pa.StructArray.from_arrays(
            [columns[given[one.name]] if one.name in given else pa.nulls(len(values), one.type) for one in self.arrow],
            names=displayed_names(list(map(attribute_of_column, self._names))),
        )

    def values(self, stored: Any) -> tuple[Any, ...]:
        """Return the tuple of a stored value."""
        values: tuple[Any, ...] = self._to_values(stored)
        return values if self._from_instants is None else tuple(self._from_instants(values))

    def row(self, stored: Any) -> Any:
        """Return the Row of a stored value."""
        row = self._to_row(stored)
        return row if self._from_instants is None else tuple.__new__(type(row), self._from_instants(row))

    def _tuple_of(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, list):
            return tuple(value)
        if isinstance(value, Mapping):
            return tuple(value.get(name) for name in self._names)
        raise TypeError(
            f"{self.where}: {format_value(value, _SHOWN_CHARACTERS)} is not a value of state: give a tuple of "
            f"the fields {', '.join(self._names)}"
        )


_AS_IN_COLUMNS: Final = frozenset(
    {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()}
)
"""The types of columns that are stored without a conversion."""


def _is_instant(data_type: pa.DataType) -> bool:
    return pa.types.is_timestamp(data_type) and data_type.tz is not None


def _changed(changes: Mapping[int, Callable[[Any], Any]], values: Sequence[Any]) -> list[Any]:
    changed = list(values)
    for index, change in changes.items():
        if changed[index] is not None:
            changed[index] = change(changed[index])
    return changed


def _with_scale(data_type: pa.Decimal128Type, value: Any) -> Any:
    """Rescale a decimal to its type, so that equal decimals have equal bytes."""
    if not isinstance(value, decimal.Decimal) or not value.is_finite():
        return value
    context = decimal.Context(prec=data_type.precision, traps=[])
    # A number with too many digits becomes NaN, which differs from the value.
    scaled = value.quantize(decimal.Decimal(1).scaleb(-data_type.scale), context=context)
    if scaled != value:
        raise ValueError(f"{value} is not a decimal of {data_type.precision} digits, {data_type.scale} after the point")
    return scaled


def _in_utc(value: datetime.datetime) -> datetime.datetime:
    return value.astimezone(datetime.timezone.utc)


def _local(value: datetime.datetime) -> datetime.datetime:
    zoned = value.astimezone()
    local = zoned.replace(tzinfo=None)
    if not datetime.MINYEAR < local.year < datetime.MAXYEAR:
        return local
    # In an hour that occurs twice, when clocks are set back, it may be the second one.
    return local if local.astimezone().utcoffset() == zoned.utcoffset() else local.replace(fold=1)


_INTEGERS: Final = range(-(1 << 63), 1 << 63)


class ProcessorTimers:
    """The timers of one subtask in one epoch.

    ``service`` is the operator's timer service, ``of_key`` holds the timers of the current key.
    """

    def __init__(self, mode: TimeMode, service: InternalTimerService[Any], of_key: MapState[int, bool]) -> None:
        self._service = service
        self._of_key = of_key
        self._waiting: list[tuple[int, Any, int]] = []
        self._fires = False
        self._now_ms: Callable[[], int] = service.current_processing_time
        self._register: Callable[[Any, int], None] = service.register_processing_time_timer
        self._delete: Callable[[Any, int], None] = service.delete_processing_time_timer
        self._is_event_time = mode is TimeMode.EVENT_TIME
        if self._is_event_time:
            self._now_ms = self._watermark_from_zero
            self._register = service.register_event_time_timer
            self._delete = service.delete_event_time_timer
        self._key: tuple[Any, int] = (None, 0)
        self._registered_by_timers: set[tuple[Any, int]] = set()

    def set_key(self, key: Any, key_group: int) -> None:
        """Set the key of the timers. The key of the state is set elsewhere."""
        self._key = key, key_group

    def current_watermark(self) -> int:
        """Spark's watermark of the epoch in milliseconds, or the smallest time before the first one."""
        watermark_ms = self._service.current_watermark()
        return watermark_ms if watermark_ms in (MIN_TIMESTAMP, MAX_TIMESTAMP) else watermark_ms + 1

    def values(self) -> TimerValues:
        """The time of the epoch."""
        return TimerValues(self._service.current_processing_time(), self._watermark_from_zero())

    def _watermark_from_zero(self) -> int:
        """The watermark as Spark shows it, starting at 0."""
        return max(self.current_watermark(), 0)

    def register(self, timestamp_ms: Any) -> None:
        """Register a timer of the current key. Idempotent. Raises `TypeError`, `ValueError`."""
        timestamp_ms = _checked(timestamp_ms)
        if self._of_key.contains(timestamp_ms):
            return
        self._of_key.put(timestamp_ms, True)
        if timestamp_ms <= self._now_ms() and not self._fires:
            self._waiting.append((timestamp_ms, *self._key))
        else:
            self._register(VOID_NAMESPACE, self._in_service(timestamp_ms))
            if self._fires:
                self._registered_by_timers.add((self._key[0], timestamp_ms))

    def delete(self, timestamp_ms: Any) -> None:
        """Delete a timer of the current key, if it exists."""
        timestamp_ms = _checked(timestamp_ms)
        if self._of_key.contains(timestamp_ms):
            self._of_key.remove(timestamp_ms)
            self._delete(VOID_NAMESPACE, self._in_service(timestamp_ms))

    def listed(self) -> list[int]:
        """The times of the timers of the current key, sorted."""
        return sorted(self._of_key.keys())

    def take(self, timestamp_ms: int, key: Any, key_group: int) -> None:
        """Accept a due timer from the runtime."""
        is_before = self._is_event_time and timestamp_ms != MAX_TIMESTAMP
        self._waiting.append((timestamp_ms + is_before, key, key_group))

    def due(self, set_key: Callable[[Any, int], None]) -> Iterator[tuple[int, Any]]:
        """Yield waiting timers with their keys by time, after making each key current with ``set_key``.

        Timers that are registered meanwhile stay pending.
        """
        waiting, self._waiting = self._waiting, []
        waiting.sort(key=_time_of)
        self._fires = True
        try:
            for timestamp_ms, key, key_group in waiting:
                set_key(key, key_group)
                for time_ms in self._places_of(timestamp_ms, key):
                    if self._of_key.contains(time_ms):
                        yield time_ms, key
                        self._of_key.remove(time_ms)
        finally:
            self._fires = False
            self._registered_by_timers.clear()

    def _in_service(self, timestamp_ms: int) -> int:
        """The time of a timer in the timer service."""
        return clamped(timestamp_ms - 1) if self._is_event_time else timestamp_ms

    def _places_of(self, timestamp_ms: int, key: Any) -> tuple[int, ...]:
        """The times that a waiting timer may have been registered for; older versions stored a millisecond later."""
        before_ms = timestamp_ms - 1
        if not self._is_event_time or (key, before_ms) in self._registered_by_timers:
            return (timestamp_ms,)
        return before_ms, timestamp_ms


def _time_of(timer: tuple[int, Any, int]) -> int:
    return timer[0]


def _checked(timestamp_ms: Any) -> int:
    if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
        raise TypeError(f"the time of a timer is a whole number of milliseconds, not a {type(timestamp_ms).__name__}")
    if timestamp_ms not in _INTEGERS:
        raise ValueError(f"the time of a timer is milliseconds of 64 bits, and {timestamp_ms} is more")
    return timestamp_ms


class ProcessorValueState:
    """One value."""

    __slots__ = ("_state", "_stored", "_values", "schema")

    def __init__(self, state: ValueState[Any], schema: ProcessorSchema) -> None:
        self._state = state
        self.schema = schema
        self._stored = schema.stored
        self._values = schema.values

    def exists(self) -> bool:
        """Return whether there is a value."""
        return self._state.value() is not None

    def get(self) -> tuple[Any, ...] | None:
        """Return the value, or None."""
        stored = self._state.value()
        return None if stored is None else self._values(stored)

    def update(self, newValue: Any) -> None:  # noqa: N803
        """Set the value."""
        self._state.update(self._stored(newValue))

    def clear(self) -> None:
        """Remove the value."""
        self._state.clear()


class ProcessorListState:
    """A list in the order of appending."""

    __slots__ = ("_state", "schema")

    def __init__(self, state: ListState[Any], schema: ProcessorSchema) -> None:
        self._state = state
        self.schema = schema

    def exists(self) -> bool:
        """Return whether there is an element."""
        return bool(self._state.get())

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Return the current elements. Later changes are not visible."""
        return map(self.schema.values, self._state.get())

    def put(self, newState: Sequence[Any]) -> None:  # noqa: N803
        """Replace the list. Raises `ValueError` for an empty list, as Spark does."""
        self._state.update(self._all_stored(newState, "put"))

    def appendValue(self, newState: Any) -> None:  # noqa: N802, N803
        """Append one element."""
        self._state.add(self.schema.stored(newState))

    def appendList(self, newState: Sequence[Any]) -> None:  # noqa: N802, N803
        """Append elements. Raises `ValueError` for an empty list, as Spark does."""
        self._state.add_all(self._all_stored(newState, "appendList"))

    def clear(self) -> None:
        """Remove the list."""
        self._state.clear()

    def _all_stored(self, values: Sequence[Any], method: str) -> list[Any]:
        stored = list(map(self.schema.stored, values))
        if not stored:
            raise ValueError(f"{self.schema.where}: {method}() was given an empty list; call clear(), or nothing")
        return stored


class ProcessorMapState:
    """A map. Entries are read and written one by one. The order of iteration is undefined."""

    __slots__ = ("_state", "key_schema", "value_schema")

    def __init__(self, state: MapState[Any, Any], key: ProcessorSchema, value: ProcessorSchema) -> None:
        self._state = state
        self.key_schema = key
        self.value_schema = value

    def exists(self) -> bool:
        """Return whether there is any entry."""
        return not self._state.is_empty()

    def getValue(self, key: Any) -> Any:  # noqa: N802
        """Return the value of an entry as a Row, or None."""
        stored = self._state.get(self.key_schema.stored(key))
        return None if stored is None else self.value_schema.row(stored)

    def containsKey(self, key: Any) -> bool:  # noqa: N802
        """Return whether there is an entry with this key."""
        return self._state.contains(self.key_schema.stored(key))

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        """Set one entry."""
        self._state.put(self.key_schema.stored(key), self.value_schema.stored(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Return all entries. They may be changed during the iteration."""
        key, value = self.key_schema.values, self.value_schema.values
        return ((key(one), value(other)) for one, other in self._state.items())

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Return the keys of all entries."""
        return map(self.key_schema.values, self._state.keys())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Return the values of all entries."""
        return map(self.value_schema.values, self._state.values())

    def removeKey(self, key: Any) -> None:  # noqa: N802
        """Remove an entry, if it exists."""
        self._state.remove(self.key_schema.stored(key))

    def clear(self) -> None:
        """Remove all entries."""
        self._state.clear()


RESERVED_PREFIX: Final = "__statebackend_"
"""The prefix of the operator's own states."""


class ProcessorHandle:
    """Spark's ``StatefulProcessorHandle`` for the state of this package. ``timers`` is None in the time mode "none"."""

    def __init__(
        self, function: StatefulProcessorFunction, context: RuntimeContext, timers: ProcessorTimers | None
    ) -> None:
        self._mode = function.time_mode
        self._context = context
        self._timers = timers
        self._names: set[str] = set()
        self._is_open = True

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorValueState:  # noqa: N802, N803
        """Register a value state."""
        where, ttl = self._new(stateName, ttlDurationMs)
        values = ProcessorSchema(schema, where)
        state: Any = self._context.register(ValueStateDescriptor(stateName, values.serializer, ttl=ttl))
        return ProcessorValueState(state, values)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ProcessorListState:  # noqa: N802, N803
        """Register a list state."""
        where, ttl = self._new(stateName, ttlDurationMs)
        elements = ProcessorSchema(schema, where)
        state: Any = self._context.register(ListStateDescriptor(stateName, elements.serializer, ttl=ttl))
        return ProcessorListState(state, elements)

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: Any,  # noqa: N803
        valueSchema: Any,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ProcessorMapState:
        """Register a map state."""
        where, ttl = self._new(stateName, ttlDurationMs)
        keys = ProcessorSchema(userKeySchema, f"{where}, key")
        values = ProcessorSchema(valueSchema, f"{where}, value")
        state: Any = self._context.register(MapStateDescriptor(stateName, keys.serializer, values.serializer, ttl=ttl))
        return ProcessorMapState(state, keys, values)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Register a timer of the current key."""
        self._known_timers("registerTimer").register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Delete a timer of the current key, if it exists."""
        self._known_timers("deleteTimer").delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        """Return the times of the timers of the current key, in order."""
        return iter(self._known_timers("listTimers").listed())

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        """Declare that the processor no longer has this state.

        A start drops or rejects state that no ``init`` registers, depending on ``allow_non_restored_state``. So this
        only raises if this ``init`` has registered the state.
        """
        if stateName in self._names:
            self._reject(f"deleteIfExists({stateName!r}) of a state that init() registers; leave out one of both")

    def end_of_init(self) -> None:
        """Reject further registrations."""
        self._is_open = False

    def _new(self, name: str, ttl_ms: int | None) -> tuple[str, StateTtlConfig | None]:
        where = f"operator {self._context.operator_uid!r}, state {name!r}"
        if not self._is_open:
            raise JobDefinitionError(f"{where}: register states in init(), and keep them in self")
        if not isinstance(name, str) or name.startswith(RESERVED_PREFIX):
            raise JobDefinitionError(f"{where}: the name must be a string that does not start with {RESERVED_PREFIX}")
        if name in self._names:
            raise JobDefinitionError(f"{where}: init() registers it twice; give one of them another name")
        if ttl_ms is not None and self._mode is not TimeMode.PROCESSING_TIME:
            raise JobDefinitionError(
                f"{where}: a time-to-live needs time_mode='processingTime', and this is {self._mode.value!r}"
            )
        self._names.add(name)
        return where, None if ttl_ms is None else StateTtlConfig(ttl_ms)

    def _known_timers(self, method: str) -> ProcessorTimers:
        if self._timers is None:
            self._reject(f"{method}() in time_mode='none'; timers need 'processingTime' or 'eventTime'")
        return self._timers

    def _reject(self, what: str) -> NoReturn:
        raise JobDefinitionError(f"operator {self._context.operator_uid!r}: {what}")


_SHOWN_ROW_CHARACTERS: Final = 200

OF_TRANSFORM_WITH_STATE: Final = "output_schema='name type, ...', the schema of what the processor emits"

TIMERS_STATE: Final = f"{RESERVED_PREFIX}timers_of_key"
LATE_STATE: Final = f"{RESERVED_PREFIX}previous_watermark"
INITIAL_STATE: Final = f"{RESERVED_PREFIX}initial_state"
_STARTED: Final = "started"
WATERMARK_KEY: Final = "watermark"

TIMER_SERVICE: Final = f"{RESERVED_PREFIX}timers"


class StatefulProcessorOperator(Operator):
    """Runs a stateful processor."""

    def __init__(self, function: StatefulProcessorFunction, uid: str) -> None:
        self._function = function
        self._processor = function.processor
        self._uid = uid
        self._timers: ProcessorTimers | None = None
        self._times: TimerValues | None = TimerValues() if function.time_mode is TimeMode.NONE else None
        self._set_key: Callable[[Any, int], None] | None = None
        self._open_key: Any = None
        self._open_key_group = 0
        self._open_rows: list[Any] = []
        self._emitted: list[tuple[Any, ...]] = []
        declared = output_schema(function.output_schema, place_of_output(uid), OF_TRANSFORM_WITH_STATE)
        self._names = list(declared.names)
        converters = {index: _dict_converter(one.type) for index, one in enumerate(declared.arrow)}
        self._with_dicts = {index: one for index, one in converters.items() if one is not None}
        self._lateness: LateRecords | None = None
        self._begun: BroadcastState[str, bool] | None = None

    def open(self, context: Any, emitter: Emitter) -> None:
        self._emitter = emitter
        self._encoder = emitter.encoder(None)
        self._rows = ProcessorRows(context.input_schemas[0])
        self._context = context
        if self._function.time_mode is not TimeMode.NONE:
            of_key = context.register(MapStateDescriptor(TIMERS_STATE, LongSerializer(), BooleanSerializer()))
            service = context.internal_timer_service(TIMER_SERVICE, VoidNamespaceSerializer())
            self._timers = ProcessorTimers(self._function.time_mode, service, of_key)
        if self._function.time_mode is TimeMode.EVENT_TIME:
            self._lateness = LateRecords(context.operator_state)
        initial = self._function.initial_state
        if initial is not None:
            if not hasattr(initial, "batches"):
                raise JobDefinitionError(f"operator {self._uid!r}: initial_state is a DataFrame, and so needs Spark")
            descriptor = BroadcastStateDescriptor(INITIAL_STATE, StringSerializer(), BooleanSerializer())
            self._begun = context.operator_state.get_broadcast_state(descriptor)
        handle = ProcessorHandle(self._function, context, self._timers)
        call_user(self._uid, "init", lambda: self._processor.init(handle))
        handle.end_of_init()

    def process_batch(self, input_index: int, batch: Any) -> None:
        self._begin()
        # Fix the time of these records, because time advances before the last key is complete.
        self._now()
        keys, key_groups, records = batch.keys, batch.key_groups, self._rows.of(batch)
        if self._lateness is not None:
            keys, key_groups, records = self._lateness.without_late(batch.timestamps, keys, key_groups, records)
        start, count = 0, len(keys)
        while start < count:
            key, end = keys[start], start + 1
            while end < count and keys[end] == key:
                end += 1
            if self._open_rows and self._open_key == key:
                self._open_rows += records[start:end]
            else:
                self._end_key()
                self._open_key, self._open_key_group = key, key_groups[start]
                self._open_rows = list(records[start:end])
            start = end
        self._emit_all()
        gc.collect(0)

    def on_watermark(self, timestamp_ms: int) -> None:
        if self._function.time_mode is TimeMode.EVENT_TIME:
            self._end_key()
            self._times = None

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._known_timers().take(timestamp_ms, key, key_group)

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._known_timers().take(timestamp_ms, key, key_group)

    def prepare_snapshot(self) -> None:
        self._begin()
        self._end_key()
        if self._timers is not None:
            for timestamp_ms, key in self._timers.due(self._make_current):
                self._expire(key, ExpiredTimerInfo(timestamp_ms))
            # Time may advance after the barrier.
            self._times = None
            if self._lateness is not None:
                self._lateness.watermark_was(self._timers.current_watermark())
        self._emit_all()

    def close(self) -> None:
        call_user(self._uid, "close", self._processor.close)

    def _begin(self) -> None:
        """Pass the initial state to the processor, in the first epoch of an operator that is not restored."""
        if self._begun is None or self._begun.get(_STARTED):
            return
        self._begun.put(_STARTED, True)
        if self._context.is_restored:
            return
        initial: InitialState = self._function.initial_state
        for batch in initial.batches(self._context.subtask_index, self._context.parallelism):
            for row, key, key_group in zip(ProcessorRows().of(batch), batch.keys, batch.key_groups, strict=True):
                self._make_current(key, key_group)
                try:
                    self._processor.handleInitialState(self._key_tuple(key), row, self._now())
                except Exception as error:
                    raise self._failure("handleInitialState", key, error) from error

    def _end_key(self) -> None:
        """Call the processor for the open key."""
        rows, self._open_rows = self._open_rows, []
        if rows:
            key = self._open_key
            self._make_current(key, self._open_key_group)
            key_tuple, now = self._key_tuple(key), self._now()
            self._run("handleInputRows", key, lambda: self._processor.handleInputRows(key_tuple, iter(rows), now))

    def _expire(self, key: Any, info: ExpiredTimerInfo) -> None:
        key_tuple, now = self._key_tuple(key), self._now()
        self._run(
            "handleExpiredTimer",
            key,
            lambda: self._processor.handleExpiredTimer(key=key_tuple, timerValues=now, expiredTimerInfo=info),
        )

    def _run(self, method: str, key: Any, call: Callable[[], Iterable[Any] | None]) -> None:
        names, emit, encoder = self._names, self._emitted.append, self._encoder
        try:
            for row in call() or ():
                # A Row that is created with keywords has its names in the instance.
                values = tuple(row) if getattr(row, "__fields__", None) == names else self._by_name(row)
                if self._with_dicts:
                    of = self._with_dicts
                    values = tuple([of[at](one) if at in of else one for at, one in enumerate(values)])
                emit(values if tuple in encoder.unchanged else encoder.encode(values))
        except Exception as error:
            raise self._failure(method, key, error) from error

    def _by_name(self, row: Any) -> tuple[Any, ...]:
        """Return the values of a row with other columns than the schema."""
        fields = getattr(row, "__fields__", None)
        if fields is None:
            if isinstance(row, tuple) and not hasattr(row, "asDict") and len(row) == len(self._names):
                return tuple(row)
            raise TypeError(
                f"{format_value(row, _SHOWN_ROW_CHARACTERS)} was emitted, which is not a Row of the columns "
                f"{', '.join(self._names)}; yield Row(name=value, ...)"
            )
        by_name = dict(zip(fields, row, strict=True))
        return tuple([by_name.get(name) for name in self._names])

    def _emit_all(self) -> None:
        emitted, self._emitted = self._emitted, []
        self._emitter.emit(None, emitted)

    def _make_current(self, key: Any, key_group: int) -> None:
        if self._set_key is None:
            # The setter covers the states that are registered by now.
            self._set_key = self._context.key_setter()
        self._set_key(key, key_group)
        if self._timers is not None:
            self._timers.set_key(key, key_group)

    def _now(self) -> TimerValues:
        if self._times is None:
            self._times = self._known_timers().values()
        return self._times

    def _key_tuple(self, key: Any) -> Any:
        return key if self._function.key_width > 1 else (key,)

    def _known_timers(self) -> ProcessorTimers:
        assert self._timers is not None, "the time mode is none, and a timer is due"
        return self._timers

    def _failure(self, method: str, key: Any, error: Exception) -> Exception:
        return call_failure(error, of_key(self._uid, key), method)


class LateRecords:
    """Drops late records: those not after the watermark of the previous epoch."""

    def __init__(self, store: OperatorStateStore) -> None:
        self._state = store.get_broadcast_state(
            BroadcastStateDescriptor(LATE_STATE, StringSerializer(), LongSerializer())
        )

    def watermark_was(self, watermark: int) -> None:
        """Store the watermark of the ending epoch."""
        if self._state.get(WATERMARK_KEY) != watermark:
            self._state.put(WATERMARK_KEY, watermark)

    def without_late(
        self, timestamps: Sequence[int | None] | None, *columns: Sequence[Any]
    ) -> tuple[Sequence[Any], ...]:
        """Return the columns without late records."""
        line = self._state.get(WATERMARK_KEY)
        if line is None or timestamps is None:
            return columns
        in_time = [time is None or time > line for time in timestamps]
        return columns if all(in_time) else tuple(list(compress(column, in_time)) for column in columns)


class ProcessorRows:
    """Converts batches to the rows that a processor receives. Batches of one input have one schema."""

    def __init__(self, schema: DeclaredSchema | None = None) -> None:
        """Create it. ``schema`` is the schema of rows without Arrow columns, if known."""
        self._nested: list[tuple[int, str]] | None = None
        self._forms = [
            (index, one.arrow_type)
            for index, one in enumerate(schema.columns if schema is not None else ())
            if _is_other(one.arrow_type)
        ]

    def of(self, batch: InputBatch) -> Sequence[Any]:
        """Return the rows of a batch."""
        records, columns = batch.records, batch.columns
        if not records or (columns is None and not self._forms):
            return records
        row_class = type(records[0])
        values = list(zip(*records, strict=True))
        if columns is None:
            for index, data_type in self._forms:
                values[index] = tuple(arrow_form(data_type, value) for value in values[index])
            return [tuple.__new__(row_class, row) for row in zip(*values, strict=True)]
        if self._nested is None:
            names = row_class.__fields__
            self._nested = [
                (index, name) for index, name in enumerate(names) if _is_other(columns.schema.field(name).type)
            ]
        if not self._nested:
            return records
        for index, name in self._nested:
            values[index] = columns.column(name).to_pylist()
        return [tuple.__new__(row_class, row) for row in zip(*values, strict=True)]


def arrow_form(data_type: pa.DataType, value: Any) -> Any:
    """Convert a value of a row to Arrow's form: a struct to a dict, a map to a list of pairs."""
    if value is None or not _is_other(data_type):
        return value
    if pa.types.is_struct(data_type):
        return {one.name: arrow_form(one.type, item) for one, item in zip(data_type, value, strict=True)}
    if pa.types.is_map(data_type):
        key_type, item_type = data_type.key_type, data_type.item_type
        return [(arrow_form(key_type, key), arrow_form(item_type, item)) for key, item in value.items()]
    return [arrow_form(data_type.value_type, item) for item in value]


def _dict_converter(data_type: pa.DataType) -> Callable[[Any], Any] | None:
    """Return a function that converts maps as lists of pairs, the form of the input, to dicts; None without maps.

    Values that do not match the type stay as they are.
    """
    if pa.types.is_map(data_type):
        return _map_converter(_dict_converter(data_type.item_type))
    if pa.types.is_struct(data_type):
        converters = {one.name: _dict_converter(one.type) for one in data_type}
        return _struct_converter(converters) if any(converters.values()) else None
    of_element = _dict_converter(data_type.value_type) if data_type.num_fields else None
    if of_element is None:
        return None
    return lambda value: list(map(of_element, value)) if isinstance(value, list) else value


def _map_converter(of_item: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
            value = dict(value)
        if not isinstance(value, dict):
            return value
        return {key: one if of_item is None else of_item(one) for key, one in value.items()}

    return convert


def _struct_converter(converters: Mapping[str, Callable[[Any], Any] | None]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if hasattr(value, "__fields__"):
            value = dict(zip(value.__fields__, value, strict=True))
        if isinstance(value, dict):
            return {name: one if (of := converters.get(name)) is None else of(one) for name, one in value.items()}
        if isinstance(value, tuple) and len(value) == len(converters):
            pairs = zip(converters.values(), value, strict=True)
            return tuple([one if of is None else of(one) for of, one in pairs])
        return value

    return convert


def _is_other(data_type: pa.DataType) -> bool:
    """Whether Arrow's Python values of the type differ from those in Spark's rows."""
    if pa.types.is_struct(data_type) or pa.types.is_map(data_type):
        return True
    return any(_is_other(data_type.field(index).type) for index in range(data_type.num_fields))
