"""The commands `inspect`, `show`, `schema` and `diff`, which read one or two checkpoints or savepoints.

Answers are plain data, alike for people and programs. Times are ISO 8601 in UTC, next to their milliseconds.

`show` accepts conditions such as ``value.sales>3``, ``key=shop 7``, ``value.note!=null``:

    condition := path operator literal     path := column ("." field)*     operator := = | != | < | <= | > | >=

A path starts with a column of the entries and continues through fields of records or text keys of maps. It must exist
in the schema. The literal is parsed as the type there, and values are compared as that type
(`statebackend.savepoint.conditions`). ``null`` is compared with = and != only. A field that an entry does not have is
null, and null is neither less nor greater.

`diff` compares schemas, and with ``--entries`` all entries. Entries match by key, namespace and user key, and differ if
their values do. Timers and list elements of operator state have no identity besides their value: each exists or not.
The subtask and position of an element, and the number of broadcast copies, do not matter.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import ge, gt, le, lt
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer
from attrs import asdict, frozen

from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.cli.opening import open_savepoint, open_with_progress, spark_checkpoint
from statebackend.cli.streams import DIFFERENT
from statebackend.cli.terminal import (
    AsJson,
    CheckpointId,
    Moved,
    OperatorUid,
    Place,
    StateName,
    ZooKeeper,
    print_answer,
    print_difference,
    print_entries,
    print_inspection,
    print_schemas,
    spooled_answers,
)
from statebackend.savepoint.conditions import StoredType, Unparsed, equals, part_of
from statebackend.savepoint.errors import UnknownKeyError
from statebackend.savepoint.plain_values import comparable_value, plain_value, printed_value
from statebackend.savepoint.rewrite.savepoint_writer import REWRITTEN_FROM
from statebackend.savepoint.savepoint import Savepoint, StateDescription, StoredOperator
from statebackend.savepoint.state_entries import OperatorStateElement, OperatorStateElements, StateEntries, plain_entry
from statebackend.savepoint.state_location import is_spark_checkpoint
from statebackend.savepoint.statistics import EntryStatistics
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.savepoint.type_descriptions import TypeDescription
from statebackend.state.clock import wall_clock
from statebackend.state.key_columns import parsed_key
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.priority_queue import PRIORITY_QUEUE

__all__ = [
    "Answer",
    "Condition",
    "ConditionError",
    "difference_of_entries",
    "difference_of_schemas",
    "entries_of",
    "inspection",
    "namespace_condition",
    "parsed_condition",
    "schemas",
]


Answer = dict[str, Any]


def inspection(savepoint: Savepoint, *, now_ms: int, counts: bool) -> Answer:
    """Return the answer of `inspect`. With ``counts``, read the rows of all keyed state once."""
    metadata = savepoint.metadata
    positions, watermarks = metadata.source_positions, metadata.watermarks
    return {
        "uri": savepoint.uri,
        "kind": metadata.kind.value.lower(),
        "checkpoint_id": metadata.checkpoint_id,
        "job_name": metadata.job_name,
        "job_id": metadata.job_id,
        "taken_at": _time(metadata.timestamp_ms),
        "timestamp_ms": metadata.timestamp_ms,
        "age_s": max(0, now_ms - metadata.timestamp_ms) // 1000,
        "processing_time_ms": metadata.processing_time_ms,
        "max_parallelism": metadata.max_parallelism,
        "size_bytes": metadata.size_bytes,
        "files": len(metadata.files),
        "parent_checkpoint_id": metadata.parent_checkpoint_id,
        "restored_from": None if metadata.restored_from is None else asdict(metadata.restored_from),
        "written_anew_from": metadata.properties.get(REWRITTEN_FROM),
        "watermark_ms": None if watermarks is None else watermarks.watermark_ms,
        "timers_due": [asdict(one) for one in metadata.timers_due],
        "source": None
        if positions is None
        else {
            "batch_id": positions.batch_id,
            "sources": [one.uid or one.name for one in positions.sources or ()],
            "offsets": positions.offsets.decode("utf-8", "replace"),
        },
        "sinks": {name: metadata.sink_identities.get(name) for name in metadata.sink_committables}
        | dict(metadata.sink_identities),
        "operators": [_operator(savepoint, one, counts) for one in savepoint.operators.values()],
    }


def schemas(savepoint: Savepoint) -> Answer:
    """Return the types of all keyed and operator state, by operator."""
    return {
        uid: {
            "states": {name: _schema(schema) for name, schema in operator.states.items()},
            "operator_states": {
                name: _schema(operator.operator_state_schema(name)) for name in operator.operator_states
            },
        }
        for uid, operator in savepoint.operators.items()
    }


def _operator(savepoint: Savepoint, operator: StoredOperator, counts: bool) -> Answer:
    states = []
    for name, schema in operator.states.items():
        types = {role: one.name for role, one in schema.types.items()}
        answer: Answer = {"name": name, "kind": schema.kind, "types": types}
        if schema.unknown is not None:
            answer["unknown"] = schema.unknown
        if counts:
            answer |= _entry_counts(savepoint.statistics(operator.uid, name))
        states.append(answer)
    return {
        "uid": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "size_bytes": operator.size_bytes,
        "states": states,
        "operator_states": [
            {"name": name, "mode": meta.mode.value, "elements": meta.row_count}
            for name, meta in operator.operator_states.items()
        ],
    }


def _entry_counts(statistics: EntryStatistics) -> Answer:
    return {
        "entries": statistics.entries,
        "entry_bytes": statistics.size_bytes,
        "key_groups": len(statistics.entries_by_key_group),
        "skew": round(statistics.skew, 2),
        "largest_entry_bytes": [one.size_bytes for one in statistics.largest],
    }


def _schema(schema: StateDescription) -> Answer:
    return {"kind": schema.kind, "types": {role: _type(one) for role, one in schema.types.items()}}


def _type(described: TypeDescription) -> Answer:
    records = {
        record.name: {
            **({"schema_version": record.schema_version} if record.schema_version else {}),
            **({"constants": list(record.constants)} if record.constants else {}),
            "fields": {
                part.name: {
                    "type": part.type_name,
                    **({"former_names": list(part.former_names)} if part.former_names else {}),
                    **({} if part.default is None else {"default": part.default}),
                }
                for part in record.fields
            },
        }
        for record in described.records
    }
    unknown = {} if described.unknown is None else {"unknown": described.unknown}
    return {"type": described.name, **({"records": records} if records else {}), **unknown}


def _time(timestamp_ms: int) -> str | None:
    """Format a time, None for one outside the calendar."""
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds")


_CONDITION: Final = re.compile(r"\s*([^\s=!<>]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)

_RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


class ConditionError(ValueError):
    """A text is not a condition, or does not fit the entries of the state."""


@frozen
class Condition:
    """A parsed condition. ``text`` names it in errors."""

    text: str
    path: tuple[str, ...]
    relation: str
    literal: Unparsed

    def test(self, columns: Mapping[str, StoredType]) -> Callable[[Any], bool]:
        """Return the test of an entry with these columns.

        Raises:
            ConditionError: The path does not exist, or the literal is of another type.
        """
        stored = self._type(columns)
        try:
            holds = self._compared(stored)
        except ValueError as error:
            raise ConditionError(f"{self.text}: {error}") from error
        column, *fields = self.path

        def test(entry: Any) -> bool:
            value = getattr(entry, _ATTRIBUTES.get(column, column))
            for name in fields:
                value = None if value is None else part_of(value, name)
            return holds(value)

        return test

    def _type(self, columns: Mapping[str, StoredType]) -> StoredType:
        column, *fields = self.path
        if column not in columns:
            raise ConditionError(f"{self.text}: the entries have no {column!r}; they have {', '.join(columns)}")
        stored, path = columns[column], column
        for name in fields:
            part = stored.part(name)
            if part is None:
                known = f"; it has the fields {', '.join(stored.field_names)}" if stored.field_names else ""
                raise ConditionError(f"{self.text}: {path} is of type {stored.name} and has no field {name!r}{known}")
            stored, path = part, f"{path}.{name}"
        return stored

    def _compared(self, stored: StoredType) -> Callable[[Any], bool]:
        if self.relation in ("=", "!="):
            is_equal, wanted = equals(stored, self.literal), self.relation == "="
            return lambda value: is_equal(value) is wanted
        if self.literal == "null":
            raise ValueError("null has no order: use = or !=")
        relation = _RELATIONS[self.relation]
        sort_key, key = stored.order(self.literal)
        return lambda value: value is not None and stored.accepts(value) and bool(relation(sort_key(value), key))


_ATTRIBUTES: Final = {"subtask": "subtask_index"}
"""Columns whose attribute of an entry has another name."""


def parsed_condition(text: str) -> Condition:
    """Parse a condition. Raises `ConditionError` with an example."""
    matched = _CONDITION.fullmatch(text)
    if matched is None:
        raise ConditionError(
            f"--where {text!r} is not a condition; write a path, one of = != {' '.join(_RELATIONS)}, and a value: "
            f"value.n>3"
        )
    return Condition(f"--where {text!r}", tuple(matched[1].split(".")), matched[2], Unparsed(matched[3]))


def namespace_condition(text: str) -> Condition:
    """Return the condition for a namespace: a text, or JSON with some of its fields, such as ``{"start": 0}``."""
    return Condition(f"--namespace {text!r}", ("namespace",), "=", Unparsed(text))


def entries_of(
    savepoint: Savepoint, operator: str, state: str, key: Sequence[str] | None
) -> StateEntries | OperatorStateElements:
    """Return the entries of keyed state, or the elements of operator state.

    Raises:
        typer.BadParameter: The key is invalid, or the state has no keys.
    """
    stored = savepoint.operators.get(operator)
    if stored is not None and state in stored.operator_states and state not in stored.states:
        if key:
            raise typer.BadParameter(f"{state!r} is state without keys: leave out --key")
        return savepoint.read_operator_state(operator, state)
    savepoint.schema(operator, state)
    if not key:
        return savepoint.read(operator, state)
    try:
        wanted = parsed_key(savepoint.key_columns(operator), key)
    except ValueError as error:
        raise typer.BadParameter(f"--key: {error}") from error
    return savepoint.read(operator, state, key=wanted)


T = TypeVar("T", StateEntry, OperatorStateElement)

_Change: TypeAlias = "tuple[str, Answer | None, Answer | None]"
"""The kind of change of an entry, and the entry before and after it."""


def difference_of_schemas(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Answer]:
    """Return the differences of two answers of `schemas`, one item per path."""
    return list(_differences(old, new, ""))


def difference_of_entries(old: Savepoint, new: Savepoint) -> Iterator[Answer]:
    """Yield entries and operator state elements that only one side has, or whose values differ.

    Keyed state is read in step by key group, so memory holds one group of each side, and one operator state of each.
    Operators and states of only one side are in the difference of the schemas.

    Raises:
        SavepointError: The numbers of key groups differ.
    """
    groups = [one.metadata.max_parallelism for one in (old, new)]
    if groups[0] != groups[1]:
        raise SavepointError(
            f"the entries of {old.uri} and {new.uri} cannot be compared: they have {groups[0]} and {groups[1]} key "
            f"groups (max_parallelism); leave out --entries to compare the schemas only"
        )
    for uid, name in old.states:
        if (uid, name) in new.states:
            yield from _with_place(uid, name, _of_keyed_state(old, new, uid, name))
    for uid, operator in old.operators.items():
        other = new.operators.get(uid)
        for name in operator.operator_states if other is not None else ():
            if other is not None and name in other.operator_states:
                yield from _with_place(uid, name, _of_operator_state(old, new, uid, name))


def _with_place(uid: str, name: str, changes: Iterable[_Change]) -> Iterator[Answer]:
    for change, before, after in changes:
        yield {"operator": uid, "state": name, "change": change, "before": before, "after": after}


def _of_keyed_state(old: Savepoint, new: Savepoint, uid: str, name: str) -> Iterator[_Change]:
    # A key may have several timers.
    is_set = PRIORITY_QUEUE.name in (old.schema(uid, name).kind, new.schema(uid, name).kind)
    # Two schemas may sort the entries of a key group differently.
    for of_old, of_new in _by_key_group(iter(old.read(uid, name)), iter(new.read(uid, name))):
        before, after = ({_place(one, with_value=is_set): one for one in entries} for entries in (of_old, of_new))
        yield from _changes(before, after, lambda one: plain_entry(one, printed_value))


def _changes(before: Mapping[str, T], after: Mapping[str, T], printed: Callable[[T], Answer]) -> Iterator[_Change]:
    for place in (*before, *(place for place in after if place not in before)):
        one, other = before.get(place), after.get(place)
        if one is None and other is not None:
            yield "added", None, printed(other)
        elif one is not None and other is None:
            yield "removed", printed(one), None
        elif one is not None and other is not None and comparable_value(one.value) != comparable_value(other.value):
            yield "changed", printed(one), printed(other)


def _of_operator_state(old: Savepoint, new: Savepoint, uid: str, name: str) -> Iterator[_Change]:
    are_copies = [one.operators[uid].operator_states[name].mode is OperatorStateMode.BROADCAST for one in (old, new)]
    if all(are_copies):
        before, after = ({_text(one.key): one for one in _one_copy(savepoint, uid, name)} for savepoint in (old, new))
        yield from _changes(before, after, lambda one: {"key": printed_value(one.key), **_element(one)})
    elif not any(are_copies):
        yield from _of_lists(old.read_operator_state(uid, name), new.read_operator_state(uid, name))


def _of_lists(old: Iterable[OperatorStateElement], new: Iterable[OperatorStateElement]) -> Iterator[_Change]:
    added: dict[str, list[Answer]] = {}
    for one in new:
        added.setdefault(_text(one.value), []).append(_element(one))
    for one in old:
        if not added.get(_text(one.value)):
            yield "removed", _element(one), None
        else:
            added[_text(one.value)].pop()
    yield from (("added", None, answer) for answers in added.values() for answer in answers)


def _element(one: OperatorStateElement) -> Answer:
    return {"value": printed_value(one.value)}


def _one_copy(savepoint: Savepoint, uid: str, name: str) -> Iterator[OperatorStateElement]:
    first: int | None = None
    for one in savepoint.read_operator_state(uid, name):
        first = one.subtask_index if first is None else first
        if one.subtask_index == first:
            yield one


def _text(value: Any) -> str:
    """Return a text that is equal only for equal values."""
    return json.dumps(comparable_value(value), sort_keys=True)


def _by_key_group(
    old: Iterator[StateEntry], new: Iterator[StateEntry]
) -> Iterator[tuple[list[StateEntry], list[StateEntry]]]:
    first, second = next(old, None), next(new, None)
    while first is not None or second is not None:
        group = min(one.key_group for one in (first, second) if one is not None)
        of_old: list[StateEntry] = []
        of_new: list[StateEntry] = []
        while first is not None and first.key_group == group:
            of_old.append(first)
            first = next(old, None)
        while second is not None and second.key_group == group:
            of_new.append(second)
            second = next(new, None)
        yield of_old, of_new


def _place(one: StateEntry, *, with_value: bool) -> str:
    parts = [one.key, one.namespace, one.user_key, *([one.value] if with_value else [])]
    return _text(parts)


def _differences(old: Any, new: Any, path: str) -> Iterator[Answer]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in (*old, *(name for name in new if name not in old)):
            below = f"{path}.{name}" if path else str(name)
            if name not in new:
                yield {"path": below, "change": "removed", "before": old[name], "after": None}
            elif name not in old:
                yield {"path": below, "change": "added", "before": None, "after": new[name]}
            else:
                yield from _differences(old[name], new[name], below)
    elif old != new:
        yield {"path": path, "change": "changed", "before": old, "after": new}


def inspect(
    path: Place,
    checkpoint: CheckpointId = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file and compare it with its checksum.")] = False,
    counts: Annotated[
        bool, typer.Option("--counts/--no-counts", help="Read all keyed state once, to count its entries.")
    ] = True,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    as_json: AsJson = False,
) -> None:
    """Describe a checkpoint or savepoint: job, operators, states, entries, sizes, event time, source and sinks."""
    with open_with_progress(path, checkpoint, zookeeper, moved) as savepoint:
        verified = sum(1 for _ in savepoint.verify()) if verify else None
        answer = inspection(savepoint, now_ms=wall_clock(), counts=counts)
    if verified is not None:
        answer["verified_files"] = verified
    print_answer(as_json, answer, print_inspection)


def show(
    path: Place,
    operator: OperatorUid,
    state: StateName,
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Only this key; once for each column of a key of several.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option("--where", help="Only entries like this, as value.n>3 or namespace.start=0.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help='Only this namespace: text, or JSON as {"start": 0} of a window.')
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many entries.")] = None,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    as_json: AsJson = False,
) -> None:
    """Print the entries of a state, decoded without the program's classes.

    Of a query of Spark, OPERATOR is its number, and STATE the name of a variable, ``timers``, or ``default``.
    """
    if is_spark_checkpoint(CheckpointFileSystem.from_uri(path)):
        if key or where or namespace is not None:
            raise typer.BadParameter("a checkpoint of Spark is shown without --key, --where and --namespace")
        _show_spark(path, operator, state, limit, as_json)
        return
    savepoint = open_savepoint(path, checkpoint, zookeeper, moved)
    try:
        conditions = [parsed_condition(text) for text in where or ()]
    except ConditionError as error:
        raise typer.BadParameter(str(error)) from error
    if namespace is not None:
        conditions.append(namespace_condition(namespace))
    entries = entries_of(savepoint, operator, state, key)
    try:
        found = islice(entries.printed([one.test for one in conditions]), limit)
    except ConditionError as error:
        raise typer.BadParameter(str(error)) from error
    first = list(islice(found, 1))
    of_key = f" of key {', '.join(key)!r}" if key else ""
    in_namespace = f" in the namespace {namespace}" if namespace is not None else ""
    that_fits = f" that fits --where {' --where '.join(map(repr, where))}" if where else ""
    nothing = f"state {state!r} of operator {operator!r} has no entry{of_key}{in_namespace}{that_fits}"
    if first or as_json or not key:
        print_entries(as_json, chain(first, found), nothing)
    if key and not first:
        raise UnknownKeyError(nothing)


def _show_spark(path: str, operator: str, state: str, limit: int | None, as_json: bool) -> None:
    checkpoint = spark_checkpoint(path)
    number = int(operator) if operator.isdecimal() else None
    is_timers = state == "timers" and state not in checkpoint.operator(number).states
    table = checkpoint.timers(operator=number) if is_timers else checkpoint.table(state, operator=number)
    rows = checkpoint.rows(table.drop("partition_id"))
    entries = (
        {_SPARK_COLUMNS.get(name, name): plain_value(value) for name, value in row.asDict(recursive=True).items()}
        for row in rows
    )
    nothing = f"state {state!r} of operator {operator!r} has no entry"
    print_entries(as_json, islice(entries, limit), nothing)


_SPARK_COLUMNS: Final = {
    "list_element": "value",
    "user_map_key": "user_key",
    "user_map_value": "value",
    "expiration_timestamp_ms": "value",
}
"""Columns of Spark's ``statestore`` source, and those of our entries."""


def schema(
    path: Place,
    checkpoint: CheckpointId = None,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    as_json: AsJson = False,
) -> None:
    """Print the types of all states: records with their fields, former names and defaults."""
    print_answer(as_json, schemas(open_savepoint(path, checkpoint, zookeeper, moved)), print_schemas)


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD")],
    new: Annotated[str, typer.Argument(metavar="NEW")],
    entries: Annotated[bool, typer.Option("--entries", help="Compare keys and values too.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many differing entries.")] = None,
    zookeeper: ZooKeeper = None,
    moved: Moved = None,
    as_json: AsJson = False,
) -> None:
    """Compare two checkpoints or savepoints. The status is 1 if they differ."""
    with spooled_answers() as found:
        with open_with_progress(old, None, zookeeper, moved) as one:
            # Both are read in step, so one progress display is enough.
            other = open_savepoint(new, None, zookeeper, moved)
            of_schemas = difference_of_schemas(schemas(one), schemas(other))
            for answer in islice(difference_of_entries(one, other), limit) if entries else ():
                found.add(answer)
        print_difference(as_json, of_schemas, found if entries else None)
        if of_schemas or len(found):
            raise typer.Exit(DIFFERENT)
