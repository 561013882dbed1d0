"""What the commands find, as plain data of dicts, lists, texts and numbers: the same for people and for programs.

Times are ISO 8601 in UTC beside the milliseconds they were stored as. Types are told as `type_descriptions` tells them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import asdict

from checkpointing.errors import SavepointError
from savepoints.reading.plain_values import plain_value
from savepoints.reading.state_statistics import StateStatistics
from savepoints.reading.stored_entries import StateEntry
from savepoints.reading.type_descriptions import TypeDescription
from savepoints.savepoint import OperatorStateElement, Savepoint, StateSchema, StoredOperator

__all__ = ["difference_of_entries", "difference_of_schemas", "entry", "inspection", "operator_element", "schemas"]

Answer = dict[str, Any]


def inspection(savepoint: Savepoint, *, now_ms: int, counts: bool) -> Answer:
    """All that `inspect` tells; with ``counts`` the rows of all keyed state are read once."""
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
    """The types of all keyed state, and what state without keys there is, by operator."""
    return {
        uid: {
            "states": {name: _schema(schema) for name, schema in operator.states.items()},
            "operator_states": {name: meta.mode.value for name, meta in operator.operator_states.items()},
        }
        for uid, operator in savepoint.operators.items()
    }


def entry(found: StateEntry) -> Answer:
    """An entry as `show` tells it."""
    answer = {
        "key_group": found.key_group,
        "key": plain_value(found.key),
        "namespace": plain_value(found.namespace),
        "user_key": plain_value(found.user_key),
        "value": plain_value(found.value),
        "last_access_ms": plain_value(found.last_access_ms),
    }
    return {name: value for name, value in answer.items() if value is not None or name == "value"}


def operator_element(found: OperatorStateElement) -> Answer:
    """An element of state without keys as `show` tells it."""
    key = {} if found.key is None else {"key": plain_value(found.key)}
    return {"subtask": found.subtask_index, **key, "value": plain_value(found.value)}


def difference_of_schemas(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Answer]:
    """What of two answers of `schemas` is in one of them only, or differs: one item each, by its path."""
    return list(_differences(old, new, ""))


def difference_of_entries(old: Savepoint, new: Savepoint) -> Iterator[Answer]:
    """The entries of keyed state that only one of two has, or that have another value.

    Both are read in step, key group by key group, so memory holds one group of each. Operators and states that only one
    has are told by the difference of the schemas. Raises `SavepointError` if they count key groups differently.
    """
    groups = [one.metadata.max_parallelism for one in (old, new)]
    if groups[0] != groups[1]:
        raise SavepointError(
            f"the entries of {old.uri} and {new.uri} cannot be compared: they are in {groups[0]} and {groups[1]} key "
            f"groups (max_parallelism); leave out --entries to compare what the states are"
        )
    for uid, name in old.states:
        if (uid, name) in new.states:
            path = {"operator": uid, "state": name}
            for change, before, after in _merged(old.read(uid, name), new.read(uid, name)):
                yield {**path, "change": change, "before": before, "after": after}


def _merged(old: Iterator[StateEntry], new: Iterator[StateEntry]) -> Iterator[tuple[str, Answer | None, Answer | None]]:
    # Within a key group the entries of two schemas may be stored in two orders.
    for key_group_old, key_group_new in _by_key_group(old, new):
        before = {_place(one): entry(one) for one in key_group_old}
        after = {_place(one): entry(one) for one in key_group_new}
        for place in (*before, *(place for place in after if place not in before)):
            one, other = before.get(place), after.get(place)
            if one is None:
                yield "added", None, other
            elif other is None:
                yield "removed", one, None
            elif one["value"] != other["value"]:
                yield "changed", one, other


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


def _place(one: StateEntry) -> str:
    return repr((plain_value(one.key), plain_value(one.namespace), plain_value(one.user_key)))


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


def _operator(savepoint: Savepoint, operator: StoredOperator, counts: bool) -> Answer:
    states = []
    for name, schema in operator.states.items():
        types = {role: one.name for role, one in schema.types.items()}
        answer: Answer = {"name": name, "kind": schema.kind, "types": types}
        if schema.unknown is not None:
            answer["unknown"] = schema.unknown
        if counts:
            answer |= _figures(savepoint.statistics(operator.uid, name))
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


def _figures(statistics: StateStatistics) -> Answer:
    return {
        "entries": statistics.entries,
        "entry_bytes": statistics.size_bytes,
        "key_groups": len(statistics.entries_by_key_group),
        "skew": round(statistics.skew, 2),
        "largest_entry_bytes": [one.size_bytes for one in statistics.largest],
    }


def _schema(schema: StateSchema) -> Answer:
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


def _time(timestamp_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def limited(found: Iterable[Answer], limit: int | None) -> Iterator[Answer]:
    """The first so many, or all."""
    for index, one in enumerate(found):
        if limit is not None and index >= limit:
            return
        yield one
