"""Random events on heap and RocksDB against plain dicts: writes, barriers, crashes, savepoints, upgrades.

All kinds of state and a priority queue take part. Some states have namespaces, whose serializer is reconfigured after
the upgrade.

States are registered at their first use, so most epochs have some unregistered state. A crash reverts both sides and
the model to the last barrier or savepoint. Between barriers, snapshots are prepared, and written by another thread in
any order, cancelled, or failed.
"""

import contextlib
import copy
import itertools
import operator
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from statebackend import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    PriorityQueueDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.checkpoint.errors import StorageError
from statebackend.state.key_groups import KeyGroupRange, key_group_range_of_subtask, subtask_of_key_group
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.snapshot_task import SnapshotTaskState
from statebackend.state.state_backend import state_backend
from statebackend.state.states import AggregateFunction
from statebackend.testing.backends.evolving_records import (
    DelayV1,
    FlightV1,
    LegV1,
    LegV2,
    flight_v1,
    flight_v2,
    leg_v1,
    leg_v2,
    migrated_flight,
    migrated_leg,
)
from statebackend.testing.backends.evolving_serializers import WordSerializer
from statebackend.testing.backends.gated_stores import GatedFileSystem
from statebackend.testing.backends.harness import BackendHarness

pytestmark = pytest.mark.slow

MAX_PARALLELISM = 4
MAX_PREPARED = 3

TIMERS = PriorityQueueDescriptor("timers", tuple[int, str])
"""Positive longs are written in their order; the texts are of one length."""

KEYS = st.integers(0, 7)
NUMBERS = st.integers(-3, 3)
NAMESPACES = st.sampled_from(["red", "green", "blue"])
TIMES = st.tuples(st.integers(0, 12), st.sampled_from(["a", "b", "c"]))
USER_KEYS = st.sampled_from(["", "a", "ab", "b", "é"])


def flight(number):
    delay = DelayV1(number, "fog") if number % 2 else None
    return FlightV1(number, number * 10, "UA", delay)


def leg(number):
    return LegV1(f"airport {number}", number)


FLIGHT = {1: flight, 2: lambda number: migrated_flight(flight(number))}
LEG = {1: leg, 2: lambda number: migrated_leg(leg(number))}


class Minutes(AggregateFunction):
    """Sums in a mutable accumulator of a record class that evolves."""

    def __init__(self, record_class):
        self.record_class = record_class

    def create_accumulator(self):
        return self.record_class("", 0)

    def add(self, value, accumulator):
        accumulator.minutes += value
        return accumulator

    def get_result(self, accumulator):
        return [accumulator.minutes]

    def merge(self, left, right):
        left.minutes += right.minutes
        return left


def descriptors(flight_serializer, leg_serializer, minutes):
    return {
        "value": ValueStateDescriptor("value", flight_serializer),
        "list": ListStateDescriptor("list", leg_serializer),
        "map": MapStateDescriptor("map", str, flight_serializer),
        "count": ValueStateDescriptor("count", int),
        "total": ReducingStateDescriptor("total", operator.add, int),
        "minutes": AggregatingStateDescriptor("minutes", minutes, leg_serializer),
        "pane": ListStateDescriptor("pane", int),
        "pane total": ReducingStateDescriptor("pane total", operator.add, int),
        "pane minutes": AggregatingStateDescriptor("pane minutes", minutes, leg_serializer),
    }


DESCRIPTORS = {
    1: descriptors(flight_v1(), leg_v1(), Minutes(LegV1)),
    2: descriptors(flight_v2(), leg_v2(), Minutes(LegV2)),
}

NAMESPACED = ["pane", "pane total", "pane minutes"]
NAMESPACE_SERIALIZERS = {
    1: WordSerializer("red", "green", "blue"),
    2: WordSerializer("black", "blue", "green", "red"),
}

READERS = {
    "value": lambda state: state.value(),
    "list": lambda state: state.get(),
    "map": lambda state: dict(state.items()),
    "count": lambda state: state.value(),
    "total": lambda state: state.get(),
    "minutes": lambda state: state.get(),
    "pane": lambda state: state.get(),
    "pane total": lambda state: state.get(),
    "pane minutes": lambda state: state.get(),
}


