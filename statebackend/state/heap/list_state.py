"""List state on the heap.

One Python list is stored under a key. An append extends it in place; every other change stores another list. So the
list and its length at the first change of an epoch describe the earlier content for good.

Elements of immutable types are the items of the list. With a time-to-live, each value is followed by its time: pairs
would take a multiple of the memory and of the time. Elements of mutable types are kept encoded: an item is the bytes
of one element, or a *chunk*, the bytes of many elements as in a row. Rows are loaded as chunks. Elements that were
appended one by one become a chunk at the next append in a later epoch.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any, Final, TypeVar

from snapshots.errors import SerializationError
from statebackend.state.canonical import CanonicalRow
from statebackend.state.entry_keys import checked_elements
from statebackend.state.errors import null_element
from statebackend.state.heap.entry_table import (
    ChangedRows,
    ChangesOfKeys,
    HeapStateHandle,
    HeapTable,
    TableKeys,
    address_of_row,
)
from statebackend.state.heap.history import FrozenEntries
from statebackend.state.internal_states import HandleContext
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.list_state import InternalListState
from statebackend.state.state_kind import RowFilter
from statebackend.state.value_forms import Load, MemoryForm, compile_exact
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.ttl import TtlSerializer, TtlValue
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

CHUNK_ELEMENTS: Final = 1 << 14
"""The limit of elements in one row, so that no row is as large as the list."""

_COUNT: Final = struct.Struct(">i")


class Chunk(bytes):
    """Encoded elements after their number."""

    __slots__ = ()


class _ListChange:
    """``older`` and its length are the earlier content, ``items`` is the live list; None means no list."""

    __slots__ = ("items", "key_group", "older", "older_length")

    def __init__(self, key_group: int, older: list[Any] | None) -> None:
        self.key_group = key_group
        self.items = self.older = older
        self.older_length = 0 if older is None else len(older)


class ListTable(HeapTable):
    """The entries of a list state. A stored list is never empty. An element takes ``width`` items."""

    __slots__ = ("width",)

    def __init__(self, name: str, keys: TableKeys, form: MemoryForm, key_groups: KeyGroupRange) -> None:
        super().__init__(name, keys, form, key_groups)
        element: Any = getattr(form.serializer, "element_serializer", None)
        self.width = 2 if isinstance(element, TtlSerializer) and not form.is_encoded else 1

    def begin_change(self, key: Any, key_group: int) -> _ListChange:
        """Record the first change of a list in this epoch; raise if it cannot be stored."""
        history = self.history
        older = history.live.get(key)
        self.check_key_group(key_group)
        if older is None:
            self.check_new_key(key)
        elif self.form.is_encoded and history.is_settled:
            _pack_end(older)
        change = history.epoch.changes[key] = _ListChange(key_group, older)
        return change

    def new_keys(self, changes: dict[Any, Any]) -> dict[Any, int]:
        return {key: change.key_group for key, change in changes.items() if change.older is None}

    def stored_at(self, entries: FrozenEntries, keys: list[Any]) -> list[Any]:
        stored = []
        for key in keys:
            items, length = self._list_at(entries, key)
            stored.append(items[:length] if items is not None and length else None)
        return stored

    def changed_rows(self, entries: FrozenEntries, expired: RowFilter | None) -> Iterator[ChangedRows]:
        to_bytes, changes = self.keys.to_bytes, entries.first_changes()
        addressed = [(change.key_group, *to_bytes(key), key) for key, change in changes.items()]
        addressed.sort(key=address_of_row)
        collected = ChangesOfKeys()
        for key_group, key_bytes, namespace, key in addressed:
            rows: list[CanonicalRow] = []
            effective: list[CanonicalRow] = []
            first = changes[key]
            items, length = self._list_at(entries, key)
            start, was_there = first.older_length, first.older is not None
            is_replaced = items is not first.older
            if is_replaced:
                start = 0
                if was_there:
                    rows.append((key_group, key_bytes, namespace, None, None))
            chunks: list[bytes] = []
            if items is None or not length:
                entries.removed_count += 1
            else:
                chunks = list(self._chunks(items[start:length]))
                rows += [(key_group, key_bytes, namespace, None, chunk) for chunk in chunks]
            count, joined = _run_of(chunks, expired)
            if is_replaced and was_there:
                earlier = first.older[: first.older_length]
                if expired is None and self._begins_otherwise(earlier, items, length):
                    older_count, older = count + 1, b""
                else:
                    older_count, older = _run_of(self._chunks(earlier), expired)
                if count >= older_count and joined.startswith(older):
                    # The earlier elements are still the first ones.
                    count, joined = count - older_count, joined[len(older) :]
                else:
                    effective.append((key_group, key_bytes, namespace, None, None))
            if count:
                effective.append((key_group, key_bytes, namespace, None, count.to_bytes(8, "big") + joined))
            if collected.add(rows, effective):
                yield collected.piece()
        yield collected.piece()

    def rows_of(self, stored: Any) -> Iterator[tuple[bytes | None, bytes]]:
        for chunk in self._chunks(stored):
            yield None, chunk

    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        if value is None:
            self.history.remove_restored(key)
            return
        stored = self.load_value(value, load)
        items = self.history.live.get(key)
        if items is None:
            items = []
            self.history.put_restored(key, key_group, items)
        if self.form.is_encoded:
            items.append(Chunk(stored))
        elif self.width == 2:
            items.extend(itertools.chain.from_iterable(stored))
        else:
            items.extend(stored)

    def entry_count(self) -> int:
        if not self.form.is_encoded:
            return sum(map(len, self.history.live.values())) // self.width
        return sum(
            _COUNT.unpack_from(item)[0] if item.__class__ is Chunk else 1
            for items in self.history.live.values()
            for item in items
        )

    def _list_at(self, entries: FrozenEntries, key: Any) -> tuple[list[Any] | None, int]:
        """The frozen list, and how many of its items are frozen."""
        items = entries.live.get(key)
        length = 0 if items is None else len(items)
        later = entries.later_changes(key)
        return (later[0].older, later[0].older_length) if later else (items, length)

    def _begins_otherwise(self, earlier: list[Any], items: list[Any] | None, length: int) -> bool:
        """Whether the first elements show that a list does not start with its earlier elements."""
        if self.form.is_encoded or items is None or not length:
            return False
        first, others = earlier[: self.width], items[: self.width]
        return first[0] is not others[0] and next(self._chunks(first)) != next(self._chunks(others))

    def _chunks(self, items: list[Any]) -> Iterator[bytes]:
        """Encode items as rows."""
        if not self.form.is_encoded:
            if self.width == 2:
                items = list(zip(items[::2], items[1::2], strict=True))
            for start in range(0, len(items), CHUNK_ELEMENTS):
                yield self.form.write(items[start : start + CHUNK_ELEMENTS])
            return
        for is_chunk, run in itertools.groupby(items, _is_chunk):
            if is_chunk:
                yield from run
            else:
                elements = list(run)
                for start in range(0, len(elements), CHUNK_ELEMENTS):
                    yield _packed(elements[start : start + CHUNK_ELEMENTS])


def _run_of(chunks: Iterable[bytes], expired: RowFilter | None) -> tuple[int, bytes]:
    """Count and join the elements of chunks that have not expired; the result does not depend on the chunks' sizes."""
    if expired is not None:
        chunks = [kept for kept in map(expired, chunks) if kept is not None]
    count, parts = 0, []
    for chunk in chunks:
        count += _COUNT.unpack_from(chunk)[0]
        parts.append(chunk[_COUNT.size :])
    return count, b"".join(parts)


