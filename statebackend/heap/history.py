"""The entries of one state on the heap, and how a snapshot goes on seeing them as they were.

There is one dict from entry keys to what is stored, the *live* entries, which every read and write goes to. Beside it
runs a chain of *epochs*, one from each snapshot to the next: what an epoch changed, and what was there before. To
freeze the state is to begin a new epoch, whatever its size. What was stored at that moment under a key is then what the
first of the later epochs that changed it says was there before; if none did, it is the live entry.

So nothing is copied, layered or folded: reads look into one dict, and a snapshot that is written costs its owner
nothing afterwards. This is copy-on-write, as Flink's heap does it per entry, with the old version kept beside the table
instead of in it.

A snapshot is read by another thread while the owner goes on writing. It needs no lock for that, because

* the owner notes what was there before it changes an entry, and
* the reader reads the live entry first, and then asks the epochs since whether it was changed.

If a change is missing from the epochs, it had not begun when the live entry was read. Single operations of dicts and
lists are atomic in CPython; `keys_now` and `copy_now` are the two that walk a dict which may change.

The key groups of entries are kept apart, in ``groups``. The owner's hot path does not touch it: for a key that was not
there, the epoch notes the key group, and who reads the state takes it over from there (`take_in_groups`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

NewKeys = Callable[[dict[Any, Any]], dict[Any, int]]
"""From the changes of an epoch to the key groups of the keys that were not there before."""


class Epoch:
    """``changes`` are by entry key, and what they are is the table's business.

    ``before`` holds what was stored under keys whose change does not say it, as long as somebody may ask; else None.
    """

    __slots__ = ("before", "changes", "following", "groups_taken_in")

    def __init__(self, before: dict[Any, Any] | None = None) -> None:
        self.changes: dict[Any, Any] = {}
        self.before = before
        self.following: Epoch | None = None
        self.groups_taken_in = False

    def later(self) -> Iterator[Epoch]:
        """The epochs after this one, including those that begin during the iteration."""
        epoch = self.following
        while epoch is not None:
            yield epoch
            epoch = epoch.following


class EntryHistory:
    """Live entries and their epochs. Only `FrozenEntries` may be used on other threads than the owner's."""

    __slots__ = ("_gone", "_groups_lock", "_lock", "_unwritten", "epoch", "groups", "live", "readers")

    def __init__(self) -> None:
        self.live: dict[Any, Any] = {}
        self.groups: dict[Any, int] = {}
        self.epoch = Epoch()
        self.readers = 0
        """Snapshots that may still ask what was there before."""
        self._unwritten: tuple[Epoch, ...] = ()
        self._gone: list[FrozenEntries] = []
        self._lock = threading.Lock()
        self._groups_lock = threading.Lock()

    @property
    def has_unwritten_changes(self) -> bool:
        """Whether something was changed that no completed snapshot holds."""
        return bool(self.epoch.changes) or any(epoch.changes for epoch in self._unwritten)

    @property
    def is_settled(self) -> bool:
        """Whether nothing that was stored before this epoch will be asked for."""
        return not self.readers and not self._unwritten

    def freeze(self) -> FrozenEntries:
        """The entries as they are, for a snapshot that writes what no completed one holds; begins an epoch."""
        frozen = self.epoch
        self.epoch = frozen.following = Epoch(before={})
        with self._lock:
            self._unwritten = (*self._unwritten, frozen)
            self.readers += 1
            return FrozenEntries(self, self._unwritten)

    def take_in_groups(self, epochs: tuple[Epoch, ...], new_keys: NewKeys) -> None:
        """Makes ``groups`` know all keys of these epochs, which have ended."""
        with self._groups_lock:
            for epoch in epochs:
                if not epoch.groups_taken_in:
                    self.groups.update(new_keys(epoch.changes))
                    epoch.groups_taken_in = True

    def take_in_all_groups(self, new_keys: NewKeys) -> None:
        """Makes ``groups`` know all keys that are live. On the owner's thread."""
        with self._lock:
            unwritten = self._unwritten
        self.take_in_groups(unwritten, new_keys)
        with self._groups_lock:
            self.groups.update(new_keys(self.epoch.changes))

    def put_restored(self, key: Any, key_group: int, stored: Any) -> None:
        """Stores what files say, which is no change. Nobody may be reading."""
        self.live[key] = stored
        self.groups[key] = key_group

    def remove_restored(self, key: Any) -> None:
        """Takes away what files say is gone."""
        self.live.pop(key, None)
        self.groups.pop(key, None)

    def _release(self, frozen: FrozenEntries, is_written: bool) -> None:
        with self._lock:
            self.readers -= 1
            if is_written:
                # An older snapshot that is completed later finds its epochs gone already.
                self._unwritten = tuple(epoch for epoch in self._unwritten if epoch not in frozen.epochs)
                self._gone.append(frozen)
            if self.readers or not self._gone:
                return
            gone, self._gone = self._gone, []
        with self._groups_lock:
            for written in gone:
                for key in written.gone:
                    # In this order: the owner notes a key as changed before it makes it live.
                    if key not in self.live and not any(key in epoch.changes for epoch in written.last.later()):
                        self.groups.pop(key, None)


class FrozenEntries:
    """The entries as they were when the last of ``epochs`` ended; the changes of all of them are to be written."""

    __slots__ = ("_history", "epochs", "gone", "last")

    def __init__(self, history: EntryHistory, epochs: tuple[Epoch, ...]) -> None:
        self._history = history
        self.epochs = epochs
        self.last: Final = epochs[-1]
        self.gone: list[Any] = []
        """Keys that were changed and are not there; filled in by who writes them."""

    @property
    def live(self) -> dict[Any, Any]:
        """The entries as they are now, to be read before `later_changes` is asked."""
        return self._history.live

    def groups(self, new_keys: NewKeys) -> dict[Any, int]:
        """The key groups of all keys that were there; more keys may be in it."""
        self._history.take_in_groups(self.epochs, new_keys)
        return self._history.groups

    def first_changes(self) -> dict[Any, Any]:
        """The changed keys, each with its first change, which knows what completed snapshots hold of it."""
        if len(self.epochs) == 1:
            return self.last.changes
        changes: dict[Any, Any] = {}
        for epoch in reversed(self.epochs):
            changes.update(epoch.changes)
        return changes

    def later_changes(self, key: Any) -> list[Any]:
        """What was done to a key since, in order."""
        return [epoch.changes[key] for epoch in self.last.later() if key in epoch.changes]

    def keys(self) -> list[Any]:
        """All keys that were there; keys that came later may be among them."""
        keys = keys_now(self._history.live)
        changed = [key for epoch in self.last.later() for key in keys_now(epoch.changes)]
        return list(dict.fromkeys(keys + changed)) if changed else keys

    def release(self, *, is_written: bool) -> None:
        """To be called once, when nothing will be read any more; ``is_written`` says that the snapshot is complete."""
        self._history._release(self, is_written)


def keys_now(entries: dict[Any, Any]) -> list[Any]:
    """The keys of a dict that another thread may be changing, as they are at one moment."""
    try:
        return list(entries)
    except RuntimeError:
        # The collector of garbage may run other code in the middle, and so let the other thread in.
        return keys_now(entries)


def copy_now(entries: dict[Any, Any]) -> dict[Any, Any]:
    """A copy of a dict that another thread may be changing, as it is at one moment."""
    try:
        return entries.copy()
    except RuntimeError:
        return copy_now(entries)
