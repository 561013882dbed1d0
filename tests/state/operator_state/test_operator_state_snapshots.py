"""Snapshots of operator state: isolated, asynchronous, cancellable, several at once, and no larger than needed."""

import threading
from concurrent.futures import CancelledError

import attrs
import pytest

from statebackend.checkpoint.errors import CorruptFileError, MissingFileError, StorageError
from statebackend.state import operator_state_backend as operator_snapshot_task
from statebackend.state.errors import StateRestoreError
from statebackend.state.operator_state_backend import MAX_SLICES
from statebackend.state.operator_state_descriptors import BroadcastStateDescriptor, SplitListStateDescriptor
from statebackend.state.operator_state_handles import decode_operator_state, encode_operator_state
from statebackend.state.snapshot_task import TRANSITIONS, SnapshotEvent, SnapshotTaskError, SnapshotTaskState
from statebackend.testing.backends.gated_stores import PATIENCE_S
from typeserializers import BytesSerializer, LongSerializer

NUMBERS = SplitListStateDescriptor("numbers", int)
LISTS = SplitListStateDescriptor("lists", list[int])
TABLE = BroadcastStateDescriptor("table", int, list[int])


class GateSerializer(LongSerializer):
    """Blocks each write until it is released."""

    def __init__(self, reached=None, gate=None):
        super().__init__()
        self.reached, self.gate = reached, gate

    def to_bytes(self, value):
        if self.gate is not None and threading.current_thread() is not threading.main_thread():
            self.reached.set()
            assert self.gate.wait(PATIENCE_S)
        return super().to_bytes(value)


def content_of(operator, snapshot):
    """The restored content of the snapshot."""
    (backend,) = operator.start([encode_operator_state(snapshot.handle)])
    lists = {
        descriptor.name: backend.get_state(descriptor).get()
        for descriptor in (NUMBERS, LISTS)
        if descriptor.name in backend.state_names()
    }
    return backend.state_names(), lists, dict(backend.get_state(TABLE).items())


def filled(operator):
    (backend,) = operator.start()
    backend.get_state(NUMBERS).add_all([1, 2])
    backend.get_state(LISTS).add([1])
    backend.get_state(TABLE).put_all({1: [1], 2: None})
    return backend


BEFORE = (("numbers", "lists", "table"), {"numbers": [1, 2], "lists": [[1]]}, {1: [1], 2: None})


def change_everything(backend):
    backend.get_state(NUMBERS).add(3)
    backend.get_state(LISTS).update([[9]])
    backend.get_state(TABLE).put(1, [9])
    backend.get_state(TABLE).remove(2)
    backend.get_state(BroadcastStateDescriptor("registered later", int, int)).put(1, 1)


def clear_everything(backend):
    backend.get_state(NUMBERS).clear()
    backend.get_state(LISTS).clear()
    backend.get_state(TABLE).clear()


@pytest.mark.parametrize("change", [change_everything, clear_everything])
def test_changes_after_the_synchronous_part_are_not_in_the_snapshot(operator, change):
    backend = filled(operator)
    task = backend.prepare_snapshot(1, "snapshot-1")
    change(backend)
    snapshot = task.run()
    assert snapshot.entries_written == 5
    assert content_of(operator, snapshot) == BEFORE


