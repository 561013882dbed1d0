"""A migration: two generated functions from old bytes to a new value and to new bytes.

It is made from the old snapshot and the new serializer once their verdict is known, and is then run over every entry
of a state. Both functions raise `MigrationError`, with the reason, for bytes that the old serializer cannot have
written; the caller adds which entry of which state it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import migration.arrow_rules
import migration.avro_rules
import migration.composite_rules
import migration.container_rules
import migration.converter_rules
import migration.enum_rules
import migration.pojo_rules
import migration.record_rules
import migration.reference_rules
import migration.ttl_rules
import migration.union_rules  # noqa: F401  (these register the built-in conversions)
from migration.conversion import compile_transcoding, compile_value, conversion_between
from snapshots.errors import StateFormatError
from typeserializers.type_serializer import TypeSerializer

T = TypeVar("T")


class MigrationError(StateFormatError):
    """An old value could not be read, or could not be written anew."""


class SchemaMigration(Generic[T]):
    """Turns what ``old`` wrote into values and bytes of ``new``; both compiled on first use."""

    def __init__(self, old: TypeSerializer[Any], new: TypeSerializer[T]) -> None:
        self.old = old
        self.new = new
        self._read: Callable[[bytes, int], tuple[T, int]] | None = None
        self._transcode: Callable[[bytes, int], tuple[bytes, int]] | None = None

    @property
    def read(self) -> Callable[[bytes, int], tuple[T, int]]:
        """``read(data, position)`` gives the new value of old bytes and the position behind them."""
        if self._read is None:
            self._read = compile_value(conversion_between(self.old, self.new))
        return self._read

    @property
    def transcode(self) -> Callable[[bytes, int], tuple[bytes, int]]:
        """``transcode(data, position)`` gives the new bytes of old bytes and the position behind the old ones."""
        if self._transcode is None:
            self._transcode = compile_transcoding(conversion_between(self.old, self.new))
        return self._transcode

    def to_value(self, data: bytes) -> T:
        """The new value of exactly these old bytes."""
        value: T = self._whole(self.read, data)
        return value

    def to_bytes(self, data: bytes) -> bytes:
        """The new bytes of exactly these old bytes."""
        encoded: bytes = self._whole(self.transcode, data)
        return encoded

    def _whole(self, function: Callable[[bytes, int], tuple[Any, int]], data: bytes) -> Any:
        try:
            result, position = function(data, 0)
        except Exception as error:
            raise MigrationError(f"{self.old!r} to {self.new!r}: {type(error).__name__}: {error}") from error
        if position != len(data):
            raise MigrationError(
                f"{self.old!r} to {self.new!r}: the old value ends at byte {position} of {len(data)}; "
                f"these bytes were written by another serializer"
            )
        return result
