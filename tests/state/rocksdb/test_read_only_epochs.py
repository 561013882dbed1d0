"""Epochs with all kinds of changes return the same with any overlay and any end.

Another attempt at each epoch restores from the handles. A driver compares the two by their digests.
"""

import random
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from local_epochs import ROCKSDB

from statebackend.state.rocksdb import read_only_database as read_only_database
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, content
from statebackend.testing.backends.priority_queue_contract import TIMERS, timer

SMALL_KEYS = st.integers(0, 5)
OPERATIONS = st.one_of(
    st.tuples(st.just("value"), SMALL_KEYS, st.none() | st.integers(0, 9)),
    st.tuples(st.just("put"), SMALL_KEYS, st.sampled_from("ab"), st.integers(0, 9)),
    st.tuples(st.just("remove"), SMALL_KEYS, st.sampled_from("ab")),
    st.tuples(st.just("add"), SMALL_KEYS, st.integers(0, 9)),
    st.tuples(st.just("clear"), SMALL_KEYS),
    st.tuples(st.just("timer"), SMALL_KEYS, st.integers(0, 9)),
    st.tuples(st.just("poll")),
    st.tuples(st.just("read"), SMALL_KEYS),
    st.tuples(st.just("write out")),
)
EPOCHS = st.lists(
    st.tuples(st.lists(OPERATIONS, max_size=6), st.sampled_from(["snapshot", "snapshot", "snapshot", "late", "fail"])),
    max_size=8,
)


class Model:
    """The content of states; `play` applies changes to both and compares reads."""

    def __init__(self):
        self.values, self.maps, self.lists, self.timers = {}, {}, {}, set()

    def copy(self):
        copied = Model()
        copied.values, copied.timers = dict(self.values), set(self.timers)
        copied.maps = {key: dict(entries) for key, entries in self.maps.items()}
        copied.lists = {key: list(elements) for key, elements in self.lists.items()}
        return copied

    def play(self, harness, backend, operations):
        value, entries, elements = (backend.get_state(descriptor) for descriptor in (VALUE, MAP, LIST))
        queue = backend.get_priority_queue(TIMERS)
        for name, *arguments in operations:
            key = arguments[0] if arguments else 0
            harness.at(backend, key)
            if name == "value":
                value.update(arguments[1])
                self.values[key] = arguments[1]
            elif name == "put":
                entries.put(*arguments[1:])
                self.maps.setdefault(key, {})[arguments[1]] = arguments[2]
            elif name == "remove":
                entries.remove(arguments[1])
                self.maps.setdefault(key, {}).pop(arguments[1], None)
            elif name == "add":
                elements.add(arguments[1])
                self.lists.setdefault(key, []).append(arguments[1])
            elif name == "clear":
                elements.clear()
                entries.clear()
                self.lists.pop(key, None)
                self.maps.pop(key, None)
            elif name == "timer":
                queue.add(timer(arguments[1], key), harness.key_group(key))
                self.timers.add((arguments[1], key))
            elif name == "poll":
                first = queue.poll()
                expected = min(self.timers, default=None)
                assert (None if first is None else first.timestamp) == (None if expected is None else expected[0])
                if first is not None:
                    self.timers.discard((first.timestamp, first.key))
            elif name == "read":
                assert value.value() == self.values.get(key)
                assert entries.get("a") == self.maps.get(key, {}).get("a")
            else:
                for table in backend._store.tables.values():
                    table.write_out()

    def check(self, harness, backend):
        assert content(harness, backend, VALUE) == {key: one for key, one in self.values.items() if one is not None}
        assert content(harness, backend, MAP) == {key: one for key, one in self.maps.items() if one}
        assert content(harness, backend, LIST) == {key: one for key, one in self.lists.items() if one}
        queue = backend.get_priority_queue(TIMERS)
        assert {(one.timestamp, one.key) for one in queue} == self.timers


def check_epochs(epochs, max_rows):
    """Run epochs in one local directory with this overlay limit. Returns in how many the database stayed read-only."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        patched.setattr(read_only_database, "MAX_KEPT_ROWS", max_rows)
        harness = BackendHarness(directory)
        handle, model, read_only = None, Model(), 0
        for operations, end in [([], "snapshot"), *epochs]:
            restored = [handle] if handle else []
            backend, elsewhere = harness.open(ROCKSDB, *restored, local="local"), harness.open(ROCKSDB, *restored)
            tried = model.copy()
            tried.play(harness, backend, operations)
            if end != "fail":
                model.play(harness, elsewhere, operations)
                snapshot, other = harness.snapshot(backend), harness.snapshot(elsewhere)
                assert (snapshot.digest, snapshot.entries_written) == (other.digest, other.entries_written)
                handle = snapshot.handle
            if end == "late":
                # Changes after the snapshot are in no snapshot.
                tried.play(harness, backend, [*operations, ("value", 1, 77), ("write out",)])
            read_only += not backend._store.database.is_open
            backend.close()
            elsewhere.close()
        for local in (None, "local"):
            model.check(harness, harness.open(ROCKSDB, handle, local=local))
        harness.close()
    return read_only


@pytest.mark.extended
@given(EPOCHS, st.sampled_from([0, 1, 4, 256]))
def test_any_epochs_return_the_same_from_the_disk_and_from_the_handles(epochs, max_rows):
    check_epochs(epochs, max_rows)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("seed", range(4))
def test_many_mostly_read_only_epochs_return_the_same(seed):
    """The random epochs of the other test rarely stay read-only: one scan opens the database for writing."""
    choice = random.Random(seed).choice

    def operation(scans):
        key = choice(range(4))
        return choice(
            [
                ("value", key, choice([None, 1, 2])),
                ("put", key, choice("ab"), choice([1, 2])),
                ("remove", key, choice("ab")),
                ("add", key, choice([1, 2])),
                ("read", key),
                choice([("clear", key), ("timer", key, choice(range(9))), ("poll",)]) if scans else ("write out",),
            ]
        )

    epochs = [
        ([operation(number % 8 == 7) for _ in range(choice(range(8)))], choice(["snapshot"] * 6 + ["late", "fail"]))
        for number in range(30)
    ]
    assert check_epochs(epochs, choice([12, 256])) > 15
