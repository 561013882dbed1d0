"""Random events on state with TTL, on heap and RocksDB, against plain dicts.

Events move the clock, take snapshots, crash, rescale, restore a savepoint of one backend into the other, and upgrade.
An upgrade adds, removes or changes the time-to-live of states, together with the schema.

The model of a side records when each entry was last accessed, and whether it ever expired while it was stored. Such an
entry is *doomed*: it may be removed or not. That shows only when an upgrade removes its time-to-live or extends it.
Then both results are correct, and the model continues with the entries that it finds.
"""

import copy
import operator
import shutil
import tempfile

import pytest
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from statebackend import (
    IncrementalCleanup,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    TtlUpdateType,
    ValueStateDescriptor,
)
from statebackend.state.key_groups import KeyGroupRange, key_group_range_of_subtask, subtask_of_key_group
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.evolving_records import (
    FlightV1,
    LegV1,
    flight_v1,
    flight_v2,
    leg_v1,
    leg_v2,
    migrated_flight,
    migrated_leg,
)
from statebackend.testing.backends.harness import BackendHarness, ManualClock

pytestmark = pytest.mark.slow

MAX_PARALLELISM = 4
NAMES = ("value", "list", "map", "sum")

KEYS = st.integers(0, 3)
NUMBERS = st.integers(-3, 3)
USER_KEYS = st.sampled_from(["", "a", "ab"])
DELAYS_MS = st.sampled_from([50, 20, 30, 49, 1, 120])

TTLS = st.sampled_from(
    [
        StateTtlConfig(50, incremental_cleanup=IncrementalCleanup(2)),
        StateTtlConfig(50, cleanup_full_snapshot=False, incremental_cleanup=None),
        StateTtlConfig(120, update_type=TtlUpdateType.ON_READ_AND_WRITE, incremental_cleanup=None),
        StateTtlConfig(200, update_type=TtlUpdateType.ON_READ_AND_WRITE),
        None,
    ]
)


def flight(version, number):
    if number is None:
        return None
    old = FlightV1(number, number * 10, "UA", None)
    return old if version == 1 else migrated_flight(old)


def leg(version, number):
    old = LegV1(f"airport {number}", number)
    return old if version == 1 else migrated_leg(old)


def descriptors(version, ttls):
    flights, legs = (flight_v1(), leg_v1()) if version == 1 else (flight_v2(), leg_v2())
    return {
        "value": ValueStateDescriptor("value", flights, ttl=ttls["value"]),
        "list": ListStateDescriptor("list", legs, ttl=ttls["list"]),
        "map": MapStateDescriptor("map", str, flights, ttl=ttls["map"]),
        "sum": ReducingStateDescriptor("sum", operator.add, int, ttl=ttls["sum"]),
    }


class Entry:
    """A number and its timestamp."""

    def __init__(self, number, accessed_ms):
        self.number = number
        self.accessed_ms = accessed_ms
        self.is_doomed = False


