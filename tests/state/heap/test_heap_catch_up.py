"""When a cached heap backend can catch up with a newer handle, and its content afterwards."""

import os

import attrs
import pytest
from heap_subtask import HEAP, open_heap

from snapshots import SimpleTypeSerializerSnapshot, register_snapshot
from statebackend import ValueStateDescriptor
from statebackend.checkpoint.errors import CorruptFileError
from statebackend.state import canonical as canonical_entries
from statebackend.state import canonical_files as canonical_file
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.errors import StateBackendClosedError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.state_backend import SubtaskIdentity
from statebackend.state.state_files import MAX_FILES
from statebackend.state.state_meta import decode_meta, encode_meta
from statebackend.testing.backends.evolving_records import (
    LegV1,
    LegV2,
    PortV1,
    TownV1,
    flight_v1,
    flight_v2,
    leg_v1,
    leg_v2,
    places_v1,
)
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, content, contents, fill, filled
from statebackend.testing.backends.priority_queue_contract import TIMERS, timer
from typeserializers import AttrsSerializer, LongSerializer, StringSerializer

pytestmark = pytest.mark.slow

KEYS = range(20)


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def kept(harness, epochs=1):
    """A cached backend after some epochs, and its handle."""
    backend = open_heap(harness)
    for epoch in range(epochs):
        fill(harness, backend, KEYS, epoch)
        handle = harness.snapshot(backend).handle
    backend.release_states()
    return backend, handle


def epoch_elsewhere(harness, handle, offset, keys=KEYS):
    """The handle after an epoch of another worker, which restored the passed handle."""
    other = open_heap(harness, handle)
    fill(harness, other, keys, offset)
    return harness.snapshot(other).handle


def catch_up(harness, backend, handle):
    return backend.catch_up(RestoredHandle(handle, harness.file_system))


def test_only_the_later_increments_are_applied(harness):
    backend, handle = kept(harness)
    for offset in (1, 2):
        handle = epoch_elsewhere(harness, handle, offset)
    tables = backend.all_entries()
    assert catch_up(harness, backend, handle)
    assert contents(harness, backend) == filled(KEYS, 0, 1, 2)
    assert backend.all_entries() == tables


def test_its_own_snapshot_needs_no_catch_up(harness):
    backend, handle = kept(harness, epochs=3)
    assert catch_up(harness, backend, handle)
    assert contents(harness, backend) == filled(KEYS, 0, 1, 2)


def test_learned_serializer_state_does_not_prevent_catch_up(harness):
    def places(backend):
        return backend.get_state(ValueStateDescriptor("places", places_v1()))

    backend = open_heap(harness)
    harness.at(backend, 1)
    places(backend).update(TownV1(1, 2, 3))
    handle = harness.snapshot(backend).handle
    backend.release_states()
    assert catch_up(harness, backend, handle)
    other = open_heap(harness, handle)
    harness.at(other, 2)
    places(other).update(PortV1(4, 5, 6))
    handle = harness.snapshot(other).handle
    # A catch-up cannot know the classes that another worker has written. A full restore learns them.
    assert not catch_up(harness, backend, handle)
    assert content(harness, open_heap(harness, handle), ValueStateDescriptor("places", places_v1())) == {
        1: TownV1(1, 2, 3),
        2: PortV1(4, 5, 6),
    }


def test_removals_are_applied(harness):
    backend, handle = kept(harness)
    other = open_heap(harness, handle)
    for key in range(0, 20, 2):
        harness.at(other, key)
        for descriptor in (VALUE, LIST, MAP):
            other.get_state(descriptor).clear()
    assert catch_up(harness, backend, harness.snapshot(other).handle)
    assert contents(harness, backend) == filled(range(1, 20, 2), 0)


def test_it_continues_like_a_restored_backend(harness):
    backend, handle = kept(harness)
    assert catch_up(harness, backend, epoch_elsewhere(harness, handle, 1))
    fill(harness, backend, KEYS, 2)
    snapshot = harness.snapshot(backend)
    restored = open_heap(harness, snapshot.handle)
    assert contents(harness, restored) == filled(KEYS, 0, 1, 2)
    assert len(snapshot.handle.files) == 9


