"""The store of a job directory beyond the common contract, which is in `statebackend.testing.stores`."""

from __future__ import annotations

import contextlib
import os

import pytest
from checkpoint_builders import file_handle, metadata_of

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointNotFoundError,
    CompletedCheckpointStore,
    CorruptMetadataError,
    DirectoryCheckpointStore,
    IllegalTransitionError,
    InvariantViolationError,
    StorageError,
)
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.checkpoint.store.checkpoint_directories import DirectoryPointers


@pytest.fixture
def fs(tmp_path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path / "job")


def store_of(fs: CheckpointFileSystem, max_retained: int = 3) -> CompletedCheckpointStore:
    store = DirectoryCheckpointStore(fs, max_retained)
    store.recover()
    return store


def add(store: CompletedCheckpointStore, fs: CheckpointFileSystem, checkpoint_id: int, *names: str, **changes):
    """Upload missing files, then add a checkpoint whose parent is the newest."""
    for name in names:
        if not fs.exists(f"shared/{name}"):
            fs.write_file(f"shared/{name}", b"data")
    latest = store.latest()
    if latest is not None:
        changes = {
            "parent_checkpoint_id": latest.checkpoint_id,
            "parent_digest": store.digest(latest.checkpoint_id),
            **changes,
        }
    metadata = metadata_of(checkpoint_id, tuple(file_handle(f"shared/{name}") for name in names), **changes)
    return store.add(metadata)


def ids(store: CompletedCheckpointStore) -> list[int]:
    return [metadata.checkpoint_id for metadata in store.all()]


def damage(fs: CheckpointFileSystem, checkpoint_id: int) -> None:
    path = f"checkpoints/chk-{checkpoint_id:012d}/_metadata"
    fs.write_file(path, fs.read_file(path)[:-1])


def test_an_unfinished_directory_is_removed(fs) -> None:
    add(store_of(fs), fs, 1)
    fs.write_file("checkpoints/.chk-000000000002/.tmp-0123", b"half a _meta")
    fs.write_file("checkpoints/.chk-000000000003/_metadata", b"whole, but not renamed")
    fs.write_file("checkpoints/mine/notes", b"not the store's")
    store = store_of(fs)
    assert ids(store) == [1]
    assert fs.list_directories("checkpoints") == ("chk-000000000001", "mine")


def test_unfinished_and_foreign_directories_hide_no_later_checkpoint(fs) -> None:
    add(store_of(fs), fs, 3)
    fs.write_file("checkpoints/chk-000000000002/.tmp-0123", b"half a _meta")
    fs.write_file("checkpoints/a/notes", b"not the store's")
    assert ids(store_of(fs)) == [3]


def test_a_damaged_newest_checkpoint_is_an_error_with_advice(fs) -> None:
    store = store_of(fs)
    for checkpoint_id in (1, 2, 3):
        add(store, fs, checkpoint_id, f"f{checkpoint_id}")
    damage(fs, 3)
    before = fs.list_files()
    again = DirectoryCheckpointStore(fs)
    with pytest.raises(CorruptMetadataError, match=r"chk-000000000003/_metadata.*roll_back_to=2; readable are 1, 2"):
        again.recover()
    with pytest.raises(IllegalTransitionError, match=r"recover\(\)"):
        again.latest()
    assert fs.list_files() == before
    assert again.recover(roll_back_to=2).checkpoint_id == 2
    assert fs.list_files("set-aside") == ("set-aside/chk-000000000003-1/_metadata",)
    assert DirectoryCheckpointStore(fs).recover().checkpoint_id == 2
    add(again, fs, 3, "f3")
    damage(fs, 3)
    again.recover(roll_back_to=1)
    assert fs.list_directories("set-aside") == (
        "chk-000000000002-1",
        "chk-000000000003-1",
        "chk-000000000003-2",
    )


def test_of_several_damaged_checkpoints_the_newest_is_to_be_abandoned(fs) -> None:
    store = store_of(fs, 4)
    for checkpoint_id in (1, 2, 3, 4):
        add(store, fs, checkpoint_id)
    for checkpoint_id in (2, 3, 4):
        damage(fs, checkpoint_id)
    message = r"the newest checkpoint, 4, .*chk-000000000004/_metadata.*abandon checkpoint 4 .*roll_back_to=1"
    with pytest.raises(CorruptMetadataError, match=message):
        DirectoryCheckpointStore(fs).recover()


