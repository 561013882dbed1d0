"""Priority queues on the heap: a table whose entry keys are the entries of the queue, and a binary heap.

The table is that of a value state with empty values, so history and snapshots are the same. The binary heap holds the
entries of all key groups. It is built at the first use, in linear time. Afterwards it is kept with the table, across
epochs and when the table catches up with increments. So an epoch of a kept backend costs only what it adds and polls.

An entry that is removed below the top stays in the heap as *stale*, until it reaches the top or most entries of the
heap are stale. If it is added again meanwhile, the heap has it twice.

Invariants, while there is a heap: it contains the entries of the table; its top is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

from statebackend.state.encoded_priority_queue import KEY_GROUP_SUFFIX, EncodedPriorityQueue, key_group_of
from statebackend.state.errors import StateBackendClosedError, StateRestoreError
from statebackend.state.heap.entry_table import HeapTable
from statebackend.state.heap.history import EpochChanges
from statebackend.state.heap.value_state import ValueTable
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.value_forms import Load, MemoryForm
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer

T = TypeVar("T")

_PRESENT: Final = b""
"""The value stored for an entry."""

_MIN_STALE: Final = 1024
"""The heap is rebuilt only if at least this many entries are stale."""


class QueueEntryKeys:
    """Converts entries of a queue to element and void namespace, and back; needs no serializer."""

    __slots__ = ("from_bytes", "to_bytes")

    def __init__(self) -> None:
        void = VoidNamespaceSerializer().to_bytes(VOID_NAMESPACE)
        self.to_bytes: Callable[[Any], tuple[bytes, bytes]] = lambda entry: (entry[:-2], void)
        self.from_bytes: Callable[[bytes, bytes], Any] = lambda element, _: element

    @property
    def plain_key_serializer(self) -> TypeSerializer[Any] | None:
        return None

    def is_like(self, other: Any) -> bool:
        return isinstance(other, QueueEntryKeys)

    def compile_check(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        return lambda entry: entry


class QueueTable(ValueTable):
    """The entries of a queue; ``heap`` is None until first used."""

    __slots__ = ("heap",)

    def __init__(self, name: str, key_groups: KeyGroupRange) -> None:
        super().__init__(name, QueueEntryKeys(), MemoryForm(None, is_encoded=True), key_groups)
        self.heap: list[bytes] | None = None

    def built_heap(self) -> list[bytes]:
        """Return the heap, and build it first if necessary."""
        heap = self.heap
        if heap is None:
            heap = self.heap = list(self.entries_alive())
            heapify(heap)
        return heap

    def entries_alive(self) -> Iterator[bytes]:
        """The entries of the queue, unordered."""
        return iter(self.history.live)

    def entries_in(self, key_group: int) -> list[bytes]:
        """The sorted entries of a key group. The cost is their number plus the number of changes."""
        found, entries = next(self.live_keys(key_group), (key_group, []))
        return sorted(entries) if found == key_group else []

    def admit(self, key: Any, key_group: int) -> None:
        # The queue made the entry, so element and key group are valid.
        history = self.history
        epoch = history.epoch
        if epoch.before is not None:
            if history.readers:
                epoch.before[key] = history.live.get(key)
            else:
                self.settle()
        epoch.changes[key] = (self.notes if key in history.live else self.notes_of_new)[key_group]

    def olders(self, epoch: EpochChanges) -> list[Any]:
        return [None if change < 0 else _PRESENT for change in epoch.changes.values()]

    def take_out(self, heap: list[bytes], entry: bytes) -> bool:
        """Remove an entry that has left the table, now or later; return whether it was at the top of the heap."""
        live = self.history.live
        if heap[0] == entry:
            heappop(heap)
            while heap and heap[0] not in live:
                heappop(heap)
            return True
        if len(heap) > 2 * len(live) + _MIN_STALE:
            heap[:] = live
            heapify(heap)
        return False

    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        entry = key + KEY_GROUP_SUFFIX.pack(key_group)
        heap = self.heap
        if value:
            raise StateRestoreError("it has a value, so the file is not that of a priority queue")
        if value is None:
            if entry in self.history.live:
                self.history.remove_restored(entry)
                if heap is not None:
                    self.take_out(heap, entry)
        elif entry not in self.history.live:
            self.history.put_restored(entry, key_group, _PRESENT)
            if heap is not None:
                heappush(heap, entry)

    def can_take_entries_of(self, other: HeapTable) -> bool:
        return isinstance(other, QueueTable)

    def take_entries_of(self, other: HeapTable) -> None:
        super().take_entries_of(other)
        self.heap = None


class HeapPriorityQueue(EncodedPriorityQueue[T]):
    """A view of a `QueueTable`. It holds the table's dicts, because every access uses them.

    An entry that is added and removed between two snapshots leaves no change behind.
    """

    __slots__ = ("_before", "_changes", "_live", "_notes", "_notes_of_new", "_table")

    def __init__(self, table: QueueTable, serializer: TypeSerializer[T]) -> None:
        super().__init__(table.name, serializer, table.key_groups)
        self._table: QueueTable | None = table
        self._notes, self._notes_of_new = table.notes, table.notes_of_new
        self.bind()

    def add(self, element: T, key_group: int) -> bool:
        # The same as in the base class, with one call less.
        try:
            entry = self._write(element) + self.suffixes[key_group]
        except Exception:
            entry = self._checked_entry(element, key_group)
        return self.add_entry(entry)

    def add_entry(self, entry: bytes) -> bool:
        table = self._table or self._open_table()
        heap = table.heap
        if heap is None:
            heap = table.built_heap()
        live = self._live
        if entry in live:
            return False
        if entry not in self._changes:
            if self._before is None:
                # As `QueueTable.admit`.
                self._changes[entry] = self._notes_of_new[entry[-2] << 8 | entry[-1]]
            else:
                table.admit(entry, entry[-2] << 8 | entry[-1])
        live[entry] = _PRESENT
        heappush(heap, entry)
        return heap[0] is entry

    def remove(self, element: T, key_group: int) -> bool:
        # As `add`.
        try:
            entry = self._write(element) + self.suffixes[key_group]
        except Exception:
            entry = self._checked_entry(element, key_group)
        return self.remove_entry(entry)

    def remove_entry(self, entry: bytes) -> bool:
        table = self._table or self._open_table()
        heap = table.heap
        if heap is None:
            heap = table.built_heap()
        if entry not in self._live:
            return False
        self._drop(table, entry)
        return table.take_out(heap, entry)

    def _drop(self, table: QueueTable, entry: bytes) -> None:
        """Remove an entry from the table, but not from its heap."""
        changes, before = self._changes, self._before
        change = changes.get(entry)
        if change is None:
            if before is None:
                changes[entry] = self._notes[entry[-2] << 8 | entry[-1]]
            else:
                table.admit(entry, entry[-2] << 8 | entry[-1])
        elif change < 0 and before is None:
            # No snapshot reads this epoch, so the entry need not have existed.
            del changes[entry]
        del self._live[entry]

    def head(self) -> bytes | None:
        table = self._table or self._open_table()
        heap = table.heap
        if heap is None:
            heap = table.built_heap()
        return heap[0] if heap else None

    def remove_head(self) -> None:
        table = self._table or self._open_table()
        heap = table.built_heap()
        entry = heap[0]
        self._drop(table, entry)
        table.take_out(heap, entry)

    def poll_entries(self, is_due: Callable[[T], bool], most: int) -> list[bytes]:
        table = self._table or self._open_table()
        heap, live, element_of, drop = table.built_heap(), self._live, self.element_of, self._drop
        polled: list[bytes] = []
        while heap and len(polled) < most:
            entry = heap[0]
            if not is_due(element_of(entry)):
                break
            drop(table, entry)
            heappop(heap)
            while heap and heap[0] not in live:
                heappop(heap)
            polled.append(entry)
        return polled

    def size(self) -> int:
        return len(self._open_table().history.live)

    def entries_of_group(self, key_group: int) -> Iterator[bytes]:
        return iter(self._open_table().entries_in(key_group))

    def entries(self) -> Iterator[tuple[T, int]]:
        in_order = sorted(self._open_table().entries_alive(), key=lambda entry: (entry[-2:], entry))
        return ((self.element_of(entry), key_group_of(entry)) for entry in in_order)

    def bind(self) -> None:
        """Use the dicts of the table's current epoch."""
        if self._table is not None:
            history = self._table.history
            self._live, self._changes, self._before = history.live, history.epoch.changes, history.epoch.before

    def close(self) -> None:
        """Make every later access raise an error."""
        self._table = None

    def _open_table(self) -> QueueTable:
        if self._table is None:
            raise StateBackendClosedError(
                f"state {self.name!r} is closed: state handles live for one epoch and are made again in open()"
            )
        return self._table
