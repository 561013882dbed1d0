"""State of every type of the serializer contract has the same bytes in both forms, on both backends, over savepoints.

A job alternates the form, the backend and the parallelism from savepoint to savepoint. Beside it, a job on the heap
uses the per-record form only. In bulk, values are Arrow arrays where a column holds them completely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from attrs import frozen
from contract_cases import CASES

from snapshots.errors import SerializationError
from statebackend import (
    BatchContext,
    BatchRuntimeContext,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    Savepoint,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.value_forms import ColumnForms, stored_values
from typeserializers import TypeSerializer

pytestmark = pytest.mark.slow

KEYS = ("a", "b", "c", "d", "é")
EXCLUDED = frozenset({"void", "null-value", "nullable", "nullable-padded", "ttl", "pickle"})
"""Types that states do not take, or that are read on request only."""
RUNS = (("batch", "rocksdb", 1), ("record", "heap", 2), ("batch", "heap", 3), ("record", "rocksdb", 1))


@frozen
class Operation:
    """One bulk operation: its key, and its value, at each position."""

    kind: str
    keys: Sequence[str]
    values: Sequence[Any]
    as_array: bool

    def of_key(self, key: str) -> Iterator[Any]:
        return (value for one, value in zip(self.keys, self.values, strict=True) if one == key)


def operations(random: Random, values: Sequence[Any]) -> list[Operation]:
    """Return operations in random order, with keys that occur several times."""

    def drawn() -> Any:
        return random.choice(values)

    def made(kind: str) -> Operation:
        keys = [random.choice(KEYS) for _ in range(6)]
        given: dict[str, Any] = {
            "put": lambda: random.choice([None, *values]),
            "add": drawn,
            "replace": lambda: random.choice([None, [drawn() for _ in range(random.randrange(4))]]),
            "enter": lambda: (random.choice("xyz"), drawn()),
            "remove": lambda: random.choice("xyz"),
            "clear": lambda: None,
        }
        return Operation(kind, keys, [given[kind]() for _ in keys], random.random() < 0.7)

    return [made(kind) for kind in random.choices(("put", "add", "replace", "enter", "remove", "clear"), k=6)]


@frozen
class States:
    """The descriptors: one state of each kind, with values of one type."""

    value: ValueStateDescriptor[Any]
    list: ListStateDescriptor[Any]
    map: MapStateDescriptor[str, Any]

    @classmethod
    def of(cls, serializer: TypeSerializer[Any]) -> States:
        return cls(
            ValueStateDescriptor("value", serializer),
            ListStateDescriptor("list", serializer),
            MapStateDescriptor("map", str, serializer),
        )


class OneByOne(KeyedProcessFunction[str, Any, Any]):
    def __init__(self, states: States, operations: Sequence[Operation]) -> None:
        self.states, self.operations = states, operations

    def open(self, context: RuntimeContext) -> None:
        self.value = context.get_state(self.states.value)
        self.list = context.get_list_state(self.states.list)
        self.map = context.get_map_state(self.states.map)

    def process_element(self, value: Any, context: ProcessContext[str]) -> None:
        for one in self.operations:
            for given in one.of_key(context.current_key):
                self.apply(one.kind, given)

    def apply(self, kind: str, given: Any) -> None:
        match kind:
            case "put":
                self.value.clear() if given is None else self.value.update(given)
            case "add":
                self.list.add(given)
            case "replace":
                self.list.update(given or [])
            case "enter":
                self.map.put(*given)
            case "remove":
                self.map.remove(given)
            case "clear":
                self.value.clear()
                self.map.clear()


class InBulk(KeyedBatchFunction[str, Any, Any]):
    def __init__(self, states: States, operations: Sequence[Operation]) -> None:
        self.states, self.operations = states, operations

    def open(self, context: BatchRuntimeContext) -> None:
        self.value = context.get_state(self.states.value)
        self.list = context.get_list_state(self.states.list)
        self.map = context.get_map_state(self.states.map)

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> None:
        groups = context.groups(batch)
        known = groups.keys.to_pylist()
        for one in self.operations:
            here = [(known.index(key), value) for key, value in zip(one.keys, one.values, strict=True) if key in known]
            keys, values = groups.take([position for position, _ in here]), [value for _, value in here]
            match one.kind:
                case "put":
                    self.value.put_many(keys, self.column(values, one.as_array))
                case "add":
                    self.list.add_many(keys, self.column(values, one.as_array))
                case "replace":
                    self.list.put_many(keys, values)
                case "enter":
                    entered = self.column([value for _, value in values], one.as_array)
                    self.map.put_many(keys, [key for key, _ in values], entered)
                case "remove":
                    self.map.remove_many(keys, values)
                case "clear":
                    self.value.clear_many(keys)
                    self.map.clear_many(keys)

    def column(self, values: list[Any], as_array: bool) -> Any:
        """Return an array of the values if it holds them completely."""
        serializer = self.states.value.serializer
        try:
            column = ColumnForms().of(serializer).array(values)
            back = stored_values(serializer, column, "values")
        except ColumnValueError:
            return values
        is_complete = all(
            one is other is None or serializer.to_bytes(one) == serializer.to_bytes(other)
            for one, other in zip(back, values, strict=True)
        )
        return column if as_array and is_complete else values


def entries(savepoint: Path, serializer: TypeSerializer[Any]) -> list[tuple[Any, ...]]:
    """Return every entry, with comparable values. Lists are read: their chunks differ."""
    opened = Savepoint.open(savepoint)

    def comparable(value: Any) -> Any:
        try:
            return serializer.to_bytes(value)
        except SerializationError:
            return repr(value)  # A record is read as a stand-in of its class.

    return sorted(
        (
            state,
            entry.key,
            entry.user_key if state == "map" else "",
            list(map(comparable, entry.value)) if state == "list" else comparable(entry.value),
        )
        for state in ("value", "list", "map")
        for entry in opened.read("operator", state)
    )


def savepoint_after(function: Any, backend: str, parallelism: int, before: Path | None, target: Path) -> Path:
    environment = LocalStreamEnvironment(backend=backend, parallelism=parallelism)
    stream = environment.from_elements([(key,) for key in KEYS], "k string")
    stream.key_by("k").process(function, uid="operator", schema="n int").sink_to([])
    environment.execute("job", from_savepoint=before, restore_source_progress=False).savepoint(target)
    return target


@pytest.mark.extended_after(20)
@pytest.mark.parametrize("name", [name for name in CASES if name not in EXCLUDED])
def test_both_forms_store_the_same_bytes(name: str, tmp_path: Path) -> None:
    case, random = CASES[name], Random(name)
    serializer = case.make()
    values = case.values
    before: Path | None = None
    alone: Path | None = None
    for number, (form, backend, parallelism) in enumerate(RUNS):
        planned = operations(random, values)
        states = States.of(serializer)
        function = (InBulk if form == "batch" else OneByOne)(states, planned)
        before = savepoint_after(function, backend, parallelism, before, tmp_path / f"mixed-{number}")
        alone = savepoint_after(OneByOne(states, planned), "heap", 1, alone, tmp_path / f"alone-{number}")
        assert entries(before, serializer) == entries(alone, serializer), f"{name}: run {number}, {form} on {backend}"
