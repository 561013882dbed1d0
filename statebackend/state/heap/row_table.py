"""Tables of rows on the heap: stored bytes by encoded entry keys, so that a snapshot encodes nothing.

An epoch records, for each changed key, its row before the first change; None for a new key. A snapshot writes whole
columns of rows, which takes about a microsecond per key. Encoding a key and its value would take several.

Value state for bulk access and priority queues have such tables.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from operator import ne
from typing import Any, Final, TypeVar

from statebackend.state.canonical import BATCH_ROWS, CanonicalBatch, bounded_batches
from statebackend.state.composite_key import KEY_GROUP, RawKeys
from statebackend.state.entry_keys import encoded
from statebackend.state.heap.entry_table import ChangedRows, HeapStateHandle, HeapTable
from statebackend.state.heap.history import FrozenEntries
from statebackend.state.internal_states import HandleContext
from statebackend.state.key_context import has_namespaces
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.row_value_state import RowValueState
from statebackend.state.state_kind import RowFilter
from statebackend.state.value_forms import Load, MemoryForm
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

_KEY_START: Final = KEY_GROUP.size


class RowKeys:
    """Splits raw keys into key and namespace. All namespaces have the same length, so no serializer is needed."""

    __slots__ = ("from_bytes", "namespace_bytes", "to_bytes")

    def __init__(self, namespace_bytes: int) -> None:
        self.namespace_bytes = namespace_bytes
        self.to_bytes: Callable[[bytes], tuple[bytes, bytes]] = lambda raw_key: (
            raw_key[_KEY_START:-namespace_bytes],
            raw_key[-namespace_bytes:],
        )
        self.from_bytes: Callable[[bytes, bytes], bytes] = lambda key, namespace: key + namespace
        """Returns the raw key without its key group."""

    @property
    def plain_key_serializer(self) -> TypeSerializer[Any] | None:
        return None

    def is_like(self, other: Any) -> bool:
        return isinstance(other, RowKeys)

    def compile_check(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        return lambda raw_key: raw_key


class RowTable(HeapTable):
    """The rows of a state. An entry key is bytes, from which key group, key and namespace are cut."""

    __slots__ = ()

    @abstractmethod
    def in_order(self, keys: Iterable[bytes]) -> list[bytes]:
        """Sort entry keys in canonical order."""

    @abstractmethod
    def batch_of(self, keys: list[bytes], rows: list[bytes | None]) -> CanonicalBatch:
        """The rows as columns."""

    def stored_at(self, entries: FrozenEntries, keys: list[Any]) -> list[Any]:
        stored = list(map(entries.live.get, keys))
        # The first later epoch that changed a key counts, so it is applied last.
        for epoch in reversed(list(entries.last.later())):
            if epoch.changes:
                stored = list(map(epoch.changes.get, keys, stored))
        return stored

    def changed_rows(self, entries: FrozenEntries, expired: RowFilter | None) -> Iterator[ChangedRows]:
        changes = entries.first_changes()
        keys = self.in_order(changes)
        olders, rows = list(map(changes.__getitem__, keys)), self.stored_at(entries, keys)
        entries.removed_count = rows.count(None)
        if entries.removed_count and None in olders:
            has_row = [older is not None or row is not None for older, row in zip(olders, rows, strict=True)]
            keys, olders, rows = (list(compress(column, has_row)) for column in (keys, olders, rows))
            if len(entries.epochs) == 1:
                # A key that was added and removed in one epoch was never a member.
                entries.removed_count = rows.count(None)
        for start in range(0, len(keys), BATCH_ROWS):
            part = slice(start, start + BATCH_ROWS)
            written = self.batch_of(keys[part], rows[part])
            before, after = olders[part], written.values
            if expired is not None:
                before, after = ([row and expired(row) for row in column] for column in (before, after))
            differs = list(map(ne, before, after))
            effective = CanonicalBatch(*written[:-1], after)
            if not all(differs):
                columns: Any = effective
                effective = CanonicalBatch(*(list(compress(column, differs)) for column in columns))
            yield ChangedRows(written, effective)

    def batches_at(self, entries: FrozenEntries, row_filter: RowFilter | None) -> Iterable[CanonicalBatch]:
        return bounded_batches(self._batches_at(entries, row_filter))

    def _batches_at(self, entries: FrozenEntries, row_filter: RowFilter | None) -> Iterator[CanonicalBatch]:
        for _, listed in entries.keys(self.new_keys):
            keys = self.in_order(listed)
            rows = self.stored_at(entries, keys)
            if row_filter is not None:
                rows = [None if row is None else row_filter(row) for row in rows]
            has_row = [row is not None for row in rows]
            yield self.batch_of(list(compress(keys, has_row)), list(compress(rows, has_row)))

    def rows_of(self, stored: bytes) -> Iterator[tuple[bytes | None, bytes]]:
        yield None, stored


class ValueRowTable(RowTable):
    """The rows of a value state whose namespaces have a fixed length."""

    __slots__ = ("raw_keys",)

    keys: RowKeys

    def __init__(
        self, name: str, key_serializer: TypeSerializer[Any], namespaces: TypeSerializer[Any], key_groups: KeyGroupRange
    ) -> None:
        super().__init__(name, RowKeys(namespaces.length), MemoryForm(None, is_encoded=True), key_groups)
        self.raw_keys = RawKeys(key_serializer, namespaces, key_groups, has_namespaces(namespaces))

    def new_keys(self, changes: dict[Any, Any]) -> dict[Any, int]:
        return {raw_key: KEY_GROUP.unpack_from(raw_key)[0] for raw_key, older in changes.items() if older is None}

    def in_order(self, keys: Iterable[bytes]) -> list[bytes]:
        return sorted(keys)

    def batch_of(self, keys: list[bytes], rows: list[bytes | None]) -> CanonicalBatch:
        size, namespace_bytes = len(keys), self.keys.namespace_bytes
        return CanonicalBatch(
            list(struct.unpack(f">{size}H", b"".join([raw_key[:_KEY_START] for raw_key in keys]))),
            [raw_key[_KEY_START:-namespace_bytes] for raw_key in keys],
            [raw_key[-namespace_bytes:] for raw_key in keys],
            [None] * size,
            rows,
        )

    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        raw_key = KEY_GROUP.pack(key_group) + key
        if value is None:
            self.history.remove_restored(raw_key)
        else:
            self.history.put_restored(raw_key, key_group, self.load_value(value, load))


class HeapRowValueState(HeapStateHandle, RowValueState[T]):
    """The handle of a `ValueRowTable`: values as the bytes of their rows, read and written many at once."""

    __slots__ = ("_encoded_default", "_last_keys", "_serializer", "name", "raw_keys")

    def __init__(
        self, table: ValueRowTable, context: HandleContext, serializer: TypeSerializer[T], default: T | None
    ) -> None:
        super().__init__(table, context)
        self.name, self.raw_keys = table.name, table.raw_keys
        self._serializer = serializer
        self._encoded_default = None if default is None else encoded(table.name, serializer, default)
        self._last_keys = []

    def read_rows(self, raw_keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._live.get, raw_keys))

    def write_rows(self, raw_keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        live, changes = self._live, self._changes
        new = [raw_key for raw_key in raw_keys if raw_key not in changes]
        # In this order: a snapshot reads the live entry first and then looks for a change.
        changes.update(zip(new, map(live.get, new), strict=True))
        live.update(zip(raw_keys, rows, strict=True))
        if None in rows:
            for raw_key, row in zip(raw_keys, rows, strict=True):
                if row is None and live.get(raw_key) is None:
                    live.pop(raw_key, None)
