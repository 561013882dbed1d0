"""One writer and several snapshots on other threads, some cancelled or failing, against copies of dicts.

The writer follows a seed. Real threads that switch as often as possible decide which snapshots complete. Each completed
snapshot must equal the content when it was prepared, and failed ones must leave nothing. The heap reads live dicts
while they are written. There the seed also decides when the threads alternate: the reader may stop at every dict
look-up, because keys are hashed and compared in Python.

The size limits are low, so that files are merged, bases written, and removed keys dropped all the time.
"""

import contextlib
import copy
import itertools
import os
import random
import sys
import threading
import uuid
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from statebackend import ListStateDescriptor, MapStateDescriptor, PriorityQueueDescriptor, ValueStateDescriptor
from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.evolving_records import LegV1, leg_v1
from statebackend.testing.backends.gated_stores import PATIENCE_S
from statebackend.testing.backends.harness import BackendHarness, content
from typeserializers.scalars.byte_arrays import UuidSerializer

pytestmark = pytest.mark.slow

STEPS = 1000
STEPS_BETWEEN_SNAPSHOTS = 40
UNDER_WAY_AT_MOST = 4
FAILING = "the store fails for this snapshot"

KEYS = [uuid.UUID(int=number * 0x9E3779B97F4A7C15) for number in range(40)]
USER_KEYS = KEYS[:12]
NAMESPACES = KEYS[:3]

COUNT = ValueStateDescriptor("count", int)
LEG = ValueStateDescriptor("leg", leg_v1())
NUMBERS = ListStateDescriptor("numbers", int)
LEGS = ListStateDescriptor("legs", leg_v1())
MAP = MapStateDescriptor("map", UuidSerializer(), int)
PANES = ListStateDescriptor("panes", int)
QUEUE = PriorityQueueDescriptor("queue", int)
CARRIED = ValueStateDescriptor("carried", int)
"""Registered once at the start and never again."""


class FailingStore(CheckpointFileSystem):
    """Fails at some write of the chosen snapshots, by state id."""

    def __init__(self, uri, storage):
        super().__init__(uri, storage)
        self.writes_left = {}

    def write_file(self, path, data):
        self._pass(path)
        return super().write_file(path, data)

    def upload(self, local_path, path, **options):
        self._pass(path)
        return super().upload(local_path, path, **options)

    def _pass(self, path):
        # The writer adds entries meanwhile.
        for state_id in list(self.writes_left):
            if f"-{state_id}-" in path:
                self.writes_left[state_id] -= 1
                if self.writes_left[state_id] < 0:
                    raise StorageError(FAILING)


class Writer:
    """Random changes of one backend and of its model dicts."""

    def __init__(self, harness, backend, chance, model):
        self.harness, self.backend, self.chance, self.model = harness, backend, chance, model
        self.states = {known.name: backend.get_state(known) for known in (COUNT, LEG, NUMBERS, LEGS, MAP)}
        self.panes = backend.get_or_create_keyed_state(UuidSerializer(), PANES)
        self.queue = backend.get_priority_queue(QUEUE)
        self.numbers = itertools.count()
        self.favourite = None
        """A key that is chosen more often than others."""

    def one_of(self, keys):
        key = self.favourite if self.favourite in keys and self.chance.random() < 0.6 else self.chance.choice(keys)
        # An equal key that is another object.
        return uuid.UUID(int=key.int)

    def step(self):
        key = self.one_of(KEYS)
        self.harness.at(self.backend, key)
        self.chance.choice((*(self.value, self.list, self.map) * 2, self.pane, self.timer))(key)

    def value(self, key):
        name = self.chance.choice(("count", "leg"))
        if self.chance.random() < 0.3:
            self.states[name].clear()
            self.model[name].pop(key, None)
            return
        number = next(self.numbers)
        value = number if name == "count" else LegV1("EWR", number)
        self.states[name].update(value)
        self.model[name][key] = value

    def list(self, key):
        name = self.chance.choice(("numbers", "legs"))
        action = self.chance.random()
        elements = [next(self.numbers) for _ in range(self.chance.randrange(1, 4))]
        if name == "legs":
            elements = [LegV1("EWR", number) for number in elements]
        if action < 0.2:
            self.states[name].clear()
            self.model[name].pop(key, None)
        elif action < 0.4:
            self.states[name].update(elements)
            self.model[name][key] = elements
        elif action < 0.7:
            self.states[name].add_all(elements)
            self.model[name][key] = self.model[name].get(key, []) + elements
        else:
            self.states[name].add(elements[0])
            self.model[name][key] = self.model[name].get(key, []) + elements[:1]

    def map(self, key):
        state, model = self.states["map"], self.model["map"]
        action = self.chance.random()
        if action < 0.05:
            state.clear()
            model.pop(key, None)
        elif action < 0.4:
            user_key = self.one_of(USER_KEYS)
            state.remove(user_key)
            entries = model.get(key, {})
            entries.pop(user_key, None)
            if not entries:
                model.pop(key, None)
        else:
            entries = {self.one_of(USER_KEYS): next(self.numbers) for _ in range(self.chance.randrange(1, 4))}
            state.put_all(entries)
            model.setdefault(key, {}).update(entries)

    def pane(self, key):
        namespace = self.one_of(NAMESPACES)
        self.panes.set_current_namespace(namespace)
        if self.chance.random() < 0.3:
            self.panes.clear()
            self.model["panes"].pop((key, namespace), None)
        else:
            number = next(self.numbers)
            self.panes.add(number)
            self.model["panes"].setdefault((key, namespace), []).append(number)

    def timer(self, _):
        queued, action = self.model["queue"], self.chance.random()
        if action < 0.3:
            assert self.queue.poll() == (min(queued) if queued else None)
            if queued:
                queued.remove(min(queued))
        elif action < 0.5:
            number = self.chance.randrange(100)
            self.queue.remove(number, number % 10)
            queued.discard(number)
        else:
            number = self.chance.randrange(100)
            self.queue.add(number, number % 10)
            queued.add(number)


