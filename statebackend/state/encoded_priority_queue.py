"""Priority queues that hold their elements as bytes; the base of the queues of all backends.

    entry := element u16(key group)

A queue holds entries instead of elements. An entry is hashed and compared as bytes, takes less memory than the element,
cannot be changed by a caller, and contains its key group. The bytes of an element are self-delimiting, so no element is
a prefix of another: entries sort as their elements do, and equal elements sort by key group. An element is decoded only
when it is returned.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from snapshots.errors import SerializationError
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.priority_queue import KeyGroupedPriorityQueue
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

KEY_GROUP_SUFFIX: Final = struct.Struct(">H")


def key_group_of(entry: bytes) -> int:
    """The key group of an entry."""
    return entry[-2] << 8 | entry[-1]


class KeyGroupSuffixes(dict[int, bytes]):
    """The suffix of entries for each key group of a subtask; a foreign key group is rejected."""

    __slots__ = ("_key_groups",)

    def __init__(self, key_groups: KeyGroupRange) -> None:
        self._key_groups = key_groups

    def __missing__(self, key_group: int) -> bytes:
        self._key_groups.require(key_group, "element")
        suffix = self[key_group] = KEY_GROUP_SUFFIX.pack(key_group)
        return suffix


class EncodedPriorityQueue(KeyGroupedPriorityQueue[T]):
    """A queue of encoded entries; subclasses define the storage."""

    __slots__ = ("_read", "_write", "key_groups", "name", "serializer", "suffixes")

    def __init__(self, name: str, serializer: TypeSerializer[T], key_groups: KeyGroupRange) -> None:
        self.name = name
        self.key_groups = key_groups
        self.serializer = serializer
        self.suffixes = KeyGroupSuffixes(key_groups)
        """The last two bytes of an entry by key group; a look-up raises `StateBackendError` for a foreign one."""
        self._read = serializer.codec.read
        # `peek` returns None for an empty queue, so None is rejected even if the serializer accepts it.
        self._write = self._write_but_none if serializer.accepts_none else serializer.codec.write

    @abstractmethod
    def add_entry(self, entry: bytes) -> bool:
        """Like `add`, for an entry."""

    @abstractmethod
    def remove_entry(self, entry: bytes) -> bool:
        """Like `remove`, for an entry."""

    @abstractmethod
    def head(self) -> bytes | None:
        """The smallest entry, without removing it; None if the queue is empty."""

    @abstractmethod
    def remove_head(self) -> None:
        """Remove the smallest entry of a queue that is not empty."""

    @abstractmethod
    def entries_of_group(self, key_group: int) -> Iterator[bytes]:
        """The sorted entries of a key group of this subtask."""

    def add(self, element: T, key_group: int) -> bool:
        return self.add_entry(self.entry_of(element, key_group))

    def add_all(self, entries: Iterable[tuple[T, int]]) -> None:
        self.add_entries(self._encoded(entries if isinstance(entries, (list, tuple)) else list(entries)))

    def add_entries(self, entries: Sequence[bytes]) -> None:
        """Like `add_all`, for entries of this subtask."""
        for entry in entries:
            self.add_entry(entry)

    def poll_many(self, is_due: Callable[[T], bool], most: int) -> list[tuple[T, int]]:
        return list(map(self.of_entry, self.poll_entries(is_due, most)))

    def poll_entries(self, is_due: Callable[[T], bool], most: int) -> list[bytes]:
        """Like `poll_many`, as entries."""
        polled: list[bytes] = []
        while len(polled) < most and (entry := self.head()) is not None and is_due(self.element_of(entry)):
            self.remove_head()
            polled.append(entry)
        return polled

    def remove(self, element: T, key_group: int) -> bool:
        return self.remove_entry(self.entry_of(element, key_group))

    def peek(self) -> T | None:
        entry = self.head()
        return None if entry is None else self.element_of(entry)

    def peek_key_group(self) -> int | None:
        entry = self.head()
        return None if entry is None else key_group_of(entry)

    def poll(self) -> T | None:
        entry = self.head()
        if entry is None:
            return None
        element = self.element_of(entry)
        self.remove_head()
        return element

    def poll_while(self, is_due: Callable[[T], bool]) -> Iterator[tuple[T, int]]:
        head, element_of, remove_head = self.head, self.element_of, self.remove_head
        while (entry := head()) is not None:
            element = element_of(entry)
            if not is_due(element):
                return
            remove_head()
            yield element, entry[-2] << 8 | entry[-1]

    def entries(self) -> Iterator[tuple[T, int]]:
        element_of = self.element_of
        for key_group in self.key_groups:
            for entry in self.entries_of_group(key_group):
                yield element_of(entry), key_group

    def subset_of_key_group(self, key_group: int) -> Iterator[T]:
        # The look-up rejects another subtask's key group.
        self.suffixes[key_group]
        return map(self.element_of, self.entries_of_group(key_group))

    def of_entry(self, entry: bytes) -> tuple[T, int]:
        """The element of an entry, and its key group."""
        return self.element_of(entry), entry[-2] << 8 | entry[-1]

    def element_of(self, entry: bytes) -> T:
        """Decode an entry; raise `StateRestoreError` if another serializer wrote it."""
        try:
            element, end = self._read(entry, 0)
        except Exception as error:
            raise self._unreadable(entry, error) from error
        if end != len(entry) - 2:
            raise self._unreadable(entry, f"it ends at byte {end} of {len(entry) - 2}")
        return element

    def describe(self) -> str:
        """The queue's name for messages."""
        return f"state {self.name!r}"

    def entry_of(self, element: T, key_group: int) -> bytes:
        """The entry of an element. Raises as `add`."""
        try:
            return self._write(element) + self.suffixes[key_group]
        except Exception:
            return self._checked_entry(element, key_group)

    def _encoded(self, given: Sequence[tuple[T, int]]) -> list[bytes]:
        write, suffixes = self._write, self.suffixes
        try:
            return [write(element) + suffixes[key_group] for element, key_group in given]
        except Exception:
            return [self._checked_entry(element, key_group) for element, key_group in given]

    def _checked_entry(self, element: T, key_group: int) -> bytes:
        """Encode an element; raise an error that names the queue for an invalid element or key group."""
        if element is None:
            raise SerializationError(self.describe(), ("None is not an element of a priority queue",))
        suffix = self.suffixes[key_group]
        try:
            return self.serializer.to_bytes(element) + suffix
        except SerializationError as error:
            raise error.within(self.describe()) from error

    def _write_but_none(self, element: T) -> bytes:
        if element is None:
            raise ValueError("None is not an element")
        return self.serializer.codec.write(element)

    def _unreadable(self, entry: bytes, error: object) -> StateRestoreError:
        return StateRestoreError(
            f"{self.describe()}: the stored element {entry[:-2].hex()} in key group {key_group_of(entry)} cannot be "
            f"read by {self.serializer!r}: {error}"
        )
