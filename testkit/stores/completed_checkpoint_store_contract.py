"""The contract of a store of completed checkpoints; see the package for how to use it."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing import (
    CheckpointError,
    CheckpointKind,
    CheckpointNotFoundError,
    CorruptFileError,
    CorruptMetadataError,
    IllegalTransitionError,
    InvariantViolationError,
    LeadershipLostError,
    MissingFileError,
)
from checkpointing.handles.checksum import checksum_of_bytes
from testkit.stores.led_store import CONTENT, LedStore, checkpoint, file_handle, subtask_state

Lead = Callable[..., LedStore]


class CompletedCheckpointStoreContract:
    """Subclass it and implement `lead`; pytest collects the subclass if its name begins with Test."""

    def lead(self, directory: pathlib.Path, max_retained: int) -> LedStore:
        """A new store, not recovered, of the job in a directory, which nobody leads.

        The directory does not exist for a job that is new. Who led it before has been closed, or has lost it.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement lead")

    @pytest.fixture
    def opened(self, tmp_path: pathlib.Path) -> Iterator[Lead]:
        """Opens and recovers the store of one job; the one before is closed."""
        with self.opening(tmp_path / "job") as opened:
            yield opened

    @contextlib.contextmanager
    def opening(self, directory: pathlib.Path) -> Iterator[Lead]:
        """`opened`, for the job of a directory."""
        with contextlib.ExitStack() as stack:

            def open_next(max_retained: int = 3, *, recovers: bool = True) -> LedStore:
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

    def test_files_go_with_the_last_checkpoint_that_needs_them(self, opened: Lead) -> None:
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

    def test_a_damaged_newest_checkpoint_is_an_error_that_tells_the_way_out(self, opened: Lead) -> None:
        led = opened()
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id, f"f{checkpoint_id}")
        damaged = led.damage(3)
        before = led.file_system.list_files()
        again = opened(recovers=False)
        with pytest.raises(CorruptMetadataError, match=r"fall_back_to=2; readable are 1, 2"):
            again.store.recover()
        with pytest.raises(IllegalTransitionError, match=r"recover\(\)"):
            again.store.latest()
        assert [path for path in before if not again.file_system.exists(path)] == []
        fallen_back = again.store.recover(fall_back_to=2)
        assert fallen_back is not None
        assert fallen_back.checkpoint_id == 2
        assert len(again.store.set_aside_places()) == 1
        assert opened().ids == [1, 2]
        assert not damaged.startswith("shared/")

    def test_who_falls_back_goes_on_from_there_and_may_fall_back_again(self, opened: Lead) -> None:
        led = opened(9)
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id, f"f{checkpoint_id}")
        led.store.recover(fall_back_to=2)
        led.add(3, "another")
        led.store.recover(fall_back_to=1)
        assert led.ids == [1]
        assert len(led.store.set_aside_places()) == 3
        assert opened(9).ids == [1]

    def test_falling_back_to_what_cannot_be_read_moves_nothing(self, opened: Lead) -> None:
        led = opened()
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id)
        led.damage(2)
        again = opened(recovers=False)
        with pytest.raises(CorruptMetadataError):
            again.store.recover(fall_back_to=2)
        with pytest.raises(CheckpointNotFoundError, match="no checkpoint 7; there are: 1, 3"):
            again.store.recover(fall_back_to=7)
        again.store.recover()
        assert again.ids == [1, 3]
        assert again.store.set_aside_places() == ()

    def test_the_only_checkpoint_damaged_leaves_a_savepoint_as_the_way_out(self, opened: Lead) -> None:
        led = opened()
        led.add(1)
        led.damage(1)
        with pytest.raises(CorruptMetadataError, match="No other checkpoint is readable; start from a savepoint"):
            opened()

    def test_an_older_damaged_checkpoint_is_reported_and_its_files_are_kept_until_it_is_outlived(
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

    def test_what_must_not_be_added_is_refused_and_changes_nothing(self, opened: Lead) -> None:
        led = opened()
        led.add(5)
        led.file_system.write_file("shared/short", CONTENT[:-1])
        before = led.file_system.list_files()
        digest = checksum_of_bytes(b"")
        refused = [
            (checkpoint(5), InvariantViolationError, "not newer than the stored checkpoint 5"),
            (checkpoint(6, kind=CheckpointKind.SAVEPOINT), InvariantViolationError, "not a checkpoint"),
            (checkpoint(6, parent_checkpoint_id=5, parent_digest=digest), InvariantViolationError, "names the digest"),
            (checkpoint(6, [file_handle("shared/none")]), MissingFileError, "shared/none"),
            (checkpoint(6, [file_handle("shared/short")]), CorruptFileError, "expected 4 bytes, found 3"),
        ]
        for metadata, error, match in refused:
            with pytest.raises(error, match=match):
                led.store.add(metadata)
            assert led.file_system.list_files() == before
            assert led.ids == [5]
        led.add(6)

    def test_recovery_comes_first(self, opened: Lead) -> None:
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

    def test_orphans_are_what_nobody_refers_to(self, opened: Lead) -> None:
        led = opened()
        led.add(1, "a")
        for name in ("orphan", "pending", "of-a-savepoint", "deep/er"):
            led.file_system.write_file(f"shared/{name}", b"x")
        led.store.protect(["shared/of-a-savepoint"])
        assert led.store.delete_orphans(in_use={"shared/pending"}) == ("shared/deep/er", "shared/orphan")
        assert led.shared() == ["a", "of-a-savepoint", "pending"]
        led.store.recover()
        assert led.store.delete_orphans() == ("shared/pending",)

    def test_discarding_state_spares_what_others_need(self, opened: Lead) -> None:
        led = opened()
        led.add(1, "shared-with-1")
        handles = [file_handle(f"shared/{name}") for name in ("shared-with-1", "pending", "gone", "mine")]
        for handle in (handles[1], handles[3]):
            led.file_system.write_file(handle.path, CONTENT)
        discarded = led.store.discard([subtask_state(handles)], in_use={"shared/pending"})
        assert discarded == ("shared/gone", "shared/mine")
        assert led.shared() == ["pending", "shared-with-1"]

    def test_files_of_checkpoints_that_were_given_up_stay(self, opened: Lead) -> None:
        led = opened()
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id, f"f{checkpoint_id}", "all")
        led.damage(3)
        led.store.recover(fall_back_to=1)
        # Nobody knows any more which files the damaged one had.
        assert led.store.delete_orphans() == ("shared/f3",)
        led = opened()
        assert led.store.delete_orphans() == ()
        assert led.shared() == ["all", "f1", "f2"]

    def test_files_of_all_checkpoints_that_were_given_up_stay_and_not_of_one_alone(self, opened: Lead) -> None:
        led = opened()
        for checkpoint_id in (1, 2, 3):
            led.add(checkpoint_id, f"f{checkpoint_id}")
        led.store.recover(fall_back_to=1)
        assert led.store.delete_orphans() == ()
        led = opened()
        assert led.store.delete_orphans() == ()
        assert led.shared() == ["f1", "f2", "f3"]

    def test_an_id_of_a_checkpoint_under_way_is_not_given_out_again_when_another_completes(self, opened: Lead) -> None:
        led = opened()
        assert [led.store.next_checkpoint_id() for _ in range(3)] == [0, 1, 2]
        led.add(0)
        assert led.store.next_checkpoint_id() == 3

    def test_ids_increase_over_runs_failures_and_fall_backs(self, opened: Lead) -> None:
        led = opened()
        assert [led.store.next_checkpoint_id() for _ in range(2)] == [0, 1]
        led.add(1)
        assert led.store.next_checkpoint_id() == 2
        led.add(5)
        assert led.store.next_checkpoint_id() == 6
        led.store.recover()
        assert led.store.next_checkpoint_id() == 7
        # What was given out without a checkpoint is not known any more.
        led = opened()
        assert led.store.next_checkpoint_id() == 6
        # Neither is the id of a checkpoint that was given up.
        led.store.recover(fall_back_to=1)
        assert opened().store.next_checkpoint_id() == 6
        # Who counts from the checkpoint that was gone back to comes to the id of what was given up; both are kept.
        led = opened()
        for counted in (2, 5):
            led.add(counted)
        assert led.ids == [1, 2, 5]
        assert len(led.store.set_aside_places()) == 1
        assert led.store.next_checkpoint_id() == 6

    def test_who_has_lost_the_leadership_completes_and_deletes_nothing(
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
            # It may even have completed it, for all that it knows.
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

    def test_a_former_leader_whose_files_were_cleared_away_hears_that_it_does_not_lead(
        self, tmp_path: pathlib.Path
    ) -> None:
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