def test_the_state_changes_while_another_thread_writes(operator):
    reached, gate = threading.Event(), threading.Event()
    descriptor = SplitListStateDescriptor("gated", GateSerializer(reached, gate))
    (backend,) = operator.start()
    state = backend.get_state(descriptor)
    state.add_all([1, 2])
    task, snapshots = backend.prepare_snapshot(1, "snapshot-1"), []
    writer = threading.Thread(target=lambda: snapshots.append(task.run()))
    writer.start()
    assert reached.wait(PATIENCE_S)
    state.add(3)
    backend.get_state(NUMBERS).add(1)
    second = backend.snapshot(2, "snapshot-2")
    gate.set()
    writer.join()
    assert [state.row_count for state in snapshots[0].handle.states] == [2]
    assert [state.row_count for state in second.handle.states] == [3, 1]


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_snapshot_cancelled_during_the_write_leaves_no_file(operator, end):
    reached, gate = threading.Event(), threading.Event()
    (backend,) = operator.start()
    backend.get_state(NUMBERS).add(1)
    backend.get_state(SplitListStateDescriptor("gated", GateSerializer(reached, gate))).add(1)
    task, errors = backend.prepare_snapshot(1, "snapshot-1"), []

    def run():
        try:
            task.run()
        except CancelledError as error:
            errors.append(error)

    writer = threading.Thread(target=run)
    writer.start()
    assert reached.wait(PATIENCE_S)
    assert task.cancel() if end == "cancel" else backend.close() is None
    gate.set()
    writer.join()
    assert len(errors) == 1
    assert task.state is SnapshotTaskState.CANCELLED
    assert operator.file_system.list_files() == ()


def test_a_snapshot_cancelled_before_its_start_never_writes(operator):
    backend = filled(operator)
    task = backend.prepare_snapshot(1, "snapshot-1")
    assert task.cancel()
    assert task.cancel()
    with pytest.raises(CancelledError):
        task.run()
    assert operator.file_system.list_files() == ()
    assert content_of(operator, backend.snapshot(2, "snapshot-2")) == BEFORE


def test_a_snapshot_is_written_once_and_cannot_be_cancelled_afterwards(operator):
    task = filled(operator).prepare_snapshot(1, "snapshot-1")
    snapshot = task.run()
    assert not task.cancel()
    with pytest.raises(SnapshotTaskError, match="'run' cannot happen to a snapshot that is done"):
        task.run()
    assert content_of(operator, snapshot) == BEFORE


def test_ended_tasks_have_no_transition():
    for (state, _), following in TRANSITIONS.items():
        assert state in (SnapshotTaskState.PREPARED, SnapshotTaskState.RUNNING)
        assert following is not state
    assert (SnapshotTaskState.PREPARED, SnapshotEvent.WRITTEN) not in TRANSITIONS


def test_a_failed_snapshot_leaves_no_file_and_the_state_unchanged(operator, monkeypatch):
    backend = filled(operator)
    write_file, written = operator.file_system.write_file, []

    def failing(path, data):
        if written:
            raise StorageError(f"no space left for {path}")
        written.append(path)
        return write_file(path, data)

    monkeypatch.setattr(operator.file_system, "write_file", failing)
    task = backend.prepare_snapshot(1, "snapshot-1")
    with pytest.raises(StorageError, match="no space left"):
        task.run()
    assert task.state is SnapshotTaskState.FAILED
    monkeypatch.undo()
    assert written
    assert operator.file_system.list_files() == ()
    assert content_of(operator, backend.snapshot(2, "snapshot-2")) == BEFORE


def test_the_digest_depends_on_content_and_not_on_attempts(operator):
    first, second, other = filled(operator), filled(operator), filled(operator)
    other.get_state(LISTS).add([2])
    digests = [backend.snapshot(1, f"attempt-{number}").digest for number, backend in enumerate((first, second, other))]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_depends_on_the_order_of_a_list_and_not_of_a_map(operator):
    def digest(numbers, keys):
        (backend,) = operator.start()
        backend.get_state(NUMBERS).add_all(numbers)
        for key in keys:
            backend.get_state(TABLE).put(key, [key])
        return backend.snapshot(1, "attempt").digest

    assert digest([1, 2], [3, 4]) == digest([1, 2], [4, 3]) != digest([2, 1], [3, 4])


class RawSerializer(BytesSerializer):
    """Writes the bytes without a length."""

    def to_bytes(self, value):
        return value


