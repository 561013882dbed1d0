"""The graph of a local job, prepared for its subtasks: records between them, inputs, keys, the form of results.

A record has one owner, which may change it. Where a stream forks, each reader except the first gets copies.

The declared schema of an input gives the types of its keys. Without one (plain elements, or the result of a step),
the first record does. All keyed inputs of an operator have keys of the same types: the types from a schema hold for
inputs without one, and two different ones are rejected. If the types become known from a record while the job runs,
the state that the job restored is checked then.

Records of an Arrow source, and record batches that an operator emits, stay in columns (`Columnar`). Keys that name
columns are hashed and divided among the subtasks in columns, too. So do records of a class whose constructor only sets
fields. Steps, orders, unions and other classes create objects.

If one stream of a union has rows, the records of all of them become rows of one schema, so that the types of keys do
not depend on the order of the streams.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import compress, repeat
from numbers import Real
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, evolve, field, frozen

from snapshots.errors import format_value
from statebackend.state.key_groups import KeyHashError, key_groups_hasher, subtask_of_key_group
from statebackend.state.key_hashes import key_groups_of_columns
from statebackend.streaming.errors import JobDefinitionError, StreamJobError, UserFunctionError, describe_exception
from statebackend.streaming.key_types import canonical_key, check_keys_agree, key_serializer_for
from statebackend.streaming.operators.aggregate import resolved_node
from statebackend.streaming.operators.operator import ObjectBatch, check_keys, place_of_input
from statebackend.streaming.operators.record_steps import StepResults, results_of_step
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.columnar import Columnar
from statebackend.streaming.rows.declared_schema import (
    OF_OUTPUT_TAG,
    OF_PROCESS,
    Column,
    DeclaredSchema,
    check_not_reserved,
    meant_by,
    place_of_output,
    unknown_column,
)
from statebackend.streaming.rows.record_copies import copied_records
from statebackend.streaming.rows.record_schema import (
    AS_RECORDS,
    RecordType,
    columns_of_class,
    output_schema,
    record_type,
)
from statebackend.streaming.rows.row_converter import RowConverter
from statebackend.streaming.rows.row_reader import RowReader, keys_of_columns
from statebackend.streaming.rows.row_writer import RowEncoder, RowWriter
from statebackend.streaming.rows.union import rows_as, united_guess, united_schema
from statebackend.streaming.runtime.state_registration import RegisteredStates, registered_states
from statebackend.streaming.sink import Sink
from statebackend.streaming.stream_graph import (
    FILTER,
    KEY_TYPES,
    ONE_COLUMN,
    BroadcastInput,
    DataFrameNode,
    JobGraph,
    KeyedInput,
    KeyFunction,
    Node,
    OperatorNode,
    RecordsNode,
    RecordStepNode,
    SinkNode,
    SourceNode,
    SpreadInput,
    StreamEdge,
    TimestampsNode,
    UnionNode,
)
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_shape import field_names

_ACCESSOR: Final = type(vars(namedtuple("_Accessors", "field"))["field"])
"""The class of the accessors of rows and named tuples."""
_WHOLE_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_COMPARED_AS_THEY_ARE: Final = frozenset({str, int, bool, bytes, date, timedelta})

Recast = Callable[[Sequence[Any]], Sequence[Any]]
"""Converts records, one for one."""


@frozen
class LocalStream:
    """Records and their timestamps: None for a record without, or None in a job without event time."""

    records: Sequence[Any]
    timestamps: Sequence[int | None] | None = None

    def through(self, results_of: Callable[[Sequence[Any]], StepResults]) -> LocalStream:
        """The results of a step; each has the timestamp of its record."""
        results, positions = results_of(self.records)
        times = self.timestamps
        return LocalStream(results, None if times is None else [times[position] for position in positions])

    def recast(self, function: Recast) -> LocalStream:
        """The records converted, one for one."""
        return LocalStream(function(self.records), self.timestamps)

    def copied(self) -> LocalStream:
        """Copies of the records; raises `StreamJobError` for a record that cannot be copied."""
        records, where = self.records, "a stream with several readers"
        copies = records.copied() if isinstance(records, Columnar) else copied_records(records, where)
        return LocalStream(copies, self.timestamps)

    def of(self, places: Sequence[int]) -> LocalStream:
        """The records at these places, in this order."""
        times = self.timestamps
        records = [self.records[index] for index in places]
        return LocalStream(records, None if times is None else [times[index] for index in places])


Step = Callable[[LocalStream], LocalStream]
"""What a stateless step does to one of its inputs."""


def field_getter(key: Any, place: str, given_to: str) -> Callable[[Any], Any]:
    """Return a function from a record to a column: a field by name, or the given function.

    It raises `JobDefinitionError` for a record without the field. Errors name ``place`` and the method ``given_to``.
    """
    if callable(key):
        function: Callable[[Any], Any] = key.function if isinstance(key, KeyFunction) else key
        return function
    if not isinstance(key, str):
        raise JobDefinitionError(f"{place}: {given_to} takes field names or functions, not {type(key).__name__}")
    name: str = key
    readers: dict[type, Callable[[Any], Any]] = {}

    def get(record: Any) -> Any:
        read = readers.get(record.__class__)
        if read is None:
            read = readers[record.__class__] = _reader(record.__class__, name)
        try:
            return read(record)
        except (KeyError, AttributeError) as error:
            raise JobDefinitionError(
                f"{place}: {given_to}({name!r}), but a record has no field of that name: {format_value(record, 200)}"
            ) from error

    return get


def column_getter(key: Any, place: str, given_to: str) -> Callable[[Sequence[Any]], list[Any]]:
    """As `field_getter`, for all records of a batch."""
    get = field_getter(key, place, given_to)
    if callable(key):
        # Python calls its own functions faster than `map` does.
        return lambda records: [get(record) for record in records]
    readers: dict[type, Callable[[Any], Any]] = {}

    def get_all(records: Sequence[Any]) -> list[Any]:
        kinds = set(map(type, records))
        if len(kinds) == 1:
            [kind] = kinds
            read = readers.get(kind) or readers.setdefault(kind, _reader(kind, key))
            with contextlib.suppress(KeyError, AttributeError):
                return list(map(read, records))
        return list(map(get, records))

    return get_all


def _reader(kind: type, name: str) -> Callable[[Any], Any]:
    """A function that reads a field, or by its path a field of a field, of the records of a class.

    As on Spark, a field of this name comes before the field of a field.
    """
    fields = _fields_of(kind)
    meant = meant_by(name, fields)
    if meant is None:
        path = name.split(".")
        return lambda record: (
            _field(record, name) if _has_field(record, name) else functools.reduce(_field, path, record)
        )
    if not issubclass(kind, tuple):
        return attrgetter(meant)
    # A Row has methods of a tuple, which are not fields: row["count"] is the column, row.count is not. `attrgetter`
    # takes a name with a dot for a path.
    if type(vars(kind).get(meant)) is _ACCESSOR and "." not in meant:
        return attrgetter(meant)
    position = fields.index(meant)
    return lambda record: tuple.__getitem__(record, position)


def _fields_of(kind: type) -> Sequence[str]:
    """The fields of a class of rows or records; none if they depend on the record."""
    return getattr(kind, "__fields__", None) or getattr(kind, "_fields", None) or field_names(kind) or ()


def _has_field(record: Any, name: str) -> bool:
    if isinstance(record, Mapping):
        return name in record
    return name in getattr(record, "__fields__", ()) or hasattr(record, name)


def _field(record: Any, name: str) -> Any:
    meant = meant_by(name, _fields_of(type(record))) or name
    has_items = isinstance(record, Mapping) or meant in getattr(record, "__fields__", ())
    return record[meant] if has_items else getattr(record, meant)


@frozen
class KnownStream:
    """What is known of a stream before it has records: its schema, and whether its records are rows of the schema.

    ``first`` returns the first record of its sources, if any. It is called only if the schema does not suffice.
    """

    schema: DeclaredSchema | None
    is_rows: bool
    first: Callable[[], Sequence[Any]] = tuple

    @property
    def row_schema(self) -> DeclaredSchema | None:
        """The schema of its rows; None if its records are not rows."""
        return self.schema if self.is_rows else None


@frozen
class KeyColumns:
    """The types of the keys of an operator: none without a keyed input."""

    types: tuple[str, ...]
    max_parallelism: int

    def key_groups_of(self, keys: Sequence[Any]) -> list[int]:
        """Return the key group of each key; raises `KeyHashError` for a key of another type."""
        return key_groups_hasher(self.types, self.max_parallelism)(keys)

    def key_groups_of_columns(self, columns: Sequence[pa.Array]) -> pa.Array:
        """As `key_groups_of`, for columns without nulls."""
        groups = key_groups_of_columns(columns, self.max_parallelism)
        return pa.array(self.key_groups_of(keys_of_columns(columns)), pa.int32()) if groups is None else groups


def _plain_keys(values: list[Any]) -> list[Any]:
    """Convert the numpy scalars among the values of a key column to Python values."""
    if any(kind.__module__ == "numpy" for kind in set(map(type, values))):
        return [value.tolist() if type(value).__module__ == "numpy" else value for value in values]
    return values


class LocalInput:
    """One input of an operator. Its subclasses decide which subtask gets a record."""

    is_keyed = False

    def __init__(self, given: Any, uid: str, place: str, stream: KnownStream) -> None:
        self._uid = uid
        self._place = place
        self._order = given.order_by
        self._is_in_time_order = isinstance(given, KeyedInput) and given.is_in_time_order
        self._order_getters = _getters(given.order_by, uid, "order_by", stream)

    @property
    def is_ordered(self) -> bool:
        """Whether its records are sorted."""
        return bool(self._order)

    def declared_key_types(self) -> tuple[str, ...] | None:
        """The types of its keys, if the schema gives all of them."""
        return None

    def key_types_of(self, record: Any) -> tuple[str, ...]:
        """The types of the keys of a record; raises `JobDefinitionError` for a value that cannot be a key."""
        raise NotImplementedError

    def shares(self, stream: LocalStream, columns: KeyColumns | None, parallelism: int) -> Sequence[ObjectBatch]:
        """The records for each subtask, in order; raises for a record without such a key."""
        raise NotImplementedError

    def in_order(self, batch: ObjectBatch) -> ObjectBatch:
        """The records sorted, stably; raises `JobDefinitionError` if they cannot be compared."""
        if not self._order_getters:
            return batch
        columns_of_order = [_sort_keys(get(batch.records)) for get in self._order_getters]
        if self._is_in_time_order and batch.timestamps is not None:
            columns_of_order.insert(0, _sort_keys(list(batch.timestamps)))
        keys = list(zip(*columns_of_order, strict=True))
        try:
            places = sorted(range(len(keys)), key=keys.__getitem__)
        except TypeError as error:
            columns = ", ".join(map(repr, self._order))
            raise JobDefinitionError(
                f"{self._place}: order_by({columns}) cannot sort the records: {error}. Sort by values of one type that "
                f"can be compared, such as numbers, strings, dates, structs and arrays of them, but not maps"
            ) from error
        return _picked(batch, places)


class _KeyedInput(LocalInput):
    """Each record goes to the subtask of its key."""

    is_keyed = True

    def __init__(self, given: KeyedInput, uid: str, place: str, stream: KnownStream) -> None:
        self._keys = given.keys
        self._declared = stream.schema
        self._key_getters = _getters(given.keys, uid, "key_by", stream)
        rows = stream.row_schema
        found = [rows.column(key) if rows is not None and isinstance(key, str) else None for key in given.keys]
        names = [column.name for column in found if column is not None]
        self._column_names = names if len(names) == len(found) else None
        """The columns of its keys; None if one is a function or the field of a struct."""
        super().__init__(given, uid, place, stream)

    def _declared_type(self, key: Any) -> str | None:
        if isinstance(key, KeyFunction):
            return key.type_name
        return self._declared.type_of(key) if self._declared is not None and isinstance(key, str) else None

    def declared_key_types(self) -> tuple[str, ...] | None:
        known = tuple(name for key in self._keys if (name := self._declared_type(key)) is not None)
        return known if len(known) == len(self._keys) else None

    def key_types_of(self, record: Any) -> tuple[str, ...]:
        return tuple(
            self._declared_type(key)
            or self._type_of(key, key(record) if isinstance(key, KeyFunction) else get([record])[0])
            for key, get in zip(self._keys, self._key_getters, strict=True)
        )

    def _type_of(self, key: Any, value: Any) -> str:
        [value] = _plain_keys([value])
        check_keys(self._place, [value], is_composite=False)
        name = KEY_TYPES.get(type(value))
        if name is None:
            subject = "a function returned" if isinstance(key, KeyFunction) else f"column {key!r} is"
            advice = f". Also, {ONE_COLUMN}" if isinstance(value, (tuple, list)) else ""
            raise JobDefinitionError(
                f"operator {self._uid!r}: key_by(): {subject} {format_value(value, 80)}, a {type(value).__name__}, "
                f"which cannot be a key; keys are {', '.join(kind.__name__ for kind in KEY_TYPES)}{advice}"
            )
        return name

    def shares(self, stream: LocalStream, columns: KeyColumns | None, parallelism: int) -> Sequence[ObjectBatch]:
        assert columns is not None
        in_columns = self._shares_in_columns(stream, columns, parallelism)
        if in_columns is not None:
            return in_columns
        keys = self._keys_of(stream.records, columns)
        try:
            key_groups = columns.key_groups_of(keys)
        except KeyHashError as error:
            raise self._unlike(str(error)) from error
        whole = ObjectBatch(stream.records, keys, key_groups, stream.timestamps)
        if parallelism == 1:
            return [whole]
        shares: list[list[int]] = [[] for _ in range(parallelism)]
        add_to = [shares[subtask].append for subtask in _subtasks(parallelism, columns.max_parallelism)]
        for index, key_group in enumerate(key_groups):
            add_to[key_group](index)
        return [_picked(whole, share) for share in shares]

    def _shares_in_columns(
        self, stream: LocalStream, columns: KeyColumns, parallelism: int
    ) -> Sequence[ObjectBatch] | None:
        """As `shares`, in columns; None if records or keys are not, or if a key is null, which is an error."""
        records = stream.records
        if not isinstance(records, Columnar) or self._column_names is None:
            return None
        keys = [records.columns.column(name) for name in self._column_names]
        if any(column.null_count for column in keys):
            return None
        key_groups, times = columns.key_groups_of_columns(keys), stream.timestamps
        whole = ObjectBatch(records, Columnar.of_keys(keys), Columnar.of_column(key_groups), times)
        if parallelism == 1:
            return [whole]
        subtasks = pa.array(_subtasks(parallelism, columns.max_parallelism), pa.int32()).take(key_groups)
        masks = [pc.equal(subtasks, index) for index in range(parallelism)]
        return [
            ObjectBatch(
                records.filtered(mask),
                Columnar.of_keys([column.filter(mask) for column in keys]),
                Columnar.of_column(key_groups.filter(mask)),
                None if times is None else list(compress(times, mask.to_pylist())),
            )
            for mask in masks
        ]

    def _keys_of(self, records: Sequence[Any], columns: KeyColumns) -> list[Any]:
        try:
            values = [_plain_keys(get(records)) for get in self._key_getters]
        except Exception:
            # Call the functions again, now with an error that names the record.
            for function in self._keys:
                for record in records if isinstance(function, KeyFunction) else ():
                    function(record)
            raise
        for index, type_name in enumerate(columns.types):
            canonical = canonical_key(type_name)
            if canonical is not None:
                try:
                    values[index] = list(map(canonical, values[index]))
                except ValueError as error:
                    raise KeyHashError(f"{self._place}: a key of column {index} (timestamp) {error}") from error
            # In Python, True equals 1, and the two would share one state.
            wrong = bool if type_name in _WHOLE_NUMBERS else int if type_name == "boolean" else None
            if wrong is not None and wrong in set(map(type, values[index])):
                raise self._unlike(
                    f"key column {index} is of type {type_name}, which cannot hold a value of type {wrong.__name__}"
                )
        is_composite = len(columns.types) > 1
        keys: list[Any] = list(zip(*values, strict=True)) if is_composite else values[0]
        check_keys(self._place, keys, is_composite)
        return keys

    def _unlike(self, reason: str) -> KeyHashError:
        decides = "The first record decides" if self.declared_key_types() is None else "Schema and key_type decide"
        return KeyHashError(
            f"{self._place}: {reason}. {decides} on the types of a key; give all records keys of the same types "
            f"before key_by"
        )


class _SpreadInput(LocalInput):
    """The subtasks take turns."""

    _sent = 0

    def shares(self, stream: LocalStream, columns: KeyColumns | None, parallelism: int) -> Sequence[ObjectBatch]:
        whole = ObjectBatch(stream.records, (), (), stream.timestamps)
        if parallelism == 1:
            return [whole]
        count, sent = len(stream.records), self._sent
        self._sent = (sent + count) % parallelism
        return [_picked(whole, range((index - sent) % parallelism, count, parallelism)) for index in range(parallelism)]


class _BroadcastInput(LocalInput):
    """Every subtask gets every record, as a copy."""

    def shares(self, stream: LocalStream, columns: KeyColumns | None, parallelism: int) -> Sequence[ObjectBatch]:
        streams = [stream, *(stream.copied() for _ in range(1, parallelism))]
        return [ObjectBatch(one.records, (), (), one.timestamps) for one in streams]


_INPUTS: Final[Mapping[type, type[LocalInput]]] = {
    KeyedInput: _KeyedInput,
    SpreadInput: _SpreadInput,
    BroadcastInput: _BroadcastInput,
}


def local_inputs(node: OperatorNode, streams: Sequence[KnownStream]) -> Sequence[LocalInput]:
    """The inputs of an operator; raises `JobDefinitionError` for columns that its streams do not have."""
    return [
        _INPUTS[type(one)](one, node.uid, place_of_input(node.uid, index, len(streams)), streams[index])
        for index, one in enumerate(node.operator_inputs)
    ]


def _known_key_types(
    uid: str, inputs: Sequence[LocalInput], firsts: Callable[[int], Sequence[Any]]
) -> tuple[str, ...] | None:
    """The types of the keys of an operator; None as long as they are not known."""
    keyed = {index: one for index, one in enumerate(inputs) if one.is_keyed}
    if not keyed:
        return ()
    declared = {index: types for index, one in keyed.items() if (types := one.declared_key_types()) is not None}
    check_keys_agree(uid, declared)
    seen = {
        index: one.key_types_of(record)
        for index, one in keyed.items()
        if index not in declared
        for record in firsts(index)[:1]
    }
    if not declared and not seen:
        return None
    types = declared[min(declared)] if declared else seen[min(seen)]
    # Python has one type of whole numbers, so the one from a schema holds for inputs without one.
    check_keys_agree(uid, {**declared, **{index: _as_one(types, own) for index, own in seen.items()}})
    return types


def _as_one(types: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    if len(types) != len(others):
        return others
    pairs = zip(types, others, strict=True)
    return tuple(name if {name, other} <= _WHOLE_NUMBERS else other for name, other in pairs)


@functools.lru_cache(maxsize=64)
def _subtasks(parallelism: int, max_parallelism: int) -> tuple[int, ...]:
    """The subtask of each key group."""
    groups = range(max_parallelism)
    return tuple(subtask_of_key_group(key_group, parallelism, max_parallelism) for key_group in groups)


def _picked(batch: ObjectBatch, places: Sequence[int]) -> ObjectBatch:
    times = batch.timestamps
    return ObjectBatch(
        [batch.records[index] for index in places],
        [batch.keys[index] for index in places] if batch.keys else (),
        [batch.key_groups[index] for index in places] if batch.key_groups else (),
        None if times is None else [times[index] for index in places],
    )


def _getters(
    columns: Sequence[Any], uid: str, given_to: str, stream: KnownStream
) -> list[Callable[[Sequence[Any]], list[Any]]]:
    for column in columns:
        schema = stream.row_schema if isinstance(column, str) else None
        if schema is not None and schema.type_of(column) is None:
            raise unknown_column(uid, given_to, column, schema.names)
    getters = [column_getter(column, f"operator {uid!r}", given_to) for column in columns]
    where = f"operator {uid!r}: the function of {given_to}"
    return [_reporting(get, where) if callable(column) else get for column, get in zip(columns, getters, strict=True)]


def _reporting(get: Callable[[Sequence[Any]], list[Any]], where: str) -> Callable[[Sequence[Any]], list[Any]]:
    """The getter of a user's function. An exception becomes a `UserFunctionError` that starts with ``where``."""

    def get_all(records: Sequence[Any]) -> list[Any]:
        try:
            return get(records)
        except StreamJobError:
            raise
        except Exception as error:
            raise UserFunctionError(f"{where} raised {describe_exception(error)}") from error

    return get_all


