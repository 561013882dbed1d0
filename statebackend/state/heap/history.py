"""The entries of one state on the heap, and the copy-on-write history that snapshots read.

One dict maps entry keys to what is stored, the *live* entries. Every read and write goes to it. In addition there is a
chain of *epochs*, one from each snapshot to the next. An epoch records what it changed and what was stored before. A
freeze starts a new epoch, whatever the size of the state. The frozen value of a key is the value that the first later
epoch recorded for it. If no later epoch changed the key, the frozen value is the live entry. This is Flink's
copy-on-write per entry, with the old version next to the table instead of in it.

The recorded values also serve the digest of an epoch: an entry that is rewritten with its old value is not a change.

Another thread reads a snapshot while the owner writes. It needs no lock:

1. The owner records the old value before it changes an entry.
2. The reader reads the live entry first, and then looks for a change in the later epochs.

If the epochs contain no change of the entry, then no change had started when it was read. Single operations of dicts
and lists are atomic in CPython. Only `copy_now` iterates over a dict that may change.

The keys of a key group are listed apart, in *members*, at eight bytes a key. The owner's hot path does not touch these
lists: the epoch records that a key is new, and a reader of the state adds it. The lists may contain removed keys, and
keys twice. They are rebuilt when they contain too many removed keys.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

Fold = Callable[[tuple["EpochChanges", ...]], "EpochChanges"]
"""Merges epochs, in order, into the one change per key that a writer needs."""

NewKeys = Callable[[dict[Any, Any]], dict[Any, int]]
"""Returns the key groups of the keys that the changes of an epoch added."""

_MIN_REMOVED: Final = 1024
"""The lists of members are rebuilt only if at least this many members were removed."""


class EpochChanges:
    """``changes`` are by entry key; each table defines their form.

    ``before`` holds the earlier values of changed keys while a snapshot may need them, else None. It omits keys whose
    change records the earlier value. ``olders`` may hold the same in the order of the changes, for the writer.
    """

    __slots__ = ("before", "changes", "following", "is_taken_in", "olders")

    def __init__(self, before: dict[Any, Any] | None = None) -> None:
        self.changes: dict[Any, Any] = {}
        self.before = before
        self.olders: list[Any] = []
        self.following: EpochChanges | None = None
        self.is_taken_in = False

    def later(self) -> Iterator[EpochChanges]:
        """The epochs after this one, including those that start during the iteration."""
        epoch = self.following
        while epoch is not None:
            yield epoch
            epoch = epoch.following


class EntryHistory:
    """Live entries and their epochs. Only `FrozenEntries` may be used on other threads than the owner's."""

    __slots__ = ("_lock", "_members", "_members_lock", "_removed_count", "_unwritten", "epoch", "live", "readers")

    def __init__(self) -> None:
        self.live: dict[Any, Any] = {}
        self.epoch = EpochChanges()
        self.readers = 0
        """Snapshots that may still need earlier values."""
        self._unwritten: tuple[EpochChanges, ...] = ()
        self._members: dict[int, list[Any]] = {}
        self._removed_count = 0
        self._lock = threading.Lock()
        self._members_lock = threading.Lock()

    @property
    def has_unwritten_changes(self) -> bool:
        """Whether a change exists that no completed snapshot holds."""
        return bool(self.epoch.changes) or any(epoch.changes for epoch in self._unwritten)

    @property
    def is_settled(self) -> bool:
        """Whether no snapshot needs values from before this epoch."""
        return not self.readers and not self._unwritten

    def freeze(self) -> FrozenEntries:
        """Freeze the entries for a snapshot of all changes that no completed snapshot holds; start a new epoch."""
        frozen = self.epoch
        self.epoch = frozen.following = EpochChanges(before={})
        with self._lock:
            self._unwritten = (*self._unwritten, frozen)
            self.readers += 1
            return FrozenEntries(self, self._unwritten)

    def live_keys(self, new_keys: NewKeys, first_group: int = 0) -> Iterator[tuple[int, list[Any]]]:
        """The live keys by key group, from ``first_group`` on. Call it on the owner's thread.

        Lists the keys of a group only when the iteration reaches it.
        """
        with self._lock:
            unwritten = self._unwritten
        self.take_in(unwritten, new_keys)
        new: dict[int, list[Any]] = {}
        for key, key_group in new_keys(self.epoch.changes).items():
            new.setdefault(key_group, []).append(key)
        key_groups = sorted(self.member_groups() | new.keys())
        start = bisect.bisect_left(key_groups, first_group)
        for key_group in key_groups[start:] + key_groups[:start]:
            keys = dict.fromkeys(self.members_of(key_group) + new.get(key_group, []))
            yield key_group, [key for key in keys if key in self.live]

    def put_restored(self, key: Any, key_group: int, stored: Any) -> None:
        """Store an entry of a file, which is not a change. No thread may be reading."""
        if key not in self.live:
            members = self._members.get(key_group)
            if members is None:
                members = self._members[key_group] = []
            members.append(key)
        self.live[key] = stored

    def remove_restored(self, key: Any) -> None:
        """Remove an entry that a file deletes. No thread may be reading."""
        if self.live.pop(key, None) is not None:
            self._removed_count += 1
            self._renew_members(self.epoch)

    def member_groups(self) -> set[int]:
        """The key groups that have members."""
        with self._members_lock:
            return set(self._members)

    def members_of(self, key_group: int) -> list[Any]:
        """The members of a key group: some may be removed, or listed twice."""
        with self._members_lock:
            return list(self._members.get(key_group, ()))

    def take_in(self, epochs: tuple[EpochChanges, ...], new_keys: NewKeys) -> None:
        """Add the new keys of ended epochs to the members, except those that were removed in their epoch."""
        with self._members_lock:
            for epoch in epochs:
                if not epoch.is_taken_in:
                    new = new_keys(epoch.changes)
                    # In this order: the owner records a key as changed before it removes it.
                    removed = [key for key in new if key not in self.live]
                    for later in epoch.later():
                        removed = [key for key in removed if key not in later.changes]
                    for key in removed:
                        del new[key]
                    for key, key_group in new.items():
                        members = self._members.get(key_group)
                        if members is None:
                            self._members[key_group] = [key]
                        else:
                            members.append(key)
                    epoch.is_taken_in = True

    def release(self, frozen: FrozenEntries, is_written: bool) -> None:
        with self._lock:
            self.readers -= 1
            if is_written:
                # An older snapshot that completes later finds its epochs already removed.
                self._unwritten = tuple(epoch for epoch in self._unwritten if epoch not in frozen.epochs)
                self._removed_count += frozen.removed_count

    def tidy(self, written: EpochChanges, new_keys: NewKeys, fold: Fold) -> None:
        if not self.readers:
            self._renew_members(written)
            self._fold_unwritten(new_keys, fold)

    def _fold_unwritten(self, new_keys: NewKeys, fold: Fold) -> None:
        """Merge the epochs of failed snapshots into one, so that they do not accumulate during an outage of the store.

        Runs on any thread. Changes nothing if a snapshot is prepared meanwhile, since it holds the epochs.
        """
        unwritten = self._unwritten
        if len(unwritten) < 2:
            return
        self.take_in(unwritten, new_keys)
        folded = fold(unwritten)
        folded.is_taken_in = True
        folded.following = unwritten[-1].following
        with self._lock:
            if self._unwritten is unwritten and not self.readers:
                self._unwritten = (folded,)

    def _renew_members(self, written: EpochChanges) -> None:
        """Drop removed members, if there are many.

        Keys that epochs after ``written`` changed are kept: a snapshot that is prepared meanwhile may need them.
        """
        if self._removed_count <= max(_MIN_REMOVED, len(self.live) // 2):
            return
        with self._members_lock:
            self._removed_count = 0
            for members in self._members.values():
                kept = dict.fromkeys(members)
                # In this order: the owner records a key as changed before it removes it.
                removed = [key for key in kept if key not in self.live]
                for epoch in written.later():
                    removed = [key for key in removed if key not in epoch.changes]
                for key in removed:
                    del kept[key]
                members[:] = kept


class FrozenEntries:
    """The entries when the last of ``epochs`` ended. The snapshot writes the changes of all these epochs."""

    __slots__ = ("_history", "epochs", "last", "removed_count")

    def __init__(self, history: EntryHistory, epochs: tuple[EpochChanges, ...]) -> None:
        self._history = history
        self.epochs = epochs
        self.last: Final = epochs[-1]
        self.removed_count = 0
        """How many changed keys no longer exist; set by the writer."""

    @property
    def live(self) -> dict[Any, Any]:
        """The current entries; read them before `later_changes`."""
        return self._history.live

    def keys(self, new_keys: NewKeys) -> Iterator[tuple[int, list[Any]]]:
        """The keys by key group. Some may have been added later, or removed earlier."""
        self.take_in(new_keys)
        for key_group in sorted(self._history.member_groups()):
            yield key_group, list(dict.fromkeys(self._history.members_of(key_group)))

    def take_in(self, new_keys: NewKeys) -> None:
        """Add new keys to the members. The writer of the changes calls this."""
        self._history.take_in(self.epochs, new_keys)

    def first_changes(self) -> dict[Any, Any]:
        """The changed keys with their first change, which records what completed snapshots hold."""
        if len(self.epochs) == 1:
            return self.last.changes
        changes: dict[Any, Any] = {}
        for epoch in reversed(self.epochs):
            changes.update(epoch.changes)
        return changes

    def later_changes(self, key: Any) -> list[Any]:
        """The changes of a key since the freeze, in order."""
        return [epoch.changes[key] for epoch in self.last.later() if key in epoch.changes]

    def release(self, *, is_written: bool) -> None:
        """Release the entries once, after the last read; ``is_written`` means that the snapshot is complete.

        Must take effect at the moment when the next snapshot starts to refer to the files of this one.
        """
        self._history.release(self, is_written)

    def tidy(self, new_keys: NewKeys, fold: Fold) -> None:
        """Drop removed members and merge the epochs of failed snapshots, if there are many. Call it after `release`."""
        self._history.tidy(self.last, new_keys, fold)


def copy_now(entries: dict[Any, Any]) -> dict[Any, Any]:
    """Copy a dict that another thread may be changing, as of one moment."""
    try:
        return entries.copy()
    except RuntimeError:
        # Garbage collection may run other code during the copy, and so let the other thread run.
        return copy_now(entries)
