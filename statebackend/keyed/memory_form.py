"""In what form state that lies in memory keeps its values: the heap's, and operator state whatever the backend.

Values of an immutable type are kept as *objects*: reading one costs a dict look-up. A value of a mutable type must be
copied on its way in and out, and checked on its way in; its bytes are both at once, so it is kept *encoded*. It then
takes less memory than the object, a snapshot has nothing left to encode, and what a caller does to its own object
cannot reach the state. How keys stand in dicts is in `statebackend.keyed.entry_keys`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migration.schema_migration import SchemaMigration
from statebackend.keyed.exact_values import compile_exact
from typeserializers.kernel.type_serializer import TypeSerializer

Load = Callable[[bytes, int], tuple[Any, int]]
"""From the bytes of a row at a position to the stored form, and the position behind them."""


class MemoryForm:
    """The form of the rows of one state: ``serializer`` is its storage serializer.

    Rows of a state that nobody has registered stay bytes, and have none.
    """

    __slots__ = ("is_encoded", "load", "serializer", "write")

    def __init__(self, serializer: TypeSerializer[Any] | None, is_encoded: bool) -> None:
        self.serializer = serializer
        self.is_encoded = is_encoded or serializer is None
        self.write: Callable[[Any], bytes] = _itself
        self.load: Load = _whole
        if serializer is not None and not is_encoded:
            self.write, self.load = serializer.codec.write, serializer.codec.read

    def load_migrated(self, migration: SchemaMigration[Any]) -> Load:
        """Loads rows of before a migration: directly from old bytes to the new object, or to the new bytes.

        An object is checked as an update would be, because a custom pair of serializers may pass the old one through.
        """
        if self.is_encoded or self.serializer is None:
            return migration.transcode
        read, exact = migration.read, compile_exact(self.serializer, lambda: "the migrated value")

        def read_and_check(data: bytes, position: int) -> tuple[Any, int]:
            value, end = read(data, position)
            return exact(value), end

        return read_and_check


def _itself(stored: bytes) -> bytes:
    return stored


def _whole(data: bytes, position: int) -> tuple[bytes, int]:
    return data, len(data)