def harness_in(directory):
    """A harness whose store fails on request."""
    harness = BackendHarness(directory, MAX_PARALLELISM)
    harness.file_system = GatedFileSystem.from_uri(harness.file_system.uri)
    return harness


def on_another_thread(function):
    """The result of the function called in another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


class Side:
    """All subtasks of the operator on one backend."""

    def __init__(self, backend, harness):
        self.backend = backend
        self.harness = harness
        self.store = harness.file_system
        self.handles = ()
        self.subtasks = []

    def open(self, handles, parallelism, version, reuse_local):
        self.close()
        self.handles, self.version = handles, version
        for subtask in range(parallelism):
            wanted = key_group_range_of_subtask(subtask, parallelism, MAX_PARALLELISM)
            chosen = [
                handle
                for handle in handles
                if wanted.overlaps(KeyGroupRange(handle.key_group_start, handle.key_group_end))
            ]
            local = f"{parallelism}-{subtask}" if reuse_local else None
            self.subtasks.append(
                self.harness.open(self.backend, *chosen, subtask=subtask, parallelism=parallelism, local=local)
            )
            if not handles:
                # A serializer that is reconfigured in one subtask and new in another would differ forever. So states
                # that will be reconfigured are registered everywhere from the start, as open() does.
                for name in NAMESPACED:
                    self.register(self.subtasks[-1], name)

    def state(self, name, key, namespace=None):
        group = self.harness.key_group(key)
        backend = self.subtasks[subtask_of_key_group(group, len(self.subtasks), MAX_PARALLELISM)]
        self.harness.at(backend, key)
        state = self.register(backend, name)
        if namespace is not None:
            state.set_current_namespace(namespace)
        return state

    def register(self, backend, name):
        descriptor = DESCRIPTORS[self.version][name]
        if name not in NAMESPACED:
            return backend.get_state(descriptor)
        return backend.get_or_create_keyed_state(NAMESPACE_SERIALIZERS[self.version], descriptor)

    def queues(self):
        return [backend.get_priority_queue(TIMERS) for backend in self.subtasks]

    def queue_of(self, timer):
        """The queue of the subtask of a timer, and its key group."""
        group = self.harness.key_group(timer[0])
        return self.queues()[subtask_of_key_group(group, len(self.subtasks), MAX_PARALLELISM)], group

    def barrier(self):
        self.handles = tuple(self.harness.snapshot(backend).handle for backend in self.subtasks)

    def savepoint(self):
        return tuple(self.harness.export(backend, f"part-{number}") for number, backend in enumerate(self.subtasks))

    def content(self, name):
        result = {}
        for backend in self.subtasks:
            if name not in NAMESPACED:
                addresses = [(key, None) for key in backend.get_keys(name)]
            else:
                # The namespaces of restored state can be listed before it is registered.
                addresses = list(backend.get_keys_and_namespaces(name))
            for key, namespace in addresses:
                address = key if namespace is None else (key, namespace)
                assert address not in result
                result[address] = READERS[name](self.state(name, key, namespace))
        return result

    def close(self):
        self.harness.close(self.subtasks)
        self.subtasks = []


class KeyedStateMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.sides = [
            Side(state_backend("heap"), harness_in(f"{self.directory}/heap")),
            # A cache of three keys is written out in the middle of most epochs.
            Side(RocksDBStateBackend(cache_entries=3), harness_in(f"{self.directory}/rocksdb")),
        ]
        self.model = {name: {} for name in DESCRIPTORS[1]}
        self.model["timers"] = set()
        self.committed = copy.deepcopy(self.model)
        self.version = self.committed_version = 1
        self.numbers = itertools.count()
        self.committed_number = -1
        self.prepared = []

    @initialize(parallelism=st.integers(1, 2))
    def start(self, parallelism):
        self.parallelism = parallelism
        for side in self.sides:
            side.open((), parallelism, 1, reuse_local=True)

    def on_each(self, name, key, action, namespace=None):
        return [action(side.state(name, key, namespace)) for side in self.sides]

    @rule(key=KEYS, number=NUMBERS)
    def set_value(self, key, number):
        self.on_each("value", key, lambda state: state.update(FLIGHT[self.version](number)))
        self.model["value"][key] = number

    @rule(key=KEYS, name=st.sampled_from(["value", "list", "map", "count", "total", "minutes"]))
    def clear(self, key, name):
        self.on_each(name, key, lambda state: state.clear())
        self.model[name].pop(key, None)

    @rule(key=KEYS)
    def count(self, key):
        for side in self.sides:
            state = side.state("count", key)
            state.update((state.value() or 0) + 1)
        self.model["count"][key] = self.model["count"].get(key, 0) + 1

    @rule(key=KEYS, numbers=st.lists(NUMBERS, max_size=3), replaces=st.booleans())
    def write_list(self, key, numbers, replaces):
        elements = [LEG[self.version](number) for number in numbers]
        self.on_each("list", key, lambda state: (state.update if replaces else state.add_all)(elements))
        result = numbers if replaces else self.model["list"].get(key, []) + numbers
        if result:
            self.model["list"][key] = result
        else:
            self.model["list"].pop(key, None)

    @rule(key=KEYS, entries=st.dictionaries(USER_KEYS, st.none() | NUMBERS, min_size=1, max_size=3))
    def put(self, key, entries):
        built = {user_key: self.flight_or_none(number) for user_key, number in entries.items()}
        self.on_each("map", key, lambda state: state.put_all(built))
        self.model["map"].setdefault(key, {}).update(entries)

    @rule(key=KEYS, user_key=USER_KEYS)
    def remove(self, key, user_key):
        self.on_each("map", key, lambda state: state.remove(user_key))
        entries = self.model["map"].get(key, {})
        entries.pop(user_key, None)
        if not entries:
            self.model["map"].pop(key, None)

    @rule(key=KEYS, numbers=st.lists(NUMBERS, min_size=1, max_size=3))
    def fold(self, key, numbers):
        for name in ("total", "minutes"):
            self.on_each(name, key, lambda state: [state.add(number) for number in numbers])
            self.model[name][key] = self.model[name].get(key, 0) + sum(numbers)

    @rule(key=KEYS, namespace=NAMESPACES, number=NUMBERS)
    def add_to_pane(self, key, namespace, number):
        for name in NAMESPACED:
            self.on_each(name, key, lambda state: state.add(number), namespace)
            content = self.model[name].setdefault((key, namespace), [])
            content.append(number)

    @rule(key=KEYS, namespace=NAMESPACES, name=st.sampled_from(NAMESPACED))
    def clear_pane(self, key, namespace, name):
        self.on_each(name, key, lambda state: state.clear(), namespace)
        self.model[name].pop((key, namespace), None)

    @rule(key=KEYS, into=NAMESPACES, sources=st.lists(NAMESPACES, max_size=3), name=st.sampled_from(NAMESPACED))
    def merge_panes(self, key, into, sources, name):
        self.on_each(name, key, lambda state: state.merge_namespaces(into, sources))
        for source in sources:
            if source != into and (key, source) in self.model[name]:
                self.model[name].setdefault((key, into), []).extend(self.model[name].pop((key, source)))

    @rule(namespace=NAMESPACES, name=st.sampled_from(NAMESPACED))
    def drop_every_other_pane(self, namespace, name):
        for side in self.sides:
            for backend in side.subtasks:
                backend.apply_to_all_keys(
                    namespace,
                    NAMESPACE_SERIALIZERS[self.version],
                    DESCRIPTORS[self.version][name],
                    lambda key, state: state.clear() if key % 2 else state.add(key),
                )
        for key, found in list(self.model[name]):
            if found == namespace and key % 2:
                del self.model[name][key, found]
            elif found == namespace:
                self.model[name][key, found].append(key)

    @rule(timers=st.lists(TIMES, min_size=1, max_size=5))
    def add_timers(self, timers):
        for timer in timers:
            is_new = timer not in self.model["timers"]
            self.model["timers"].add(timer)
            for side in self.sides:
                queue, group = side.queue_of(timer)
                assert queue.add(timer, group) is (is_new and queue.peek() == timer)

    @rule(timer=TIMES)
    def remove_timer(self, timer):
        is_known = timer in self.model["timers"]
        self.model["timers"].discard(timer)
        for side in self.sides:
            queue, group = side.queue_of(timer)
            was_head = queue.peek() == timer
            assert queue.remove(timer, group) is (is_known and was_head)

    @rule(number=st.integers(0, 12), adds=st.lists(TIMES, max_size=2))
    def poll_timers(self, number, adds):
        """Timers up to a number are due; at each, others may be added that are not due."""
        due = sorted(timer for timer in self.model["timers"] if timer[0] <= number)
        later = {(time + 13, name) for time, name in adds}
        for side in self.sides:
            polled = []
            for queue in side.queues():
                for timer, group in queue.poll_while(lambda timer: timer[0] <= number):
                    assert group == side.harness.key_group(timer[0])
                    polled.append(timer)
                    for added in later:
                        target, added_group = side.queue_of(added)
                        target.add(added, added_group)
            assert sorted(polled) == due
        self.model["timers"] -= set(due)
        if due:
            self.model["timers"] |= later

    @rule(key=KEYS, user_key=USER_KEYS)
    def read(self, key, user_key):
        expected = self.expected()
        entries = expected["map"].get(key, {})
        assert self.on_each("value", key, lambda state: state.value()) == [expected["value"].get(key)] * 2
        assert self.on_each("list", key, lambda state: state.get()) == [expected["list"].get(key, [])] * 2
        assert self.on_each("map", key, lambda state: state.get(user_key)) == [entries.get(user_key)] * 2
        assert self.on_each("map", key, lambda state: state.contains(user_key)) == [user_key in entries] * 2
        assert self.on_each("map", key, lambda state: state.is_empty()) == [not entries] * 2
        assert self.on_each("map", key, lambda state: dict(state.items())) == [entries] * 2
        assert self.on_each("total", key, lambda state: state.get()) == [expected["total"].get(key)] * 2
        assert self.on_each("minutes", key, lambda state: state.get()) == [expected["minutes"].get(key)] * 2

    @rule(key=KEYS, namespace=NAMESPACES, name=st.sampled_from(NAMESPACED))
    def read_pane(self, key, namespace, name):
        nothing = [] if name == "pane" else None
        content = self.expected()[name].get((key, namespace), nothing)
        assert self.on_each(name, key, lambda state: state.get(), namespace) == [content] * 2
        keys = sorted(key for key, found in self.model[name] if found == namespace)
        for side in self.sides:
            assert sorted(key for part in side.subtasks for key in part.get_keys(name, namespace)) == keys

    @rule()
    def barrier(self):
        for side in self.sides:
            side.barrier()
        self.commit()

    @precondition(lambda self: len(self.prepared) < MAX_PREPARED)
    @rule()
    def prepare(self):
        tasks = [[side.harness.prepare(backend) for backend in side.subtasks] for side in self.sides]
        self.prepared.append((next(self.numbers), tasks, copy.deepcopy(self.model)))

    @precondition(lambda self: self.prepared)
    @rule(chosen=st.integers(0, MAX_PREPARED - 1), looks_into=st.booleans())
    def write(self, chosen, looks_into):
        """In any order: a crash restores the latest prepared one of those written."""
        number, tasks, model = self.prepared.pop(chosen % len(self.prepared))
        for side, own in zip(self.sides, tasks, strict=True):
            handles = tuple(on_another_thread(task.run).handle for task in own)
            if number > self.committed_number:
                side.handles = handles
            if looks_into:
                restored = Side(side.backend, side.harness)
                restored.open(handles, self.parallelism, self.version, reuse_local=False)
                self.check_side(restored, model)
                restored.close()
        if number > self.committed_number:
            self.committed, self.committed_version, self.committed_number = model, self.version, number

    @precondition(lambda self: self.prepared)
    @rule(chosen=st.integers(0, MAX_PREPARED - 1))
    def cancel(self, chosen):
        for tasks in self.prepared.pop(chosen % len(self.prepared))[1]:
            for task in tasks:
                assert task.cancel()

    @precondition(lambda self: self.prepared)
    @rule(chosen=st.integers(0, MAX_PREPARED - 1), written=st.integers(0, 3))
    def fail(self, chosen, written):
        """The store fails after some files; a subtask without files succeeds."""
        for side, own in zip(self.sides, self.prepared.pop(chosen % len(self.prepared))[1], strict=True):
            for task in own:
                side.store.fails_from_write = written
                with contextlib.suppress(StorageError):
                    task.run()
                side.store.fails_from_write = None

    @rule(reuse_local=st.booleans())
    def crash(self, reuse_local):
        self.model, self.version = copy.deepcopy(self.committed), self.committed_version
        self.reopen([side.handles for side in self.sides], reuse_local)

    @rule(parallelism=st.integers(1, 3), reuse_local=st.booleans())
    def rescale(self, parallelism, reuse_local):
        self.barrier()
        self.parallelism = parallelism
        self.reopen([side.handles for side in self.sides], reuse_local)

    @rule(parallelism=st.integers(1, 3), swap=st.booleans(), reuse_local=st.booleans())
    def savepoint(self, parallelism, swap, reuse_local):
        savepoints = [side.savepoint() for side in self.sides]
        stores = [side.harness.file_system for side in self.sides]
        self.commit()
        self.parallelism = parallelism
        if swap:
            # The two backends change places. Each restores from the store that the other wrote.
            self.sides[0].close()
            self.sides[1].close()
            self.sides[0].backend, self.sides[1].backend = self.sides[1].backend, self.sides[0].backend
        assert stores == [side.harness.file_system for side in self.sides]
        self.reopen(savepoints, reuse_local)

    @precondition(lambda self: self.version == 1)
    @rule(parallelism=st.integers(1, 3))
    def upgrade(self, parallelism):
        self.barrier()
        self.version, self.parallelism = 2, parallelism
        self.reopen([side.handles for side in self.sides], reuse_local=True)
        # All states of all subtasks migrate together, as when open() registers them.
        for side in self.sides:
            for backend in side.subtasks:
                for name in DESCRIPTORS[2]:
                    side.register(backend, name)
        self.check_everything()
        self.barrier()

    def reopen(self, handles, reuse_local):
        for side, chosen in zip(self.sides, handles, strict=True):
            side.open(chosen, self.parallelism, self.version, reuse_local)
        for _, tasks, _ in self.prepared:
            for task in itertools.chain.from_iterable(tasks):
                assert task.state is SnapshotTaskState.CANCELLED
        self.prepared = []

    def commit(self):
        self.committed, self.committed_version = copy.deepcopy(self.model), self.version
        self.committed_number = next(self.numbers)

    def flight_or_none(self, number):
        return None if number is None else FLIGHT[self.version](number)

    def expected(self, model=None):
        model = self.model if model is None else model
        return {
            "value": {key: FLIGHT[self.version](number) for key, number in model["value"].items()},
            "list": {key: [LEG[self.version](number) for number in numbers] for key, numbers in model["list"].items()},
            "map": {
                key: {user_key: self.flight_or_none(number) for user_key, number in entries.items()}
                for key, entries in model["map"].items()
            },
            "count": dict(model["count"]),
            "total": dict(model["total"]),
            "minutes": {key: [total] for key, total in model["minutes"].items()},
            "pane": {address: list(numbers) for address, numbers in model["pane"].items()},
            "pane total": {address: sum(numbers) for address, numbers in model["pane total"].items()},
            "pane minutes": {address: [sum(numbers)] for address, numbers in model["pane minutes"].items()},
        }

    def check_everything(self):
        for side in self.sides:
            self.check_side(side, self.model)

    def check_side(self, side, model):
        expected = self.expected(model)
        assert sorted(timer for queue in side.queues() for timer in queue) == sorted(model["timers"])
        assert {name: side.content(name) for name in expected} == expected

    def teardown(self):
        try:
            if self.sides[0].subtasks:
                self.check_everything()
        finally:
            for side in self.sides:
                side.harness.close()
            shutil.rmtree(self.directory)


SETTINGS = settings(max_examples=examples(32), stateful_step_count=30)


def test_both_backends_equal_the_model():
    run_state_machine_as_test(KeyedStateMachine, settings=SETTINGS)
