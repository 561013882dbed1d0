"""The write-back cache is bounded, and its size never changes the result of an access."""

import itertools
import operator
import shutil
import tempfile

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from statebackend.state.errors import StateBackendClosedError
from statebackend.state.rocksdb import map_state
from statebackend.state.rocksdb.rocksdb_state_backend import DEFAULT_CACHE_ENTRIES, RocksDBStateBackend
from statebackend.testing.backends.evolving_records import LegV1, leg_v1
from statebackend.testing.backends.harness import BackendHarness
from typeserializers.scalars.strings import StringSerializer

SIZES = (DEFAULT_CACHE_ENTRIES, 1, 2, 7)

VALUE = ValueStateDescriptor("value", int)
LEG = ValueStateDescriptor("leg", leg_v1())
LIST = ListStateDescriptor("list", int)
LEGS = ListStateDescriptor("legs", leg_v1())
MAP = MapStateDescriptor("map", int, int)
LEG_MAP = MapStateDescriptor("leg map", str, leg_v1())
DOUBLES = MapStateDescriptor("doubles", float, int)
TOTAL = ReducingStateDescriptor("total", operator.add, int)

NUMBERS = st.integers(-2, 2)
USER_KEYS = st.integers(-3, 6)
KEYS = st.integers(0, 3)


def walk(change):
    """Iterate a map and change an entry midway. The items after it must be current."""

    def read(state):
        seen = []
        for number, item in enumerate(state.items()):
            seen.append(item)
            if number == 1:
                change(state)
        return seen

    return read


def operations():
    def op(descriptor, strategy):
        return st.tuples(st.just(descriptor), KEYS, strategy)

    def call(name, *arguments):
        return st.builds(lambda *given: lambda state: getattr(state, name)(*given), *arguments)

    def reading(descriptor):
        return op(descriptor, st.just(lambda state: list(state.items())))

    def of_legs(strategy):
        return st.builds(lambda number: LegV1("EWR", number), strategy)

    def of_map(descriptor, user_keys, values):
        change = st.one_of(
            call("put", user_keys, st.none() | values),
            call("remove", user_keys),
            call("clear"),
            call("put_all", st.dictionaries(user_keys, values, max_size=5)),
        )
        return st.one_of(
            op(descriptor, change),
            op(descriptor, st.one_of(call("get", user_keys), call("contains", user_keys), call("is_empty"))),
            reading(descriptor),
            op(descriptor, change.map(walk)),
        )

    def of_list(descriptor, values):
        many = st.lists(values, max_size=4)
        return op(
            descriptor,
            st.one_of(call("add", values), call("add_all", many), call("update", many), call("clear"), call("get")),
        )

    values = [
        op(descriptor, st.one_of(call("value"), call("clear"), call("update", given)))
        for descriptor, given in ((VALUE, NUMBERS), (LEG, of_legs(NUMBERS)))
    ]
    return st.one_of(
        *values,
        of_list(LIST, NUMBERS),
        of_list(LEGS, of_legs(NUMBERS)),
        of_map(MAP, USER_KEYS, NUMBERS),
        of_map(LEG_MAP, st.sampled_from(["", "a", "ab", "b", "é"]), of_legs(NUMBERS)),
        of_map(DOUBLES, st.sampled_from([0.0, -0.0, 1.5, float("nan")]), NUMBERS),
        op(TOTAL, st.one_of(call("add", NUMBERS), call("get"), call("clear"))),
        st.just("snapshot"),
        st.just("reopen"),
    )


NAMESPACES = ["red", "green"]


class Subject:
    """A backend with a cache of some size, and the log of all results."""

    def __init__(self, size, directory):
        self.backend_of = RocksDBStateBackend(cache_entries=size)
        self.harness = BackendHarness(f"{directory}/{size}")
        self.backend = self.harness.open(self.backend_of)
        self.answers = []

    def apply(self, operation, number):
        if isinstance(operation, str):
            handle = self.harness.snapshot(self.backend).handle
            if operation == "reopen":
                self.backend.close()
                self.backend = self.harness.open(self.backend_of, handle)
            return
        descriptor, key, access = operation
        self.harness.at(self.backend, key)
        state = self.backend.get_or_create_keyed_state(StringSerializer(), descriptor)
        state.set_current_namespace(NAMESPACES[number % 2])
        self.answers.append(repr(access(state)))