class Model:
    """The content of one side: per state and key a list of entries, or a dict of them for a map."""

    def __init__(self):
        self.states = {name: {} for name in NAMES}
        self.version = 1
        self.ttls = dict.fromkeys(NAMES)

    def entries(self, name):
        for entries in self.states[name].values():
            yield from entries.values() if name == "map" else entries

    def pass_time(self, now_ms):
        for name, ttl in self.ttls.items():
            if ttl is not None:
                for entry in self.entries(name):
                    entry.is_doomed |= entry.accessed_ms + ttl.ttl_ms <= now_ms

    def alive(self, name, key):
        """The visible entries of a key."""
        entries = self.states[name].get(key, {} if name == "map" else [])
        if name == "map":
            return {user_key: entry for user_key, entry in entries.items() if not entry.is_doomed}
        return [entry for entry in entries if not entry.is_doomed]

    def renew(self, name, entries, now_ms):
        ttl = self.ttls[name]
        if ttl is not None and ttl.update_type is TtlUpdateType.ON_READ_AND_WRITE:
            for entry in entries:
                entry.accessed_ms = now_ms

    def read(self, name, key, now_ms):
        """The result and effect of reading everything under the key."""
        alive = self.alive(name, key)
        if name == "map":
            self.renew(name, alive.values(), now_ms)
            return {user_key: flight(self.version, entry.number) for user_key, entry in alive.items()}
        self.renew(name, alive, now_ms)
        if name == "list":
            return [leg(self.version, entry.number) for entry in alive]
        made = {"value": lambda number: flight(self.version, number), "sum": lambda number: number}[name]
        return made(alive[0].number) if alive else None

    def adopt(self, name, key, found):
        """Continue with the entries found after an upgrade. All entries that are not doomed must be found, in order."""
        entries = self.states[name].pop(key, {} if name == "map" else [])
        if name == "map":
            assert set(found) <= set(entries)
            kept = {user_key: entry for user_key, entry in entries.items() if user_key in found}
            assert {k: flight(self.version, entry.number) for k, entry in kept.items()} == found
            gone = [entry for user_key, entry in entries.items() if user_key not in found]
        else:
            wanted = found if name == "list" else [] if found is None else [found]
            made = {"list": leg, "value": flight, "sum": lambda version, number: number}[name]
            kept, gone, wanted = [], [], list(wanted)
            # Remaining entries keep their order. Of equal entries, one that is not doomed must stay.
            for position, entry in enumerate(entries):
                later = [made(self.version, one.number) for one in entries[position + 1 :] if not one.is_doomed]
                matches = wanted and made(self.version, entry.number) == wanted[0]
                if matches and (not entry.is_doomed or len(wanted) > len(later)):
                    kept.append(entry)
                    wanted.pop(0)
                else:
                    gone.append(entry)
            assert wanted == []
        assert all(entry.is_doomed for entry in gone)
        for entry in kept.values() if name == "map" else kept:
            entry.is_doomed = False
        if kept:
            self.states[name][key] = kept


READERS = {
    "value": lambda state: state.value(),
    "list": lambda state: state.get(),
    "map": lambda state: dict(state.items()),
    "sum": lambda state: state.get(),
}


class Side:
    """All subtasks of the operator on one backend, and their model."""

    def __init__(self, backend, directory, clock):
        self.backend = backend
        self.harness = BackendHarness(directory, MAX_PARALLELISM)
        self.harness.clock = clock
        self.handles = ()
        self.subtasks = []
        self.descriptors = {}
        self.model = Model()
        self.committed = copy.deepcopy(self.model)

    def open(self, handles, parallelism, reuse_local):
        self.harness.close(self.subtasks)
        self.subtasks = []
        self.handles = handles
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
        return backend.get_state(self.descriptors[name])

    def register_all(self):
        """Register every state in every subtask, with new descriptors each time, as in other processes."""
        for backend in self.subtasks:
            self.descriptors = descriptors(self.model.version, self.model.ttls)
            for descriptor in self.descriptors.values():
                backend.get_state(descriptor)

    def barrier(self):
        self.handles = tuple(self.harness.snapshot(backend).handle for backend in self.subtasks)

    def savepoint(self):
        return tuple(self.harness.export(backend, f"part-{number}") for number, backend in enumerate(self.subtasks))


class TtlStateMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.clock = ManualClock(1000)
        self.sides = [
            Side(state_backend("heap"), f"{self.directory}/heap", self.clock),
            Side(RocksDBStateBackend(cache_entries=3), f"{self.directory}/rocksdb", self.clock),
        ]

    @initialize(parallelism=st.integers(1, 2), ttls=st.fixed_dictionaries(dict.fromkeys(NAMES, TTLS)))
    def start(self, parallelism, ttls):
        self.parallelism = parallelism
        for side in self.sides:
            side.model.ttls = dict(ttls)
            side.committed.ttls = dict(ttls)
            side.open((), parallelism, reuse_local=True)
            side.register_all()

    @rule(delay_ms=DELAYS_MS)
    def time_passes(self, delay_ms):
        self.clock.now_ms += delay_ms
        for side in self.sides:
            side.model.pass_time(self.clock.now_ms)

    @rule(key=KEYS, number=NUMBERS)
    def set_value(self, key, number):
        for side in self.sides:
            side.state("value", key).update(flight(side.model.version, number))
            side.model.states["value"][key] = [self.entry(number)]

    @rule(key=KEYS, numbers=st.lists(NUMBERS, max_size=3), replaces=st.booleans())
    def write_list(self, key, numbers, replaces):
        for side in self.sides:
            state = side.state("list", key)
            (state.update if replaces else state.add_all)([leg(side.model.version, number) for number in numbers])
            before = [] if replaces else side.model.states["list"].get(key, [])
            side.model.states["list"][key] = before + [self.entry(number) for number in numbers]

    @rule(key=KEYS, entries=st.dictionaries(USER_KEYS, st.none() | NUMBERS, min_size=1, max_size=3))
    def put(self, key, entries):
        for side in self.sides:
            side.state("map", key).put_all({k: flight(side.model.version, number) for k, number in entries.items()})
            known = side.model.states["map"].setdefault(key, {})
            known.update({user_key: self.entry(number) for user_key, number in entries.items()})

    @rule(key=KEYS, user_key=USER_KEYS)
    def get_and_remove(self, key, user_key):
        for side in self.sides:
            state = side.state("map", key)
            entry = side.model.alive("map", key).get(user_key)
            assert state.contains(user_key) == (entry is not None)
            assert state.get(user_key) == (None if entry is None else flight(side.model.version, entry.number))
            state.remove(user_key)
            side.model.states["map"].get(key, {}).pop(user_key, None)

    @rule(key=KEYS, number=NUMBERS)
    def add(self, key, number):
        for side in self.sides:
            side.state("sum", key).add(number)
            alive = side.model.alive("sum", key)
            side.model.states["sum"][key] = [self.entry(number + sum(entry.number for entry in alive))]

    @rule(key=KEYS, name=st.sampled_from(NAMES))
    def clear(self, key, name):
        for side in self.sides:
            side.state(name, key).clear()
            side.model.states[name].pop(key, None)

    @rule(name=st.sampled_from(NAMES))
    def read(self, name):
        for side in self.sides:
            for key in range(4):
                assert READERS[name](side.state(name, key)) == side.model.read(name, key, self.clock.now_ms)

    @rule(keys=st.sets(KEYS, min_size=1), number=NUMBERS, delays_ms=st.lists(DELAYS_MS, max_size=3))
    def let_everything_age(self, keys, number, delays_ms):
        for key in keys:
            self.set_value(key, number)
            self.write_list(key, [number], False)
            self.put(key, {"a": number, "b": None})
            self.add(key, number)
        for delay_ms in delays_ms:
            self.time_passes(delay_ms)
            for name in NAMES:
                self.read(name)

    @rule(keys=st.sets(KEYS, min_size=1), number=NUMBERS, delay_ms=DELAYS_MS)
    def age_across_a_crash(self, keys, number, delay_ms):
        self.let_everything_age(keys, number, [])
        self.barrier()
        self.time_passes(delay_ms)
        self.crash(reuse_local=True)
        for name in NAMES:
            self.read(name)

    @rule(keys=st.sets(KEYS, min_size=1), number=NUMBERS, delay_ms=DELAYS_MS, swap=st.booleans())
    def age_across_a_savepoint(self, keys, number, delay_ms, swap):
        self.let_everything_age(keys, number, [])
        self.time_passes(delay_ms)
        self.savepoint(self.parallelism, swap, 0)
        for name in NAMES:
            self.read(name)

    @rule()
    def barrier(self):
        for side in self.sides:
            side.barrier()
            side.committed = copy.deepcopy(side.model)

    @rule(reuse_local=st.booleans())
    def crash(self, reuse_local):
        for side in self.sides:
            side.model = copy.deepcopy(side.committed)
            # The clock has advanced since the barrier.
            side.model.pass_time(self.clock.now_ms)
            side.open(side.handles, self.parallelism, reuse_local)
            side.register_all()

    @rule(parallelism=st.integers(1, 3), reuse_local=st.booleans())
    def rescale(self, parallelism, reuse_local):
        self.barrier()
        self.parallelism = parallelism
        for side in self.sides:
            side.open(side.handles, parallelism, reuse_local)
            side.register_all()

    @rule(parallelism=st.integers(1, 3), swap=st.booleans(), delta_ms=st.sampled_from([0, 0, 60]))
    def savepoint(self, parallelism, swap, delta_ms):
        savepoints = [side.savepoint() for side in self.sides]
        self.clock.now_ms += delta_ms
        self.parallelism = parallelism
        if swap:
            for side in self.sides:
                side.harness.close(side.subtasks)
            self.sides[0].backend, self.sides[1].backend = self.sides[1].backend, self.sides[0].backend
        for side, handles in zip(self.sides, savepoints, strict=True):
            side.committed = copy.deepcopy(side.model)
            side.model.pass_time(self.clock.now_ms)
            side.open(handles, parallelism, reuse_local=True)
            side.register_all()

    @rule(
        ttls=st.fixed_dictionaries(dict.fromkeys(NAMES, TTLS)),
        upgrades=st.booleans(),
        parallelism=st.integers(1, 3),
        delta_ms=st.sampled_from([0, 60]),
    )
    def upgrade(self, ttls, upgrades, parallelism, delta_ms):
        self.barrier()
        self.clock.now_ms += delta_ms
        self.parallelism = parallelism
        now_ms = self.clock.now_ms
        for side in self.sides:
            side.open(side.handles, parallelism, reuse_local=True)
            model = side.model
            before, model.ttls = model.ttls, dict(ttls)
            model.version = 2 if upgrades else model.version
            for name in NAMES:
                if before[name] is None and ttls[name] is not None:
                    # A migration counts as an access to every stored entry.
                    for entry in model.entries(name):
                        entry.accessed_ms = now_ms
            side.register_all()
            for name in NAMES:
                for key in range(4):
                    found = READERS[name](side.state(name, key))
                    self.note_upgraded(model, name, key, before[name], found)
        self.barrier()

    def note_upgraded(self, model, name, key, before, found):
        """Note the entries that expired during the upgrade, and the effect of the read."""
        now_ms, ttl = self.clock.now_ms, model.ttls[name]
        entries = model.states[name].get(key, {} if name == "map" else [])
        for entry in list(entries.values() if name == "map" else entries):
            # It expired while the job was down, or under the old configuration.
            entry.is_doomed |= before is not None and entry.accessed_ms + before.ttl_ms <= now_ms
        if ttl is not None:
            # Entries that are expired now are invisible, and the read removes them.
            def is_over(entry):
                return entry.accessed_ms + ttl.ttl_ms <= now_ms

            if name == "map":
                entries = {user_key: entry for user_key, entry in entries.items() if not is_over(entry)}
            else:
                entries = [entry for entry in entries if not is_over(entry)]
            model.states[name][key] = entries
        model.adopt(name, key, found)
        kept = model.states[name].get(key, {} if name == "map" else [])
        model.renew(name, kept.values() if name == "map" else kept, now_ms)

    def entry(self, number):
        return Entry(number, self.clock.now_ms)

    def teardown(self):
        try:
            if self.sides[0].subtasks:
                for side in self.sides:
                    for name in NAMES:
                        for key in range(4):
                            found = READERS[name](side.state(name, key))
                            assert found == side.model.read(name, key, self.clock.now_ms)
        finally:
            for side in self.sides:
                side.harness.close()
            shutil.rmtree(self.directory)


SETTINGS = settings(max_examples=examples(16), stateful_step_count=30)


def test_both_backends_expire_state_like_the_model():
    run_state_machine_as_test(TtlStateMachine, settings=SETTINGS)
