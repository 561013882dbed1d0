"""A plan lists the changes from an old to a new savepoint. A `SavepointWriter` executes it.

    plan = Plan().rename_operator("totals", "totals per shop").keep_keys("visits", lambda shop: shop != "shop 7")

Changes apply in order, each to the result of the previous changes: after a rename, use the new name. Creating a plan
reads nothing; its functions are called when a writer executes it. A plan may be executed several times, unless it
contains an iterator.

`ReadOnce` wraps an iterator of entries and rejects a second iteration, which would silently miss entries. This happens
if a plan is executed again, if two states have the same iterator, or if a generator has ended. Lists, tables and
`Savepoint.read` can be iterated again and are not wrapped.

`SplitOperator` and `MergeOperators` are defined here. All other changes are in `changes`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

from attrs import define, evolve, frozen

from snapshots.composite import merge_snapshots
from snapshots.envelope import snapshot_from_bytes
from snapshots.errors import format_value
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.rewrite import changes
from statebackend.savepoint.rewrite.changes import Change
from statebackend.savepoint.rewrite.drafts import (
    Drafts,
    Merge,
    OperatorDraft,
    OperatorStateDraft,
    PlannedElements,
    StateDraft,
)
from statebackend.savepoint.rewrite.entry_codec import time_or_now
from statebackend.savepoint.rewrite.planned_entries import PlannedEntries
from statebackend.savepoint.rewrite.staged_entries import StagedEntries
from statebackend.savepoint.rewrite.steps import KeepEntries, KeepKeys
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.state.descriptors import Descriptor, as_serializer
from statebackend.state.key_columns import KEY_COLUMNS
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor, OperatorStateMode
from statebackend.state.priority_queue import TimeDomain, timer_state_name
from statebackend.state.state_kind import StateDescriptor
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["MergeOperators", "Plan", "ReadOnce", "SplitOperator"]


@define(eq=False)
class ReadOnce:
    """Entries of a state from an iterator. Iterating a second time raises `PlanError`."""

    state_name: str
    entries: Iterator[Any]
    is_read: bool = False

    @classmethod
    def of(cls, state_name: str, entries: Any, known: list[ReadOnce]) -> Any:
        """Wrap an iterator, once for all states that share it. Return anything else unchanged."""
        if not isinstance(entries, Iterator):
            return entries
        for one in known:
            if one.entries is entries:
                return one
        known.append(cls(state_name, entries))
        return known[-1]

    def __iter__(self) -> Iterator[Any]:
        if self.is_read or _has_ended(self.entries):
            raise PlanError(
                f"the entries of {self.state_name!r} come from an iterator that was read already, so entries are "
                f"missing. Pass a list or a table, or make a new plan with a new iterator for each "
                f"writing and each state. Nothing was written"
            )
        self.is_read = True
        return self.entries


def _has_ended(entries: Iterable[Any]) -> bool:
    return isinstance(entries, GeneratorType) and inspect.getgeneratorstate(entries) == inspect.GEN_CLOSED


@frozen
class SplitOperator:
    uid: str
    into: tuple[str, ...]
    route: Callable[[Any], str]
    operator_state: str | None

    def apply(self, drafts: Drafts) -> None:
        if not self.into:
            raise PlanError(f"operator {self.uid!r} is split into no operators; to remove it, use remove_operator")
        draft = drafts.opened(self.uid)
        assert draft.key_columns
        if draft.operator_states and self.operator_state not in self.into:
            raise PlanError(
                f"operator {self.uid!r} has operator state ({', '.join(draft.operator_states)}), which has no "
                f"keys: pass operator_state=<uid of the operator that gets it>"
            )
        del drafts.operators[self.uid]
        for place, uid in enumerate(self.into):
            part = OperatorDraft(
                uid,
                uid,
                draft.origins,
                draft.key_serializer,
                is_opened=True,
                has_new_key_groups=draft.has_new_key_groups,
            )
            drafts.add(part)
            step = KeepKeys(_Routed(self.route, self.into, uid))
            # Removed entries count once, for the first part.
            part.states = {
                name: evolve(
                    state,
                    stored=[one if place == 0 else one.uncounted() for one in state.stored],
                    given=list(state.given),
                )
                for name, state in draft.states.items()
            }
            for state in part.states.values():
                state.add_step(step)
            if uid == self.operator_state:
                part.operator_states = draft.operator_states
        drafts.set_successors((self.uid,), self.into)


@frozen
class _Routed:
    """Whether a key is routed to one operator. Raises for a key that is routed to an unknown operator."""

    route: Callable[[Any], str]
    into: tuple[str, ...]
    uid: str

    def __call__(self, key: Any) -> bool:
        routed = self.route(key)
        if routed not in self.into:
            raise ValueError(f"the key is routed to {routed!r}, which is not one of {', '.join(self.into)}")
        return routed == self.uid


@frozen
class MergeOperators:
    uids: tuple[str, ...]
    into: str
    merge: Mapping[str, Merge]

    def apply(self, drafts: Drafts) -> None:
        if not self.uids or len(set(self.uids)) < len(self.uids):
            raise PlanError(f"{', '.join(self.uids) or 'nothing'}: merge one or more operators, each of them once")
        parts = [drafts.opened(uid) for uid in self.uids]
        merged = OperatorDraft(self.into, self.into, is_opened=True, has_new_key_groups=True)
        merged.key_serializer = parts[0].key_serializer
        for part in parts:
            if not _are_keyed_alike(part, merged):
                raise PlanError(
                    f"operators {parts[0].uid!r} and {part.uid!r} have different key types; change the keys of one "
                    f"first"
                )
            merged.origins += tuple(origin for origin in part.origins if origin not in merged.origins)
            for name, state in part.states.items():
                _merge_state(merged, name, state, part.uid)
            for name, operator_state in part.operator_states.items():
                _merge_operator_state(merged, name, operator_state, part.uid)
        merged.check_mergeable(self.merge)
        for name, function in self.merge.items():
            merged.states[name].check_not_merged()
            merged.states[name].merge = function
        for uid in self.uids:
            del drafts.operators[uid]
        drafts.add(merged)
        drafts.set_successors(self.uids, (self.into,))


def _merge_state(merged: OperatorDraft, name: str, state: StateDraft, uid: str) -> None:
    known = merged.states.get(name)
    if known is None:
        merged.states[name] = evolve(state, stored=list(state.stored), given=list(state.given))
        return
    if not known.schema.is_like(state.schema):
        raise PlanError(
            f"state {name!r} of operator {uid!r} has another schema than the state of the same name in an operator "
            f"merged before; rename one of them, or change its values first"
        )
    known.check_not_merged()
    state.check_not_merged()
    known.stored += state.stored
    known.given += state.given
    known.may_collide = True


def _are_keyed_alike(one: OperatorDraft, other: OperatorDraft) -> bool:
    return (None if one.key_serializer is None else one.key_columns) == (
        None if other.key_serializer is None else other.key_columns
    )


def _merge_operator_state(merged: OperatorDraft, name: str, state: OperatorStateDraft, uid: str) -> None:
    known = merged.operator_states.get(name)
    if known is None:
        merged.operator_states[name] = state
        return
    both = (known, state)
    if OperatorStateMode.BROADCAST in (known.mode, state.mode) or known.mode is not state.mode:
        raise PlanError(
            f"operator state {name!r} exists twice, the second time in operator {uid!r}, and is not a list that the "
            f"other could be appended to; remove or rename one of them"
        )
    if any(one.given is not None or one.predicates for one in both):
        raise PlanError(f"operator state {name!r}: merge the operators before its elements are changed")
    if not all(any(_are_alike(one, other) for other in known.schemas) for one in state.schemas):
        raise PlanError(
            f"the elements of operator state {name!r} of operator {uid!r} are of another type than those of the same "
            f"name in one merged before; rename one of them"
        )
    known.stored += state.stored


def _are_alike(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> bool:
    # Serializers that learn types while they write may differ.
    return all(
        envelope == other[role]
        or merge_snapshots(snapshot_from_bytes(envelope), snapshot_from_bytes(other[role])) is not None
        for role, envelope in one.items()
    )


Key = str | Sequence[str]
"""The Spark types of the key columns: ``"string"``, or ``("string", "bigint")``."""


class Plan:
    """An ordered list of changes. Every method adds one change and returns the plan."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._read_once: list[ReadOnce] = []

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes in order."""
        return tuple(self._changes)

    def add_operator(self, uid: str, key: Key = (), *, name: str | None = None) -> Plan:
        """Add an operator. ``key`` contains the types of its key columns, if its streams are keyed."""
        return self._with(changes.AddOperator(uid, _columns(key), uid if name is None else name))

    def remove_operator(self, uid: str) -> Plan:
        """Remove an operator with all its state."""
        return self._with(changes.RemoveOperator(uid))

    def rename_operator(self, uid: str, to: str) -> Plan:
        """Change the uid of an operator. Its files are not read."""
        return self._with(changes.RenameOperator(uid, to))

    def split_operator(
        self, uid: str, into: Sequence[str], route: Callable[[Any], str], *, operator_state: str | None = None
    ) -> Plan:
        """Split an operator into several.

        Args:
            uid: The operator to split.
            into: The uids of the new operators.
            route: Returns, for each key, the uid of its new operator.
            operator_state: The new operator that receives the operator state. Required if there is any.
        """
        return self._with(SplitOperator(uid, _listed("the operators to split into", into), route, operator_state))

    def merge_operators(self, uids: Sequence[str], into: str, *, merge: Mapping[str, Merge] | None = None) -> Plan:
        """Merge operators with the same key type into one. States with the same name become one state.

        Args:
            uids: The operators to merge.
            into: The uid of the new operator.
            merge: By state, a function that merges two values of one key, in the order of ``uids``. Without it, a
                key in two of the operators is rejected.
        """
        return self._with(MergeOperators(_listed("the operators to merge", uids), into, _merges(merge)))

    def add_state(
        self,
        uid: str,
        state: StateDescriptor | EntrySchema,
        entries: Iterable[Any] | StagedEntries,
        *,
        merge: Merge | None = None,
        namespace: Any = None,
        last_access_ms: int | None = None,
    ) -> Plan:
        """Add a keyed state with these entries.

        Args:
            uid: The operator.
            state: The descriptor that the job registers. If its functions are not available, the schema of stored state
                (`EntrySchema.of_stored`), which includes its namespaces.
            entries: Entries in any order and number (see `planned_entries` for their form), or `StagedEntries`.
            merge: Merges two values of one key. Without it, a repeated key is rejected.
            namespace: The type or serializer of the namespaces, if the state has some.
            last_access_ms: In state with time-to-live, the time of last access of entries without one, in milliseconds.
                The default is the time of this call.
        """
        return self._add(uid, state, entries, merge, namespace, last_access_ms, replaces=False)

    def replace_state(
        self,
        uid: str,
        state: StateDescriptor | EntrySchema,
        entries: Iterable[Any] | StagedEntries,
        *,
        merge: Merge | None = None,
        namespace: Any = None,
        last_access_ms: int | None = None,
    ) -> Plan:
        """Replace the keyed state of the same name. Arguments as in `add_state`."""
        return self._add(uid, state, entries, merge, namespace, last_access_ms, replaces=True)

    def add_timers(
        self,
        uid: str,
        timers: Iterable[Any],
        *,
        time: TimeDomain,
        service: str = "user-timers",
        namespace: Any = None,
    ) -> Plan:
        """Add timers to the existing ones. Each is a tuple of key and milliseconds. Duplicates are one timer.

        Args:
            uid: The operator.
            timers: The timers.
            time: ``event`` or ``processing``.
            service: ``user-timers`` of functions, or ``window-timers``, with windows as namespaces.
            namespace: The type or serializer of the namespaces, if the timers have some.
        """
        if time not in ("event", "processing"):
            raise ValueError(f"time is 'event' or 'processing', not {time!r}")
        serializer = None if namespace is None else as_serializer(namespace)
        state_name = timer_state_name(time, service)
        given = PlannedEntries(ReadOnce.of(state_name, timers, self._read_once), 0)
        return self._with(changes.AddTimers(uid, state_name, given, serializer))

    def add_operator_state(
        self, uid: str, descriptor: OperatorStateDescriptor, elements: Iterable[Any] | Mapping[Any, Any]
    ) -> Plan:
        """Add operator state: the elements of a list, or the entries of a broadcast state as a mapping."""
        given = PlannedElements(descriptor, ReadOnce.of(_name_of(descriptor), elements, self._read_once))
        return self._with(changes.AddOperatorState(uid, given))

    def remove_state(self, uid: str, name: str) -> Plan:
        """Remove a state. If the operator has a keyed and an operator state of this name, remove both."""
        return self._with(changes.RemoveState(uid, name))

    def rename_state(self, uid: str, name: str, to: str) -> Plan:
        """Rename a state. Its files are not read."""
        return self._with(changes.RenameState(uid, name, to))

    def change_values(self, uid: str, name: str, descriptor: StateDescriptor, function: Callable[[Any], Any]) -> Plan:
        """Replace every value by ``function(value)``. The descriptor sets the new name and serializers.

        The value of a list state is the whole list. User keys of a map are kept and written by the descriptor's
        serializer. Two user keys that become equal are rejected.

        In state with time-to-live, a value keeps its last access. An unchanged list keeps the times of its elements;
        all elements of a changed list get the latest time in it. Merged lists are concatenated and keep their times.
        """
        return self._with(changes.ChangeState(uid, name, descriptor, function, has_planned_entries=False))

    def change_entries(
        self, uid: str, name: str, descriptor: StateDescriptor, function: Callable[[StateEntry], Any]
    ) -> Plan:
        """Replace every value by ``function(entry)``. Otherwise as `change_values`."""
        return self._with(changes.ChangeState(uid, name, descriptor, function, has_planned_entries=True))

    def keep_keys(self, uid: str, predicate: Callable[[Any], bool], *, states: Sequence[str] | None = None) -> Plan:
        """Remove keys for which the predicate is False, from all keyed states and timers or from ``states`` only."""
        return self._with(changes.Keep(uid, KeepKeys(predicate, self._next_number), _states(states)))

    def keep_entries(
        self, uid: str, predicate: Callable[[StateEntry], bool], *, states: Sequence[str] | None = None
    ) -> Plan:
        """Remove the entries for which the predicate is False. Otherwise as `keep_keys`."""
        return self._with(changes.Keep(uid, KeepEntries(predicate, self._next_number), _states(states)))

    def keep_elements(self, uid: str, name: str, predicate: Callable[[Any], bool]) -> Plan:
        """Remove elements from operator state. For broadcast state the predicate receives the key."""
        return self._with(changes.KeepElements(uid, name, predicate, self._next_number))

    def change_keys(
        self, uid: str, function: Callable[[Any], Any], key: Key, *, merge: Mapping[str, Merge] | None = None
    ) -> Plan:
        """Replace every key by ``function(key)``, in all keyed states and timers.

        Namespaces, times and values stay with their key. If two keys become equal and both have an entry, they are
        rejected, unless ``merge`` has a function for the state.

        Args:
            uid: The operator.
            function: Returns the new key.
            key: The types of the new key columns.
            merge: By state, a function that merges two values.
        """
        return self._with(changes.ChangeKeysOf(uid, function, _columns(key), _merges(merge)))

    def migrate_operator(self, uid: str, registered: Iterable[tuple[Descriptor, TypeSerializer[Any]]]) -> Plan:
        """Migrate keyed state to the descriptors of a job, each with the serializer of its namespaces.

        Compatibility is checked as at the start of a job. Entries with an expired time-to-live are removed. Other keyed
        states and operator state are not changed.
        """
        return self._with(changes.MigrateOperator(uid, tuple(registered)))

    def change_max_parallelism(self, max_parallelism: int) -> Plan:
        """Change the number of key groups, 1 to 32768. All keys are redistributed."""
        return self._with(changes.ChangeMaxParallelism(max_parallelism))

    def change_parallelism(self, parallelism: int) -> Plan:
        """Set the number of parts for rewritten operators. A job can restore any number of parts."""
        return self._with(changes.ChangeParallelism(parallelism))

    def drop_source_progress(self) -> Plan:
        """Remove the source positions. A job then reads its sources from the beginning or from its configured start."""
        return self._with(changes.Drop("source_progress"))

    def drop_watermarks(self) -> Plan:
        """Remove the watermarks. Event time starts with the first records."""
        return self._with(changes.Drop("watermarks"))

    def drop_sinks(self) -> Plan:
        """Remove pending output of sinks from a checkpoint. A savepoint has none."""
        return self._with(changes.Drop("sinks"))

    def _add(
        self,
        uid: str,
        state: StateDescriptor | EntrySchema,
        entries: Iterable[Any] | StagedEntries,
        merge: Merge | None,
        namespace: Any,
        last_access_ms: int | None,
        *,
        replaces: bool,
    ) -> Plan:
        serializer = None if namespace is None else as_serializer(namespace)
        given: PlannedEntries | StagedEntries
        if isinstance(entries, StagedEntries):
            given = entries
        else:
            given = PlannedEntries(ReadOnce.of(_name_of(state), entries, self._read_once), time_or_now(last_access_ms))
        return self._with(changes.AddState(uid, state, given, serializer, merge, replaces))

    @property
    def _next_number(self) -> int:
        return len(self._changes) + 1

    def _with(self, change: Change) -> Plan:
        self._changes.append(change)
        return self

    def __repr__(self) -> str:
        return f"<plan of {len(self._changes)} changes>"


def _listed(what: str, names: object) -> tuple[str, ...]:
    # A str is also a sequence of str.
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(one, str) for one in names):
        raise PlanError(f"{what} must be a list of names, not {format_value(names)}")
    return tuple(names)


def _states(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else _listed("the states", names)


def _merges(merge: Mapping[str, Merge] | None) -> dict[str, Merge]:
    if merge is not None and not (isinstance(merge, Mapping) and all(map(callable, merge.values()))):
        raise PlanError(f"merge must map state names to functions of two values, not {format_value(merge)}")
    return dict(merge or {})


def _columns(key: Key) -> tuple[str, ...]:
    columns = (key,) if isinstance(key, str) else key
    if not isinstance(columns, Sequence) or not all(isinstance(column, str) for column in columns):
        raise PlanError(
            f"the types of key columns are Spark's names, as 'string' or ('string', 'bigint'), not "
            f"{format_value(key)}; there are {', '.join(KEY_COLUMNS)}"
        )
    return tuple(columns)


def _name_of(descriptor: object) -> str:
    """Return the state's name for messages. Other objects than descriptors are rejected when the plan is executed."""
    return getattr(descriptor, "name", format_value(descriptor))
