"""Describes and compares checkpoints and savepoints as plain data, for the command line and the page.

- `inspection`: job, operators, states, entries, sizes, event time, source and sinks.
- `entries_of`: the entries of a state, or those of a key that is passed as text.
- `schemas`: the types of all states, by operator; `displayed_schemas`: for people.
- `difference_of_schemas` and `difference_of_entries`: what changed between two.

Times are ISO 8601 in UTC, next to their milliseconds. Entries match by key, namespace and user key, and differ if their
values do. Timers and list elements of operator state have no identity besides their value: each exists or not. The
subtask and position of an element, and the number of broadcast copies, do not matter.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from attrs import asdict

from snapshots.errors import UnresolvableSerializerError, printable
from statebackend.checkpoint.errors import SavepointError
from statebackend.savepoint.errors import InvalidKeyError, UnknownStateError
from statebackend.savepoint.foreign.flink_files import FlinkFiles
from statebackend.savepoint.plain_values import comparable_value, printed_value
from statebackend.savepoint.rewrite.plan import Plan
from statebackend.savepoint.rewrite.savepoint_writer import REWRITTEN_FROM, SavepointWriter
from statebackend.savepoint.rewrite.staged_entries import scratch_space
from statebackend.savepoint.savepoint import Savepoint, StateDescription, StoredOperator
from statebackend.savepoint.state_entries import OperatorStateElement, OperatorStateElements, StateEntries, plain_entry
from statebackend.savepoint.statistics import EntryStatistics
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.savepoint.type_descriptions import TypeDescription
from statebackend.state.key_columns import parsed_key
from statebackend.state.operator_state_descriptors import OperatorStateMode
from statebackend.state.priority_queue import PRIORITY_QUEUE, displayed_kind, displayed_state
from typeserializers.records.column_names import displayed_names

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
        "rewritten_from": metadata.properties.get(REWRITTEN_FROM),
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


def displayed_schemas(answer: Answer) -> Answer:
    """Return the answer of `schemas` for people: timers have their names for people, unless a state is named so."""
    return {uid: {**operator, "states": dict(_displayed(operator["states"]))} for uid, operator in answer.items()}


def _displayed(states: Mapping[str, Answer]) -> Iterator[tuple[str, Answer]]:
    for name, one in states.items():
        displayed = displayed_state(name)
        yield name if displayed in states else displayed, {**one, "kind": displayed_kind(one["kind"])}


def _operator(savepoint: Savepoint, operator: StoredOperator, counts: bool) -> Answer:
    states = []
    for name, schema in operator.states.items():
        types = {role: one.name for role, one in schema.types.items()}
        answer: Answer = {"name": name, "kind": schema.kind, "types": types}
        if schema.unknown is not None:
            answer["unknown"] = schema.unknown
        if counts:
            try:
                answer |= _entry_counts(savepoint.statistics(operator.uid, name))
            except UnresolvableSerializerError as error:
                # Flink stores keys without their lengths.
                answer.setdefault("unknown", str(error))
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
                name: {
                    "type": part.type_name,
                    **({"former_names": list(displayed_names(part.former_names))} if part.former_names else {}),
                    **({} if part.default is None else {"default": part.default}),
                }
                for name, part in zip(
                    displayed_names([part.name for part in record.fields]), record.fields, strict=True
                )
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


def entries_of(
    savepoint: Savepoint, operator: str, state: str, key: Sequence[str] = ()
) -> StateEntries | OperatorStateElements:
    """Return the entries of keyed state, or the elements of operator state.

    Args:
        savepoint: Where to read.
        operator: The uid of the operator.
        state: The name of the state, or its name in `displayed_state`.
        key: One text per key column to read the entries of one key; empty for all entries.

    Raises:
        InvalidKeyError: The texts are no key of this state, or the state has no keys.
        UnknownOperatorError: There is no such operator.
        UnknownStateError: The operator has no such state.
    """
    stored = savepoint.operators.get(operator)
    if stored is not None and state not in (*stored.states, *stored.operator_states):
        by_displayed = {displayed_state(name): name for name in (*stored.states, *stored.operator_states)}
        if state not in by_displayed:
            has = ", ".join(map(printable, by_displayed)) or "none"
            raise UnknownStateError(f"operator {operator!r} has no state {state!r}; it has {has}")
        state = by_displayed[state]
    if stored is not None and state in stored.operator_states and state not in stored.states:
        if key:
            raise InvalidKeyError(f"{state!r} is operator state, without keys")
        return savepoint.read_operator_state(operator, state)
    savepoint.schema(operator, state)
    if not key:
        return savepoint.read(operator, state)
    try:
        wanted = parsed_key(savepoint.key_columns(operator), key)
    except ValueError as error:
        raise InvalidKeyError(str(error)) from error
    return savepoint.read(operator, state, key=wanted)


T = TypeVar("T", StateEntry, OperatorStateElement)

_Change: TypeAlias = "tuple[str, Answer | None, Answer | None]"
"""The kind of change of an entry, and the entry before and after it."""


def difference_of_schemas(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Answer]:
    """Return the differences of two answers of `schemas`, one item per path."""
    return list(_differences(old, new, ""))


def matched(old: Savepoint, new: Savepoint) -> tuple[Savepoint, Savepoint]:
    """Return both for a comparison: Flink 1.x stores only hashes of uids, so they become the uids of the other side."""
    return old.for_comparison(new.operators), new.for_comparison(old.operators)


def difference_of_entries(old: Savepoint, new: Savepoint) -> Iterator[Answer]:
    """Yield entries and operator state elements that only one side has, or whose values differ.

    Keyed state is read in step by key group, so memory holds one group of each side, and one operator state of each.
    If only one side is of Flink, its entries are first sorted by the key groups of the other, in scratch space.
    Operators and states of only one side are in the difference of the schemas.

    Raises:
        SavepointError: The numbers of key groups differ.
    """
    are_of_flink = [isinstance(one.file_system, FlinkFiles) for one in (old, new)]
    if are_of_flink[0] != are_of_flink[1]:
        with scratch_space(None) as directory:
            if are_of_flink[0]:
                old = _regrouped(old, new, directory)
            else:
                new = _regrouped(new, old, directory)
            yield from difference_of_entries(old, new)
        return
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


def _regrouped(flink: Savepoint, other: Savepoint, directory: str) -> Savepoint:
    """Return what a Flink savepoint has in common with another one, in key groups of the other."""
    plan = Plan().change_max_parallelism(other.metadata.max_parallelism)
    for uid, operator in flink.operators.items():
        same = other.operators.get(uid)
        if same is None:
            plan.remove_operator(uid)
            continue
        for name in dict.fromkeys((*operator.states, *operator.operator_states)):
            if name not in same.states and name not in same.operator_states:
                plan.remove_state(uid, name)
    writer = SavepointWriter.copy_of_restored(flink.restored, f"{directory}/regrouped", scratch_directory=directory)
    return Savepoint.open(writer.write(plan).uri)


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