def test_moving_bytes_between_rows_or_columns_changes_the_digest(operator):
    def digest_of_list(*elements):
        (backend,) = operator.start()
        backend.get_state(SplitListStateDescriptor("raw", RawSerializer())).add_all(elements)
        return backend.snapshot(1, "attempt").digest

    def digest_of_entry(key, value):
        (backend,) = operator.start()
        backend.get_state(BroadcastStateDescriptor("raw", RawSerializer(), RawSerializer())).put(key, value)
        return backend.snapshot(1, "attempt").digest

    assert digest_of_list(b"ab", b"c") != digest_of_list(b"a", b"bc")
    assert digest_of_entry(b"ab", b"c") != digest_of_entry(b"a", b"bc")
    assert digest_of_entry(b"a", None) != digest_of_entry(b"a", b"\xff")


def test_unread_state_has_a_digest_of_its_references(operator):
    backends = [filled(operator) for _ in range(2)]
    backends[1].get_state(NUMBERS).add(3)
    handles = [encode_operator_state(one.snapshot(1, f"snapshot-{index}").handle) for index, one in enumerate(backends)]
    digests = [
        [one.snapshot(2, f"attempt-{attempt}").digest for one in operator.start(handles, 3)] for attempt in range(2)
    ]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3


def test_referenced_state_has_the_digest_of_written_state(operator):
    backend = filled(operator)
    first = backend.snapshot(1, "snapshot-1")
    backend.notify_checkpoint_complete(1)
    kept = backend.snapshot(2, "snapshot-2")
    numbers = backend.get_state(NUMBERS)
    numbers.update(numbers.get())
    table = backend.get_state(TABLE)
    entries = list(table.items())
    table.clear()
    for key, value in reversed(entries):
        table.put(key, value)
    written = backend.snapshot(3, "snapshot-3")
    assert (kept.entries_written, written.entries_written) == (0, len(numbers.get()) + len(entries))
    assert first.digest == kept.digest == written.digest
    numbers.add(99)
    assert backend.snapshot(4, "snapshot-4").digest != written.digest


@pytest.mark.parametrize("is_touched", [False, True])
def test_redistributed_state_has_the_same_digest_referenced_or_written(operator, is_touched):
    handles = [encode_operator_state(filled(operator).snapshot(1, f"snapshot-{index}").handle) for index in range(2)]
    digests = set()
    for attempt in range(2):
        backend, *_ = operator.start(handles, 3)
        numbers = backend.get_state(NUMBERS)
        backend.get_state(LISTS), backend.get_state(TABLE)
        if attempt or is_touched:
            numbers.update(numbers.get())
        digests.add(backend.snapshot(2, f"attempt-{attempt}").digest)
    assert len(digests) == 1


def test_a_computed_digest_is_kept_with_the_state(operator):
    handles = [encode_operator_state(filled(operator).snapshot(1, f"snapshot-{index}").handle) for index in range(2)]
    backend, *_ = operator.start(handles, 3)
    (state,) = [one for one in backend.snapshot(2, "unread").handle.states if one.name == "numbers"]
    assert [part.digest for part in state.parts] == [None]
    backend.get_state(NUMBERS)
    snapshot = backend.snapshot(3, "registered")
    (state,) = [one for one in snapshot.handle.states if one.name == "numbers"]
    assert snapshot.entries_written == 0
    assert [len(part.digest) for part in state.parts] == [16]


def test_unchanged_state_is_written_again_only_until_its_checkpoint_is_complete(operator):
    backend = filled(operator)
    first = backend.snapshot(1, "snapshot-1")
    assert first.entries_written == 5
    assert first.bytes_written == sum(file.size_bytes for file in first.handle.files)
    assert backend.snapshot(2, "snapshot-2").entries_written == 5
    backend.notify_checkpoint_complete(1)
    backend.get_state(NUMBERS).add(3)
    third = backend.snapshot(3, "snapshot-3")
    assert third.entries_written == 3
    assert third.handle.state("table") == first.handle.state("table")
    assert content_of(operator, third) == (BEFORE[0], {"numbers": [1, 2, 3], "lists": [[1]]}, BEFORE[2])
    backend.notify_checkpoint_complete(3)
    assert backend.snapshot(4, "snapshot-4").entries_written == 0
    backend.notify_checkpoint_complete(99)
    assert backend.snapshot(5, "snapshot-5").entries_written == 0
    backend.close()
    backend.notify_checkpoint_complete(5)


