"""Random events on heap and RocksDB side by side, against plain dicts: writes, barriers, crashes, savepoints, upgrades.

States are registered when they are first used, so that most epochs carry some state that nobody has registered. A crash
takes everything back to the last barrier or savepoint, on both sides and in the model.
"""

import copy
import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from statebackend.backend_registry import state_backend
from statebackend.contract.harness import BackendHarness
from statebackend.contract.schemas import (
    DelayV1,
    FlightV1,
    LegV1,
    flight_v1,
    flight_v2,
    leg_v1,
    leg_v2,
    migrated_flight,
    migrated_leg,
)
from statebackend.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from statebackend.key_groups import KeyGroupRange, key_group_range_of_subtask, subtask_of_key_group
from statebackend.rocksdb.keyed_backend import RocksDBStateBackend

MAX_PARALLELISM = 4

KEYS = st.integers(0, 7)
NUMBERS = st.integers(-3, 3)
USER_KEYS = st.sampled_from(["", "a", "ab", "b", "é"])


def flight(number):
    delay = DelayV1(number, "fog") if number % 2 else None
    return FlightV1(number, number * 10, "UA", delay)


def leg(number):
    return LegV1(f"airport {number}", number)


FLIGHT = {1: flight, 2: lambda number: migrated_flight(flight(number))}
LEG = {1: leg, 2: lambda number: migrated_leg(leg(number))}

DESCRIPTORS = {
    1: {
        "value": ValueStateDescriptor("value", flight_v1()),
        "list": ListStateDescriptor("list", leg_v1()),
        "map": MapStateDescriptor("map", str, flight_v1()),
        "count": ValueStateDescriptor("count", int),
    },
    2: {
        "value": ValueStateDescriptor("value", flight_v2()),
        "list": ListStateDescriptor("list", leg_v2()),
        "map": MapStateDescriptor("map", str, flight_v2()),
        "count": ValueStateDescriptor("count", int),
    },
}


class Side:
    """All subtasks of the operator on one backend."""

    def __init__(self, backend, directory):
        self.backend = backend
        self.harness = BackendHarness(directory, MAX_PARALLELISM)
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

    def state(self, name, key):
        group = self.harness.key_group(key)
        backend = self.subtasks[subtask_of_key_group(group, len(self.subtasks), MAX_PARALLELISM)]
        self.harness.at(backend, key)
        return backend.get_state(DESCRIPTORS[self.version][name])

    def barrier(self):
        self.handles = tuple(self.harness.snapshot(backend).handle for backend in self.subtasks)

    def savepoint(self):
        return tuple(self.harness.export(backend, f"part-{number}") for number, backend in enumerate(self.subtasks))

    def content(self, name):
        result = {}
        for backend in self.subtasks:
            for key in list(backend.get_keys(name)):
                assert key not in result
                state = self.state(name, key)
                if name == "map":
                    result[key] = dict(state.items())
                else:
                    result[key] = state.get() if name == "list" else state.value()
        return result

    def close(self):
        self.harness.close(self.subtasks)
        self.subtasks = []


class KeyedStateMachine(RuleBasedStateMachine):
    def __init__(self, parent_directory):
        super().__init__()
        self.directory = tempfile.mkdtemp(dir=parent_directory)
        self.sides = [
            Side(state_backend("heap"), f"{self.directory}/heap"),
            # A cache of three keys is written out in the middle of most epochs.
            Side(RocksDBStateBackend(cache_entries=3), f"{self.directory}/rocksdb"),
        ]
        self.model = {name: {} for name in DESCRIPTORS[1]}
        self.committed = copy.deepcopy(self.model)
        self.version = self.committed_version = 1

    @initialize(parallelism=st.integers(1, 2))
    def start(self, parallelism):
        self.parallelism = parallelism
        for side in self.sides:
            side.open((), parallelism, 1, reuse_local=True)

    def on_each(self, name, key, action):
        return [action(side.state(name, key)) for side in self.sides]

    @rule(key=KEYS, number=NUMBERS)
    def set_value(self, key, number):
        self.on_each("value", key, lambda state: state.update(FLIGHT[self.version](number)))
        self.model["value"][key] = number

    @rule(key=KEYS, name=st.sampled_from(["value", "list", "map", "count"]))
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

    @rule()
    def barrier(self):
        for side in self.sides:
            side.barrier()
        self.commit()

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
            # The backends change places: what one has written, the other restores from the same store.
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
        # All states of all subtasks migrate together, as they do when open() registers them.
        for side in self.sides:
            for backend in side.subtasks:
                for descriptor in DESCRIPTORS[2].values():
                    backend.get_state(descriptor)
        self.check_everything()
        self.barrier()

    def reopen(self, handles, reuse_local):
        for side, chosen in zip(self.sides, handles, strict=True):
            side.open(chosen, self.parallelism, self.version, reuse_local)

    def commit(self):
        self.committed, self.committed_version = copy.deepcopy(self.model), self.version

    def flight_or_none(self, number):
        return None if number is None else FLIGHT[self.version](number)

    def expected(self):
        return {
            "value": {key: FLIGHT[self.version](number) for key, number in self.model["value"].items()},
            "list": {
                key: [LEG[self.version](number) for number in numbers] for key, numbers in self.model["list"].items()
            },
            "map": {
                key: {user_key: self.flight_or_none(number) for user_key, number in entries.items()}
                for key, entries in self.model["map"].items()
            },
            "count": dict(self.model["count"]),
        }

    def check_everything(self):
        expected = self.expected()
        for side in self.sides:
            assert {name: side.content(name) for name in expected} == expected

    def teardown(self):
        try:
            if self.sides[0].subtasks:
                self.check_everything()
        finally:
            for side in self.sides:
                side.harness.close()
            shutil.rmtree(self.directory)


SETTINGS = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_both_backends_do_what_the_model_does(directory_in_memory):
    run_state_machine_as_test(lambda: KeyedStateMachine(directory_in_memory), settings=SETTINGS)