def test_a_misplaced_checkpoint_is_not_used(fs) -> None:
    add(store_of(fs), fs, 1)
    fs.move_directory("checkpoints/chk-000000000001", "checkpoints/chk-000000000008")
    with pytest.raises(CorruptMetadataError, match="describes CHECKPOINT 1, its directory is for CHECKPOINT 8"):
        store_of(fs)


def test_a_replaced_parent_is_detected(fs, tmp_path) -> None:
    store = store_of(fs)
    add(store, fs, 1)
    add(store, fs, 2)
    other = CheckpointFileSystem.from_uri(tmp_path / "other")
    add(store_of(other), other, 1, timestamp_ms=5)
    path = "checkpoints/chk-000000000001/_metadata"
    fs.write_file(path, other.read_file(path))
    with pytest.raises(CorruptMetadataError, match=r"mixes two histories.*roll_back_to=1"):
        store_of(fs)
    assert DirectoryCheckpointStore(fs).recover(roll_back_to=1).timestamp_ms == 5


def test_orphans_are_unreferenced_files(fs) -> None:
    store = store_of(fs)
    add(store, fs, 1, "a")
    for name in ("orphan", "pending", "of-a-savepoint", "deep/er", ".tmp-77"):
        fs.write_file(f"shared/{name}", b"x")
    store.protect(["shared/of-a-savepoint"])
    assert store.delete_orphans(in_use={"shared/pending"}) == (
        "shared/.tmp-77",
        "shared/deep/er",
        "shared/orphan",
    )
    assert fs.list_files("shared") == ("shared/a", "shared/of-a-savepoint", "shared/pending")
    store.recover()
    assert store.delete_orphans() == ("shared/pending",)


class FailingStorage(LocalStorage):
    """Local storage that fails after a number of write operations, like a crash."""

    def arm(self, operations_left: int) -> FailingStorage:
        object.__setattr__(self, "operations_left", operations_left)
        return self

    def _step(self) -> None:
        left = getattr(self, "operations_left", None)
        if left is not None:
            if left <= 0:
                raise OSError(5, "Input/output error")
            object.__setattr__(self, "operations_left", left - 1)

    def put(self, *arguments) -> None:
        self._step()
        super().put(*arguments)

    def delete(self, *arguments) -> None:
        self._step()
        super().delete(*arguments)

    def delete_directory(self, *arguments) -> None:
        self._step()
        super().delete_directory(*arguments)


def test_a_crash_after_any_operation_leaves_a_complete_checkpoint(tmp_path) -> None:
    outcomes = []
    for operations in range(12):
        root = str(tmp_path / str(operations))
        plain = CheckpointFileSystem.from_uri(root)
        add(store_of(plain, 1), plain, 1, "a", "b")
        plain.write_file("shared/c", b"data")
        storage = FailingStorage(root)
        store = store_of(CheckpointFileSystem(root, storage), 1)
        storage.arm(operations)
        try:
            add(store, plain, 2, "b", "c")
            outcomes.append("added")
        except StorageError:
            outcomes.append("failed")
        after = DirectoryCheckpointStore(plain, 1)
        newest = after.recover()
        assert newest is not None
        assert newest.checkpoint_id == (2 if outcomes[-1] == "added" else 1)
        for metadata in after.all():
            plain.verify_present(metadata.files)
        add(after, plain, 3, "d")
        after.delete_orphans()
        assert plain.list_files("shared") == ("shared/d",)
    assert outcomes == ["failed"] + ["added"] * 11


def test_a_metadata_write_that_fails_after_its_rename_is_rolled_back(fs, monkeypatch) -> None:
    store = store_of(fs)
    add(store, fs, 1)
    real = os.fsync
    failures = ["once"]

    def fail_once(descriptor: int) -> None:
        if failures and os.path.exists(f"/proc/self/fd/{descriptor}/chk-000000000002/_metadata"):
            failures.pop()
            raise OSError(5, "Input/output error")
        real(descriptor)

    moved = []
    move = LocalStorage.move_directory

    def noted(storage: LocalStorage, path: str, target: str) -> None:
        moved.append(target)
        move(storage, path, target)

    monkeypatch.setattr(os, "fsync", fail_once)
    monkeypatch.setattr(LocalStorage, "move_directory", noted)
    with pytest.raises(StorageError):
        add(store, fs, 2)
    assert failures == []
    # The directory is renamed durably before it is deleted, so that a power loss cannot restore it.
    assert moved == ["checkpoints/chk-000000000002", "checkpoints/.chk-000000000002"]
    assert fs.list_directories("checkpoints") == ("chk-000000000001",)
    assert ids(store) == ids(store_of(fs)) == [1]


