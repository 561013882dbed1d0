"""What differs between two checkpoints or savepoints, as plain data: of their schemas, and of all their entries.

An entry is in both if its key, namespace and user key are, and has changed if its value is another one. Timers, and
elements of lists without keys, have no value apart from themselves: each is there or not. In which subtask an element
is, and in which place, is no difference, nor how many subtasks have a copy of broadcast state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from checkpointing.errors import SavepointError
from savepoints.command_line.answers import Answer
from savepoints.operator_state_elements import OperatorStateElement
from savepoints.reading.plain_entries import plain_entry
from savepoints.reading.plain_values import comparable_value, printed_value
from savepoints.reading.stored_entries import StateEntry
from savepoints.savepoint import Savepoint
from statebackend.api.operator_state_descriptors import OperatorStateMode
from statebackend.queues.queue_kind import PRIORITY_QUEUE

__all__ = ["difference_of_entries", "difference_of_schemas"]

T = TypeVar("T", StateEntry, OperatorStateElement)

_Change: TypeAlias = "tuple[str, Answer | None, Answer | None]"
"""What has become of an entry, and what it was before and is now."""


def difference_of_schemas(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Answer]:
    """What of two answers of `schemas` is in one of them only, or differs: one item each, by its path."""
    return list(_differences(old, new, ""))


def difference_of_entries(old: Savepoint, new: Savepoint) -> Iterator[Answer]:
    """The entries, and elements of state without keys, that only one of two has, or that have another value.

    Keyed state is read in step, key group by key group, so memory holds one group of each; of state without keys it
    holds a state of each, as a job does. Operators and states that only one has are told by the difference of the
    schemas. Raises `SavepointError` if they count key groups differently.
    """
    groups = [one.metadata.max_parallelism for one in (old, new)]
    if groups[0] != groups[1]:
        raise SavepointError(
            f"the entries of {old.uri} and {new.uri} cannot be compared: they are in {groups[0]} and {groups[1]} key "
            f"groups (max_parallelism); leave out --entries to compare what the states are"
        )
    for uid, name in old.states:
        if (uid, name) in new.states:
            yield from _told(uid, name, _of_keyed_state(old, new, uid, name))
    for uid, operator in old.operators.items():
        other = new.operators.get(uid)
        for name in operator.operator_states if other is not None else ():
            if other is not None and name in other.operator_states:
                yield from _told(uid, name, _of_operator_state(old, new, uid, name))


def _told(uid: str, name: str, changes: Iterable[_Change]) -> Iterator[Answer]:
    for change, before, after in changes:
        yield {"operator": uid, "state": name, "change": change, "before": before, "after": after}


def _of_keyed_state(old: Savepoint, new: Savepoint, uid: str, name: str) -> Iterator[_Change]:
    # A key may have many timers.
    is_set = PRIORITY_QUEUE.name in (old.schema(uid, name).kind, new.schema(uid, name).kind)
    # Within a key group the entries of two schemas may be stored in two orders.
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
    """Equal for equal values only."""
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