def test_epochs_without_changes_are_supported(harness):
    backend, handle = kept(harness)
    idle = open_heap(harness, handle)
    idle.get_state(VALUE)
    handle = harness.snapshot(idle).handle
    assert catch_up(harness, backend, handle)
    other = open_heap(harness, handle)
    harness.at(other, 3)
    other.get_state(VALUE).update(-3)
    assert catch_up(harness, backend, harness.snapshot(other).handle)
    value, elements, entries = filled(KEYS, 0)
    assert contents(harness, backend) == ({**value, 3: -3}, elements, entries)


def test_an_empty_state_catches_up(harness):
    backend = open_heap(harness)
    backend.get_state(VALUE)
    handle = harness.snapshot(backend).handle
    backend.release_states()
    assert catch_up(harness, backend, epoch_elsewhere(harness, handle, 5))
    assert contents(harness, backend) == filled(KEYS, 5)


def test_a_state_registered_elsewhere_is_added(harness):
    backend, handle = kept(harness)
    other = open_heap(harness, handle)
    harness.at(other, 1)
    new = ValueStateDescriptor("new", str)
    other.get_state(new).update("here")
    assert catch_up(harness, backend, harness.snapshot(other).handle)
    assert content(harness, backend, new) == {1: "here"}
    assert contents(harness, backend) == filled(KEYS, 0)


def test_an_unregistered_state_catches_up_too(harness):
    _, handle = kept(harness)
    backend = open_heap(harness, handle)
    backend.get_state(VALUE)
    handle = harness.snapshot(backend).handle
    backend.release_states()
    assert catch_up(harness, backend, epoch_elsewhere(harness, handle, 1))
    assert contents(harness, backend) == filled(KEYS, 0, 1)


def unchanged(harness, backend, keys=KEYS):
    return contents(harness, backend) == filled(keys, 0)


def test_a_priority_queue_catches_up_in_its_order(harness):
    backend = open_heap(harness)
    backend.get_priority_queue(TIMERS).add_all((timer(10 * number, number), number % 10) for number in range(100))
    handle = harness.snapshot(backend).handle
    assert backend.get_priority_queue(TIMERS).peek() == timer(0)
    backend.release_states()
    other = open_heap(harness, handle)
    queue = other.get_priority_queue(TIMERS)
    assert sum(1 for _ in queue.poll_while(lambda element: element.timestamp < 50)) == 5
    queue.remove(timer(700, 70), 0)
    queue.add(timer(45, 3), 3)
    handle = harness.snapshot(other).handle
    table = backend.entries("timers")
    assert catch_up(harness, backend, handle)
    caught_up = backend.get_priority_queue(TIMERS)
    assert backend.entries("timers") is table
    assert caught_up.size() == 95
    assert caught_up.add(timer(700, 70), 0) is False
    assert caught_up.add(timer(20, 2), 2) is True
    polled = [element.timestamp for element, _ in caught_up.poll_while(lambda element: True)]
    assert polled == [20, 45, *range(50, 1000, 10)]
    assert not catch_up(harness, backend, handle)


def test_released_queues_are_closed_and_their_tables_are_kept(harness):
    backend = open_heap(harness)
    queue = backend.get_priority_queue(TIMERS)
    queue.add_all([(timer(2), 2), (timer(1), 1)])
    harness.snapshot(backend)
    table = backend.entries("timers")
    heap = table.heap
    backend.release_states()
    with pytest.raises(StateBackendClosedError):
        queue.peek()
    assert backend.get_priority_queue(TIMERS).poll() == timer(1)
    assert backend.entries("timers").heap is heap


def test_an_epoch_won_by_another_attempt_prevents_catch_up(harness):
    base = open_heap(harness)
    fill(harness, base, KEYS)
    handle = harness.snapshot(base).handle
    loser = open_heap(harness, handle)
    fill(harness, loser, KEYS, 1)
    harness.snapshot(loser)
    loser.release_states()
    winning = epoch_elsewhere(harness, handle, 2)
    assert not catch_up(harness, loser, winning)
    assert not catch_up(harness, loser, epoch_elsewhere(harness, winning, 3))
    assert contents(harness, loser) == filled(KEYS, 0, 1)


def test_an_older_handle_prevents_catch_up(harness):
    backend, handle = kept(harness)
    fill(harness, backend, KEYS, 1)
    harness.snapshot(backend)
    backend.release_states()
    assert not catch_up(harness, backend, handle)
    assert contents(harness, backend) == filled(KEYS, 0, 1)