@pytest.mark.extended
@given(st.lists(operations(), min_size=5, max_size=40))
@settings(max_examples=examples(60))
def test_every_cache_size_returns_the_same_results(sequence):
    directory = tempfile.mkdtemp()
    subjects = [Subject(size, directory) for size in SIZES]
    try:
        for number, operation in enumerate(sequence):
            for subject in subjects:
                subject.apply(operation, number // 5)
            assert len({tuple(subject.answers) for subject in subjects}) == 1
    finally:
        for subject in subjects:
            subject.harness.close()
        shutil.rmtree(directory)


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def spills_of(backend, monkeypatch):
    """The sizes of later flushes in order."""
    spilled = []
    ingest = backend._store.database.ingest_changes

    def noted(table, keys, values):
        spilled.append(len(keys))
        ingest(table, keys, values)

    monkeypatch.setattr(backend._store.database, "ingest_changes", noted)
    return spilled


def test_a_large_map_of_one_key_is_flushed_early(harness, monkeypatch):
    backend = harness.open(RocksDBStateBackend(cache_entries=100))
    spilled = spills_of(backend, monkeypatch)
    harness.at(backend, 1)
    state = backend.get_state(MAP)
    for number in range(1000):
        state.put(number, number)
    assert len(spilled) == 10
    state.put_all({number: -number for number in range(1000)})
    assert len(spilled) == 20
    for number in range(1000):
        assert state.get(number) == -number
    assert list(state.items()) == [(number, -number) for number in range(1000)]
    assert len(state._entries[1].entries) <= 100


def test_a_list_appended_to_in_one_epoch_is_flushed_early(harness, monkeypatch):
    backend = harness.open(RocksDBStateBackend(cache_entries=100))
    spilled = spills_of(backend, monkeypatch)
    harness.at(backend, 1)
    state = backend.get_state(LIST)
    for number in range(1000):
        state.add(number)
    # Each spilled entry is one chunk of elements and one tombstone.
    assert len(spilled) == 10
    assert state.get() == list(range(1000))
    assert len(harness.snapshot(backend).handle.files) == 1


def test_a_map_is_cleared_in_parts(harness, monkeypatch):
    monkeypatch.setattr(map_state, "DELETIONS_AT_ONCE", 100)
    backend = harness.open(RocksDBStateBackend(cache_entries=500))
    state = backend.get_state(MAP)
    for key in (1, 2, 3):
        harness.at(backend, key)
        state.put_all({number: number for number in range(1000)})
    harness.snapshot(backend)
    spilled = spills_of(backend, monkeypatch)
    for key in (1, 3):
        harness.at(backend, key)
        state.clear()
        assert state.is_empty()
        state.put(7, 70)
        state.put(5000, 5)
    handle = harness.snapshot(backend).handle
    assert len(spilled) > 15
    assert max(spilled) < 300
    for one in (backend, harness.open(RocksDBStateBackend(), handle)):
        for key in (1, 2, 3):
            harness.at(one, key)
            expected = {number: number for number in range(1000)} if key == 2 else {7: 70, 5000: 5}
            assert dict(one.get_state(MAP).items()) == expected


def test_iterating_a_large_map_does_not_fill_the_cache(harness):
    backend = harness.open(RocksDBStateBackend())
    harness.at(backend, 1)
    state = backend.get_state(MAP)
    state.put_all({number: number for number in range(5000)})
    harness.snapshot(backend)
    assert not state.is_empty()
    items = state.items()
    first = list(itertools.islice(items, 10))
    state.put(20, -20)
    state.remove(21)
    rest = dict(items)
    assert first == [(number, number) for number in range(10)]
    assert rest == {number: number for number in range(10, 5000) if number != 21} | {20: -20}
    assert len(state._entries[1].entries) == 2


def test_an_iteration_continues_after_a_barrier_and_a_clear(harness):
    backend = harness.open(RocksDBStateBackend())
    harness.at(backend, 1)
    state = backend.get_state(MAP)
    state.put_all({number: number for number in range(5000)})
    scanned, cached = None, state.items()
    assert next(cached) == (0, 0)
    harness.snapshot(backend)
    scanned = state.items()
    assert next(scanned) == (0, 0)
    state.put(1, -1)
    harness.snapshot(backend)
    assert (next(scanned), next(cached)) == ((1, -1), (1, -1))
    state.clear()
    state.put(3000, 1)
    assert (list(scanned), list(cached)) == ([(3000, 1)], [(3000, 1)])
    backend.close()


def test_an_iteration_of_a_closed_backend_is_not_reported_as_complete(harness):
    backend = harness.open(RocksDBStateBackend())
    harness.at(backend, 1)
    state = backend.get_state(MAP)
    state.put_all({number: number for number in range(5000)})
    harness.snapshot(backend)
    items = state.items()
    next(items)
    backend.close()
    with pytest.raises(StateBackendClosedError):
        list(items)


@pytest.mark.parametrize("cache_entries", [DEFAULT_CACHE_ENTRIES, 3])
def test_read_ahead_is_visible_only_in_the_store(tmp_path, cache_entries):
    harness = BackendHarness(tmp_path)
    backend = harness.open(RocksDBStateBackend(cache_entries=cache_entries))
    total, set_key = backend.get_state(TOTAL), backend.key_setter()
    keys = list(range(6))
    groups = [harness.key_group(key) for key in keys]
    for key, group in zip(keys[:4], groups, strict=False):
        set_key(key, group)
        total.add(10 + key)
    harness.snapshot(backend)
    set_key(0, groups[0])
    total.add(100)
    total.read_ahead(keys, groups)
    # A hint reports neither an invalid key nor a key group of another subtask.
    total.read_ahead(["no number"], [0])
    total.read_ahead([1], [99])
    seen = []
    for key, group in zip(keys, groups, strict=True):
        set_key(key, group)
        seen.append(total.get())
    assert seen == [110, 11, 12, 13, None, None]
