"""Member sets that are rebuilt while the owner writes: any prepared snapshot finds all its keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statebackend.state.heap.history import EntryHistory, EpochChanges, FrozenEntries

MANY = 5000
"""Enough removed keys that the history is rebuilt."""


class WatchedKey:
    """A key whose dict look-ups call a function first."""

    def __init__(self) -> None:
        self.reported: Callable[[], None] | None = None

    def __hash__(self) -> int:
        if self.reported is not None:
            self.reported()
        return 7


class Owner:
    """An owner that prepares a snapshot and then removes a key on request."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.history = EntryHistory()
        self.history.put_restored(key, 3, "stored")
        self.history.put_restored("other", 3, "stored")
        self.frozen: FrozenEntries | None = None

    def freeze_and_remove(self) -> None:
        if self.frozen is None:
            self.frozen = self.history.freeze()
            epoch = self.history.epoch
            assert epoch.before is not None
            epoch.before[self.key] = "stored"
            epoch.changes[self.key] = None
            del self.history.live[self.key]

    def end_of_a_snapshot_with_many_keys_removed(self) -> FrozenEntries:
        frozen = self.history.freeze()
        frozen.removed_count = MANY
        frozen.release(is_written=True)
        return frozen

    def check(self) -> None:
        self.freeze_and_remove()
        assert self.frozen is not None
        assert dict(self.frozen.keys(no_new_keys)) == {3: [self.key, "other"]}
        assert self.history._removed_count == 0, "they were renewed"


def no_new_keys(changes: dict[Any, Any]) -> dict[Any, int]:
    return {}


def no_fold(epochs: tuple[EpochChanges, ...]) -> EpochChanges:
    raise AssertionError("nothing is unwritten")


class InBetween:
    """A lock that runs a function first."""

    def __init__(self, lock: Any, event: Callable[[], None]) -> None:
        self._lock, self._event = lock, event

    def __enter__(self) -> None:
        self._event()
        self._lock.acquire()

    def __exit__(self, *arguments: object) -> None:
        self._lock.release()


def test_a_key_removed_between_release_and_rebuild_stays_a_member_for_the_earlier_snapshot() -> None:
    owner = Owner("key")
    ended = owner.end_of_a_snapshot_with_many_keys_removed()
    lock = owner.history._members_lock
    owner.history._members_lock = InBetween(lock, owner.freeze_and_remove)  # type: ignore[assignment]
    ended.tidy(no_new_keys, no_fold)
    owner.history._members_lock = lock
    assert owner.frozen is not None
    owner.check()


@pytest.mark.parametrize("at_look", range(1, 6))
def test_a_key_removed_at_any_look_up_of_the_rebuild_stays_a_member(at_look: int) -> None:
    key = WatchedKey()
    owner = Owner(key)
    ended = owner.end_of_a_snapshot_with_many_keys_removed()
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == at_look:
            key.reported = None
            owner.freeze_and_remove()

    key.reported = look
    ended.tidy(no_new_keys, no_fold)
    key.reported = None
    owner.check()


@pytest.mark.parametrize("is_written", [True, False])
def test_changes_merged_during_a_new_snapshot_match_that_snapshot(is_written: bool) -> None:
    owner = Owner("key")
    history = owner.history
    for key in ("first", "second"):
        history.epoch.changes[key] = key
        ended = history.freeze()
        ended.release(is_written=False)

    def fold(epochs: tuple[EpochChanges, ...]) -> EpochChanges:
        # Runs on the thread of the last snapshot. Meanwhile the owner prepares another one, which ends at once.
        history.freeze().release(is_written=is_written)
        folded = EpochChanges()
        for epoch in epochs:
            folded.changes.update(epoch.changes)
        return folded

    ended.tidy(no_new_keys, fold)
    assert history.has_unwritten_changes is not is_written
    assert history.is_settled is is_written
    assert set(history.freeze().first_changes()) == (set() if is_written else {"first", "second"})


def test_nothing_is_rebuilt_while_an_older_snapshot_is_read() -> None:
    owner = Owner("key")
    owner.freeze_and_remove()
    assert owner.frozen is not None
    owner.end_of_a_snapshot_with_many_keys_removed().tidy(no_new_keys, no_fold)
    assert dict(owner.frozen.keys(no_new_keys)) == {3: ["key", "other"]}
    owner.frozen.release(is_written=True)
    owner.frozen.tidy(no_new_keys, no_fold)
    assert dict(owner.history.live_keys(no_new_keys)) == {3: ["other"]}


@pytest.mark.parametrize(("removed_count", "is_rebuilt"), [(1499, False), (1501, True)])
def test_members_are_rebuilt_when_half_as_many_as_the_live_entries_were_removed(
    removed_count: int, is_rebuilt: bool
) -> None:
    history = EntryHistory()
    for key in range(3000 + removed_count):
        history.put_restored(key, 3, "stored")
    for key in range(removed_count):
        del history.live[key]
    frozen = history.freeze()
    frozen.removed_count = removed_count
    frozen.release(is_written=True)
    frozen.tidy(no_new_keys, no_fold)
    assert len(history.members_of(3)) == (3000 if is_rebuilt else 3000 + removed_count)


def test_new_keys_of_an_epoch_become_members_once_for_any_number_of_reads() -> None:
    history = EntryHistory()
    history.live["new"] = history.epoch.changes["new"] = 1
    frozen = history.freeze()
    for _ in range(3):
        frozen.take_in(lambda changes: dict.fromkeys(changes, 5))
    assert history.members_of(5) == ["new"]


def test_a_completed_snapshot_confirms_only_its_own_epochs() -> None:
    history = EntryHistory()
    history.epoch.changes["first"] = 1
    first = history.freeze()
    history.epoch.changes["second"] = 2
    second = history.freeze()
    first.release(is_written=True)
    assert history.has_unwritten_changes
    second.release(is_written=False)
    third = history.freeze()
    assert set(third.first_changes()) == {"second"}
    third.release(is_written=True)
    assert history.is_settled


def test_a_fully_removed_key_is_not_a_member() -> None:
    owner = Owner("key")
    del owner.history.live["key"]
    owner.end_of_a_snapshot_with_many_keys_removed().tidy(no_new_keys, no_fold)
    assert owner.history.members_of(3) == ["other"]