def test_merged_files_prevent_catch_up(harness):
    backend, handle = kept(harness, epochs=2)
    before = contents(harness, backend)
    backend.release_states()
    other = open_heap(harness, handle)
    for offset in range(1, MAX_FILES + 2):
        fill(harness, other, KEYS, offset)
        handle = harness.snapshot(other).handle
    # The increment of this backend is part of a merged file by now.
    assert not catch_up(harness, backend, handle)
    assert contents(harness, backend) == before


def test_newly_merged_increments_allow_catch_up(harness):
    backend, handle = kept(harness)
    other = open_heap(harness, handle)
    for offset in range(1, MAX_FILES + 2):
        fill(harness, other, KEYS, offset)
        handle = harness.snapshot(other).handle
    assert catch_up(harness, backend, handle)
    assert contents(harness, backend) == contents(harness, open_heap(harness, handle))


def test_a_migrated_state_prevents_catch_up(harness):
    backend = open_heap(harness)
    harness.at(backend, 1)
    backend.get_state(ValueStateDescriptor("flight", flight_v1()))
    handle = harness.snapshot(backend).handle
    backend.release_states()
    other = open_heap(harness, handle)
    other.get_state(ValueStateDescriptor("flight", flight_v2()))
    assert not catch_up(harness, backend, harness.snapshot(other).handle)


def test_a_savepoint_or_another_subtask_prevents_catch_up(harness):
    backend, handle = kept(harness)
    assert not catch_up(harness, backend, harness.export(backend))
    assert not catch_up(harness, backend, attrs.evolve(handle, key_group_end=4))
    elsewhere = BackendHarness(os.path.join(harness.directory, "elsewhere"))
    assert not backend.catch_up(RestoredHandle(handle, elsewhere.file_system))
    assert unchanged(harness, backend)


@pytest.mark.parametrize("other", ["operator_uid", "key_serializer", "key_group_range", "file_system"])
def test_another_operator_key_type_key_group_or_path_prevents_catch_up(harness, other):
    backend, handle = kept(harness)
    newer = epoch_elsewhere(harness, handle, 1)
    elsewhere = BackendHarness(os.path.join(harness.directory, "elsewhere"))
    changes = {
        "operator_uid": "another",
        "key_serializer": StringSerializer(),
        "key_group_range": KeyGroupRange(0, 1),
        "file_system": elsewhere.file_system,
    }
    parameters = attrs.evolve(harness.parameters(newer), **{other: changes[other]})
    assert not backend.catch_up(RestoredHandle(newer, harness.file_system), parameters)
    assert unchanged(harness, backend)
    assert backend.catch_up(RestoredHandle(newer, harness.file_system), harness.parameters(newer))
    assert contents(harness, backend) == filled(KEYS, 0, 1)


def test_a_handle_with_another_key_encoding_prevents_catch_up(harness):
    backend, handle = kept(harness)
    meta = decode_meta(handle.meta, len(handle.files))
    written_otherwise = attrs.evolve(meta, key_snapshot=StringSerializer().snapshot_configuration())
    assert not catch_up(harness, backend, attrs.evolve(handle, meta=encode_meta(written_otherwise)))
    assert unchanged(harness, backend)


def test_inconsistent_file_lists_prevent_catch_up(harness):
    backend, _ = kept(harness)
    savepoint = harness.export(backend)
    restored, other = open_heap(harness, savepoint), open_heap(harness, savepoint)
    assert contents(harness, restored) == contents(harness, other) == filled(KEYS, 0)
    restored.release_states()
    harness.at(other, 3)
    for descriptor in (VALUE, LIST, MAP):
        other.get_state(descriptor).clear()
    # A catch-up applies newer files to the present entries. These files cannot remove entries.
    assert not catch_up(harness, restored, harness.snapshot(other).handle)


def test_a_caught_up_store_continues_the_numbers_of_the_handle(harness):
    backend, handle = kept(harness)
    meta = decode_meta(handle.meta, len(handle.files))
    later = attrs.evolve(handle, meta=encode_meta(attrs.evolve(meta, sequence=meta.sequence + 70)))
    assert catch_up(harness, backend, later)
    backend.get_state(VALUE)
    snapshot = harness.snapshot(backend)
    assert decode_meta(snapshot.handle.meta, len(snapshot.handle.files)).sequence >= meta.sequence + 70


