"""The history of changes next to live entries is as small as pending snapshots allow."""

import operator

import pytest
from heap_subtask import open_heap

from statebackend import ListStateDescriptor, ReducingStateDescriptor
from statebackend.state.errors import StateBackendError
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.heap.list_state import CHUNK_ELEMENTS, Chunk
from statebackend.state.key_groups import KeyGroupRange
from statebackend.testing.backends.evolving_records import LegV1, leg_v1
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, content, contents, fill, filled

KEYS = range(20)
LEGS = ListStateDescriptor("legs", leg_v1())


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


@pytest.fixture
def backend(harness):
    return open_heap(harness)


def history(backend, name):
    return backend.entries(name).history


def test_freezing_a_state_copies_nothing(harness, backend):
    fill(harness, backend, KEYS)
    before = {name: (history(backend, name).live, history(backend, name).epoch) for name in ("value", "list", "map")}
    task = harness.prepare(backend)
    for name, (live, epoch) in before.items():
        assert history(backend, name).live is live
        assert history(backend, name).epoch is epoch.following
    task.run()


def test_old_values_are_recorded_by_key_only_while_a_snapshot_may_need_them(harness, backend):
    fill(harness, backend, KEYS)
    assert history(backend, "value").epoch.before is None
    harness.snapshot(backend)
    assert history(backend, "value").epoch.before is None
    task = harness.prepare(backend)
    fill(harness, backend, range(3), 1)
    assert history(backend, "value").epoch.before == {0: 0, 1: 1, 2: 2}
    task.run()
    fill(harness, backend, range(3, 5), 1)
    assert history(backend, "value").epoch.before is None
    assert history(backend, "value").epoch.olders == [0, 1, 2, 3, 4]
    restored = open_heap(harness, harness.snapshot(backend).handle)
    assert history(backend, "value").epoch.olders == []
    assert content(harness, restored, VALUE) == {key: key + (key < 5) for key in KEYS}


@pytest.mark.parametrize("ends", [lambda task: task.run(), lambda task: task.cancel()], ids=["written", "cancelled"])
def test_an_ended_task_needs_no_history(harness, backend, ends):
    fill(harness, backend, KEYS)
    task = harness.prepare(backend)
    assert history(backend, "value").readers == 1
    ends(task)
    assert history(backend, "value").readers == 0


def test_written_changes_are_dropped_with_the_last_task_that_reads_them(harness, backend):
    fill(harness, backend, KEYS)
    first, second = harness.prepare(backend), harness.prepare(backend)
    second.run()
    assert not history(backend, "value").has_unwritten_changes
    assert not backend.entries("value").is_clean
    first.run()
    assert backend.entries("value").is_clean
    assert history(backend, "value").is_settled


def test_an_older_snapshot_that_ends_later_keeps_the_files_of_the_newer(harness, backend):
    fill(harness, backend, KEYS)
    first = harness.prepare(backend)
    fill(harness, backend, KEYS, 1)
    newer = harness.prepare(backend).run().handle
    first.run()
    assert harness.snapshot(backend).handle.files == newer.files


def test_a_backend_with_a_running_snapshot_does_not_catch_up(harness, backend):
    fill(harness, backend, KEYS)
    handle = harness.snapshot(backend).handle
    task = harness.prepare(backend)
    backend.release_states()
    restored = harness.parameters(handle).restore[0]
    assert not backend.catch_up(restored)
    task.run()
    assert backend.catch_up(restored)
    assert contents(harness, backend) == filled(KEYS, 0)


def test_removed_keys_are_dropped_when_there_are_many(harness, backend):
    state = backend.get_state(VALUE)
    for key in range(5000):
        harness.at(backend, key)
        state.update(key)
    harness.snapshot(backend)
    for key in range(4900):
        harness.at(backend, key)
        state.clear()
    # Some keys are added again during a snapshot, and must not be listed twice.
    task = harness.prepare(backend)
    for key in range(100):
        harness.at(backend, key)
        state.update(-key)
    expected = {**{key: -key for key in range(100)}, **{key: key for key in range(4900, 5000)}}
    assert content(harness, backend, VALUE) == expected
    handle = task.run().handle
    assert sum(map(len, history(backend, "value")._members.values())) < 400
    assert content(harness, backend, VALUE) == expected
    assert content(harness, open_heap(harness, handle), VALUE) == {key: key for key in range(4900, 5000)}
    assert content(harness, open_heap(harness, harness.snapshot(backend).handle), VALUE) == expected


def test_a_key_added_and_removed_in_an_epoch_is_no_row(harness, backend):
    for descriptor in (VALUE, LIST, MAP):
        backend.get_state(descriptor)
    harness.snapshot(backend)
    fill(harness, backend, KEYS)
    for key in KEYS:
        harness.at(backend, key)
        for descriptor in (VALUE, LIST, MAP):
            backend.get_state(descriptor).clear()
    assert harness.snapshot(backend).entries_written == 0


