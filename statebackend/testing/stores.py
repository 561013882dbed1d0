"""The contracts of a checkpoint storage and of a store of completed checkpoints, as pytest classes to derive from."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from attrs import field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.checkpoint.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptFileError,
    CorruptMetadataError,
    IllegalTransitionError,
    InvariantViolationError,
    LeadershipLostError,
    MissingFileError,
    UnsafePathError,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle, OperatorState, SubtaskState
from statebackend.checkpoint.store.checkpoint_directories import METADATA_FILE_NAME, read_metadata
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore

__all__ = ["CONTENT", "LeaderStore", "StorageContract", "checkpoint", "file_handle", "subtask_state"]


CONTENT = b"data"
"""The content of each data file."""


@frozen
class LeaderStore:
    """The store of a job for the leading driver, before its recovery.

    ``file_system`` contains the data files. ``lose`` ends the leadership without notifying the driver: a later `lead`
    succeeds, but this store can still be called. ``close`` releases all resources.
    """

    store: CompletedCheckpointStore
    file_system: CheckpointFileSystem
    lose: Callable[[], None] = field(repr=False)
    close: Callable[[], None] = field(repr=False)

    def add(self, checkpoint_id: int, *names: str, **changes: Any) -> FileHandle:
        """Write missing data files, and add a checkpoint with the newest one as its parent."""
        for name in names:
            if not self.file_system.exists(f"shared/{name}"):
                self.file_system.write_file(f"shared/{name}", CONTENT)
        latest = self.store.latest()
        if latest is not None:
            parent = {
                "parent_checkpoint_id": latest.checkpoint_id,
                "parent_digest": self.store.digest(latest.checkpoint_id),
            }
            changes = {**parent, **changes}
        return self.store.add(checkpoint(checkpoint_id, (file_handle(f"shared/{name}") for name in names), **changes))

    @property
    def ids(self) -> list[int]:
        """The ids of all checkpoints in the store, oldest first."""
        return [metadata.checkpoint_id for metadata in self.store.all()]

    def shared(self) -> list[str]:
        """Return the names of the existing data files."""
        return [path.removeprefix("shared/") for path in self.file_system.list_files("shared")]

    def metadata_paths(self, checkpoint_id: int) -> list[str]:
        """Return the existing metadata files of a checkpoint, complete or not."""
        paths = [path for path in self.file_system.list_files() if path.endswith(f"/{METADATA_FILE_NAME}")]
        return [path for path in paths if self._id_of(path) == checkpoint_id]

    def damage(self, checkpoint_id: int) -> str:
        """Truncate the only metadata file of a checkpoint by one byte, and return its path."""
        [path] = self.metadata_paths(checkpoint_id)
        self.file_system.write_file(path, self.file_system.read_file(path)[:-1])
        return path

    def _id_of(self, path: str) -> int:
        return read_metadata(self.file_system, path.rpartition("/")[0]).checkpoint_id


def file_handle(path: str) -> FileHandle:
    """Return the handle of a data file."""
    return FileHandle(path, len(CONTENT), checksum_of_bytes(CONTENT))


def subtask_state(files: Iterable[FileHandle]) -> SubtaskState:
    """Return the state of the only subtask."""
    return SubtaskState(KeyedStateHandle("state", "heap", 0, 3, b"meta", tuple(files)))


def checkpoint(checkpoint_id: int, files: Iterable[FileHandle] = (), **changes: Any) -> CheckpointMetadata:
    """Return the metadata of a checkpoint with one operator."""
    content: dict[str, Any] = {
        "checkpoint_id": checkpoint_id,
        "kind": CheckpointKind.CHECKPOINT,
        "job_id": "job",
        "job_name": "flights",
        "timestamp_ms": 1_700_000_000_000 + checkpoint_id,
        "max_parallelism": 4,
        "operators": (OperatorState("counter", "Counter", 4, (subtask_state(files),)),),
    }
    return CheckpointMetadata(**{**content, **changes})


class StorageContract:
    """The tests of a checkpoint storage. Derive a class ``Test...`` and implement `make_files`.

    If the storage is not a local directory, override the fixture `files` instead.
    """

    def make_files(self, directory: pathlib.Path) -> CheckpointFileSystem:
        """Return the storage for a directory that does not exist yet."""
        raise NotImplementedError(f"{type(self).__name__} must implement make_files")

    @pytest.fixture
    def files(self, tmp_path: pathlib.Path) -> CheckpointFileSystem:
        """Return an empty storage."""
        return self.make_files(tmp_path / "a root")

    def test_written_bytes_are_read_back(self, files: CheckpointFileSystem) -> None:
        handle = files.write_file("a/b/c", b"content")
        assert files.read_file(handle) == files.read_file("a/b/c") == b"content"
        assert handle == FileHandle("a/b/c", 7, handle.checksum)
        assert files.size("a/b/c") == 7
        assert files.exists("a/b/c")
        assert not files.exists("a/b")
        with files.open_input("a/b/c") as source:
            source.seek(3)
            assert source.read() == b"tent"

    def test_a_second_write_replaces_the_file(self, files: CheckpointFileSystem) -> None:
        old = files.write_file("a", b"old")
        new = files.write_file("a", b"newer")
        assert files.read_file(new) == b"newer"
        with pytest.raises(CorruptFileError, match="expected 3 bytes, found 5"):
            files.read_file(old)

    def test_a_file_can_be_created_only_once(self, files: CheckpointFileSystem) -> None:
        assert files.create_file("a/mark", b"of the first")
        assert not files.create_file("a/mark", b"of the second")
        assert files.read_file("a/mark") == b"of the first"
        assert files.list_files("", include_temporary=True) == ("a/mark",)
        files.delete("a/mark")
        assert files.create_file("a/mark", b"of the third")
        with pytest.raises(UnsafePathError):
            files.create_file("../x", b"")

    @pytest.mark.parametrize("may_link", [True, False])
    def test_upload_and_download_carry_the_same_bytes(
        self, files: CheckpointFileSystem, tmp_path: pathlib.Path, may_link: bool
    ) -> None:
        content = os.urandom(3_000_000)
        (tmp_path / "source").write_bytes(content)
        handle = files.upload(tmp_path / "source", "shared/x.sst", may_link=may_link)
        assert handle == FileHandle("shared/x.sst", len(content), files.write_file("other", content).checksum)
        files.download(handle, tmp_path / "deep" / "target", may_link=may_link)
        assert (tmp_path / "deep" / "target").read_bytes() == content
        assert files.list_files() == ("other", "shared/x.sst")

    def test_the_error_names_a_missing_file(self, files: CheckpointFileSystem, tmp_path: pathlib.Path) -> None:
        handle = files.write_file("a/b", b"x")
        files.delete("a/b")
        for read in (
            lambda: files.read_file(handle),
            lambda: files.read_file("a/b"),
            lambda: files.download(handle, tmp_path / "t"),
            lambda: files.open_input("a/b"),
            lambda: files.size("a/b"),
            lambda: files.verify_present([handle]),
        ):
            with pytest.raises(MissingFileError, match="a/b"):
                read()
        assert not (tmp_path / "t").exists()
        with pytest.raises(MissingFileError, match="no-such"):
            files.upload(tmp_path / "no-such", "x")

    def test_every_truncation_and_every_flipped_bit_is_found(
        self, files: CheckpointFileSystem, tmp_path: pathlib.Path
    ) -> None:
        content = b"state"
        handle = files.write_file("a", content)
        damaged = [content[:length] for length in range(len(content))] + [content + b"x"]
        for bit in range(8 * len(content)):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            damaged.append(bytes(flipped))
        for data in damaged:
            files.write_file("a", data)
            with pytest.raises(CorruptFileError, match="expected"):
                files.read_file(handle)
            with pytest.raises(CorruptFileError, match="expected"):
                files.download(handle, tmp_path / "target")
        assert {path.name for path in tmp_path.iterdir()} <= {"a root"}

    def test_listing_and_deleting(self, files: CheckpointFileSystem) -> None:
        for path in ("a/1", "a/b/2", "c/3"):
            files.write_file(path, b"x")
        assert files.list_files() == ("a/1", "a/b/2", "c/3")
        assert files.list_files("a") == ("a/1", "a/b/2")
        assert files.list_files("a/b") == ("a/b/2",)
        assert files.list_files("none") == files.list_directories("none") == ()
        assert files.list_directories() == ("a", "c")
        files.move_directory("a/b", "d/e")
        assert files.list_files() == ("a/1", "c/3", "d/e/2")
        files.delete("c/3", durable=True)
        files.delete("c/3", durable=True)
        files.delete("none/at/all")
        files.delete_directory("a")
        files.delete_directory("a")
        assert files.list_files() == ("d/e/2",)

    def test_a_copy_has_the_bytes_and_remains_after_the_file_is_deleted(self, files: CheckpointFileSystem) -> None:
        files.write_file("a/1", b"bytes")
        files.write_file("b/2", b"before")
        files.copy_file("a/1", "b/2")
        files.delete("a/1")
        assert files.list_files() == ("b/2",)
        assert files.read_file("b/2") == b"bytes"
        with pytest.raises(MissingFileError, match="a/1"):
            files.copy_file("a/1", "c/3")
        for path, target in (("../x", "c/3"), ("b/2", "../x")):
            with pytest.raises(UnsafePathError):
                files.copy_file(path, target)
        assert files.list_files() == ("b/2",)

    def test_pyarrow_can_read_in_place(self, files: CheckpointFileSystem) -> None:
        sink = pyarrow.BufferOutputStream()
        table = pyarrow.table({"key_group": [1, 2]})
        pyarrow.parquet.write_table(table, sink)
        files.write_file("x.parquet", sink.getvalue().to_pybytes())
        with files.open_input("x.parquet") as source:
            assert pyarrow.parquet.read_table(source).equals(table)

    def test_a_file_is_present_if_it_exists_with_its_size(self, files: CheckpointFileSystem) -> None:
        handles = [files.write_file(name, b"xx") for name in ("a", "b")]
        files.verify_present(handles)
        for content in (b"x", b"xxx"):
            files.write_file("b", content)
            with pytest.raises(CorruptFileError, match=f"b is corrupt: expected 2 bytes, found {len(content)}"):
                files.verify_present(handles)
        files.write_file("c/below", b"x")
        assert not files.exists("c")
        with pytest.raises(MissingFileError):
            files.size("c")


Lead = Callable[..., LeaderStore]


class CompletedCheckpointStoreContract:
    """The tests of a store of completed checkpoints. Derive a class ``Test...`` and implement `lead`."""

    def lead(self, directory: pathlib.Path, max_retained: int) -> LeaderStore:
        """Return a new store of the job in a directory, before its recovery.

        The job has no leader: earlier leaders were closed or have lost the leadership. The directory of a new job does
        not exist yet.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement lead")

    @pytest.fixture
    def opened(self, tmp_path: pathlib.Path) -> Iterator[Lead]:
        """Return a function that opens and recovers the store of a job, after closing the previous one."""
        with self.opening(tmp_path / "job") as opened:
            yield opened

    @contextlib.contextmanager
    def opening(self, directory: pathlib.Path) -> Iterator[Lead]:
        """Return the function of `opened` for the job in a directory."""
        with contextlib.ExitStack() as stack:

            def open_next(max_retained: int = 3, *, recovers: bool = True) -> LeaderStore:
                stack.pop_all().close()
                led = self.lead(directory, max_retained)
                stack.callback(led.close)
                if recovers:
                    led.store.recover()
                return led

            yield open_next

    def test_the_newest_checkpoints_are_retained_and_found_again(self, opened: Lead) -> None:
        led = opened()
        assert led.store.latest() is None
        for checkpoint_id in (1, 2, 5, 9):
            led.add(checkpoint_id)
        assert led.ids == [2, 5, 9]
        digest = led.store.digest(5)
        again = opened(recovers=False)
        assert again.store.recover() == again.store.latest() == again.store.get(9)
        assert again.ids == [2, 5, 9]
        assert again.store.digest(5) == digest
        assert not again.metadata_paths(1)

    def test_files_are_deleted_with_the_last_checkpoint_that_refers_to_them(self, opened: Lead) -> None:
        led = opened(1)
        led.add(1, "a", "b")
        led.add(2, "b", "c")
        assert led.shared() == ["b", "c"]
        led.add(3, "d")
        assert led.shared() == ["d"]

    def test_references_are_counted_again_after_recovery(self, opened: Lead) -> None:
        opened().add(1, "a", "b")
        led = opened(1)
        led.add(2, "b")
        assert led.shared() == ["b"]

    def test_the_files_are_always_those_of_the_retained_checkpoints(
        self, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        @settings(max_examples=15)
        @given(
            max_retained=st.integers(1, 4),
            epochs=st.lists(st.tuples(st.sets(st.sampled_from("abcdef")), st.booleans()), max_size=10),
        )
        def check(max_retained: int, epochs: list[tuple[set[str], bool]]) -> None:
            with self.opening(tmp_path_factory.mktemp("stores") / "job") as opened:
                led = opened(max_retained)
                model: list[set[str]] = []
                for number, (names, restarts) in enumerate(epochs):
                    if restarts:
                        led = opened(max_retained)
                    led.add(number, *sorted(names))
                    model = [*model, names][-max_retained:]
                    assert led.ids == list(range(number + 1 - len(model), number + 1))
                    assert set(led.shared()) == set[str]().union(*model)
                    assert led.store.delete_orphans() == ()

        check()

    def test_a_damaged_newest_checkpoint_is_an_error_with_a_fix(self, opened: Lead) -> None:
        led = opened()
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id, f"f{checkpoint_id}")
        damaged = led.damage(3)
        before = led.file_system.list_files()
        again = opened(recovers=False)
        with pytest.raises(CorruptMetadataError, match=r"roll_back_to=2; readable are 1, 2"):
            again.store.recover()
        with pytest.raises(IllegalTransitionError, match=r"recover\(\)"):
            again.store.latest()
        assert [path for path in before if not again.file_system.exists(path)] == []
        rolled_back = again.store.recover(roll_back_to=2)
        assert rolled_back is not None
        assert rolled_back.checkpoint_id == 2
        assert len(again.store.set_aside_places()) == 1
        assert opened().ids == [1, 2]
        assert not damaged.startswith("shared/")

    def test_a_rollback_continues_from_there_and_can_be_repeated(self, opened: Lead) -> None:
        led = opened(9)
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id, f"f{checkpoint_id}")
        led.store.recover(roll_back_to=2)
        led.add(3, "another")
        led.store.recover(roll_back_to=1)
        assert led.ids == [1]
        assert len(led.store.set_aside_places()) == 3
        assert opened(9).ids == [1]

    def test_a_rollback_to_an_unreadable_checkpoint_changes_nothing(self, opened: Lead) -> None:
        led = opened()
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id)
        led.damage(2)
        again = opened(recovers=False)
        with pytest.raises(CorruptMetadataError):
            again.store.recover(roll_back_to=2)
        with pytest.raises(CheckpointNotFoundError, match="no checkpoint 7; there are: 1, 3"):
            again.store.recover(roll_back_to=7)
        again.store.recover()
        assert again.ids == [1, 3]
        assert again.store.set_aside_places() == ()

    def test_the_error_of_a_damaged_only_checkpoint_suggests_a_savepoint(self, opened: Lead) -> None:
        led = opened()
        led.add(1)
        led.damage(1)
        with pytest.raises(CorruptMetadataError, match="No other checkpoint is readable; start from a savepoint"):
            opened()

    def test_an_older_damaged_checkpoint_is_reported_and_its_files_remain_until_it_is_subsumed(
        self, opened: Lead
    ) -> None:
        led = opened(2)
        led.add(1, "a")
        led.add(2, "b")
        led.damage(1)
        led = opened(2)
        assert list(led.store.unreadable) == [1]
        assert led.ids == [2]
        assert led.store.delete_orphans() == ()
        assert led.shared() == ["a", "b"]
        led.add(3, "c")
        assert dict(led.store.unreadable) == {}
        assert led.store.delete_orphans() == ("shared/a",)
        assert list(opened(2).store.unreadable) == []

    def test_an_invalid_checkpoint_is_rejected_and_changes_nothing(self, opened: Lead) -> None:
        led = opened()
        led.add(5)
        led.file_system.write_file("shared/short", CONTENT[:-1])
        before = led.file_system.list_files()
        digest = checksum_of_bytes(b"")
        rejected = [
            (checkpoint(5), InvariantViolationError, "not newer than the stored checkpoint 5"),
            (checkpoint(6, kind=CheckpointKind.SAVEPOINT), InvariantViolationError, "not a checkpoint"),
            (checkpoint(6, parent_checkpoint_id=5, parent_digest=digest), InvariantViolationError, "names the digest"),
            (checkpoint(6, [file_handle("shared/none")]), MissingFileError, "shared/none"),
            (checkpoint(6, [file_handle("shared/short")]), CorruptFileError, "expected 4 bytes, found 3"),
        ]
        for metadata, error, match in rejected:
            with pytest.raises(error, match=match):
                led.store.add(metadata)
            assert led.file_system.list_files() == before
            assert led.ids == [5]
        led.add(6)

    def test_every_operation_needs_recovery_first(self, opened: Lead) -> None:
        store = opened(recovers=False).store
        calls: tuple[Callable[[], object], ...] = (
            store.latest,
            store.all,
            lambda: store.get(1),
            lambda: store.add(checkpoint(1)),
            store.next_checkpoint_id,
            store.delete_orphans,
        )
        for call in calls:
            with pytest.raises(IllegalTransitionError, match="NOT_RECOVERED"):
                call()

    def test_a_pinned_checkpoint_stays_while_newer_ones_complete(self, opened: Lead) -> None:
        led = opened(1)
        led.add(1, "a")
        with led.store.pin(1) as pinned:
            assert pinned.checkpoint_id == 1
            with led.store.pin(1):
                led.add(2, "b")
                led.add(3, "c")
            assert led.ids == [1, 3]
            assert led.shared() == ["a", "c"]
        assert led.ids == [3]
        assert led.shared() == ["c"]
        with pytest.raises(CheckpointNotFoundError), led.store.pin(1):
            pass

    def test_pins_from_another_thread_are_safe(self, opened: Lead) -> None:
        led = opened(1)
        led.add(1, "a")
        pinned, release = threading.Event(), threading.Event()

        def hold() -> None:
            with led.store.pin(1):
                pinned.set()
                release.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        assert pinned.wait()
        led.add(2, "b")
        assert led.ids == [1, 2]
        release.set()
        thread.join()
        assert led.ids == [2]

    def test_orphans_are_unreferenced_files(self, opened: Lead) -> None:
        led = opened()
        led.add(1, "a")
        for name in ("orphan", "pending", "of-a-savepoint", "deep/er"):
            led.file_system.write_file(f"shared/{name}", b"x")
        led.store.protect(["shared/of-a-savepoint"])
        assert led.store.delete_orphans(in_use={"shared/pending"}) == ("shared/deep/er", "shared/orphan")
        assert led.shared() == ["a", "of-a-savepoint", "pending"]
        led.store.recover()
        assert led.store.delete_orphans() == ("shared/pending",)

    def test_discarding_state_keeps_files_of_other_checkpoints(self, opened: Lead) -> None:
        led = opened()
        led.add(1, "shared-with-1")
        handles = [file_handle(f"shared/{name}") for name in ("shared-with-1", "pending", "gone", "mine")]
        for handle in (handles[1], handles[3]):
            led.file_system.write_file(handle.path, CONTENT)
        discarded = led.store.discard([subtask_state(handles)], in_use={"shared/pending"})
        assert discarded == ("shared/gone", "shared/mine")
        assert led.shared() == ["pending", "shared-with-1"]

    def test_files_of_checkpoints_that_were_abandoned_stay(self, opened: Lead) -> None:
        led = opened()
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id, f"f{checkpoint_id}", "all")
        led.damage(3)
        led.store.recover(roll_back_to=1)
        # The files of the damaged checkpoint are unknown.
        assert led.store.delete_orphans() == ("shared/f3",)
        led = opened()
        assert led.store.delete_orphans() == ()
        assert led.shared() == ["all", "f1", "f2"]

    def test_files_of_all_checkpoints_that_were_abandoned_stay_and_not_of_one_alone(self, opened: Lead) -> None:
        led = opened()
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id, f"f{checkpoint_id}")
        led.store.recover(roll_back_to=1)
        assert led.store.delete_orphans() == ()
        led = opened()
        assert led.store.delete_orphans() == ()
        assert led.shared() == ["f1", "f2", "f3"]

    def test_the_id_of_a_pending_checkpoint_is_not_reused_when_another_completes(self, opened: Lead) -> None:
        led = opened()
        assert [led.store.next_checkpoint_id() for _ in range(3)] == [0, 1, 2]
        led.add(0)
        assert led.store.next_checkpoint_id() == 3

    def test_ids_increase_over_runs_failures_and_roll_backs(self, opened: Lead) -> None:
        led = opened()
        assert [led.store.next_checkpoint_id() for _ in range(2)] == [0, 1]
        led.add(1)
        assert led.store.next_checkpoint_id() == 2
        led.add(5)
        assert led.store.next_checkpoint_id() == 6
        led.store.recover()
        assert led.store.next_checkpoint_id() == 7
        # Ids that were returned without a checkpoint are not stored.
        led = opened()
        assert led.store.next_checkpoint_id() == 6
        # The id of an abandoned checkpoint is not used again.
        led.store.recover(roll_back_to=1)
        assert opened().store.next_checkpoint_id() == 6
        # Counting from the checkpoint of a rollback reaches the id of the abandoned checkpoint. Both are kept.
        led = opened()
        for counted in (2, 5):
            led.add(counted)
        assert led.ids == [1, 2, 5]
        assert len(led.store.set_aside_places()) == 1
        assert led.store.next_checkpoint_id() == 6

    def test_a_store_without_leadership_completes_and_deletes_nothing(
        self, opened: Lead, tmp_path: pathlib.Path
    ) -> None:
        with contextlib.ExitStack() as stack:
            former = self.lead(tmp_path / "job", 1)
            stack.callback(former.close)
            former.store.recover()
            former.add(1, "kept")
            former.file_system.write_file("shared/attempt", CONTENT)
            pin = stack.enter_context(contextlib.ExitStack())
            pin.enter_context(former.store.pin(1))
            former.lose()
            next_one = self.lead(tmp_path / "job", 1)
            stack.callback(next_one.close)
            next_one.store.recover()
            next_one.add(2, "kept", "theirs")
            next_one.file_system.write_file("shared/pending", CONTENT)
            before = next_one.file_system.list_files()
            with pytest.raises(LeadershipLostError):
                former.add(2, "kept", "attempt")
            # The earlier leader cannot know whether its checkpoint was completed.
            assert former.store.discard([subtask_state([file_handle("shared/attempt")])]) == ()
            for call in (former.store.delete_orphans, former.store.recover, pin.close):
                with contextlib.suppress(CheckpointError):
                    call()
            kept = set(next_one.file_system.list_files())
            assert [path for path in before if path not in kept] == []
        led = opened(1)
        assert led.ids == [2]
        assert led.store.get(2).files == checkpoint(2, map(file_handle, ("shared/kept", "shared/theirs"))).files
        led.store.delete_orphans()
        assert led.shared() == ["kept", "theirs"]
        assert len(led.metadata_paths(2)) == 1

    def test_a_former_leader_whose_files_were_deleted_gets_leadership_lost(self, tmp_path: pathlib.Path) -> None:
        with contextlib.ExitStack() as stack:
            former = self.lead(tmp_path / "job", 1)
            stack.callback(former.close)
            former.store.recover()
            former.add(1, "kept")
            former.file_system.write_file("shared/attempt", CONTENT)
            former.lose()
            next_one = self.lead(tmp_path / "job", 1)
            stack.callback(next_one.close)
            next_one.store.recover()
            assert next_one.store.delete_orphans() == ("shared/attempt",)
            with pytest.raises(LeadershipLostError):
                former.store.add(checkpoint(2, [file_handle("shared/attempt")]))
            assert next_one.ids == [1]