def test_a_store_that_fails_during_catch_up_is_closed(harness, monkeypatch):
    backend, handle = kept(harness)
    newer = epoch_elsewhere(harness, handle, 1)
    monkeypatch.setattr(backend.store, "_extend", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        catch_up(harness, backend, newer)
    assert backend.store.is_closed


def test_changes_without_a_snapshot_prevent_catch_up(harness):
    backend, handle = kept(harness)
    fill(harness, backend, KEYS, 1)
    assert not catch_up(harness, backend, handle)
    assert contents(harness, backend) == filled(KEYS, 0, 1)


def test_a_damaged_increment_is_named_and_leaves_the_backend_unchanged(harness):
    backend, handle = kept(harness)
    newer = epoch_elsewhere(harness, handle, 1)
    for file in set(newer.files) - set(handle.files):
        path = harness.store_path(file.path)
        with open(path, "rb") as stream:
            data = stream.read()
        os.unlink(path)
        with open(path, "wb") as stream:
            stream.write(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(CorruptFileError, match=file.path):
            catch_up(harness, backend, newer)
        assert unchanged(harness, backend)
        os.unlink(path)
        with open(path, "wb") as stream:
            stream.write(data)
    assert catch_up(harness, backend, newer)


def test_released_handles_are_closed_and_descriptors_are_registered_again(harness):
    backend = open_heap(harness)
    harness.at(backend, 1)
    leg = ValueStateDescriptor("leg", leg_v1())
    state = backend.get_state(leg)
    state.update(LegV1("EWR", 1))
    harness.snapshot(backend)
    backend.release_states()
    with pytest.raises(StateBackendClosedError):
        state.value()
    table = backend.entries("leg")
    again = backend.get_state(leg)
    harness.at(backend, 1)
    assert again.value() == LegV1("EWR", 1)
    assert backend.entries("leg") is table


def point_made_anew(frozen):
    """A new class with the same fields at each call, and a descriptor with it."""
    make = attrs.make_class("Point", {"x": attrs.field(type=int)}, frozen=frozen)
    make.__annotations__ = {"x": int}
    return ValueStateDescriptor(f"point {frozen}", AttrsSerializer(make, name="Point")), make


def test_a_record_class_redefined_in_each_epoch_keeps_its_entries(harness):
    backend = open_heap(harness)
    for epoch in range(3):
        for frozen in (False, True):
            point, make = point_made_anew(frozen)
            state = backend.get_state(point)
            harness.at(backend, 1)
            assert state.value() == (None if epoch == 0 else make(epoch - 1))
            state.update(make(epoch))
        harness.snapshot(backend)
        backend.release_states()


@pytest.mark.usefixtures("own_registrations")
def test_a_redefined_serializer_adopts_the_objects_in_memory(harness):
    """A notebook cell that is run again defines the same name and bytes in another class."""

    def descriptor():
        class Tens(LongSerializer):
            def snapshot_configuration(self):
                return TensSnapshot()

        @register_snapshot("tests.catch_up.Tens")
        class TensSnapshot(SimpleTypeSerializerSnapshot):
            serializer_class = Tens

        return ValueStateDescriptor("tens", Tens())

    backend, handle = open_heap(harness), None
    for epoch in range(3):
        tens = descriptor()
        if handle is not None:
            assert catch_up(harness, backend, handle)
        state = backend.get_state(tens)
        harness.at(backend, 1)
        assert state.value() == (None if epoch == 0 else 10 * epoch)
        state.update(10 * (epoch + 1))
        handle = harness.snapshot(backend).handle
        backend.release_states()


@pytest.mark.parametrize("frozen", [False, True])
def test_changes_of_a_redefined_class_without_snapshot_are_in_the_next_one(harness, frozen):
    backend = open_heap(harness)
    point, make = point_made_anew(frozen)
    for x in range(2):
        harness.at(backend, x)
        backend.get_state(point).update(make(x))
        if x == 0:
            harness.snapshot(backend)
    backend.release_states()
    point, make = point_made_anew(frozen)
    assert content(harness, backend, point) == {0: make(0), 1: make(1)}
    assert content(harness, open_heap(harness, harness.snapshot(backend).handle), point) == {0: make(0), 1: make(1)}


def test_another_schema_is_migrated_in_memory_after_a_release(harness):
    backend = open_heap(harness)
    harness.at(backend, 1)
    backend.get_state(ValueStateDescriptor("leg", leg_v1())).update(LegV1("EWR", 1))
    harness.snapshot(backend)
    backend.release_states()
    new = ValueStateDescriptor("leg", leg_v2())
    assert content(harness, backend, new) == {1: LegV2("EWR", 1.0)}
    assert content(harness, open_heap(harness, harness.snapshot(backend).handle), new) == {1: LegV2("EWR", 1.0)}


def test_a_lease_reuses_the_cached_backend_or_restores(harness):
    subtask = SubtaskIdentity("lease", 0, 1)
    first = HEAP.lease_keyed_state_backend(harness.parameters(), subtask)
    fill(harness, first, KEYS)
    handle = harness.snapshot(first).handle
    HEAP.return_keyed_state_backend(first, subtask, succeeded=True)
    second = HEAP.lease_keyed_state_backend(harness.parameters(epoch_elsewhere(harness, handle, 1)), subtask)
    assert second._store is first._store
    assert contents(harness, second) == filled(KEYS, 0, 1)
    HEAP.return_keyed_state_backend(second, subtask, succeeded=False)
    assert second._store.is_closed
    assert first._store.is_closed
    third = HEAP.lease_keyed_state_backend(harness.parameters(handle), subtask)
    assert third._store is not first._store
    assert unchanged(harness, third)
    HEAP.return_keyed_state_backend(third, subtask, succeeded=True)
    # A backend that does not fit the next restore is closed: other state, or a restore from several subtasks.
    fourth = HEAP.lease_keyed_state_backend(harness.parameters(), subtask)
    assert third._store.is_closed
    fill(harness, fourth, KEYS)
    handle = harness.snapshot(fourth).handle
    HEAP.return_keyed_state_backend(fourth, subtask, succeeded=True)
    last = harness.max_parallelism - 1
    halves = [attrs.evolve(handle, key_group_end=0), attrs.evolve(handle, key_group_start=1, key_group_end=last)]
    fifth = HEAP.lease_keyed_state_backend(harness.parameters(*halves), subtask)
    assert fourth._store.is_closed
    fifth.close()


def test_a_snapshot_that_ends_after_a_catch_up_has_no_effect_on_it(harness):
    first = open_heap(harness)
    fill(harness, first, KEYS, 0)
    older = harness.snapshot(first).handle
    fill(harness, first, KEYS, 1)
    newer = harness.snapshot(first).handle
    # No state is registered, so the running snapshot reads only files.
    kept = open_heap(harness, older)
    task = harness.prepare(kept)
    assert kept.catch_up(harness.parameters(newer).restore[0])
    assert contents(harness, open_heap(harness, task.run().handle)) == filled(KEYS, 0)
    assert contents(harness, open_heap(harness, harness.snapshot(kept).handle)) == filled(KEYS, 0, 1)


@pytest.mark.parametrize("at_once", [1 << 30, 0])
def test_a_large_file_is_downloaded_to_the_local_directory(harness, monkeypatch, at_once):
    monkeypatch.setattr(canonical_file, "READ_AT_ONCE_BYTES", at_once)
    backend = open_heap(harness)
    fill(harness, backend, KEYS)
    first = harness.snapshot(backend).handle
    backend.release_states()
    handle = epoch_elsewhere(harness, first, 1)
    restored = open_heap(harness, handle, local="here")
    assert contents(harness, restored) == filled(KEYS, 0, 1)
    assert catch_up(harness, backend, handle)
    assert contents(harness, backend) == filled(KEYS, 0, 1)
    directory = restored.parameters.local_directory
    assert os.path.isdir(directory) is (at_once == 0)
    assert not os.path.isdir(directory) or os.listdir(directory) == []


def test_a_large_snapshot_writes_its_files_to_the_local_directory_first(harness, monkeypatch):
    monkeypatch.setattr(canonical_entries, "BATCH_ROWS", 8)
    uploaded = []
    upload = type(harness.file_system).upload

    def noted(file_system, local_path, path, **options):
        uploaded.append(local_path)
        return upload(file_system, local_path, path, **options)

    monkeypatch.setattr(type(harness.file_system), "upload", noted)
    backend = open_heap(harness, local="here")
    fill(harness, backend, KEYS)
    handle = harness.snapshot(backend).handle
    directory = backend.parameters.local_directory
    assert uploaded
    assert all(path.startswith(directory + os.sep) for path in uploaded)
    assert os.listdir(directory) == []
    assert contents(harness, open_heap(harness, handle)) == filled(KEYS, 0)