def _sort_keys(values: list[Any]) -> list[Any]:
    """The values of a column, or keys that sort as Spark does."""
    kinds = set(map(type, values))
    if len(kinds) == 1:
        if kinds <= _COMPARED_AS_THEY_ARE:
            return values
        if kinds == {datetime} and len(zones := set(map(attrgetter("tzinfo"), values))) == 1:
            [zone] = zones
            # In a zone of one offset, local times compare as moments do.
            if zone is None or (type(zone) in (timezone, ZoneInfo) and zone.utcoffset(None) is not None):
                return values
    return list(map(_sort_key, values))


def _sort_key(value: Any) -> Any:
    """A key that sorts as Spark does: null, then values, then NaN; structs and arrays item by item."""
    if value is None:
        return (0,)
    if type(value) in _COMPARED_AS_THEY_ARE:
        return 1, value
    if isinstance(value, list | tuple):
        return 1, [_sort_key(item) for item in value]
    if isinstance(value, Decimal):
        return (2,) if value.is_nan() else (1, value)
    if isinstance(value, Real):
        return (2,) if value != value else (1, value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        # Python compares datetimes of one zone by their local time, in which an hour repeats when summer time ends.
        return 1, value.astimezone(timezone.utc)
    return 1, value


@frozen
class ElementSource:
    """The elements of a source; rows of the schema if it is declared."""

    elements: list[Any] = field(eq=False)
    schema: DeclaredSchema | None = None


@define
class LocalOperator:
    """An operator of the job; ``key_serializer`` is None as long as the types of the keys are not known."""

    node: OperatorNode
    function: Any
    """The function of the node; aggregates know the names of their keys."""
    states: RegisteredStates
    outputs: Mapping[OutputTag[Any] | None, DeclaredSchema]
    max_parallelism: int
    _inputs: Sequence[LocalInput]
    row_schemas: Sequence[DeclaredSchema | None] = ()
    """The declared schemas of the inputs whose records may be in flight."""
    key_serializer: TypeSerializer[Any] | None = None
    _columns: KeyColumns | None = None
    _converters: Mapping[OutputTag[Any] | None, RowConverter] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._converters = {
            tag: RowConverter(schema.arrow, place_of_output(self.uid, None if tag is None else tag.name))
            for tag, schema in self.outputs.items()
        }

    @property
    def uid(self) -> str:
        return self.node.uid

    @property
    def knows_keys(self) -> bool:
        """Whether the types of the keys are known, from a schema or from a record."""
        return self._columns is not None

    @property
    def is_ordered(self) -> bool:
        """Whether the records of an epoch are sorted: of all inputs, input by input, if one has an order."""
        return any(one.is_ordered for one in self._inputs)

    def is_keyed(self, input_index: int) -> bool:
        return self._inputs[input_index].is_keyed

    def learn_keys(self, firsts: Callable[[int], Sequence[Any]]) -> None:
        """Set the types of the keys from the schemas, or from the first record of an input, which ``firsts`` returns.

        Raises `JobDefinitionError` if the inputs differ.
        """
        types = _known_key_types(self.uid, self._inputs, firsts)
        if types is not None:
            self.key_serializer = key_serializer_for(types, self.uid)
            self._columns = KeyColumns(types, self.max_parallelism)

    def partitioned(self, input_index: int, stream: LocalStream, parallelism: int) -> Sequence[ObjectBatch]:
        """The records of an input for each subtask, in order. The types of its keys must be known."""
        return self._inputs[input_index].shares(stream, self._columns, parallelism)

    def in_order(self, input_index: int, batch: ObjectBatch) -> ObjectBatch:
        """The records of an input sorted by its `order_by`, stably."""
        return self._inputs[input_index].in_order(batch)

    def emitted_rows(self, tag: OutputTag[Any] | None, records: Sequence[Any]) -> Sequence[Any]:
        """Emitted records as rows of the declared schema, a record batch in columns. Raises `RowMismatchError`."""
        return self._converters[tag].rows(records)

    def encoder(self, tag: OutputTag[Any] | None) -> RowEncoder:
        return self._converters[tag].encoder


def rows_of(records: Sequence[Any], schema: DeclaredSchema, where: str | None = None) -> Sequence[Any]:
    """Records as rows of a schema, checked as on Spark, a record batch in columns; errors start with ``where``."""
    return RowConverter(schema.arrow, where).rows(records)


class PreparedGraph:
    """The operators of a job by uid, and what each stateless step does to each of its inputs.

    Raises `JobDefinitionError`, and `RowMismatchError` if the first element of a source is not a row of its schema.
    """

    def __init__(self, graph: JobGraph, parallelism: int, max_parallelism: int) -> None:
        self.operators: dict[str, LocalOperator] = {}
        self.steps: dict[Node, Sequence[Step]] = {}
        self.sink_writers: dict[str, RowWriter] = {}
        """For the sinks that take Arrow batches, by uid."""
        self._graph = graph
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._streams: dict[StreamEdge, KnownStream] = {}
        for node in graph.nodes:
            _PREPARERS[type(node)](self, node)

    def _source(self, node: SourceNode) -> None:
        source: ElementSource = node.source
        recast: Recast = list if source.schema is None else partial(rows_of, schema=source.schema)
        first = partial(recast, source.elements[:1])
        self._streams[StreamEdge(node)] = KnownStream(source.schema, source.schema is not None, first)

    def _dataframe(self, node: DataFrameNode) -> None:
        # Only Spark runs it, but a described job may have it. Columns of the same name keep their types.
        self._streams[StreamEdge(node)] = KnownStream(self._streams[node.inputs[0]].schema, is_rows=False)

    def _record_step(self, node: RecordStepNode) -> None:
        given = self._streams[node.inputs[0]]
        place = f"{node.method}()"
        results_of = partial(results_of_step, node.method, node.function)
        known = KnownStream(given.schema, is_rows=False)
        if node.method == FILTER:
            known = evolve(given, first=tuple)
        elif node.schema is not None:
            known = KnownStream(output_schema(node.schema, place, ""), is_rows=True)
        # Without a schema a function may return anything; a column of the same name is assumed to have the same type.
        self._streams[StreamEdge(node)] = known
        if node.schema is None or known.schema is None:
            self.steps[node] = [lambda stream: stream.through(results_of)]
            return
        converter = RowConverter(known.schema.arrow, place)
        encoded = partial(results_of, encoder=converter.encoder)
        self.steps[node] = [lambda stream: stream.through(encoded).recast(converter.rows)]

    def _records(self, node: RecordsNode) -> None:
        given = self._streams[node.inputs[0]]
        kind = record_type(node.record_class, AS_RECORDS)
        recast = _objects(kind, given)
        self.steps[node] = [lambda stream: stream.recast(recast)]
        schema = evolve(kind.schema, record_class=node.record_class)
        self._streams[StreamEdge(node)] = KnownStream(schema, is_rows=True, first=lambda: recast(given.first()))

    def _timestamps(self, node: TimestampsNode) -> None:
        for edge in (StreamEdge(node), *(StreamEdge(node, tag) for tag in self._graph.side_outputs(node))):
            self._streams[edge] = self._streams[node.inputs[0]]

    def _unite(self, node: UnionNode) -> None:
        streams = [self._streams[edge] for edge in node.inputs]
        of_rows = [one.row_schema for one in streams if one.row_schema is not None]
        guesses = [one.schema for one in streams if one.schema is not None]
        schema: DeclaredSchema | None = None
        recasts: Sequence[Recast] = [list] * len(streams)
        if of_rows and of_rows[0].record_class is not None:
            # All of them are objects of one class.
            schema = of_rows[0]
        elif of_rows:
            schema = united_schema(of_rows)
            recasts = [
                partial(rows_of, schema=schema, where="union()")
                if one.row_schema is None
                else rows_as(one.row_schema, schema)
                for one in streams
            ]
        elif len(guesses) == len(streams):
            schema = united_guess(guesses)
        self.steps[node] = [methodcaller("recast", recast) for recast in recasts]

        def first() -> Sequence[Any]:
            firsts = (recast(one.first()) for one, recast in zip(streams, recasts, strict=True))
            return next(filter(None, firsts), ())

        self._streams[StreamEdge(node)] = KnownStream(schema, bool(of_rows), first)

    def _process(self, node: OperatorNode) -> None:
        streams = [self._streams[edge] for edge in node.inputs]
        schemas = [one.row_schema for one in streams]
        for schema in schemas:
            if schema is not None:
                check_not_reserved(schema.names, node.uid)
        inputs = local_inputs(node, streams)
        resolved = resolved_node(node, schemas[0], inputs[0].declared_key_types()) if inputs else node
        if resolved is not node:
            inputs = local_inputs(resolved, streams)
        outputs: dict[OutputTag[Any] | None, DeclaredSchema] = {
            None: output_schema(resolved.schema, place_of_output(node.uid), OF_PROCESS)
        }
        for tag in self._graph.side_outputs(node):
            outputs[tag] = output_schema(tag.schema, place_of_output(node.uid, tag.name), OF_OUTPUT_TAG)
        states = registered_states(copy.deepcopy(node.function), node.uid, self._parallelism, schemas)
        # All copies of a broadcast state are at the same record, so its records are never in flight.
        in_flight = [
            None if isinstance(given, BroadcastInput) else schema
            for given, schema in zip(node.operator_inputs, schemas, strict=True)
        ]
        operator = LocalOperator(node, resolved.function, states, outputs, self._max_parallelism, inputs, in_flight)
        operator.learn_keys(lambda index: streams[index].first())
        self.operators[node.uid] = operator
        for output, output_of in outputs.items():
            self._streams[StreamEdge(node, output)] = KnownStream(output_of, is_rows=True)

    def _sink(self, node: SinkNode) -> None:
        if not isinstance(node.sink, Sink):
            return
        schema = self._streams[node.inputs[0]].row_schema
        if schema is None:
            raise JobDefinitionError(
                f"sink_to({node.sink.identity}, uid={node.uid!r}): a sink of Arrow batches needs the schema of its "
                f"rows: pass schema= to the source or step before it"
            )
        self.sink_writers[node.uid] = RowWriter(schema.arrow, f"sink {node.uid!r}")


_PREPARERS: Final[Mapping[type, Callable[[PreparedGraph, Any], None]]] = {
    SourceNode: PreparedGraph._source,
    DataFrameNode: PreparedGraph._dataframe,
    RecordStepNode: PreparedGraph._record_step,
    RecordsNode: PreparedGraph._records,
    UnionNode: PreparedGraph._unite,
    TimestampsNode: PreparedGraph._timestamps,
    OperatorNode: PreparedGraph._process,
    SinkNode: PreparedGraph._sink,
}


def _objects(kind: RecordType, given: KnownStream) -> Recast:
    """The function that makes objects of the records of a stream. Raises `JobDefinitionError` if they do not fit."""
    # Nulls are reported by the reader, with the field.
    nullable = pa.schema([one.with_nullable(True) for one in kind.schema.arrow])
    writer = RowWriter(nullable, AS_RECORDS)
    reader = RowReader(writer.schema, AS_RECORDS, kind=kind)
    if given.row_schema is None:
        return lambda records: [one for batch in writer.batches(records) for one in reader.rows(batch)]
    names = columns_of_class(kind, given.row_schema, AS_RECORDS)
    places = list(map(given.row_schema.names.index, names))
    is_of_rows = given.row_schema.record_class is None
    if is_of_rows and _same_scales([given.row_schema.columns[place] for place in places], kind.schema.columns):
        # Values of rows are those of the class, whatever the widths of numbers. `row[place]` would call Python.
        return partial(_objects_of_rows, kind, reader, places)
    read = [itemgetter(place) if is_of_rows else attrgetter(name) for place, name in zip(places, names, strict=True)]

    def objects(records: Sequence[Any]) -> list[Any]:
        rows = [tuple([get(row) for get in read]) for row in records]
        return [one for batch in writer.batches(rows) for one in reader.rows(batch)]

    return objects


def _objects_of_rows(
    kind: RecordType, reader: RowReader, places: Sequence[int], records: Sequence[Any]
) -> Sequence[Any]:
    """Objects of rows. Columns stay columns if their values need no check."""
    if kind.has_plain_values and isinstance(records, Columnar):
        columns = [records.columns.column(place) for place in places]
        fitted = [_fitted(column, field) for column, field in zip(columns, kind.schema.arrow, strict=True)]
        if None not in fitted:
            return Columnar(pa.RecordBatch.from_arrays(fitted, schema=reader.schema), reader.rows)
    item = tuple.__getitem__
    return reader.records([list(map(item, records, repeat(place))) for place in places])


def _fitted(column: pa.Array, field: pa.Field) -> pa.Array | None:
    """A column as the class declares it; None if its values need a check or another conversion."""
    if column.null_count and not field.nullable:
        return None
    if column.type == field.type:
        return column
    has_width = any(is_kind(column.type) and is_kind(field.type) for is_kind in _KINDS_OF_NUMBERS)
    return column.cast(field.type) if has_width else None


_KINDS_OF_NUMBERS: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def _same_scales(given: Sequence[Column], columns: Sequence[Column]) -> bool:
    """Whether decimals have the same scales, also those inside of other values."""
    pairs = zip(given, columns, strict=True)
    return all(_scales(one.type_name) == _scales(other.type_name) for one, other in pairs)


def _scales(type_name: str) -> list[str]:
    return re.findall(r"decimal\(\d+,(\d+)\)", type_name)