def everything_in(harness, backend):
    found = {known.name: content(harness, backend, known) for known in (COUNT, LEG, NUMBERS, LEGS, MAP, CARRIED)}
    panes = backend.get_or_create_keyed_state(UuidSerializer(), PANES)
    found["panes"] = {}
    for key, namespace in list(backend.get_keys_and_namespaces("panes")):
        harness.at(backend, key)
        panes.set_current_namespace(namespace)
        found["panes"][key, namespace] = panes.get()
    entries = [element for element, _ in backend.get_priority_queue(QUEUE).entries()]
    found["queue"] = set(entries)
    assert len(found["queue"]) == len(entries)
    return found


@pytest.fixture
def harness(tmp_path, monkeypatch):
    for module in ("state_files", "rocksdb.file_chain"):
        monkeypatch.setattr(f"statebackend.state.{module}.MERGED_AT_ONCE", 3)
    monkeypatch.setattr("statebackend.state.state_files.MAX_FILES", 6)
    monkeypatch.setattr("statebackend.state.state_files.MIN_MERGE_BYTES", 1 << 14)
    monkeypatch.setattr("statebackend.state.heap.history._MIN_REMOVED", 4)
    harness = BackendHarness(str(tmp_path))
    harness.file_system = FailingStore.from_uri(os.path.join(harness.directory, "store"))
    yield harness
    harness.close()


@pytest.fixture
def busy_threads():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(UNDER_WAY_AT_MOST) as threads:
        yield threads
    sys.setswitchinterval(interval)


class Trial:
    """A writer, its prepared snapshots, and the model content of each."""

    def __init__(self, harness, state_backend, chance):
        self.harness, self.state_backend, self.chance = harness, state_backend, chance
        self.model = {name: {} for name in ("count", "leg", "numbers", "legs", "map", "panes")}
        self.model.update(queue=set(), carried={key: number for number, key in enumerate(KEYS[:5])})
        first = self.open()
        carried = first.get_state(CARRIED)
        for key, number in self.model["carried"].items():
            harness.at(first, key)
            carried.update(number)
        self.done = [(harness.snapshot(first).handle, {**{name: {} for name in self.model}, "queue": set()})]
        self.done[0][1]["carried"] = self.model["carried"]
        first.close()
        self.backend = self.open(self.done[0][0])
        self.writer = Writer(harness, self.backend, chance, self.model)

    def open(self, *handles):
        return self.harness.open(self.state_backend, *handles, key_serializer=UuidSerializer(), local="subtask")

    def prepare(self):
        """A task, possibly with a failing store, and a copy of the content."""
        number = next(self.harness._numbers)
        if self.chance.random() < 0.2:
            self.harness.file_system.writes_left[f"state-{number}"] = self.chance.randrange(4)
        return self.backend.prepare_snapshot(number, f"state-{number}"), copy.deepcopy(self.model)

    def end(self, result, then):
        """Record an ended task, if it returned a snapshot."""
        with contextlib.suppress(CancelledError, StorageError):
            self.done.append((result().handle, then))

    def check(self):
        last = self.harness.snapshot(self.backend).handle
        self.done.append((last, self.model))
        assert everything_in(self.harness, self.backend) == self.model
        self.backend.close()
        for handle, then in reversed(self.done):
            # The local directory holds the last snapshot.
            restored = self.open(handle)
            assert everything_in(self.harness, restored) == then
            restored.close()
        referred = {file.path for handle, _ in self.done for file in handle.files}
        assert set(self.harness.file_system.list_files("state")) == referred
        local = self.backend.parameters.local_directory
        assert not os.path.exists(local) or set(os.listdir(local)) <= {"VERSION", "db", "lock"}


