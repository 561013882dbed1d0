"""A plan: what is to be other in the new savepoint than in the old one, as changes that nobody has carried out yet.

    plan = Plan().rename_operator("totals", "totals per shop").keep_keys("visits", lambda shop: shop != "shop 7")

Changes are carried out in the order in which they are given, each on what the ones before have left: a state that was
renamed is known under its new name from there on. A plan reads nothing, and what its functions are called with is told
only when it is written. The same plan may be written many times, unless it gives entries by an iterator, which ends:
that is rejected the second time.

Entries that an iterator gives can be read once: read again they would be fewer, or none, and nobody would know.

A second writing of the plan, a second state that is given the same iterator, and a generator that has ended are all
rejected. What can be iterated over again (a list, a table, `Savepoint.read`) is not wrapped.

The changes that make several operators of one, and one of several; see `statebackend.savepoint.rewrite.changes`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any

from attrs import define, evolve, frozen

from snapshots.composite import merge_snapshots
from snapshots.envelope import snapshot_from_bytes
from snapshots.errors import shown
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.rewrite import changes
from statebackend.savepoint.rewrite.changes import Change
from statebackend.savepoint.rewrite.drafts import (
    Drafts,
    GivenElements,
    Merge,
    OperatorDraft,
    OperatorStateDraft,
    StateDraft,
)
from statebackend.savepoint.rewrite.entry_codec import time_or_now
from statebackend.savepoint.rewrite.entry_schema import EntrySchema
from statebackend.savepoint.rewrite.given_entries import GivenEntries
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
    """What an iterator gives of a state; raises `PlanError` where it is asked for a second time."""

    state_name: str
    entries: Iterator[Any]
    is_read: bool = False

    @classmethod
    def of(cls, state_name: str, entries: Any, known: list[ReadOnce]) -> Any:
        """The entries, wrapped if they are an iterator: by one of those known if that has the same, or a new one."""
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
                f"the entries of {self.state_name!r} were given by an iterator that has been read already: what is "
                f"left of it is not all. Give a list or a table, or make a new plan with a new iterator for each "
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
            raise PlanError(f"operator {self.uid!r} is split into none; to leave it out, remove it (remove_operator)")
        draft = drafts.opened(self.uid)
        assert draft.key_columns
        if draft.operator_states and self.operator_state not in self.into:
            raise PlanError(
                f"operator {self.uid!r} has operator state ({', '.join(draft.operator_states)}), which has no key to "
                f"go by: pass operator_state=<which of the operators it is for>"
            )
        del drafts.operators[self.uid]
        for place, uid in enumerate(self.into):
            part = OperatorDraft(
                uid, uid, draft.origins, draft.key_serializer, is_opened=True, is_placed_anew=draft.is_placed_anew
            )
            drafts.add(part)
            step = KeepKeys(_Routed(self.route, self.into, uid))
            # What was left out of the whole is told of the first part, and counts once.
            part.states = {
                name: evolve(state, stored=[one if place == 0 else one.uncounted() for one in state.stored])
                for name, state in draft.states.items()
            }
            for state in part.states.values():
                state.put_behind(step)
            if uid == self.operator_state:
                part.operator_states = draft.operator_states
        drafts.inherit((self.uid,), self.into)


@frozen
class _Routed:
    """Whether a key is routed to one of several operators; raises for one that is routed to none."""

    route: Callable[[Any], str]
    into: tuple[str, ...]
    uid: str

    def __call__(self, key: Any) -> bool:
        routed = self.route(key)
        if routed not in self.into:
            raise ValueError(f"the key is routed to {routed!r}, which is none of {', '.join(self.into)}")
        return routed == self.uid


@frozen
class MergeOperators:
    uids: tuple[str, ...]
    into: str
    merge: Mapping[str, Merge]

    def apply(self, drafts: Drafts) -> None:
        if not self.uids or len(set(self.uids)) < len(self.uids):
            raise PlanError(
                f"{', '.join(self.uids) or 'nothing'}: operators to merge are one or more, each of them once"
            )
        parts = [drafts.opened(uid) for uid in self.uids]
        merged = OperatorDraft(self.into, self.into, is_opened=True, is_placed_anew=True)
        merged.key_serializer = parts[0].key_serializer
        for part in parts:
            if not _are_keyed_alike(part, merged):
                raise PlanError(
                    f"operators {parts[0].uid!r} and {part.uid!r} have keys of two types; change those of one first"
                )
            merged.origins += tuple(origin for origin in part.origins if origin not in merged.origins)
            for name, state in part.states.items():
                _merge_state(merged, name, state, part.uid)
            for name, operator_state in part.operator_states.items():
                _merge_operator_state(merged, name, operator_state, part.uid)
        merged.check_mergeable(self.merge)
        for name, function in self.merge.items():
            merged.states[name].merge = function
        for uid in self.uids:
            del drafts.operators[uid]
        drafts.add(merged)
        drafts.inherit(self.uids, (self.into,))


def _merge_state(merged: OperatorDraft, name: str, state: StateDraft, uid: str) -> None:
    known = merged.states.get(name)
    if known is None:
        merged.states[name] = evolve(state, stored=list(state.stored), given=list(state.given))
        return
    if not known.schema.is_like(state.schema):
        raise PlanError(
            f"state {name!r} of operator {uid!r} has another schema than that of the same name in one merged before; "
            f"rename one of them, or change its values first"
        )
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
            f"operator state {name!r} is there twice, the second time in operator {uid!r}, and is no list that the "
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
    # Serializers that learn while they write may have learned other things.
    return all(
        envelope == other[role]
        or merge_snapshots(snapshot_from_bytes(envelope), snapshot_from_bytes(other[role])) is not None
        for role, envelope in one.items()
    )


Key = str | Sequence[str]
"""The types of the columns of a key, by Spark's names: ``"string"``, or ``("string", "bigint")``."""


