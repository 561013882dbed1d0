"""Files that a snapshot of operator state references instead of writing the same rows."""

import pytest
from operator_under_test import OperatorUnderTest

from snapshots.envelope import snapshot_from_bytes
from statebackend.checkpoint.errors import MissingFileError
from statebackend.state.operator_state_backend import export_operator_state
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor, SplitListStateDescriptor
from statebackend.state.operator_state_handles import decode_operator_state, encode_operator_state
from statebackend.testing.backends.evolving_records import FlightV1, flight_v1, flight_v2
from typeserializers.kernel.known_serializers import restored_with

NUMBERS = SplitListStateDescriptor("numbers", int)
TABLE = BroadcastStateDescriptor("table", int, int)
REGISTERED = pytest.mark.parametrize("is_registered", [True, False])


def handles_of_numbers(operator):
    (backend,) = operator.start()
    backend.get_state(NUMBERS).add_all([1, 2])
    return operator.snapshot([backend])


def snapshot_after_restore(operator, handles, source, is_registered):
    (backend,) = operator.start(handles, source=source)
    if is_registered:
        backend.get_state(NUMBERS)
    return backend.snapshot(7, "after-restore")


@REGISTERED
def test_files_of_a_savepoint_in_the_store_of_the_job_are_not_referenced(operator, is_registered):
    store = operator.file_system
    (handle,) = handles_of_numbers(operator)
    exported, _ = export_operator_state(handle, store, store, "savepoint", "part-00000")
    snapshot = snapshot_after_restore(operator, [exported], store, is_registered)
    assert snapshot.entries_written == 2
    store.delete_directory("savepoint")
    (restored,) = operator.start([encode_operator_state(snapshot.handle)])
    assert restored.get_state(NUMBERS).get() == [1, 2]


@REGISTERED
def test_files_of_a_checkpoint_in_another_store_are_not_referenced(operator, tmp_path, is_registered):
    former = OperatorUnderTest(tmp_path / "former")
    handles = handles_of_numbers(former)
    snapshot = snapshot_after_restore(operator, handles, former.file_system, is_registered)
    assert snapshot.entries_written == 2
    (restored,) = operator.start([encode_operator_state(snapshot.handle)])
    assert restored.get_state(NUMBERS).get() == [1, 2]


def test_several_checkpoints_may_complete_after_the_next_was_written(operator):
    (backend,) = operator.start()
    numbers = backend.get_state(NUMBERS)
    for checkpoint_id in (1, 2):
        numbers.add(checkpoint_id)
        backend.snapshot(checkpoint_id, f"snapshot-{checkpoint_id}")
    for checkpoint_id in (1, 2):
        backend.notify_checkpoint_complete(checkpoint_id)
    assert backend.snapshot(3, "snapshot-3").entries_written == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.add(9),
        lambda state: state.add_all([9]),
        lambda state: state.update([9]),
        lambda state: state.clear(),
    ],
    ids=["add", "add_all", "update", "clear"],
)
def test_a_list_that_has_changed_since_the_checkpoint_is_written_again(operator, change):
    (backend,) = operator.start()
    numbers = backend.get_state(NUMBERS)
    numbers.add_all([1, 2])
    backend.snapshot(1, "snapshot-1")
    backend.notify_checkpoint_complete(1)
    change(numbers)
    (restored,) = operator.start([encode_operator_state(backend.snapshot(2, "snapshot-2").handle)])
    assert restored.get_state(NUMBERS).get() == numbers.get() != [1, 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.put(1, 9),
        lambda state: state.put_all({1: 9, 3: 3}),
        lambda state: state.remove(1),
        lambda state: state.clear(),
    ],
    ids=["put", "put_all", "remove", "clear"],
)
def test_a_broadcast_state_that_has_changed_since_the_checkpoint_is_written_again(operator, change):
    (backend,) = operator.start()
    table = backend.get_state(TABLE)
    table.put_all({1: 1, 2: 2})
    backend.snapshot(1, "snapshot-1")
    backend.notify_checkpoint_complete(1)
    change(table)
    (restored,) = operator.start([encode_operator_state(backend.snapshot(2, "snapshot-2").handle)])
    assert dict(restored.get_state(TABLE).items()) == dict(table.items()) != {1: 1, 2: 2}


def test_files_of_a_checkpoint_before_the_newest_complete_one_are_not_referenced(operator):
    (backend,) = operator.start()
    backend.get_state(NUMBERS).add(1)
    backend.snapshot(1, "snapshot-1")
    second = backend.snapshot(2, "snapshot-2")
    backend.notify_checkpoint_complete(2)
    # The files of checkpoint 1 may be deleted, although the state has not changed since.
    backend.notify_checkpoint_complete(1)
    assert backend.snapshot(3, "snapshot-3").handle.files == second.handle.files


def test_a_missing_file_is_found_before_the_state_is_registered(operator):
    handles = handles_of_numbers(operator)
    (file,) = decode_operator_state(handles[0]).files
    operator.file_system.delete(file.path)
    with pytest.raises(MissingFileError, match=file.path):
        operator.start(handles)


def test_migrated_state_is_written_again_even_if_unchanged(operator):
    (backend,) = operator.start()
    backend.get_state(SplitListStateDescriptor("flights", flight_v1())).add(FlightV1(1, 10, "UA"))
    (backend,) = operator.restart([backend])
    backend.get_state(SplitListStateDescriptor("flights", flight_v2()))
    snapshot = backend.snapshot(7, "migrated")
    (part,) = snapshot.handle.state("flights").parts
    assert restored_with(snapshot_from_bytes(part.envelopes["element"]), flight_v2()) == flight_v2()
    assert snapshot.entries_written == 1