def _is_chunk(item: bytes) -> bool:
    return item.__class__ is Chunk


def _packed(elements: list[bytes]) -> Chunk:
    return Chunk(_COUNT.pack(len(elements)) + b"".join(elements))


def _pack_end(items: list[bytes]) -> None:
    """Pack the single elements at the end into one chunk, as many as fit. No thread may be reading the list."""
    start = len(items)
    least = max(0, start - CHUNK_ELEMENTS)
    while start > least and items[start - 1].__class__ is not Chunk:
        start -= 1
    if len(items) - start > 1:
        items[start:] = [_packed(items[start:])]


class HeapListState(HeapStateHandle, InternalListState[T]):
    """The handle of list state in the heap backend."""

    __slots__ = ("_begin", "_read_chunk", "_read_element", "_store")

    def __init__(self, table: ListTable, context: HandleContext, serializer: TypeSerializer[T]) -> None:
        super().__init__(table, context)
        self._begin = table.begin_change
        self._read_element = serializer.from_bytes
        self._read_chunk = ListSerializer(serializer).from_bytes
        self._store = serializer.to_bytes if table.form.is_encoded else compile_exact(serializer, self.describe)

    def get(self) -> list[T]:
        items: Any = self._live.get(self._context.key, ())
        if not self._table.form.is_encoded:
            return [*items]
        read_element, read_chunk = self._read_element, self._read_chunk
        elements: list[T] = []
        try:
            for item in items:
                if item.__class__ is Chunk:
                    elements += read_chunk(item)
                else:
                    elements.append(read_element(item))
        except Exception as error:
            raise self.unreadable(error) from error
        return elements

    def add(self, element: T) -> None:
        if element is None:
            raise null_element(self.describe(), 0)
        stored = self._stored(element)
        change = self._changes.get(self._context.key)
        if change is None:
            change = self._begin_change()
        items = change.items
        if items is None:
            items = change.items = self._live[self._context.key] = []
        items.append(stored)

    def add_all(self, elements: Iterable[T]) -> None:
        stored = self._items(elements)
        if stored:
            change = self._changes.get(self._context.key) or self._begin_change()
            if change.items is None:
                change.items = self._live[self._context.key] = stored
            else:
                change.items.extend(stored)

    def update(self, elements: Iterable[T]) -> None:
        stored = self._items(elements)
        if not stored:
            self.clear()
            return
        change = self._changes.get(self._context.key) or self._begin_change()
        change.items = self._live[self._context.key] = stored

    def clear(self) -> None:
        key = self._context.key
        if key in self._live:
            (self._changes.get(key) or self._begin_change()).items = None
            del self._live[key]

    def _items(self, elements: Iterable[T]) -> list[Any]:
        """The items to store for given elements."""
        return list(map(self._stored, checked_elements(self._table.name, elements)))

    def _begin_change(self) -> _ListChange:
        return self._begin(self._context.key, self._context.key_group)

    def _stored(self, element: T) -> Any:
        try:
            return self._store(element)
        except SerializationError as error:
            if not self._table.form.is_encoded:
                raise
            raise error.within(self.describe()) from error


