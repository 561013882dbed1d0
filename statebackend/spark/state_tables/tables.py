"""The state tables: columns, the parts that tasks read, and rows as Arrow batches.

A table and its parts are pickled and sent to the tasks. A table belongs to one checkpoint or savepoint, chosen when the
table is created. A task reads only its part and the files that the part names. The kinds of tables:

* **Keyed state**: a row for each value, list, or map entry, with the columns of `statebackend.savepoint.tables` by the
  first subtask that has the state. A subtask with a schema of other columns is rejected.
* **Timers**: a row for each timer of one or all timer services. Services with different types of keys or namespaces do
  not fit into one table; the name of the state then selects one.
* **Operator state**: a row for each list element or broadcast entry. `operator` reads all subtasks, `broadcast` one
  copy.
* **Metadata**: a row for each state. Entries are counted only if their column is read; of broadcast state, one copy.

Keyed state is split by subtask, and by key groups within a large file of a savepoint, which is sorted by key group. The
first task of a file verifies its checksum. If a query selects keys, small files are verified whole, and of large ones
the pages that are read. A backend restores its own files, so each subtask is one part.

A query that names all columns of the key, or key groups, reads only those key groups. Spark still evaluates all
conditions, so an unknown condition only prunes nothing.

Counting decodes nothing: of a savepoint it reads only the column of key groups. In lists each row is an element, so the
rows of one key and namespace count as one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from attrs import evolve, frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle
from statebackend.savepoint.errors import UnknownStateError
from statebackend.savepoint.foreign.flink_files import FlinkFiles
from statebackend.savepoint.restored_state import RestoredState
from statebackend.savepoint.savepoint import Savepoint, StateDescription, StoredOperator
from statebackend.savepoint.state_location import find_state
from statebackend.savepoint.stored_entries import ALL_COLUMNS, stored_columns
from statebackend.savepoint.tables.state_tables import OperatorStateColumns, TabularState
from statebackend.savepoint.value_forms import ColumnForms
from statebackend.spark.state_tables.options import HOW_TO_SHIP, StateTableError, TableOptions
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.key_columns import columns_of_key
from statebackend.state.key_groups import KeyGroupRange, KeyHashError, key_group_hasher
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.operator_state_handles import StatePart, batches, read_slices
from statebackend.state.priority_queue import PRIORITY_QUEUE, domain_and_service
from statebackend.state.state_kind import TableForm
from statebackend.state.state_meta import CANONICAL_BACKEND, KeyedStateMeta, StateMeta, decode_meta
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = [
    "EVERYTHING",
    "ElementsTable",
    "KeyCondition",
    "KeyedPart",
    "KeyedTable",
    "MetadataTable",
    "SparkTable",
    "TimersTable",
    "WantedKeys",
    "counted_columns",
    "entries_in",
    "keyed_parts",
    "keyed_table",
    "opened_table",
    "operator_table",
    "timers_table",
    "wanted_keys",
]


MAX_KEYS: Final = 10_000
"""The largest number of keys that are looked up; a query with more keys reads everything."""

_ONE_FORM: Final = frozenset({"string", "bigint", "int", "smallint", "tinyint", "boolean", "binary", "date"})
"""Types whose equal values have equal bytes. Those of a timestamp contain its zone."""


@frozen
class KeyCondition:
    """A condition on a column, or on a field of a column by its path.

    ``relation`` is ``in``, ``<``, ``<=``, ``>`` or ``>=``; all but the first have one value.
    """

    path: tuple[str, ...]
    relation: str
    values: tuple[Any, ...]


@frozen
class WantedKeys:
    """The key groups to read, in order, and the bytes of the keys; None means all."""

    key_groups: tuple[KeyGroupRange, ...] | None = None
    keys: frozenset[bytes] | None = None

    def inside(self, held: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        """The wanted parts of a range of key groups."""
        if self.key_groups is None:
            return (held,)
        return tuple(
            KeyGroupRange(max(held.start, one.start), min(held.end, one.end))
            for one in self.key_groups
            if held.overlaps(one)
        )


EVERYTHING: Final = WantedKeys()


def wanted_keys(
    conditions: Iterable[KeyCondition],
    key_paths: Sequence[tuple[str, ...]],
    key_serializer: TypeSerializer[Any],
    max_parallelism: int,
) -> WantedKeys:
    """Return what a query with these conditions must read; ``key_paths`` are the columns of the key, in order."""
    conditions = list(conditions)
    groups = set(range(max_parallelism))
    for condition in conditions:
        if condition.path == ("key_group",):
            holds = _RELATIONS[condition.relation]
            groups = {group for group in groups if holds(group, condition.values)}
    keys = _named_keys(conditions, key_paths)
    stored: frozenset[bytes] | None = None
    if keys is not None:
        try:
            columns = columns_of_key(key_serializer)
            hashed = key_group_hasher(columns, max_parallelism)
            groups &= {hashed(key) for key in keys}
            if _ONE_FORM.issuperset(columns):
                stored = frozenset(key_serializer.to_bytes(key) for key in keys)
        except (KeyHashError, TypeError, ValueError, OverflowError):
            # No key can have such values; Spark compares them.
            stored = None
    return WantedKeys(None if len(groups) == max_parallelism else _ranges(groups), stored)


def _named_keys(conditions: Iterable[KeyCondition], key_paths: Sequence[tuple[str, ...]]) -> list[Any] | None:
    """The keys that meet the conditions; None if a key column has no condition."""
    values: dict[tuple[str, ...], list[Any]] = {}
    for condition in conditions:
        if condition.relation != "in" or condition.path not in key_paths:
            continue
        before = values.get(condition.path)
        values[condition.path] = [
            value for value in condition.values if value is not None and (before is None or value in before)
        ]
    if not key_paths or len(values) < len(key_paths):
        return None
    if math.prod(len(values[path]) for path in key_paths) > MAX_KEYS:
        return None
    found = list(itertools.product(*(values[path] for path in key_paths)))
    return [key[0] for key in found] if len(key_paths) == 1 else found


def _ranges(groups: set[int]) -> tuple[KeyGroupRange, ...]:
    ranges: list[KeyGroupRange] = []
    for group in sorted(groups):
        if ranges and ranges[-1].end == group - 1:
            ranges[-1] = KeyGroupRange(ranges[-1].start, group)
        else:
            ranges.append(KeyGroupRange(group, group))
    return tuple(ranges)


_RELATIONS: Final[Mapping[str, Callable[[int, tuple[Any, ...]], bool]]] = {
    "in": lambda group, values: group in values,
    "<": lambda group, values: group < values[0],
    "<=": lambda group, values: group <= values[0],
    ">": lambda group, values: group > values[0],
    ">=": lambda group, values: group >= values[0],
}


class SparkTable(Protocol):
    """A picklable state table: its columns, its parts, and the rows of a part."""

    @property
    def schema(self) -> pa.Schema:
        """All columns of the table."""

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[Any]:
        """Return the parts, one per task. Rows that do not meet all conditions may be left out."""

    def batches(self, part: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part with these columns, in this order. Other columns are neither read nor decoded."""