def test_a_map_that_was_cleared_and_filled_again_is_written_completely(harness, backend):
    fill(harness, backend, KEYS)
    harness.snapshot(backend)
    for key in KEYS:
        harness.at(backend, key)
        entries = backend.get_state(MAP)
        entries.remove("key")
        entries.remove("offset-0")
        if key % 2:
            entries.put("key", -key)
        elif key % 4:
            harness.prepare(backend).cancel()
            entries.put("other", key)
    restored = open_heap(harness, harness.snapshot(backend).handle)
    assert content(harness, restored, MAP) == {
        key: {"key": -key} if key % 2 else {"other": key} for key in KEYS if key % 4
    }


def test_only_changed_map_entries_are_written(harness, backend):
    harness.at(backend, 1)
    backend.get_state(MAP).put_all({str(number): number for number in range(1000)})
    harness.snapshot(backend)
    task = harness.prepare(backend)
    backend.get_state(MAP).put("5", -5)
    backend.get_state(MAP).remove("6")
    assert task.run().entries_written == 0
    assert harness.snapshot(backend).entries_written == 2


def test_encoded_elements_become_chunks_in_the_next_epoch(harness, backend):
    harness.at(backend, 1)
    state = backend.get_state(LEGS)
    expected = []
    for epoch in range(4):
        for number in range(10):
            state.add(LegV1("EWR", epoch * 10 + number))
            expected.append(LegV1("EWR", epoch * 10 + number))
        assert state.get() == expected
        items = history(backend, "legs").live[1]
        assert [item.__class__ is Chunk for item in items] == [True] * epoch + [False] * 10
        handle = harness.snapshot(backend).handle
    assert content(harness, open_heap(harness, handle), LEGS) == {1: expected}


def test_a_list_that_a_snapshot_reads_is_not_packed(harness, backend):
    harness.at(backend, 1)
    state = backend.get_state(LEGS)
    state.add_all([LegV1("EWR", number) for number in range(10)])
    task = harness.prepare(backend)
    state.add(LegV1("EWR", 10))
    assert len(history(backend, "legs").live[1]) == 11
    restored = open_heap(harness, task.run().handle)
    assert content(harness, restored, LEGS) == {1: [LegV1("EWR", number) for number in range(10)]}


def test_no_chunk_has_more_elements_than_a_row(harness, backend):
    harness.at(backend, 1)
    state = backend.get_state(LEGS)
    state.add_all([LegV1("EWR", 0)] * (CHUNK_ELEMENTS + 5))
    harness.snapshot(backend)
    state.add(LegV1("EWR", 1))
    handle = harness.snapshot(backend).handle
    items = history(backend, "legs").live[1]
    assert [item.__class__ is Chunk for item in items] == [False] * 5 + [True, False]
    assert len(content(harness, open_heap(harness, handle), LEGS)[1]) == CHUNK_ELEMENTS + 6


def test_a_foreign_key_group_is_rejected_for_existing_keys_too(harness):
    backend = open_heap(harness, subtask=0, parallelism=2)
    assert backend.key_group_range == KeyGroupRange(0, 4)
    total = ReducingStateDescriptor("total", operator.add, int)
    for descriptor in (VALUE, total):
        backend.get_state(descriptor)
    harness.at(backend, 1)
    backend.get_state(VALUE).update(1)
    backend.get_state(total).add(1)
    harness.snapshot(backend)
    backend.set_current_key(1, 7)
    for write in (lambda: backend.get_state(VALUE).update(2), lambda: backend.get_state(total).add(2)):
        with pytest.raises(StateBackendError, match="key group 7 does not belong to this subtask"):
            write()
    assert harness.snapshot(backend).entries_written == 0


def test_remains_of_failed_snapshots_do_not_accumulate(harness, backend):
    fill(harness, backend, KEYS)
    harness.snapshot(backend)
    for epoch in range(1, 20):
        fill(harness, backend, KEYS, epoch % 3)
        assert harness.prepare(backend).cancel()
    for name in ("value", "list", "map"):
        (unwritten,) = history(backend, name)._unwritten
        assert unwritten.before is None
        assert unwritten.olders == (list(KEYS) if name == "value" else [])
        assert sorted(unwritten.changes) == list(KEYS)
    snapshot = harness.snapshot(backend)
    # Per key: a value, a list chunk, and four map entries (`key` and three offsets).
    assert snapshot.entries_written == len(KEYS) * (1 + 1 + 4)
    assert contents(harness, open_heap(harness, snapshot.handle)) == contents(harness, backend)


def test_keys_added_before_unwritten_snapshots_are_listed_and_exported(harness, backend):
    fill(harness, backend, [0])
    harness.snapshot(backend)
    for key in KEYS[1:]:
        fill(harness, backend, [key])
        assert harness.prepare(backend).cancel()
    assert sorted(backend.get_keys("value")) == list(KEYS)
    restored = harness.open(HeapStateBackend(), harness.export(backend))
    assert contents(harness, restored) == contents(harness, backend)