@pytest.mark.extended_after(1)
@pytest.mark.parametrize(
    ("state_backend", "seed"),
    [(HeapStateBackend(), 1), (HeapStateBackend(), 2), (RocksDBStateBackend(cache_entries=5), 3)],
    ids=["heap-1", "heap-2", "rocksdb-3"],
)
def test_each_snapshot_equals_the_content_when_it_was_prepared(harness, busy_threads, state_backend, seed):
    trial = Trial(harness, state_backend, random.Random(seed))
    started = []
    for step in range(STEPS):
        trial.writer.step()
        if step % STEPS_BETWEEN_SNAPSHOTS:
            continue
        task, then = trial.prepare()
        started.append((task, task.submit(busy_threads), then))
        under_way = [(task, future) for task, future, _ in started if not task.has_ended]
        if under_way and trial.chance.random() < 0.3:
            trial.chance.choice(under_way)[0].cancel()
        if len(under_way) >= UNDER_WAY_AT_MOST:
            under_way[0][1].exception(PATIENCE_S)
    for _, future, then in started:
        trial.end(lambda future=future: future.result(PATIENCE_S), then)
    trial.check()


class Turns:
    """Two threads that alternate: a reader runs until a random dict look-up, or its end."""

    def __init__(self, chance):
        self.chance = chance
        self.reader = None
        self.readers_turn, self.writers_turn = threading.Semaphore(0), threading.Semaphore(0)
        self.is_over = True
        self.looked_at = None

    def looking(self, function):
        """A key function called at every dict look-up; it may stop the reader."""

        def look(key, *other):
            if threading.current_thread() is self.reader and self.chance.random() < 0.1:
                self.looked_at = key
                self.writers_turn.release()
                assert self.readers_turn.acquire(timeout=PATIENCE_S)
            return function(key, *other)

        return look

    def begin(self, action):
        """Start the action in another thread; the writer continues when that stops."""

        def run():
            assert self.readers_turn.acquire(timeout=PATIENCE_S)
            action()
            self.is_over = True
            self.writers_turn.release()

        self.is_over, self.reader = False, threading.Thread(target=run)
        self.reader.start()
        self.go_on()

    def go_on(self):
        """Resume the reader."""
        self.readers_turn.release()
        assert self.writers_turn.acquire(timeout=PATIENCE_S)
        if self.is_over:
            self.reader.join()


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("seed", range(6))
def test_a_writer_may_interrupt_any_dict_look_up(harness, monkeypatch, seed):
    turns = Turns(random.Random(-seed))
    for name in ("__hash__", "__eq__"):
        monkeypatch.setattr(uuid.UUID, name, turns.looking(getattr(uuid.UUID, name)))
    trial = Trial(harness, HeapStateBackend(), random.Random(seed))
    chance, prepared, running = trial.chance, [], None
    for step in range(3 * STEPS):
        trial.writer.step()
        if step % (3 * STEPS_BETWEEN_SNAPSHOTS) == 0:
            prepared.append(trial.prepare())
        if not turns.is_over:
            if chance.random() < 0.005:
                running.cancel()
            if chance.random() < 0.5:
                turns.go_on()
                trial.writer.favourite = turns.looked_at
        elif prepared and (len(prepared) > 2 or chance.random() < 0.2):
            running, then = prepared.pop(chance.randrange(len(prepared)))
            if chance.random() < 0.1:
                running.cancel()
            turns.begin(lambda running=running, then=then: trial.end(running.run, then))
    while not turns.is_over:
        turns.go_on()
    for running, then in prepared:
        trial.end(running.run, then)
    trial.check()
