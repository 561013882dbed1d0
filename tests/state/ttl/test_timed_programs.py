"""Random programs on state with TTL, on both backends, against a model in plain Python.

A program writes, reads, merges namespaces and moves the clock in both directions. In between it restores from a
checkpoint, or from a savepoint on the other backend, with another time-to-live and another version of the records.
Every written and every returned value is changed afterwards, which must have no effect.

An entry whose time was ever over is *doubtful*: a read or the clean-up may have removed it. So a read may find it or
not. The model then continues with the entries that the read found.
"""

import copy
import itertools
import tempfile
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from statebackend import (
    AggregateFunction,
    AggregatingStateDescriptor,
    IncrementalCleanup,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    TtlStateVisibility,
    TtlUpdateType,
    ValueStateDescriptor,
)
from statebackend.state.clock import StoppedClock
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.harness import BackendHarness, ManualClock
from typeserializers import AttrsSerializer, StringSerializer, former_names


@attrs.define
class RecordV1:
    number: int
    tags: list[str]


@attrs.define
class RecordV2:
    size: int = attrs.field(metadata=former_names("number"))
    tags: list[str]
    note: str = "new"


@attrs.frozen
class FrozenV1:
    number: int


@attrs.frozen
class FrozenV2:
    number: float
    added: int = 7


class Form:
    """A type of values: how to make one, convert it to the next version, fold it, and modify it carelessly."""

    def __init__(self, types: tuple[Any, Any], make: Any, convert: Any, combine: Any, spoil: Any) -> None:
        self.types, self.make, self.convert, self.combine, self.spoil = types, make, convert, combine, spoil


def combine_records(left: Any, right: Any) -> Any:
    left.tags.extend(right.tags)
    return left


def extended(left: list[Any], right: list[Any]) -> list[Any]:
    left.extend(right)
    return left


def untouched(value: Any) -> None:
    """Does nothing, because an immutable value cannot be modified."""


FORMS = {
    "int": Form((int, int), lambda version, n: n, lambda v: v, lambda a, b: a * 31 + b, untouched),
    # A bool is stored as the equal int.
    "bool": Form((int, int), lambda version, n: n % 2 == 0, lambda v: v, lambda a, b: (a * 31 + b) % 1009, untouched),
    "nan": Form(
        (float, float), lambda version, n: float("nan") if n % 3 else float(n), float, lambda a, b: a - b, untouched
    ),
    "text": Form((str, str), lambda version, n: f"{n}.", lambda v: v, lambda a, b: a + b, untouched),
    "list": Form((list[int], list[int]), lambda version, n: [n], list, extended, lambda v: v.append(-1)),
    "record": Form(
        (AttrsSerializer(RecordV1, name="Record"), AttrsSerializer(RecordV2, name="Record")),
        lambda version, n: (RecordV1, RecordV2)[version](n, [str(n)]),
        lambda v: RecordV2(v.number, list(v.tags)),
        combine_records,
        lambda v: v.tags.append("spoiled"),
    ),
    "frozen": Form(
        (AttrsSerializer(FrozenV1, name="Frozen"), AttrsSerializer(FrozenV2, name="Frozen")),
        lambda version, n: FrozenV1(n) if version == 0 else FrozenV2(float(n), n),
        lambda v: FrozenV2(float(v.number)),
        lambda a, b: type(a)(a.number * 31 + b.number),
        untouched,
    ),
}
KINDS = ("value", "list", "map", "reducing", "aggregating")