def test_a_reverted_change_during_a_snapshot_is_written_again(operator):
    backend = filled(operator)
    task = backend.prepare_snapshot(1, "snapshot-1")
    backend.get_state(NUMBERS).add(3)
    task.run()
    backend.notify_checkpoint_complete(1)
    snapshot = backend.snapshot(2, "snapshot-2")
    assert snapshot.entries_written == 3
    assert content_of(operator, snapshot)[1]["numbers"] == [1, 2, 3]


def test_restored_state_references_its_files_until_it_changes(operator):
    handles = operator.snapshot([filled(operator)])
    (backend,) = operator.start(handles)
    assert backend.snapshot(7, "snapshot-7").handle == decode_operator_state(handles[0])
    backend.get_state(NUMBERS)
    unchanged = backend.snapshot(8, "snapshot-8")
    assert (unchanged.handle, unchanged.entries_written) == (decode_operator_state(handles[0]), 0)
    backend.get_state(NUMBERS).add(3)
    assert backend.snapshot(9, "snapshot-9").entries_written == 3


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_fragmented_state_is_written_again(operator, is_registered):
    backends = operator.start(parallelism=MAX_SLICES)
    for index, backend in enumerate(backends):
        backend.get_state(NUMBERS).add(index)
    once, twice = operator.snapshot(backends), [*operator.snapshot(backends), *operator.snapshot(backends)]
    for handles, slices, entries in ((once, MAX_SLICES, 0), (twice, 1, 2 * MAX_SLICES)):
        (backend,) = operator.start(handles, 1)
        if is_registered:
            backend.get_state(NUMBERS)
        number = next(operator.numbers)
        snapshot = backend.snapshot(number, f"snapshot-{number}")
        (part,) = snapshot.handle.state("numbers").parts
        assert (len(part.slices), snapshot.entries_written) == (slices, entries)
        assert content_of(operator, snapshot)[1]["numbers"] == [*range(MAX_SLICES)] * (len(handles) // MAX_SLICES)


@pytest.mark.parametrize("is_registered", [True, False])
def test_a_savepoint_is_self_contained_and_its_files_are_never_referenced(operator, is_registered):
    handles, source = operator.savepoint(operator.snapshot([filled(operator)]))
    assert [file.path for file in decode_operator_state(handles[0]).files] == [
        "operator/operator=split/numbers/part-00000.parquet",
        "operator/operator=split/lists/part-00000.parquet",
        "operator/operator=broadcast/table/part-00000.parquet",
    ]
    operator.file_system.delete_directory("state")
    (backend,) = operator.start(handles, source=source)
    if is_registered:
        for descriptor in (NUMBERS, LISTS, TABLE):
            backend.get_state(descriptor)
    snapshot = backend.snapshot(1, "snapshot-1")
    assert snapshot.entries_written == 5
    assert {file.path for file in snapshot.handle.files} == set(operator.file_system.list_files())
    backend.notify_checkpoint_complete(1)
    if not is_registered:
        backend.get_state(NUMBERS)
    assert content_of(operator, backend.snapshot(2, "snapshot-2")) == BEFORE


def test_files_of_a_savepoint_are_not_referenced_after_a_late_registration(operator):
    handles, source = operator.savepoint(operator.snapshot([filled(operator)]))
    (backend,) = operator.start(handles, source=source)
    backend.snapshot(1, "snapshot-1")
    backend.notify_checkpoint_complete(1)
    backend.get_state(NUMBERS)
    assert content_of(operator, backend.snapshot(2, "snapshot-2")) == BEFORE


def test_names_that_are_not_file_names_are_exported(operator):
    (backend,) = operator.start()
    names = ["..", ".", "a/b", "é" * 200, "é" * 199 + "x", "numbers=1"]
    for name in names:
        backend.get_state(SplitListStateDescriptor(name, int)).add(len(name))
    handles, source = operator.savepoint(operator.snapshot([backend]))
    (restored,) = operator.start(handles, source=source)
    for name in names:
        assert restored.get_state(SplitListStateDescriptor(name, int)).get() == [len(name)]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda data: None, MissingFileError),
        (lambda data: data[:-1], CorruptFileError),
        (lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:], CorruptFileError),
    ],
    ids=["missing", "truncated", "a bit flipped"],
)
def test_a_damaged_file_is_named_and_nothing_is_changed(operator, damage, error):
    handles = operator.snapshot([filled(operator)])
    path = decode_operator_state(handles[0]).files[0].path
    data = operator.file_system.read_file(path)
    damaged = damage(data)
    if damaged is None:
        operator.file_system.delete(path)
    else:
        operator.file_system.write_file(path, damaged)
    with pytest.raises(error, match=path):
        operator.start(handles)[0].get_state(NUMBERS)
    operator.file_system.write_file(path, data)
    (backend,) = operator.start(handles)
    operator.file_system.write_file(path, damaged or b"")
    with pytest.raises(CorruptFileError, match=path):
        backend.get_state(NUMBERS)
    assert "numbers" in backend.unregistered_names()
    operator.file_system.write_file(path, data)
    assert backend.get_state(NUMBERS).get() == [1, 2]