def test_the_target_of_a_roll_back_is_found_without_changes(fs) -> None:
    store = store_of(fs, 9)
    for checkpoint_id in (1, 2, 3, 4):
        add(store, fs, checkpoint_id)
    before = fs.list_files()

    def target(wanted: object) -> int:
        return DirectoryPointers(fs).find().roll_back_target(wanted).checkpoint_id

    assert [target(wanted) for wanted in (1, 3, 4, "previous")] == [1, 3, 4, 3]
    damage(fs, 3)
    assert target("previous") == 2, "the newest that can be read, of those before the newest"
    with pytest.raises(CorruptMetadataError, match="chk-000000000003"):
        target(3)
    damage(fs, 4)
    assert target("previous") == 2
    for wrong, error, match in (
        (5, CheckpointNotFoundError, "there are: 1, 2"),
        ("last", InvariantViolationError, "or 'previous', not 'last'"),
        ("1", InvariantViolationError, "an int"),
        (True, InvariantViolationError, "roll_back_to"),
        (-1, InvariantViolationError, "roll_back_to"),
    ):
        with pytest.raises(error, match=match):
            target(wrong)
    damage(fs, 1)
    damage(fs, 2)
    with pytest.raises(CheckpointNotFoundError, match="no readable checkpoint before its newest; there are: none"):
        target("previous")
    assert fs.list_files() == before


def test_files_of_abandoned_checkpoints_stay_until_those_are_removed(fs) -> None:
    store = store_of(fs)
    for checkpoint_id in (1, 2, 3):
        add(store, fs, checkpoint_id, f"f{checkpoint_id}", "all")
    damage(fs, 3)
    store.recover(roll_back_to=1)
    # The files of the damaged checkpoint are unknown, so its file is an orphan.
    assert store.delete_orphans() == ("shared/f3",)
    assert store_of(fs).delete_orphans() == ()
    fs.delete_directory("set-aside")
    assert store_of(fs).delete_orphans() == ("shared/f2",)


class MovingStorage(FailingStorage):
    """Also counts moves, and fails before or after one of them."""

    def move_directory(self, *arguments) -> None:
        self._step()
        super().move_directory(*arguments)
        self._step()


@pytest.mark.parametrize("operations", range(7))
def test_a_crash_at_any_move_of_a_roll_back_abandons_only_the_newest(tmp_path, operations) -> None:
    plain = CheckpointFileSystem.from_uri(tmp_path)
    store = store_of(plain, 9)
    for checkpoint_id in (1, 2, 3, 4):
        add(store, plain, checkpoint_id)
    storage = MovingStorage(str(tmp_path)).arm(operations)
    with contextlib.suppress(StorageError):
        DirectoryCheckpointStore(CheckpointFileSystem(str(tmp_path), storage)).recover(roll_back_to=1)
    # The newest checkpoint moves first, so the remaining ones have no gap.
    left = ids(store_of(plain))
    assert left == list(range(1, len(left) + 1))
    moved = list(plain.list_directories("set-aside"))
    assert moved == [f"chk-{checkpoint_id:012d}-1" for checkpoint_id in range(len(left) + 1, 5)]
    assert DirectoryCheckpointStore(plain).recover(roll_back_to=1).checkpoint_id == 1


def test_metadata_changes_are_durable_before_dependent_ones(fs, monkeypatch) -> None:
    """The deletion of metadata is durable before a data file is deleted."""
    store = store_of(fs, 1)
    add(store, fs, 1, "a")
    operations = []
    delete = LocalStorage.delete

    def noted(storage: LocalStorage, path: str, durable: bool) -> None:
        operations.append((path, durable))
        delete(storage, path, durable)

    monkeypatch.setattr(LocalStorage, "delete", noted)
    add(store, fs, 2, "b")
    assert operations == [("checkpoints/chk-000000000001/_metadata", True), ("shared/a", False)]


def test_moves_and_durable_deletions_are_synced(tmp_path, monkeypatch) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.put("from/x/file", b"data", True)
    synced = []

    def noted(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            synced.append(os.path.relpath(path, tmp_path))

    monkeypatch.setattr(os, "fsync", noted)
    storage.move_directory("from/x", "to/y")
    # First the parent of the new directory, then the directories that lost and gained an entry.
    assert synced == [".", "from", "to"]
    synced.clear()
    storage.delete("to/y/file", durable=True)
    assert synced == ["to/y"]
    storage.put("to/y/file", b"data", True)
    synced.clear()
    storage.delete("to/y/file", durable=False)
    assert synced == []
