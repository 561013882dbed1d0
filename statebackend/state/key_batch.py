"""The keys of a bulk operation.

A bulk operation reads or writes one state of many keys. Its default makes the keys current one after the other, so a
handle without bulk operations of its own supports them too. Stored entries are the same in both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import frozen


@frozen(eq=False)
class KeyBatch:
    """Keys of one subtask with their key groups. A key may occur more than once.

    ``set_key`` is the backend's `KeySetter`, compiled after all registrations.
    """

    keys: Sequence[Any]
    key_groups: Sequence[int]
    set_key: Callable[[Any, int], None]

    def __len__(self) -> int:
        return len(self.keys)

    def each(self) -> Iterator[Any]:
        """Make each key current, in order, and yield it."""
        set_key = self.set_key
        for key, key_group in zip(self.keys, self.key_groups, strict=True):
            set_key(key, key_group)
            yield key
