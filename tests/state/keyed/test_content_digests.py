"""Equal content has equal digests, for any order of keys and any number of cache flushes."""

import shutil
import tempfile

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import ListStateDescriptor, MapStateDescriptor, PriorityQueueDescriptor, ValueStateDescriptor
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.testing.backends.harness import BackendHarness
from typeserializers.scalars.fixed_width import LongSerializer

VALUE = ValueStateDescriptor("value", str)
LIST = ListStateDescriptor("list", str)
MAP = MapStateDescriptor("map", int, int)
STATES = (VALUE, LIST, MAP)

TEXTS = st.sampled_from(["", "a", "ab", "b" * 40])
NUMBERS = st.integers(0, 4)


def call(descriptor, name, *arguments):
    return st.builds(lambda *given: (descriptor, name, given), *arguments)


STEPS = st.one_of(
    call(VALUE, "update", TEXTS),
    call(VALUE, "clear"),
    call(VALUE, "value"),
    call(LIST, "add", TEXTS),
    call(LIST, "update", st.lists(TEXTS, max_size=3)),
    call(LIST, "clear"),
    call(LIST, "get"),
    call(MAP, "put", NUMBERS, NUMBERS),
    call(MAP, "remove", NUMBERS),
    call(MAP, "clear"),
    call(MAP, "is_empty"),
)
KEYS = st.integers(0, 3)


def apply(harness, backend, key, step):
    descriptor, name, arguments = step
    harness.at(backend, key)
    getattr(backend.get_state(descriptor), name)(*arguments)


def contents(harness, backend):
    held = {}
    for key in range(4):
        harness.at(backend, key)
        value, elements, entries = (backend.get_state(descriptor) for descriptor in STATES)
        held[key] = value.value(), elements.get(), dict(entries.items())
    return held


def permuted(data, steps):
    """The steps of each key in order, interleaved with other keys in any order."""
    left = {key: [step for other, step in steps if other == key] for key, _ in steps}
    order = []
    while left:
        key = data.draw(st.sampled_from(sorted(left)))
        order.append((key, left[key].pop(0)))
        left = {key: rest for key, rest in left.items() if rest}
    return order


@given(st.data(), st.lists(st.tuples(KEYS, STEPS), max_size=8), st.lists(st.tuples(KEYS, STEPS), max_size=20))
@settings(max_examples=examples(12))
def test_equal_contents_have_equal_digests(data, base, steps):
    directory = tempfile.mkdtemp()
    harness = BackendHarness(directory)
    try:
        for backends in (
            [HeapStateBackend()] * 2,
            [RocksDBStateBackend(), RocksDBStateBackend(cache_entries=2), RocksDBStateBackend(cache_bytes=600)],
        ):
            first = harness.open(backends[0])
            for descriptor in STATES:
                first.get_state(descriptor)
            for key, step in base:
                apply(harness, first, key, step)
            handle = harness.snapshot(first).handle
            outcomes = set()
            for state_backend in backends:
                backend = harness.open(state_backend, handle)
                for key, step in permuted(data, steps):
                    apply(harness, backend, key, step)
                digest = harness.snapshot(backend).digest
                outcomes.add((repr(contents(harness, backend)), digest))
                backend.close()
            assert len(outcomes) == 1
            first.close()
    finally:
        harness.close()
        shutil.rmtree(directory)


def test_an_incremental_cleanup_does_not_change_a_digest(tmp_path):
    harness = BackendHarness(str(tmp_path))
    now = [1000]
    harness.clock = lambda: now[0]
    ttl = StateTtlConfig(ttl_ms=100)
    descriptors = [
        ValueStateDescriptor("value", int, ttl=ttl),
        ListStateDescriptor("list", int, ttl=ttl),
        MapStateDescriptor("map", int, int, ttl=ttl),
    ]
    backend = harness.open(RocksDBStateBackend())
    for key in range(4):
        harness.at(backend, key)
        value, elements, entries = map(backend.get_state, descriptors)
        now[0] = 1000 if key < 2 else 1090
        value.update(key)
        elements.add(key)
        entries.put(key, key)
        now[0] = 1090
        elements.add(7)
    handle = harness.snapshot(backend).handle
    backend.close()
    now[0] = 1150
    digests = set()
    for met in ([], [1], [3, 0, 1]):
        backend = harness.open(RocksDBStateBackend(cache_entries=2), handle)
        states = [backend.get_state(descriptor) for descriptor in descriptors]
        for key in met:
            harness.at(backend, key)
            for state in states:
                state.remove_expired()
        harness.at(backend, 2)
        states[0].update(5)
        states[1].add(5)
        digests.add(harness.snapshot(backend).digest)
        backend.close()
    assert len(digests) == 1
    harness.close()


def test_a_timer_set_and_fired_in_one_epoch_leaves_nothing(tmp_path):
    harness = BackendHarness(str(tmp_path))
    queue_of = PriorityQueueDescriptor("timers", LongSerializer())
    backend = harness.open(RocksDBStateBackend())
    queue = backend.get_priority_queue(queue_of)
    idle = harness.snapshot(backend)
    queue.add(5, 1)
    assert queue.poll() == 5
    fired = harness.snapshot(backend)
    assert (fired.digest, fired.entries_written, fired.bytes_written) == (idle.digest, 0, 0)
    harness.close()
