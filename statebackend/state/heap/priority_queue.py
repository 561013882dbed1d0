"""Priority queues on the heap: a table whose entry keys are the entries of the queue, and a binary heap.

The table is one of rows, with empty values (`statebackend.state.heap.row_table`). The binary heap holds the entries of
all key groups. It is built at the first use, in linear time. Afterwards it is kept with the table, across epochs and
when the table catches up with increments. So an epoch of a kept backend costs only what it adds and polls.

An entry that is removed below the top stays in the heap as *stale*, until it reaches the top or most entries of the
heap are stale. If it is added again meanwhile, the heap has it twice.

Invariants, while there is a heap: it contains the entries of the table; its top is one of them.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

from statebackend.state.canonical import CanonicalBatch
from statebackend.state.composite_key import VOID_NAMESPACE_BYTES
from statebackend.state.encoded_priority_queue import KEY_GROUP_SUFFIX, EncodedPriorityQueue, key_group_of
from statebackend.state.errors import StateBackendClosedError, StateRestoreError
from statebackend.state.heap.entry_table import HeapTable
from statebackend.state.heap.row_table import RowTable
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.value_forms import Load, MemoryForm
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

_PRESENT: Final = b""
"""The value stored for an entry."""

_FEW: Final = 8
"""Up to an eighth of the heap is added or polled entry by entry. For more, the heap is rebuilt or sorted."""

_MIN_STALE: Final = 1024
"""The heap is rebuilt only if at least this many entries are stale."""


class QueueEntryKeys:
    """Converts entries of a queue to element and void namespace, and back; needs no serializer."""

    __slots__ = ("from_bytes", "to_bytes")

    def __init__(self) -> None:
        self.to_bytes: Callable[[Any], tuple[bytes, bytes]] = lambda entry: (entry[:-2], VOID_NAMESPACE_BYTES)
        self.from_bytes: Callable[[bytes, bytes], Any] = lambda element, _: element

    @property
    def plain_key_serializer(self) -> TypeSerializer[Any] | None:
        return None

    def is_like(self, other: Any) -> bool:
        return isinstance(other, QueueEntryKeys)

    def compile_check(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        return lambda entry: entry


class QueueTable(RowTable):
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

    def new_keys(self, changes: dict[Any, Any]) -> dict[Any, int]:
        return {entry: key_group_of(entry) for entry, older in changes.items() if older is None}

    def in_order(self, keys: Iterable[bytes]) -> list[bytes]:
        return sorted(keys, key=lambda entry: entry[-2:] + entry[:-2])

    def batch_of(self, keys: list[bytes], rows: list[bytes | None]) -> CanonicalBatch:
        size = len(keys)
        return CanonicalBatch(
            list(struct.unpack(f">{size}H", b"".join([entry[-2:] for entry in keys]))),
            [entry[:-2] for entry in keys],
            [VOID_NAMESPACE_BYTES] * size,
            [None] * size,
            rows,
        )

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

    __slots__ = ("_changes", "_live", "_table")

    def __init__(self, table: QueueTable, serializer: TypeSerializer[T]) -> None:
        super().__init__(table.name, serializer, table.key_groups)
        self._table: QueueTable | None = table
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
        # In this order: a snapshot reads the live entry first and then looks for a change.
        self._changes.setdefault(entry, None)
        live[entry] = _PRESENT
        heappush(heap, entry)
        return heap[0] is entry

    def add_entries(self, entries: Sequence[bytes]) -> None:
        table = self._table or self._open_table()
        heap, live, changes = table.built_heap(), self._live, self._changes
        new = [entry for entry in dict.fromkeys(entries) if entry not in live]
        changes.update(dict.fromkeys([entry for entry in new if entry not in changes]))
        live.update(dict.fromkeys(new, _PRESENT))
        if len(new) * _FEW < len(heap):
            for entry in new:
                heappush(heap, entry)
        else:
            heap += new
            heapify(heap)

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
        changes = self._changes
        if changes.setdefault(entry, _PRESENT) is None and not table.history.readers:
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
        heap, live, drop = table.built_heap(), self._live, self._drop
        singly = min(most, len(heap) // _FEW + 1)
        polled = super().poll_entries(is_due, singly)
        if len(polled) < singly or len(polled) == most:
            return polled
        # A sorted list is a heap.
        heap.sort()
        if len(heap) > len(live):
            heap[:] = [entry for entry in dict.fromkeys(heap) if entry in live]
        end = bisect_left(heap, True, 0, key=lambda entry: not is_due(self.element_of(entry)))
        due = heap[: min(end, most - len(polled))]
        for entry in due:
            drop(table, entry)
        del heap[: len(due)]
        return polled + due

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
            self._live, self._changes = history.live, history.epoch.changes

    def close(self) -> None:
        """Make every later access raise an error."""
        self._table = None

    def _open_table(self) -> QueueTable:
        if self._table is None:
            raise StateBackendClosedError(
                f"state {self.name!r} is closed: state handles live for one epoch and are made again in open()"
            )
        return self._table
