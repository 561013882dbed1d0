"""Every mode of operator state against a model, with restarts, rescaling, savepoints and schema changes."""

import pathlib
import tempfile

import pytest
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from operator_under_test import OperatorUnderTest

from statebackend.state.operator_state_descriptors import (
    BroadcastStateDescriptor,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.testing.backends.evolving_records import FlightV1, flight_v1, flight_v2, migrated_flight

pytestmark = pytest.mark.slow

NUMBERS = st.integers(0, 99)
SUBTASKS = st.integers(0, 7)
LISTS = ("split", "union")
SERIALIZERS = {1: flight_v1, 2: flight_v2}


def flight(number, version):
    old = FlightV1(number, number + 1, "UA")
    return old if version == 1 else migrated_flight(old)


class OperatorStateMachine(RuleBasedStateMachine):
    """The model has numbers: the list content of each subtask, and the one broadcast map."""

    @initialize(parallelism=st.integers(1, 4))
    def begin(self, parallelism):
        self.directory = tempfile.TemporaryDirectory()
        self.operator = OperatorUnderTest(pathlib.Path(self.directory.name))
        self.version = 1
        self.backends = self.operator.start(parallelism=parallelism)
        self.held = {name: [[] for _ in range(parallelism)] for name in LISTS}
        self.unions = [[] for _ in range(parallelism)]
        self.is_known = dict.fromkeys(LISTS, False)
        self.entries = {}

    def teardown(self):
        if hasattr(self, "directory"):
            self.directory.cleanup()

    def state(self, name, subtask):
        """The list of a subtask; registering a union gives the subtask the elements of all."""
        descriptor = {"split": SplitListStateDescriptor, "union": UnionListStateDescriptor}[name]
        backend = self.backends[subtask]
        if name == "union" and name in backend.unregistered_names():
            self.held[name][subtask] = list(self.unions[subtask])
        self.is_known[name] = True
        return backend.get_state(descriptor(name, SERIALIZERS[self.version]()))

    def table(self, subtask):
        serializer = SERIALIZERS[self.version]()
        return self.backends[subtask].get_state(BroadcastStateDescriptor("table", serializer, serializer))

    @rule(name=st.sampled_from(LISTS), subtask=SUBTASKS, numbers=st.lists(NUMBERS, max_size=5))
    def add(self, name, subtask, numbers):
        subtask %= len(self.backends)
        self.state(name, subtask).add_all(flight(number, self.version) for number in numbers)
        self.held[name][subtask] += numbers

    @rule(name=st.sampled_from(LISTS), subtask=SUBTASKS, numbers=st.lists(NUMBERS, max_size=3))
    def update(self, name, subtask, numbers):
        subtask %= len(self.backends)
        self.state(name, subtask).update(flight(number, self.version) for number in numbers)
        self.held[name][subtask] = list(numbers)

    @rule(name=st.sampled_from(LISTS), subtask=SUBTASKS)
    def read_list(self, name, subtask):
        subtask %= len(self.backends)
        read = self.state(name, subtask).get()
        assert read == [flight(number, self.version) for number in self.held[name][subtask]]

    @rule(key=NUMBERS, number=st.none() | NUMBERS)
    def put(self, key, number):
        for subtask in range(len(self.backends)):
            value = None if number is None else flight(number, self.version)
            self.table(subtask).put(flight(key, self.version), value)
        self.entries[key] = number

    @rule(key=NUMBERS)
    def remove(self, key):
        for subtask in range(len(self.backends)):
            self.table(subtask).remove(flight(key, self.version))
        self.entries.pop(key, None)

    @rule(subtask=SUBTASKS)
    def read_table(self, subtask):
        read = list(self.table(subtask % len(self.backends)).items())
        assert read == [
            (flight(key, self.version), None if number is None else flight(number, self.version))
            for key, number in self.entries.items()
        ]

    @rule(parallelism=st.integers(1, 4), is_savepoint=st.booleans(), evolves=st.booleans(), is_completed=st.booleans())
    def restart(self, parallelism, is_savepoint, evolves, is_completed):
        if is_completed:
            self.operator.snapshot(self.backends)
            for backend in self.backends:
                backend.notify_checkpoint_complete(10**9)
        handles, source = self.operator.snapshot(self.backends), None
        if is_savepoint:
            handles, source = self.operator.savepoint(handles)
        for backend in self.backends:
            backend.close()
        self.backends = self.operator.start(handles, parallelism, source)
        self.version = 2 if evolves else self.version
        for name in LISTS:
            everything = [number for numbers in self.held[name] for number in numbers]
            sizes = [self.carried_rows(name, backend) for backend in self.backends]
            assert sum(sizes) == len(everything)
            if parallelism == len(self.held[name]):
                assert sizes == [len(numbers) for numbers in self.held[name]]
            else:
                assert max(sizes) - min(sizes) <= 1
            remaining = iter(everything)
            self.held[name] = [[next(remaining) for _ in range(size)] for size in sizes]
            if name == "union":
                self.unions = [everything] * parallelism

    def carried_rows(self, name, backend):
        states = {state.name: state for state in backend.parameters.restore.states}
        assert (name in states) == self.is_known[name]
        return sum(part.row_count for part in states[name].carried) if name in states else 0

    @invariant()
    def every_subtask_knows_what_any_has_restored(self):
        names = [set(backend.unregistered_names()) for backend in self.backends]
        assert all(name <= {"split", "union", "table"} for name in names)


TestOperatorState = OperatorStateMachine.TestCase
TestOperatorState.settings = settings(max_examples=examples(60), stateful_step_count=25)
