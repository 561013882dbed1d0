"""Value state for bulk access: a handle over rows by raw key. A store reads and writes many rows at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from statebackend.state.composite_key import RawKeys
from statebackend.state.entry_keys import decoded, encoded
from statebackend.state.internal_states import HandleContext
from statebackend.state.key_batch import KeyBatch
from statebackend.state.value_state import InternalValueState
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")


class RowValueState(InternalValueState[T]):
    """Values as the bytes of their rows. A subclass reads and writes rows, and declares the attributes as slots."""

    __slots__ = ()

    name: str
    raw_keys: RawKeys
    _context: HandleContext
    _serializer: TypeSerializer[T]
    _encoded_default: bytes | None
    _last_keys: list[Any]
    """The last batch, its namespace and its raw keys: a caller usually writes the keys that it has just read."""

    @abstractmethod
    def read_rows(self, raw_keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the row of each raw key, or None."""

    @abstractmethod
    def write_rows(self, raw_keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        """Set the row of each raw key; None clears. The last row of a key that occurs twice counts."""

    @property
    def row_serializer(self) -> TypeSerializer[T]:
        return self._serializer

    def get_rows(self, keys: KeyBatch) -> list[bytes | None]:
        rows, default = self.read_rows(self._raw_keys_of(keys)), self._encoded_default
        return rows if default is None else [default if row is None else row for row in rows]

    def put_rows(self, keys: KeyBatch, rows: Sequence[bytes | None]) -> None:
        self.write_rows(self._raw_keys_of(keys), rows)

    def get_many(self, keys: KeyBatch) -> list[T | None]:
        return list(map(self._decoded, self.get_rows(keys)))

    def put_many(self, keys: KeyBatch, values: Sequence[T | None]) -> None:
        self.put_rows(keys, list(map(self._encoded, values)))

    def value(self) -> T | None:
        [row] = self.read_rows([self._current_raw_key()])
        return self._decoded(self._encoded_default if row is None else row)

    def update(self, value: T | None) -> None:
        row = self._encoded(value)
        self.write_rows([self._current_raw_key()], [row])

    def clear(self) -> None:
        self.write_rows([self._current_raw_key()], [None])

    def _decoded(self, row: bytes | None) -> T | None:
        return None if row is None else decoded(self.name, self._serializer, row)

    def _encoded(self, value: T | None) -> bytes | None:
        return None if value is None else encoded(self.name, self._serializer, value)

    def _current_raw_key(self) -> bytes:
        key = self._context.key
        # Hashing the placeholder for 'no current key' raises an error.
        hash(key)
        return self.raw_keys.prefix(key, self._context.key_group)

    def _raw_keys_of(self, keys: KeyBatch) -> list[bytes]:
        namespace, last = self._context.namespace, self._last_keys
        if last[:2] != [keys, namespace]:
            last[:] = keys, namespace, self.raw_keys.of_batch(keys, self._context.entry_key)
        raw_keys: list[bytes] = last[2]
        return raw_keys