PART_BYTES: Final = 16 << 20
"""How many stored bytes of a savepoint's file one task reads. Rows take about ten times as much memory, one batch at a
time."""


@frozen
class KeyedPart:
    """Rows of one state of one subtask in ranges of key groups; with ``keys``, only of these keys."""

    file_system: CheckpointFileSystem
    handle: KeyedStateHandle
    max_parallelism: int
    state_name: str
    key_groups: tuple[KeyGroupRange, ...]
    keys: frozenset[bytes] | None = None
    is_verified: bool = True

    @property
    def meta(self) -> KeyedStateMeta:
        """The metadata of the subtask's state, decoded at each call."""
        return decode_meta(self.handle.meta, len(self.handle.files))

    def rows(self, state: StateMeta, columns: Sequence[str] = ALL_COLUMNS) -> Iterator[pa.RecordBatch]:
        """Yield the stored rows with these columns, which include the key group; raises as `stored_columns`."""
        needed = columns if self.keys is None else tuple(name for name in ALL_COLUMNS if name in {*columns, "key"})
        keys = None if self.keys is None else pa.array(sorted(self.keys), pa.binary())
        for batch in stored_columns(
            RestoredHandle(self.handle, self.file_system),
            state,
            self.max_parallelism,
            self.key_groups,
            needed,
            is_verified=self.is_verified,
        ):
            rows = batch if keys is None else batch.filter(pc.is_in(batch.column("key"), value_set=keys))
            if rows.num_rows:
                yield rows.select(list(columns))


