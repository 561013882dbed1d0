"""The keys of a bulk operation.

A bulk operation reads or writes one state of many keys. Its default makes the keys current one after the other, so a
handle without bulk operations of its own supports them too. Stored entries are the same in both ways.

A caller whose keys are in columns can encode many keys at once (`statebackend.savepoint.column_codecs.key_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import compress
from typing import Any

from attrs import frozen


@frozen(eq=False)
class KeyBatch:
    """Keys of one subtask with their key groups. A key may occur more than once.

    ``set_key`` is the backend's `KeySetter`, compiled after all registrations. ``encode`` returns `rows`.
    """

    keys: Sequence[Any]
    key_groups: Sequence[int]
    set_key: Callable[[Any, int], None]
    encode: Callable[[], Sequence[bytes] | None] = lambda: None

    @cached_property
    def rows(self) -> Sequence[bytes] | None:
        """The key group as u16 and the bytes of each key. None if keys are encoded one by one."""
        return self.encode()

    def only(self, selection: Sequence[bool]) -> KeyBatch:
        """Return the selected keys."""
        if all(selection):
            return self
        rows = self.rows
        keys, key_groups = list(compress(self.keys, selection)), list(compress(self.key_groups, selection))
        return KeyBatch(keys, key_groups, self.set_key, lambda: rows and list(compress(rows, selection)))

    def at(self, places: Sequence[int]) -> KeyBatch:
        """Return the keys at these places, in that order."""
        keys, key_groups = [self.keys[place] for place in places], [self.key_groups[place] for place in places]
        return KeyBatch(keys, key_groups, self.set_key)

    def __len__(self) -> int:
        return len(self.keys)

    def each(self) -> Iterator[Any]:
        """Make each key current, in order, and yield it."""
        set_key = self.set_key
        for key, key_group in zip(self.keys, self.key_groups, strict=True):
            set_key(key, key_group)
            yield key