class Plan:
    """See the module. Every method adds one change, and returns the plan."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._read_once: list[ReadOnce] = []

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes, in their order."""
        return tuple(self._changes)

    def add_operator(self, uid: str, key: Key = (), *, name: str | None = None) -> Plan:
        """One more operator; ``key`` says the types of the columns that its streams are keyed by, if they are."""
        return self._with(changes.AddOperator(uid, _columns(key), uid if name is None else name))

    def remove_operator(self, uid: str) -> Plan:
        """Leaves an operator out, with all its state."""
        return self._with(changes.RemoveOperator(uid))

    def rename_operator(self, uid: str, to: str) -> Plan:
        """Gives an operator another uid; its files are not read."""
        return self._with(changes.RenameOperator(uid, to))

    def split_operator(
        self, uid: str, into: Sequence[str], route: Callable[[Any], str], *, operator_state: str | None = None
    ) -> Plan:
        """Makes several operators of one: ``route`` says, of each key, into which it goes.

        ``operator_state`` is which of them gets the state without keys, if there is any.
        """
        return self._with(SplitOperator(uid, _listed("the operators to split into", into), route, operator_state))

    def merge_operators(self, uids: Sequence[str], into: str, *, merge: Mapping[str, Merge] | None = None) -> Plan:
        """Makes one operator of several with keys of one type.

        States of one name become one state. A key that is in two of them is rejected, unless ``merge`` has a function
        for the state, which makes one value of two, in the order of the uids.
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
        """One more keyed state, of these entries (`statebackend.savepoint.rewrite.given_entries` says what one looks
        like).

        ``state`` is the descriptor that the job registers, or, of stored state whose functions are not at hand, its
        schema (`EntrySchema.of_stored`), which has its namespaces.

        Entries come in any order and number, or were staged by tasks elsewhere (`StagedEntries`). Two of one key are
        rejected, or made one by ``merge``. ``namespace`` is the type of the namespaces, or its serializer, of state
        that has some. ``last_access_ms`` is the time, in milliseconds, from which entries live in state with a
        time-to-live that do not say it themselves; by default that at which this is called.
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
        """Puts a keyed state in the place of the one of its name; otherwise as `add_state`."""
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
        """Timers, each a tuple of key and milliseconds, to those there are. The same timer twice is one timer.

        ``service`` says whose they are: those of functions by default, ``window-timers`` those of windows, whose
        namespaces are the windows.
        """
        if time not in ("event", "processing"):
            raise ValueError(f"time is 'event' or 'processing', not {time!r}")
        serializer = None if namespace is None else as_serializer(namespace)
        state_name = timer_state_name(time, service)
        given = GivenEntries(ReadOnce.of(state_name, timers, self._read_once), 0)
        return self._with(changes.AddTimers(uid, state_name, given, serializer))

    def add_operator_state(
        self, uid: str, descriptor: OperatorStateDescriptor, elements: Iterable[Any] | Mapping[Any, Any]
    ) -> Plan:
        """State without keys: the elements of a list, or the entries of a broadcast state as a mapping."""
        given = GivenElements(descriptor, ReadOnce.of(_name_of(descriptor), elements, self._read_once))
        return self._with(changes.AddOperatorState(uid, given))

    def remove_state(self, uid: str, name: str) -> Plan:
        """Leaves a state out, with or without keys; if an operator has both of one name, both."""
        return self._with(changes.RemoveState(uid, name))

    def rename_state(self, uid: str, name: str, to: str) -> Plan:
        """Gives a state another name; its files are not read."""
        return self._with(changes.RenameState(uid, name, to))

    def change_values(self, uid: str, name: str, descriptor: StateDescriptor, function: Callable[[Any], Any]) -> Plan:
        """Puts ``function(value)`` in the place of every value, as the descriptor writes it, under its name.

        Of a list the value is the list. The user keys of a map stay the values they are, written by the descriptor's
        serializer of user keys; two that it writes alike are rejected. So is, with state and key, what it cannot write.

        In state with a time-to-live a value keeps its time of last access. A list that comes back as it was keeps the
        times of its elements; of any other nobody knows which element was which, and all have the latest time that was
        in the list. The same is true of lists that are merged: one behind the other, they keep their times.
        """
        return self._with(changes.ChangeState(uid, name, descriptor, function, is_given_entries=False))

    def change_entries(
        self, uid: str, name: str, descriptor: StateDescriptor, function: Callable[[StateEntry], Any]
    ) -> Plan:
        """As `change_values`, by a function that is given the whole entry and returns its value."""
        return self._with(changes.ChangeState(uid, name, descriptor, function, is_given_entries=True))

    def keep_keys(self, uid: str, predicate: Callable[[Any], bool], *, states: Sequence[str] | None = None) -> Plan:
        """Leaves out, of all keyed states and timers or of those named, the keys for which the predicate is False."""
        return self._with(changes.Keep(uid, KeepKeys(predicate, self._next_number), _states(states)))

    def keep_entries(
        self, uid: str, predicate: Callable[[StateEntry], bool], *, states: Sequence[str] | None = None
    ) -> Plan:
        """Leaves out the entries for which the predicate is False; otherwise as `keep_keys`."""
        return self._with(changes.Keep(uid, KeepEntries(predicate, self._next_number), _states(states)))

    def keep_elements(self, uid: str, name: str, predicate: Callable[[Any], bool]) -> Plan:
        """Leaves elements out of a state without keys; of a broadcast state the predicate is given the key."""
        return self._with(changes.KeepElements(uid, name, predicate, self._next_number))

    def change_keys(
        self, uid: str, function: Callable[[Any], Any], key: Key, *, merge: Mapping[str, Merge] | None = None
    ) -> Plan:
        """Puts ``function(key)`` in the place of every key, in all keyed states and timers; ``key`` are its types.

        Namespaces, times and values stay with their key. Two keys that become one are rejected where both have an
        entry, unless ``merge`` has a function for the state.
        """
        return self._with(changes.ChangeKeysOf(uid, function, _columns(key), _merges(merge)))

    def migrate_operator(self, uid: str, registered: Iterable[tuple[Descriptor, TypeSerializer[Any]]]) -> Plan:
        """Brings keyed state to what a job registers: descriptors, each with the serializer of its namespaces.

        Entries are migrated as a job would migrate them at its start, by the same code and compatibility results; what
        has expired by their time-to-live is left out. State that is not named, and state without keys, goes on as it
        is.
        """
        return self._with(changes.MigrateOperator(uid, tuple(registered)))

    def change_max_parallelism(self, max_parallelism: int) -> Plan:
        """Another number of key groups, 1 to 32768: all keys are dealt out again."""
        return self._with(changes.ChangeMaxParallelism(max_parallelism))

    def change_parallelism(self, parallelism: int) -> Plan:
        """In how many parts the state of each operator that is written again is to lie; any job restores any number."""
        return self._with(changes.ChangeParallelism(parallelism))

    def drop_source_progress(self) -> Plan:
        """Forgets how far the sources were read: a job reads them from the beginning, or from where it is told."""
        return self._with(changes.Drop("source_progress"))

    def drop_watermarks(self) -> Plan:
        """Forgets what is known of event time: it begins again with the first records."""
        return self._with(changes.Drop("watermarks"))

    def drop_sinks(self) -> Plan:
        """Leaves out what sinks still had to commit behind a checkpoint. A savepoint has none of it."""
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
        given: GivenEntries | StagedEntries
        if isinstance(entries, StagedEntries):
            given = entries
        else:
            given = GivenEntries(ReadOnce.of(_name_of(state), entries, self._read_once), time_or_now(last_access_ms))
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
    # A text is a sequence of texts, too.
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(one, str) for one in names):
        raise PlanError(f"{what} are given as a list of their names, not as {shown(names)}")
    return tuple(names)


def _states(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else _listed("the states", names)


def _merges(merge: Mapping[str, Merge] | None) -> dict[str, Merge]:
    if merge is not None and not (isinstance(merge, Mapping) and all(map(callable, merge.values()))):
        raise PlanError(f"merge has a function of two values for each state, by name, and is no {shown(merge)}")
    return dict(merge or {})


def _columns(key: Key) -> tuple[str, ...]:
    columns = (key,) if isinstance(key, str) else key
    if not isinstance(columns, Sequence) or not all(isinstance(column, str) for column in columns):
        raise PlanError(
            f"the types of the columns of a key are given by Spark's names, as 'string' or ('string', 'bigint'), not "
            f"{shown(key)}; there are {', '.join(KEY_COLUMNS)}"
        )
    return tuple(columns)


def _name_of(descriptor: object) -> str:
    """The name of the state, for messages; what is no descriptor is rejected when the plan is written."""
    return getattr(descriptor, "name", shown(descriptor))