def test_a_file_of_another_format_is_rejected(operator):
    handles = operator.snapshot([filled(operator)])
    state = decode_operator_state(handles[0]).state("table")
    (part,) = state.parts
    (one,) = part.slices
    longer = attrs.evolve(state, parts=(attrs.evolve(part, slices=(attrs.evolve(one, stop=one.stop + 1),)),))
    other = operator.file_system.write_file("other", b"PAR1 is how Parquet begins, this is something else")
    foreign = attrs.evolve(state, parts=(attrs.evolve(part, slices=(attrs.evolve(one, file=other),)),))
    for changed, what in ((longer, "has 2 rows, but rows up to 3"), (foreign, "cannot be read as operator state")):
        operator_handle = attrs.evolve(decode_operator_state(handles[0]), states=(changed,))
        (backend,) = operator.start([encode_operator_state(operator_handle)])
        with pytest.raises(StateRestoreError, match=what):
            backend.get_state(TABLE)


def test_a_snapshot_cancelled_between_two_states_writes_no_more(operator, monkeypatch):
    backend = operator.start()[0]
    for name in ("first", "second"):
        backend.get_state(SplitListStateDescriptor(name, int)).add(1)
    task = backend.prepare_snapshot(1, "cancelled")
    write_file, written = operator.file_system.write_file, []

    def cancelling(path, data):
        written.append(path)
        task.cancel()
        return write_file(path, data)

    monkeypatch.setattr(operator.file_system, "write_file", cancelling)
    with pytest.raises(CancelledError):
        task.run()
    assert len(written) == 1


def test_a_cancellation_is_detected_after_a_number_of_rows(operator, monkeypatch):
    monkeypatch.setattr(operator_snapshot_task, "_CANCEL_CHECK_ROWS", 2)
    task, seen = operator.start()[0].prepare_snapshot(1, "cancelled"), []

    def rows():
        for index in range(10):
            if index == 3:
                task.cancel()
            seen.append(index)
            yield None, b"row"

    with pytest.raises(CancelledError):
        list(task._counted(rows()))
    assert seen == [0, 1, 2, 3, 4]
