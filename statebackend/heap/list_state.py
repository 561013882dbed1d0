"""List state on the heap.

Elements of an immutable type are kept as a list of objects. Those of a mutable type are kept as *chunks*: the bytes of
the elements appended in one epoch, as they stand in a row. A change holds what was appended, element by element, and
whether what was there before is gone; so an append touches neither the list nor its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from snapshots.errors import SerializationError
from statebackend.descriptors import ListStateDescriptor
from statebackend.exact_values import compile_exact
from statebackend.heap.handle import HeapStateHandle
from statebackend.heap.stored_form import Load
from statebackend.heap.table import MISSING, HeapTable
from statebackend.internal_states import InternalListState
from statebackend.key_context import AnyKeyContext

T = TypeVar("T")

CHUNK_ELEMENTS: Final = 1 << 14
"""The most elements that are written as one row, so that no row is as large as the list."""

_COUNT: Final = struct.Struct(">i")


class _ListChange:
    """``appended`` are stored elements; ``is_replaced`` says that nothing older counts."""

    __slots__ = ("appended", "is_replaced")

    def __init__(self) -> None:
        self.appended: list[Any] = []
        self.is_replaced = False


class ListTable(HeapTable):
    """What is stored under a key is a list: of elements, or of encoded chunks. It is never empty."""

    __slots__ = ()

    def merged(self, stored: Any, change: Any) -> Any:
        return self.absorbed([] if stored is MISSING else list(stored), change)

    def absorbed(self, stored: Any, change: Any) -> Any:
        result: list[Any] = [] if stored is MISSING or change.is_replaced else stored
        result.extend(self._chunks(change.appended) if self.form.is_encoded else change.appended)
        return result or MISSING

    def rows_of(self, stored: Any) -> Iterator[tuple[bytes | None, bytes]]:
        for chunk in stored if self.form.is_encoded else self._chunks(stored):
            yield None, chunk

    def changed_rows_of(self, in_base: bool, change: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
        if change.is_replaced and in_base:
            yield None, None
        for chunk in self._chunks(change.appended):
            yield None, chunk

    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        if value is None:
            self.base[key_group].pop(key, None)
            return
        stored = self.load_value(value, load)
        elements = self.base[key_group].setdefault(key, [])
        if self.form.is_encoded:
            elements.append(stored)
        else:
            elements.extend(stored)

    def entry_count(self) -> int:
        return sum(map(len, self.base.values()))

    def _chunks(self, elements: list[Any]) -> Iterator[bytes]:
        """The rows of stored elements; those of mutable types are bytes already."""
        for start in range(0, len(elements), CHUNK_ELEMENTS):
            part = elements[start : start + CHUNK_ELEMENTS]
            if self.form.is_encoded:
                yield _COUNT.pack(len(part)) + b"".join(part)
            else:
                yield self.form.write(part)


class HeapListState(HeapStateHandle, InternalListState[T]):
    """See the module."""

    __slots__ = ("_read_chunk", "_read_element", "_store")

    def __init__(
        self, table: HeapTable, context: AnyKeyContext, descriptor: ListStateDescriptor[T]
    ) -> None:
        super().__init__(table, context)
        serializer = descriptor.element_serializer
        self._read_element = serializer.from_bytes
        self._read_chunk = table.form.serializer.from_bytes
        self._store = serializer.to_bytes if table.form.is_encoded else compile_exact(serializer, self.describe)

    def get(self) -> list[T]:
        context = self._context
        change = self._delta.get(context.key)
        older: Any = ()
        if change is None or not change.is_replaced:
            older = self._base[context.key_group].get(context.key, ())
        appended: Any = () if change is None else change.appended
        if not self._table.form.is_encoded:
            return [*older, *appended]
        try:
            elements = [element for chunk in older for element in self._read_chunk(chunk)]
            return elements + [self._read_element(element) for element in appended]
        except Exception as error:
            raise self._unreadable(error) from error

    def add(self, element: T) -> None:
        stored = self._stored(0, element)
        change = self._delta.get(self._context.key)
        if change is None:
            change = self._begin_change()
        change.appended.append(stored)

    def add_all(self, elements: Iterable[T]) -> None:
        stored = [self._stored(position, element) for position, element in enumerate(elements)]
        if stored:
            (self._delta.get(self._context.key) or self._begin_change()).appended.extend(stored)

    def update(self, elements: Iterable[T]) -> None:
        stored = [self._stored(position, element) for position, element in enumerate(elements)]
        change = self._delta.get(self._context.key) or self._begin_change()
        change.appended = stored
        change.is_replaced = True

    def clear(self) -> None:
        self.update(())

    def _begin_change(self) -> _ListChange:
        key = self._context.key
        self._admit(key, self._context.key_group)
        change: _ListChange = _ListChange()
        self._delta[key] = change
        return change

    def _stored(self, position: int, element: T) -> Any:
        if element is None:
            raise SerializationError(self.describe(), (f"[{position}]: None cannot be an element of a list state",))
        try:
            return self._store(element)
        except SerializationError as error:
            if not self._table.form.is_encoded:
                raise
            raise SerializationError(f"{self.describe()}: {error.serializer_name}", error.problems) from error