class Folding(AggregateFunction[Any, Any, Any]):
    """Folds values of a form; the result is a pair with the accumulator."""

    def __init__(self, form: Form, version: int) -> None:
        self.form, self.version = form, version

    def create_accumulator(self) -> Any:
        return self.form.make(self.version, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return self.form.combine(accumulator, value)

    def get_result(self, accumulator: Any) -> Any:
        return ("result", accumulator)

    def merge(self, left: Any, right: Any) -> Any:
        return self.form.combine(left, right)


class Entry:
    """A value with its time."""

    def __init__(self, value: Any, time_ms: int) -> None:
        self.value, self.time_ms, self.is_doubtful = value, time_ms, False

    def __repr__(self) -> str:
        return f"{self.value!r} at {self.time_ms}{' (doubtful)' * self.is_doubtful}"


class Modelled:
    """One state and its model: entries by key and namespace; lists of them, or dicts by user key."""

    def __init__(self, name: str, kind: str, form: str, ttl: StateTtlConfig | None) -> None:
        self.name, self.kind, self.form, self.ttl = name, kind, FORMS[form], ttl
        self.version = 0
        self.entries: dict[Any, Any] = {}

    def descriptor(self, has_default: bool) -> Any:
        hint, form = self.form.types[self.version], self.form
        if self.kind == "value":
            default = form.make(self.version, 3) if has_default else None
            return ValueStateDescriptor(self.name, hint, default, ttl=self.ttl)
        if self.kind == "list":
            return ListStateDescriptor(self.name, hint, ttl=self.ttl)
        if self.kind == "map":
            return MapStateDescriptor(self.name, str, hint, ttl=self.ttl)
        if self.kind == "reducing":
            return ReducingStateDescriptor(self.name, form.combine, hint, ttl=self.ttl)
        return AggregatingStateDescriptor(self.name, Folding(form, self.version), hint, ttl=self.ttl)

    def all_entries(self) -> list[Entry]:
        return [
            entry
            for entries in self.entries.values()
            for entry in (entries.values() if self.kind == "map" else entries)
        ]

    def is_over(self, entry: Entry, now_ms: int) -> bool:
        return self.ttl is not None and entry.time_ms + self.ttl.ttl_ms <= now_ms

    def pass_time(self, now_ms: int) -> None:
        for entry in self.all_entries():
            entry.is_doubtful |= self.is_over(entry, now_ms)

    def may_be_read(self, entry: Entry, now_ms: int) -> list[bool]:
        """Whether a read returns the entry: True, False, or either."""
        if self.is_over(entry, now_ms):
            assert self.ttl is not None
            returns = self.ttl.visibility is TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
            return [True, False] if returns else [False]
        return [True, False] if entry.is_doubtful else [True]

    def read(self, entry: Entry, now_ms: int, renews: bool = True) -> bool:
        """Follow a read that has found the entry. Returns whether it is still stored."""
        if self.is_over(entry, now_ms):
            return False
        entry.is_doubtful = False
        if renews and self.ttl is not None and self.ttl.update_type is TtlUpdateType.ON_READ_AND_WRITE:
            entry.time_ms = max(entry.time_ms, now_ms)
        return True


TTLS = st.none() | st.builds(
    StateTtlConfig,
    st.sampled_from([50, 120]),
    update_type=st.sampled_from(TtlUpdateType),
    visibility=st.sampled_from(TtlStateVisibility),
    cleanup_full_snapshot=st.booleans(),
    incremental_cleanup=st.sampled_from([None, IncrementalCleanup(1), IncrementalCleanup(3, for_every_record=True)]),
)
STEPS_MS = (0, 1, 20, 49, 50, 70, 120, 300, -10, -60, -500)
NAMESPACES = ("", "b")
USER_KEYS = ("", "a", "ab")


class Program:
    """Two keys and a few states on one backend, which a restore may replace by the other."""

    def __init__(
        self, directory: str, states: list[Modelled], has_namespaces: bool, clock: Any, defaults: bool
    ) -> None:
        self.harness = BackendHarness(directory)
        self.harness.clock = self.clock = clock
        self.backends = [state_backend("heap"), RocksDBStateBackend(cache_entries=3)]
        self.states, self.has_namespaces, self.defaults = states, has_namespaces, defaults
        self.numbers = itertools.count(1)
        self.backend: Any = self.harness.open(self.backends[0])
        self.register()

    def register(self) -> None:
        self.descriptors = {state.name: state.descriptor(self.defaults) for state in self.states}
        for state in self.states:
            self.handle(state, 0, "")

    def handle(self, state: Modelled, key: int, namespace: str) -> Any:
        self.harness.at(self.backend, key)
        descriptor = self.descriptors[state.name]
        if not self.has_namespaces:
            return self.backend.get_state(descriptor)
        return self.backend.get_partitioned_state(namespace, StringSerializer(), descriptor)

    def made(self, state: Modelled) -> tuple[Any, Entry]:
        """A new value, and the entry that it must become."""
        value = state.form.make(state.version, next(self.numbers))
        return value, Entry(stored(state, value), self.clock.now_ms)

    def run(self, index: int, operation: str, key: int, choice: int, other: int) -> None:
        state, now_ms = self.states[index % len(self.states)], self.clock.now_ms
        namespace = NAMESPACES[choice % 2] if self.has_namespaces else ""
        handle, place = self.handle(state, key, namespace), (key, namespace)
        if operation == "clock":
            self.clock.now_ms = max(0, now_ms + STEPS_MS[choice % len(STEPS_MS)])
            for one in self.states:
                one.pass_time(self.clock.now_ms)
        elif operation == "read":
            self.read(state, handle, place, other)
        elif operation == "clear":
            handle.clear()
            state.entries.pop(place, None)
        elif operation == "merge":
            if self.has_namespaces and state.kind not in ("value", "map"):
                self.merge(state, handle, key, namespace)
        else:
            self.write(state, handle, place, choice // 2, other)

    def write(self, state: Modelled, handle: Any, place: Any, choice: int, other: int) -> None:
        given = [self.made(state) for _ in range(1 + other % 2)]
        value, entry = given[0]
        if state.kind == "value":
            handle.update(value)
            state.entries[place] = [entry]
        elif state.kind == "list":
            if choice % 3 == 0:
                handle.add(value)
                given = given[:1]
            elif choice % 3 == 1:
                handle.add_all([one for one, _ in given])
            else:
                handle.update([one for one, _ in given])
                state.entries.pop(place, None)
            state.entries.setdefault(place, []).extend([entry for _, entry in given])
        elif state.kind == "map":
            user_key, entries = USER_KEYS[other % 3], state.entries.setdefault(place, {})
            if choice % 4 == 0:
                handle.put(user_key, value)
                entries[user_key] = entry
            elif choice % 4 == 1:
                handle.put_all({user_key: value, "z": None})
                entries.update({user_key: entry, "z": Entry(None, self.clock.now_ms)})
            elif choice % 4 == 2:
                handle.remove(user_key)
                entries.pop(user_key, None)
            else:
                self.change_all(state, handle, place)
        else:
            before = state.entries.pop(place, [])
            handle.add(copy.deepcopy(value))
            results = []
            for is_found in state.may_be_read(before[0], self.clock.now_ms) if before else [False]:
                old = copy.deepcopy(before[0].value) if is_found else state.form.make(state.version, 0)
                is_folded = is_found or state.kind == "aggregating"
                new = state.form.combine(old, copy.deepcopy(value)) if is_folded else value
                results.append(Entry(stored(state, new), self.clock.now_ms))
            self.settle(state, handle, place, results)
        for value, _ in given:
            state.form.spoil(value)

    def change_all(self, state: Modelled, handle: Any, place: Any) -> None:
        """Replace and remove entries while they are iterated."""
        found = {}
        for number, (user_key, value) in enumerate(handle.items()):
            found[user_key] = copy.deepcopy(value)
            if number % 2:
                handle.remove(user_key)
            else:
                handle.put(user_key, None)
        self.adopt(state, place, found)
        changed = {user_key: Entry(None, self.clock.now_ms) for user_key in list(found)[::2]}
        for user_key in found:
            state.entries[place].pop(user_key, None)
        state.entries[place].update(changed)

    def merge(self, state: Modelled, handle: Any, key: int, target: str) -> None:
        source = NAMESPACES[1 - NAMESPACES.index(target)]
        ours, theirs = (state.entries.pop((key, one), []) for one in (target, source))
        handle.merge_namespaces(target, [source])
        if state.kind == "list":
            state.entries[key, target] = ours + theirs
            for entry in [*ours, *theirs]:
                # A merge removes expired elements.
                entry.is_doubtful |= state.is_over(entry, self.clock.now_ms)
            return
        now_ms, results = self.clock.now_ms, []
        for left, right in itertools.product(
            *(state.may_be_read(one[0], now_ms) if one else [False] for one in (ours, theirs))
        ):
            if left and right:
                folded = state.form.combine(copy.deepcopy(ours[0].value), copy.deepcopy(theirs[0].value))
                results.append(Entry(stored(state, folded), now_ms))
            else:
                results.append(ours[0] if left else theirs[0] if right else None)
        self.settle(state, handle, (key, target), results)
        assert self.handle(state, key, source).get() is None

    def settle(self, state: Modelled, handle: Any, place: Any, results: list[Entry | None]) -> None:
        """Read a folded value, which must be one of the results."""
        got = handle.get()
        if got is not None and state.kind == "aggregating":
            assert got[0] == "result"
            got = got[1]
        for result in results:
            if shown(got) == ("None" if result is None else shown(result.value)):
                is_found = result is not None and True in state.may_be_read(result, self.clock.now_ms)
                if is_found and state.read(result, self.clock.now_ms):
                    state.entries[place] = [result]
                return
        over = [one for one in results if one is None or False in state.may_be_read(one, self.clock.now_ms)]
        assert got is None, (got, results)
        assert over, results
        state.entries.pop(place, None)

    def read(self, state: Modelled, handle: Any, place: Any, other: int) -> None:
        now_ms = self.clock.now_ms
        if state.kind == "map":
            self.read_map(state, handle, place, other)
        elif state.kind == "list":
            found = handle.get()
            self.adopt_list(state, place, found)
            for value in found:
                state.form.spoil(value)
        else:
            got = handle.value() if state.kind == "value" else handle.get()
            if state.kind == "aggregating" and got is not None:
                got = got[1]
            entries = state.entries.get(place, [])
            default = (
                stored(state, state.form.make(state.version, 3)) if self.defaults and state.kind == "value" else None
            )
            allowed = [
                shown(entries[0].value) if is_found else shown(default)
                for is_found in (state.may_be_read(entries[0], now_ms) if entries else [False])
            ]
            assert shown(got) in allowed, (got, entries)
            is_found = (
                bool(entries)
                and shown(got) == shown(entries[0].value)
                and True in state.may_be_read(entries[0], now_ms)
            )
            if not (is_found and state.read(entries[0], now_ms)):
                state.entries.pop(place, None)
            if got is not None:
                state.form.spoil(got)

    def read_map(self, state: Modelled, handle: Any, place: Any, other: int) -> None:
        now_ms, entries = self.clock.now_ms, state.entries.setdefault(place, {})
        if other % 2:
            found = dict(handle.items())
            self.adopt(state, place, found)
            for value in found.values():
                if value is not None:
                    state.form.spoil(value)
            return
        user_key = USER_KEYS[other % 3]
        entry = entries.get(user_key)
        options = state.may_be_read(entry, now_ms) if entry else [False]
        if other % 4:
            contained = handle.contains(user_key)
            assert contained in options
            is_found = contained
        else:
            got = handle.get(user_key)
            assert shown(got) in [shown(entry.value) if one and entry else "None" for one in options], (got, entry)
            is_found = got is not None
            if got is None and entry is not None and entry.value is None:
                # A read that returns None does not show whether the entry is there.
                if True in options and not state.is_over(entry, now_ms):
                    was = entry.is_doubtful
                    state.read(entry, now_ms)
                    entry.is_doubtful = was
                return
            if got is not None:
                state.form.spoil(got)
        if entry is not None and not (is_found and state.read(entry, now_ms)):
            del entries[user_key]

    def adopt(self, state: Modelled, place: Any, found: dict[str, Any]) -> None:
        """Continue with the entries of a map that a read has found."""
        now_ms, entries = self.clock.now_ms, state.entries.get(place, {})
        assert set(found) <= set(entries), (found, entries)
        for user_key, entry in list(entries.items()):
            assert (user_key in found) in state.may_be_read(entry, now_ms), (user_key, found, entries)
            if user_key in found:
                assert shown(found[user_key]) == shown(entry.value)
            if not (user_key in found and state.read(entry, now_ms)):
                del entries[user_key]

    def adopt_list(self, state: Modelled, place: Any, found: list[Any]) -> None:
        """Continue with the elements that a read has found: all certain ones, and some of the doubtful ones."""
        now_ms, entries = self.clock.now_ms, state.entries.get(place, [])
        options = [state.may_be_read(entry, now_ms) for entry in entries]
        for chosen in itertools.product(*options):
            if [shown(entry.value) for entry, one in zip(entries, chosen, strict=True) if one] == [
                shown(value) for value in found
            ]:
                state.entries[place] = [
                    e for e, one in zip(entries, chosen, strict=True) if one and state.read(e, now_ms)
                ]
                return
        raise AssertionError((found, entries))

    def restore(self, is_savepoint: bool, ttls: list[StateTtlConfig | None], upgrades: bool) -> None:
        if is_savepoint:
            handle = self.harness.export(self.backend)
            self.backends.reverse()
        else:
            handle = self.harness.snapshot(self.backend).handle
        self.backend.close()
        for state, ttl in zip(self.states, ttls, strict=True):
            if state.ttl is None and ttl is not None:
                for entry in state.all_entries():
                    entry.time_ms = self.clock.now_ms
            state.pass_time(self.clock.now_ms)
            state.ttl = ttl
            state.pass_time(self.clock.now_ms)
            if upgrades and state.version == 0:
                state.version = 1
                for entry in state.all_entries():
                    entry.value = None if entry.value is None else state.form.convert(entry.value)
        self.backend = self.harness.open(self.backends[0], handle)
        self.register()


def stored(state: Modelled, value: Any) -> Any:
    """A copy of a value as a read returns it."""
    copied = copy.deepcopy(value)
    return int(copied) if isinstance(copied, bool) else copied


def shown(value: Any) -> str:
    return repr(value)


OPERATIONS = st.sampled_from(["clock", "clock", "read", "read", "write", "write", "write", "clear", "merge"])
SMALL = st.integers(0, 23)
STEPS = st.tuples(SMALL, OPERATIONS, st.integers(0, 1), SMALL, SMALL)
RESTORES = st.tuples(st.booleans(), st.lists(TTLS, min_size=3, max_size=3), st.booleans())
STATES = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(sorted(FORMS)), TTLS), min_size=3, max_size=3)


@given(
    STATES,
    st.lists(st.tuples(st.lists(STEPS, max_size=25), RESTORES), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_programs_agree_with_the_model(states, parts, has_namespaces, is_job_clock, starts_on_rocksdb, defaults):
    clock = (StoppedClock if is_job_clock else ManualClock)(1000)
    modelled = [Modelled(f"state {n}", kind, form, ttl) for n, (kind, form, ttl) in enumerate(states)]
    with tempfile.TemporaryDirectory() as directory:
        program = Program(directory, modelled, has_namespaces, clock, defaults)
        try:
            if starts_on_rocksdb:
                program.restore(True, [state.ttl for state in modelled], False)
            for steps, restore in parts:
                for step in steps:
                    program.run(*step)
                program.restore(*restore)
            for state in modelled:
                for key, namespace in itertools.product((0, 1), NAMESPACES[: 1 + has_namespaces]):
                    program.read(state, program.handle(state, key, namespace), (key, namespace), 1)
        finally:
            program.harness.close()
