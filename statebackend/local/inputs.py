"""The inputs of an operator in this process: which records of a stream each subtask is given, with what keys.

The types of keys come from the declared schema of an input. Where there is none (plain elements, or what a step
makes of records) the first record decides. All keyed inputs of an operator have keys of the same types: what a schema
tells holds for the inputs that have none, and two that differ are rejected.

Records on their way through the stateless steps between two subtasks, with their timestamps.

A record has one owner, who may change it. Where a stream forks, each reader but one gets a copy of each record.

Keys of plain Python records: how they are taken out, which types they have, which key group they belong to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from numbers import Real
from typing import Any, Final, Protocol

from attrs import frozen

from statebackend.state.key_groups import KeyHashError, key_groups_hasher, subtask_of_key_group
from statebackend.streaming.errors import JobDefinitionError, format_value
from statebackend.streaming.key_types import canonical_key, check_keys_agree
from statebackend.streaming.operators.operator import ObjectBatch, check_keys, place_of_input
from statebackend.streaming.operators.record_steps import StepResults
from statebackend.streaming.rows.declared_schema import DeclaredSchema, unknown_column
from statebackend.streaming.rows.record_copies import copied_records
from statebackend.streaming.stream_graph import (
    KEY_TYPES,
    BroadcastInput,
    KeyedInput,
    KeyFunction,
    OperatorNode,
    SpreadInput,
)

__all__ = ["KeyColumns", "KnownStream", "LocalInput", "LocalStream", "known_key_types", "local_inputs"]


@frozen
class LocalStream:
    """Records, and beside them their timestamps, each None for a record without; None in a job without event time."""

    records: Sequence[Any]
    timestamps: Sequence[int | None] | None = None

    def through(self, results_of: Callable[[Sequence[Any]], StepResults]) -> LocalStream:
        """The results of a step; each has the timestamp of its record."""
        results, positions = results_of(self.records)
        times = self.timestamps
        return LocalStream(results, None if times is None else [times[position] for position in positions])

    def copied(self) -> LocalStream:
        """The same records for another reader; raises `StreamJobError` for one that cannot be copied."""
        return LocalStream(copied_records(self.records, "a stream with several readers"), self.timestamps)

    def recast(self, function: Callable[[Sequence[Any]], list[Any]]) -> LocalStream:
        """The records in another form, one for one."""
        return LocalStream(function(self.records), self.timestamps)

    def of(self, indices: Iterable[int]) -> LocalStream:
        """The records at these places, in this order."""
        places = list(indices)
        times = self.timestamps
        records = [self.records[index] for index in places]
        return LocalStream(records, None if times is None else [times[index] for index in places])


def field_getter(key: Any, place: str, given_to: str) -> Callable[[Any], Any]:
    """A function from a record to one column: a field by name, or what the given function returns.

    The getter raises `JobDefinitionError` for a record without the field. ``place`` is how errors call who was given
    the column, by the method ``given_to``.
    """
    if callable(key):
        function: Callable[[Any], Any] = key
        return function
    if not isinstance(key, str):
        raise JobDefinitionError(f"{place}: {given_to} takes field names or functions, not {type(key).__name__}")
    path = key.split(".")

    def get(record: Any) -> Any:
        try:
            # As on Spark, a field of exactly this name comes before the field of a field.
            return _field(record, key) if _has_field(record, key) else functools.reduce(_field, path, record)
        except (KeyError, AttributeError) as error:
            raise JobDefinitionError(
                f"{place}: {given_to}({key!r}), but a record has no field of that name: {format_value(record, 200)}"
            ) from error

    return get


def _has_field(record: Any, name: str) -> bool:
    if isinstance(record, Mapping):
        return name in record
    # A Row has methods of a tuple, which are no fields: row["count"] is the column, row.count is not.
    return name in getattr(record, "__fields__", ()) or hasattr(record, name)


def _field(record: Any, name: str) -> Any:
    has_items = isinstance(record, Mapping) or name in getattr(record, "__fields__", ())
    return record[name] if has_items else getattr(record, name)


def column_types(
    getters: Sequence[Callable[[Any], Any]],
    declared: DeclaredSchema | None,
    keys: Sequence[Any],
    first_record: Any,
    operator_uid: str,
) -> tuple[str, ...]:
    """The Spark names of the key columns' types: as declared, else those of the first record's values."""
    types = []
    for key, get in zip(keys, getters, strict=True):
        known = _declared_type(key, declared)
        if known is not None:
            types.append(known)
            continue
        [value] = _plain_keys([get(first_record)])
        name = KEY_TYPES.get(type(value))
        if name is None:
            raise JobDefinitionError(
                f"operator {operator_uid!r}: the key {key!r} is {format_value(value, 80)}, a {type(value).__name__}, "
                f"which cannot be a key; keys are {', '.join(kind.__name__ for kind in KEY_TYPES)}"
            )
        types.append(name)
    return tuple(types)


def _plain_keys(values: list[Any]) -> list[Any]:
    """Convert the numpy scalars among the values of a key column to Python values."""
    if any(kind.__module__ == "numpy" for kind in set(map(type, values))):
        return [value.tolist() if type(value).__module__ == "numpy" else value for value in values]
    return values


def _declared_type(key: Any, declared: DeclaredSchema | None) -> str | None:
    if isinstance(key, KeyFunction):
        return key.type_name
    return declared.type_of(key) if declared is not None and isinstance(key, str) else None


Getter = Callable[[Any], Any]


@frozen
class KnownStream:
    """What is known of a stream: its schema, whether its records are rows of it, and of sources the first record.

    ``first`` gives that alone, or none. It is asked only for what the schema does not tell.
    """

    schema: DeclaredSchema | None
    is_rows: bool
    first: Callable[[], Sequence[Any]] = tuple

    @property
    def row_schema(self) -> DeclaredSchema | None:
        """The schema that its records are rows of, if they are of one."""
        return self.schema if self.is_rows else None


@frozen
class KeyColumns:
    """The types of the keys of an operator, none if it has no keyed input; its subtasks share so many key groups."""

    types: tuple[str, ...]
    max_parallelism: int

    def key_groups_of(self, keys: Sequence[Any]) -> list[int]:
        """The key group of each key; `KeyHashError` for one that is not of these types."""
        return key_groups_hasher(self.types, self.max_parallelism)(keys)

    @property
    def is_composite(self) -> bool:
        """Whether a key is a tuple."""
        return len(self.types) > 1


class LocalInput(Protocol):
    """One input of an operator."""

    is_keyed: bool

    def declared_key_types(self) -> tuple[str, ...] | None:
        """The types of its keys, as far as the schema tells all of them."""

    def key_types_of(self, record: Any) -> tuple[str, ...]:
        """The types of its keys, as a record says; `JobDefinitionError` for what cannot be a key."""

    @property
    def is_ordered(self) -> bool:
        """Whether its records are to be sorted."""

    def shares(self, stream: LocalStream, columns: KeyColumns | None, parallelism: int) -> Sequence[ObjectBatch]:
        """What each subtask is given of a stream, in order; raises for a record that has no such key."""

    def in_order(self, batch: ObjectBatch) -> ObjectBatch:
        """The records of a subtask sorted, equal ones as they came; `JobDefinitionError` if they cannot be."""


def local_inputs(node: OperatorNode, streams: Sequence[KnownStream]) -> Sequence[LocalInput]:
    """The inputs of an operator; `JobDefinitionError` for columns that its streams do not have."""
    return [
        _INPUTS[type(one)](one, node.uid, place_of_input(node.uid, index, len(streams)), streams[index])
        for index, one in enumerate(node.operator_inputs)
    ]


def known_key_types(
    uid: str, inputs: Sequence[LocalInput], firsts: Callable[[int], Sequence[Any]]
) -> tuple[str, ...] | None:
    """The types of the keys of an operator, None as long as they are not known.

    ``firsts`` gives the first record of an input, or none; it is asked only for what the schema does not tell. Raises
    `JobDefinitionError` if inputs differ.
    """
    keyed = {index: one for index, one in enumerate(inputs) if one.is_keyed}
    if not keyed:
        return ()
    told = {index: types for index, one in keyed.items() if (types := one.declared_key_types()) is not None}
    check_keys_agree(uid, told)
    seen = {
        index: one.key_types_of(record)
        for index, one in keyed.items()
        if index not in told
        for record in firsts(index)[:1]
    }
    if not told and not seen:
        return None
    types = told[min(told)] if told else seen[min(seen)]
    # To Python all whole numbers are of one type: what a schema says of them holds for those without one.
    check_keys_agree(uid, {**told, **{index: _as_one(types, own) for index, own in seen.items()}})
    return types


def _as_one(types: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    if len(types) != len(others):
        return others
    return tuple(
        type_name if {type_name, other} <= _WHOLE_NUMBERS else other
        for type_name, other in zip(types, others, strict=True)
    )


class _Order:
    """The columns by which the records of an input are sorted."""

    def __init__(self, columns: Sequence[Any], uid: str, place: str, stream: KnownStream) -> None:
        self._place = place
        self._columns = columns
        self._getters = _getters(columns, uid, "order_by", stream)
        self.is_given = bool(columns)

    def applied(self, batch: ObjectBatch) -> ObjectBatch:
        """The records sorted, equal ones as they came; `JobDefinitionError` for values that cannot be compared."""
        keys = [[_sort_key(get(record)) for get in self._getters] for record in batch.records]
        try:
            places = sorted(range(len(keys)), key=keys.__getitem__)
        except TypeError as error:
            columns = ", ".join(map(repr, self._columns))
            raise JobDefinitionError(
                f"{self._place}: order_by({columns}) cannot sort the records: {error}. Sort by values of one type that "
                f"can be compared, such as numbers, strings, dates, structs and arrays of them, but not maps"
            ) from error
        return _picked(batch, places)


class _KeyedLocalInput:
    """Each record goes to the subtask of its key."""

    is_keyed = True

    def __init__(self, given: KeyedInput, uid: str, place: str, stream: KnownStream) -> None:
        self._uid = uid
        self._place = place
        self._keys = given.keys
        self._declared = stream.schema
        self._key_getters = _getters(given.keys, uid, "key_by", stream)
        order = _Order(given.order_by, uid, place, stream)
        self.is_ordered, self.in_order = order.is_given, order.applied

    def declared_key_types(self) -> tuple[str, ...] | None:
        declared = self._declared
        types = [_declared_type(key, declared) for key in self._keys]
        known = tuple(name for name in types if name is not None)
        return known if len(known) == len(types) else None

    def key_types_of(self, record: Any) -> tuple[str, ...]:
        return column_types(self._key_getters, self._declared, self._keys, record, self._uid)

    def shares(self, stream: LocalStream, columns: KeyColumns | None, parallelism: int) -> Sequence[ObjectBatch]:
        assert columns is not None
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

    def _keys_of(self, records: Sequence[Any], columns: KeyColumns) -> list[Any]:
        values = [_plain_keys([get(record) for record in records]) for get in self._key_getters]
        for index, canonical in enumerate(map(canonical_key, columns.types)):
            if canonical is not None:
                values[index] = list(map(canonical, values[index]))
        self._reject_truth_values(values, columns.types)
        keys: list[Any] = list(zip(*values, strict=True)) if columns.is_composite else values[0]
        check_keys(self._place, keys, columns.is_composite)
        return keys

    def _reject_truth_values(self, values: Sequence[Sequence[Any]], types: Sequence[str]) -> None:
        """To Python True is 1, and the two would have one state."""
        for index, (type_name, column) in enumerate(zip(types, values, strict=True)):
            wrong = bool if type_name in _WHOLE_NUMBERS else int if type_name == "boolean" else None
            if wrong is not None and wrong in set(map(type, column)):
                raise self._unlike(f"key column {index} is of type {type_name}, which cannot hold a {wrong.__name__}")

    def _unlike(self, reason: str) -> KeyHashError:
        return KeyHashError(
            f"{self._place}: {reason}. The first record decides on the types of a key; give all "
            f"records keys of the same types before key_by"
        )


class _KeylessLocalInput:
    """Its records go to the subtasks whatever is in them."""

    is_keyed = False

    def __init__(self, given: SpreadInput | BroadcastInput, uid: str, place: str, stream: KnownStream) -> None:
        order = _Order(given.order_by, uid, place, stream)
        self.is_ordered, self.in_order = order.is_given, order.applied

    def declared_key_types(self) -> tuple[str, ...] | None:
        return None

    def key_types_of(self, record: Any) -> tuple[str, ...]:
        raise TypeError("the input has no keys")


class _SpreadLocalInput(_KeylessLocalInput):
    """Each record goes to the next subtask."""

    def __init__(self, given: SpreadInput, uid: str, place: str, stream: KnownStream) -> None:
        super().__init__(given, uid, place, stream)
        self._dealt = 0

    def shares(self, stream: LocalStream, columns: KeyColumns | None, parallelism: int) -> Sequence[ObjectBatch]:
        whole = ObjectBatch(stream.records, (), (), stream.timestamps)
        count, dealt = len(stream.records), self._dealt
        self._dealt = (dealt + count) % parallelism
        firsts = [(index - dealt) % parallelism for index in range(parallelism)]
        return [_picked(whole, range(first, count, parallelism)) for first in firsts]


class _BroadcastLocalInput(_KeylessLocalInput):
    """Every record goes to every subtask, which has a copy of its own."""

    def shares(self, stream: LocalStream, columns: KeyColumns | None, parallelism: int) -> Sequence[ObjectBatch]:
        streams = [stream, *(stream.copied() for _ in range(1, parallelism))]
        return [ObjectBatch(one.records, (), (), one.timestamps) for one in streams]


_INPUTS: Final[Mapping[type, Callable[[Any, str, str, KnownStream], LocalInput]]] = {
    KeyedInput: _KeyedLocalInput,
    SpreadInput: _SpreadLocalInput,
    BroadcastInput: _BroadcastLocalInput,
}

_WHOLE_NUMBERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})


@functools.lru_cache(maxsize=64)
def _subtasks(parallelism: int, max_parallelism: int) -> tuple[int, ...]:
    """The subtask of each key group."""
    groups = range(max_parallelism)
    return tuple(subtask_of_key_group(key_group, parallelism, max_parallelism) for key_group in groups)


def _picked(batch: ObjectBatch, places: Sequence[int]) -> ObjectBatch:
    """The records at these places, in this order, with what is beside them."""
    times = batch.timestamps
    return ObjectBatch(
        [batch.records[index] for index in places],
        [batch.keys[index] for index in places] if batch.keys else (),
        [batch.key_groups[index] for index in places] if batch.key_groups else (),
        None if times is None else [times[index] for index in places],
    )


def _getters(columns: Sequence[Any], uid: str, given_to: str, stream: KnownStream) -> Sequence[Getter]:
    for column in columns:
        schema = stream.row_schema if isinstance(column, str) else None
        if schema is not None and schema.type_of(column) is None:
            raise unknown_column(uid, given_to, column, schema.names)
    return [field_getter(column, f"operator {uid!r}", given_to) for column in columns]


def _sort_key(value: Any) -> Any:
    """What sorts as Spark sorts the value: null, then values, then NaN; structs and arrays item by item."""
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
        # Python compares moments of one zone by the clock, which shows an hour twice when summer time ends.
        return 1, value.astimezone(timezone.utc)
    return 1, value


_COMPARED_AS_THEY_ARE: Final = frozenset({str, int, bool, bytes, date, timedelta})