class HeapObjectListState(HeapListState[T]):
    """Lists of elements of an immutable type, which are kept as objects."""

    __slots__ = ()

    def update(self, elements: Iterable[T]) -> None:
        key = self._context.key
        current = self._live.get(key, ())
        stored: list[Any] = [*elements]
        # Elements of the current list were checked before. Mostly all but the last one are at its end.
        known = len(stored) - 1
        start = len(current) - known
        if known > 0 <= start and stored[0] is current[start] and all(map(is_, current[start:], stored)):
            if stored[-1] is None:
                raise null_element(self.describe(), known)
            stored[-1] = self._store(stored[-1])
        else:
            given = checked_elements(self._table.name, stored)
            ids = set(map(id, current)) if len(current) <= 2 * len(given) else ()
            stored = [element if id(element) in ids else self._store(element) for element in given]
        if not stored:
            self.clear()
            return
        change = self._changes.get(key)
        if change is None:
            change = self._begin_change()
        change.items = self._live[key] = stored


class HeapTimedListState(HeapListState[Any]):
    """Lists of values of an immutable type with their times."""

    __slots__ = ()

    exact_value = "self._stored((value, now_ms))[0]"

    @classmethod
    def emit_read_fresh(cls, oldest_ms: str) -> list[str]:
        return [
            "items = self._live.get(self._context.key)",
            "if items is None: return []",
            f"values = items[::2] if min(items[1::2]) > {oldest_ms} else None",
        ]

    @classmethod
    def emit_read_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["items = self._live.get(self._context.key, ())", "stored = list(zip(items[::2], items[1::2]))"]

    @classmethod
    def emit_write_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["items = [part for one in stored for part in one]", *cls._emit_store()]

    @classmethod
    def emit_write_values(cls, function: GeneratedFunction) -> list[str]:
        return ["items = [now_ms] * (2 * len(values))", "items[::2] = values", *cls._emit_store()]

    @classmethod
    def _emit_store(cls) -> list[str]:
        return [
            "if not items: self.clear()",
            "else:",
            "    change = self._changes.get(self._context.key) or self._begin_change()",
            "    change.items = self._live[self._context.key] = items",
        ]

    def get(self) -> list[Any]:
        items = self._live.get(self._context.key, ())
        return list(map(TtlValue, items[::2], items[1::2]))

    def add(self, element: Any) -> None:
        self.add_all((element,))

    def append_stored(self, element: Any) -> None:
        change = self._changes.get(self._context.key) or self._begin_change()
        if change.items is None:
            change.items = self._live[self._context.key] = [*element]
        else:
            change.items += element

    def _items(self, elements: Iterable[Any]) -> list[Any]:
        return list(itertools.chain.from_iterable(super()._items(elements)))