def keyed_parts(
    handles: Iterable[KeyedStateHandle],
    state_name: str,
    file_system: CheckpointFileSystem,
    max_parallelism: int,
    wanted: WantedKeys,
) -> Sequence[KeyedPart]:
    """Return the parts of a state in the order of their key groups, without subtasks that have no wanted key group."""
    parts: list[KeyedPart] = []
    for handle in handles:
        state = decode_meta(handle.meta, len(handle.files)).state(state_name)
        if state is None or not state.files:
            continue
        held = KeyGroupRange(handle.key_group_start, handle.key_group_end)
        if wanted.key_groups is not None:
            groups = wanted.inside(held)
            if groups:
                parts.append(
                    KeyedPart(file_system, handle, max_parallelism, state_name, groups, wanted.keys, is_verified=False)
                )
            continue
        for index, piece in enumerate(_pieces(handle, state, held)):
            parts.append(
                KeyedPart(
                    file_system, handle, max_parallelism, state_name, (piece,), wanted.keys, is_verified=index == 0
                )
            )
    return parts


def _pieces(handle: KeyedStateHandle, state: StateMeta, held: KeyGroupRange) -> Iterator[KeyGroupRange]:
    """Split a range of key groups into parts of about the same size."""
    if handle.backend != CANONICAL_BACKEND:
        yield held
        return
    size_bytes = sum(handle.files[file.index].size_bytes for file in state.files)
    pieces = max(1, min(len(held), -(-size_bytes // PART_BYTES)))
    starts = [held.start + index * len(held) // pieces for index in range(pieces)] + [held.end + 1]
    for start, after in itertools.pairwise(starts):
        yield KeyGroupRange(start, after - 1)


@frozen
class KeyedTable:
    """The table of one keyed state: a row for each value, list, or map entry."""

    schema: pa.Schema
    state_name: str
    handles: tuple[KeyedStateHandle, ...]
    file_system: CheckpointFileSystem
    max_parallelism: int
    forms: ColumnForms

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[KeyedPart]:
        """See `SparkTable`."""
        meta = _meta(self.handles[0])
        state = meta.state(self.state_name)
        key_serializer = meta.key_snapshot.restore_serializer()
        # Flink gave keys their groups by another hash than ours.
        paths = () if isinstance(self.file_system, FlinkFiles) else key_paths(self.schema)
        wanted = wanted_keys(conditions, paths, key_serializer, self.max_parallelism)
        if state is None or state.form is None:
            # In the rows of a queue the key is the element, in the key group of the timer's key.
            wanted = evolve(wanted, keys=None)
        return keyed_parts(self.handles, self.state_name, self.file_system, self.max_parallelism, wanted)

    def batches(self, part: KeyedPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `SparkTable`."""
        meta = part.meta
        state = meta.state(self.state_name)
        assert state is not None
        read = TabularState.of(meta, state, self.forms)
        check_same_columns(self.schema, read.schema, self.state_name, read.notes)
        yield from read.batches(part.rows(state, read.needed(columns)), columns)


def keyed_table(savepoint: Savepoint, restored: RestoredState, options: TableOptions) -> KeyedTable:
    """Return the table of the state in the options. `StateTableError` lists the states that exist."""
    operator_uid = chosen_operator(savepoint, options)
    names = list(savepoint.operators[operator_uid].states)
    if options.state is None:
        raise StateTableError(
            f"the option state is missing: operator {operator_uid!r} has the keyed states "
            f'{", ".join(names) or "none"}; .option("kind", "metadata") lists all states'
        )
    # Its error lists the states that exist.
    savepoint.schema(operator_uid, options.state)
    handles = [part.handle for part in savepoint.operators[operator_uid].parts]
    holding = [handle for handle in handles if _meta(handle).state(options.state) is not None]
    meta = _meta(holding[0])
    state = meta.state(options.state)
    assert state is not None, "the savepoint has this state"
    schema = TabularState.of(meta, state, options.forms).schema
    max_parallelism = savepoint.metadata.max_parallelism
    return KeyedTable(schema, options.state, tuple(holding), restored.file_system, max_parallelism, options.forms)


def chosen_operator(savepoint: Savepoint, options: TableOptions) -> str:
    """The operator that is named, or the only one there is."""
    if options.operator is not None:
        # Raises `UnknownOperatorError`, naming those there are.
        savepoint.key_columns(options.operator)
        return options.operator
    if len(savepoint.operators) == 1:
        return next(iter(savepoint.operators))
    raise StateTableError(f"the option operator is missing: there are {', '.join(savepoint.operators) or 'none'}")


def key_paths(schema: pa.Schema) -> Sequence[tuple[str, ...]]:
    """The columns of the key: the column `key`, or its fields."""
    if "key" not in schema.names:
        return ()
    key_type = schema.field("key").type
    return [("key", one.name) for one in key_type] if pa.types.is_struct(key_type) else [("key",)]


def check_same_columns(expected: pa.Schema, found: pa.Schema, state_name: str, notes: Mapping[str, str]) -> None:
    """Raise `StateTableError` if the state of a subtask has other columns than the table.

    ``notes`` explain columns of bytes: their serializer is unknown on this worker.
    """
    if not expected.equals(found):
        if notes:
            reasons = "; ".join(f"{path}: {note}" for path, note in notes.items())
            raise StateTableError(f"state {state_name!r} cannot be read by this worker: {reasons} ({HOW_TO_SHIP})")
        raise StateTableError(
            f"the subtasks of state {state_name!r} have different types: {found} here, {expected} in the first. Start "
            f"the job once and take a savepoint, which migrates all of them"
        )


def _meta(handle: KeyedStateHandle) -> KeyedStateMeta:
    return decode_meta(handle.meta, len(handle.files))


_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999, which Python's timestamps cover. Timers of windows without an end are later."""


@frozen
class TimersTable:
    """The table of timers: ``tables`` are those of the timer services by state name, ``schema`` has all columns."""

    schema: pa.Schema
    operator_uid: str
    tables: Mapping[str, KeyedTable]

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[KeyedPart]:
        """See `SparkTable`."""
        return [part for table in self.tables.values() for part in table.parts(conditions)]

    def batches(self, part: KeyedPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `SparkTable`."""
        table = self.tables[part.state_name]
        domain, service = domain_and_service(part.state_name) or ("", "")
        schema = pa.schema([self.schema.field(name) for name in columns])
        constants = {"operator": self.operator_uid, "service": service, "domain": domain}
        sources = {name: _SOURCES.get(name, name) for name in columns if name not in constants}
        read = list(dict.fromkeys(name for name in sources.values() if name in table.schema.names))
        for batch in table.batches(part, read or ["key_group"]):
            arrays = [
                pa.repeat(constants[name], batch.num_rows)
                if name in constants
                else _MADE.get(name, _itself)(batch.column(sources[name]))
                if sources[name] in read
                else pa.nulls(batch.num_rows, self.schema.field(name).type)
                for name in columns
            ]
            yield pa.record_batch(arrays, schema=schema)


def timers_table(savepoint: Savepoint, restored: RestoredState, options: TableOptions) -> SparkTable:
    """Return the timers of the operator in the options. `StateTableError` lists what exists."""
    operator_uid = chosen_operator(savepoint, options)
    states = savepoint.operators[operator_uid].states
    names = [name for name, state in states.items() if state.kind == PRIORITY_QUEUE.name and domain_and_service(name)]
    if options.state is not None:
        if options.state not in names:
            raise StateTableError(
                f"operator {operator_uid!r} has no timers in a state {options.state!r}; it has them in "
                f"{', '.join(names) or 'none'}"
            )
        names = [options.state]
    tables: dict[str, KeyedTable] = {}
    for name in names:
        tables[name] = keyed_table(savepoint, restored, evolve(options, state=name, operator=operator_uid))
    return TimersTable(_schema(operator_uid, tables), operator_uid, tables)


def _schema(operator_uid: str, tables: Mapping[str, KeyedTable]) -> pa.Schema:
    fields = {name: pa.field(name, pa.string(), nullable=False) for name in ("operator", "service", "domain")}
    fields["key_group"] = pa.field("key_group", pa.int32())
    found: dict[str, pa.DataType] = {}
    for state_name, table in tables.items():
        for name in ("key", "namespace"):
            if name not in table.schema.names:
                continue
            held = table.schema.field(name).type
            if found.setdefault(name, held) != held:
                raise StateTableError(
                    f"the timers of operator {operator_uid!r} have {name}s of different types ({found[name]}, and "
                    f"{held} in {state_name!r}): choose one by the option state, of {', '.join(tables)}"
                )
    fields |= {name: pa.field(name, found.get(name, pa.string())) for name in ("key", "namespace")}
    fields["timestamp_ms"] = pa.field("timestamp_ms", pa.int64())
    fields["timestamp"] = pa.field("timestamp", pa.timestamp("us", "UTC"))
    return pa.schema(list(fields.values()))


def _timestamps(times_ms: pa.Array) -> pa.Array:
    """Convert to timestamps; null outside of the years that Python covers."""
    is_near = pc.and_(pc.less_equal(times_ms, _LAST_MS), pc.greater_equal(times_ms, _FIRST_MS))
    near = pc.if_else(is_near, times_ms, pa.scalar(None, pa.int64()))
    return near.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _itself(column: pa.Array) -> pa.Array:
    return column


_SOURCES: Final[Mapping[str, str]] = {"timestamp_ms": "value", "timestamp": "value"}
_MADE: Final = {"timestamp": _timestamps}


@frozen
class _SubtaskPart:
    """The rows of one subtask with one schema."""

    subtask: int
    part: StatePart


@frozen
class ElementsTable:
    """The table of one operator state: a row for each list element or broadcast entry."""

    schema: pa.Schema
    state_name: str
    file_system: CheckpointFileSystem
    subtask_parts: tuple[_SubtaskPart, ...]
    forms: ColumnForms

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[_SubtaskPart]:
        """See `SparkTable`."""
        return [one for one in self.subtask_parts if one.part.slices]

    def batches(self, part: _SubtaskPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `SparkTable`."""
        held = OperatorStateColumns.of(self.state_name, part.part, self.forms)
        whole = held.schema(has_subtask="subtask" in self.schema.names)
        check_same_columns(self.schema, whole, self.state_name, {})
        schema = pa.schema([self.schema.field(name) for name in columns])
        for rows in batches(read_slices(self.file_system, part.part.slices)):
            yield held.batch(part.subtask, rows, schema)


def operator_table(
    savepoint: Savepoint, restored: RestoredState, options: TableOptions, *, is_one_copy: bool = False
) -> SparkTable:
    """Return the table of an operator state: of all subtasks, or one copy of a broadcast state.

    The errors list the states that exist.
    """
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
        what = "the option state is missing" if options.state is None else f"there is no {kind} state {options.state!r}"
        raise error(f"{what}: operator {operator_uid!r} has the {kind} states {', '.join(known) or 'none'}")
    held = [
        _SubtaskPart(index, part) for index, parts in operator.operator_state_parts(options.state) for part in parts
    ]
    if is_one_copy:
        held = [one for one in held if one.subtask == held[0].subtask]
    columns = OperatorStateColumns.of(options.state, known[options.state].parts[-1], options.forms)
    return ElementsTable(
        columns.schema(has_subtask=not is_one_copy), options.state, restored.file_system, tuple(held), options.forms
    )


_ADDRESS: Final = ("key_group", "key", "namespace")


def counted_columns(state: StateMeta) -> Sequence[str]:
    """Return the columns by which the entries of a state are counted."""
    return _ADDRESS if state.form is TableForm.LIST else _ADDRESS[:1]


def entries_in(state: StateMeta, batches: Iterable[pa.RecordBatch]) -> int:
    """Return the number of entries in sorted rows with `counted_columns`."""
    if state.form is not TableForm.LIST:
        return sum(batch.num_rows for batch in batches)
    entries = 0
    last: pa.RecordBatch | None = None
    for batch in batches:
        entries += pc.sum(starts_of_lists(batch, last)).as_py() or 0
        last = batch.slice(batch.num_rows - 1)
    return entries


def starts_of_lists(batch: pa.RecordBatch, row_before: pa.RecordBatch | None) -> pa.BooleanArray:
    """Return a mask of the rows with another key group, key or namespace than the row before."""
    whole = batch if row_before is None else pa.concat_batches([row_before, batch])
    now, before = whole.slice(1), whole.slice(0, whole.num_rows - 1)
    differ = pa.array([False] * now.num_rows, pa.bool_())
    for name in _ADDRESS:
        differ = pc.or_(differ, pc.not_equal(now.column(name), before.column(name)))
    return differ if row_before is not None else pa.concat_arrays([pa.array([True]), differ])


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
    """The row of a state without the number of its entries; ``counted`` is that number, or the parts to count."""

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
                total += entries_in(state, part.rows(state, counted_columns(state)))
        return total


@frozen
class MetadataTable:
    """The table of all states, one row each. Tasks count the entries."""

    rows: tuple[_StateRow, ...]

    @classmethod
    def of(cls, savepoint: Savepoint, file_system: CheckpointFileSystem) -> MetadataTable:
        """Return the table of all states of the operators of a savepoint."""
        rows: list[_StateRow] = []
        for operator in savepoint.operators.values():
            rows += _keyed_states(savepoint, operator, file_system)
            rows += _operator_states(savepoint, operator)
        return cls(tuple(rows))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table of all states."""
        return SCHEMA

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[_StateRow]:
        return self.rows

    def batches(self, part: _StateRow, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
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
    parts = operator.parts
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


def opened_table(options: TableOptions) -> SparkTable:
    """Return the table in the options, by default of the newest checkpoint.

    Raises `StateTableError` for invalid options, and the errors of `Savepoint` for what does not exist.
    """
    restored = find_state(options.path, options.checkpoint, options.high_availability, options.moved)
    return _TABLES[options.kind](Savepoint(restored), restored, options)


def _metadata(savepoint: Savepoint, restored: RestoredState, options: TableOptions) -> SparkTable:
    return MetadataTable.of(savepoint, restored.file_system)


_TABLES: Final[Mapping[str, Callable[[Savepoint, RestoredState, TableOptions], SparkTable]]] = {
    "keyed": keyed_table,
    "metadata": _metadata,
    "timers": timers_table,
    "operator": operator_table,
    "broadcast": partial(operator_table, is_one_copy=True),
}
