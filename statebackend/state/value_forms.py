"""How a backend keeps values in memory: as objects or as bytes, exactly as stored, and with an estimated size.

*Form.* Values of immutable types are kept as objects, so a read is a dict look-up. A value of a mutable type would need
a copy on each write and read, and a check on each write. Its bytes provide both, so it is kept *encoded*. That takes
less memory, leaves a snapshot nothing to encode, and keeps a caller's object separate from the state. The heap uses
these forms, and so does operator state. Keys in dicts are the subject of `statebackend.state.entry_keys`.

*Exactness.* A read must not depend on whether the value came from memory or from its bytes, or a replay would differ.
So a value that differs from its bytes (a bool for a long, a binary64 for a binary32, a list for a tuple) is written and
read once. Most values need neither: serializers generate a condition that holds only for values that come back
unchanged (`TypeSerializer.emit_is_exact`). Of a record or tuple, only the parts without that condition are written and
read (`TypeSerializer.emit_exact_parts`).

*Size.* A cache that is bounded by bytes asks for a size at every write. The estimate is generated code that looks only
at the parts of variable size (`TypeSerializer.emit_size`). A serializer without an estimate writes the value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from migration.schema_migration import SchemaMigration
from snapshots.errors import SerializationError
from typeserializers.kernel.code_generation import GeneratedFunction, indented
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import compile_exact_parts, exact_condition, size_expression


def compile_exact(
    serializer: TypeSerializer[Any], describe: Callable[[], str], reject_none: bool = False
) -> Callable[[Any], Any]:
    """Return a function from a given value to the value to keep; its errors contain ``describe()``.

    With ``reject_none`` it rejects None even if the serializer accepts it.
    """
    to_bytes, from_bytes = serializer.to_bytes, serializer.from_bytes
    by_parts: Callable[[Any], Any] | None = None

    def written_and_read(value: Any) -> Any:
        nonlocal by_parts
        if by_parts is None:
            by_parts = compile_exact_parts(serializer) or from_bytes
        if by_parts is not from_bytes and value is not None:
            # An invalid value is rejected below, with the reason.
            with contextlib.suppress(Exception):
                return by_parts(value)
        if value is None and reject_none:
            raise SerializationError(describe(), ("value: None is not allowed",))
        try:
            encoded = to_bytes(value)
        except SerializationError as error:
            raise error.within(describe()) from error
        return from_bytes(encoded)

    function = GeneratedFunction("exact", "value")
    condition = exact_condition(serializer, "value", "value", function)
    if condition is None:
        return written_and_read
    if reject_none and serializer.accepts_none:
        condition = f"value is not None and {condition}"
    fallback = function.bind("written_and_read", written_and_read)
    return function.compile([*guarded(condition, "return value"), f"return {fallback}(value)"])


def guarded(condition: str, statement: str) -> list[str]:
    """Lines that run the statement if the condition holds; a missing attribute counts as False."""
    return ["try:", f"    if {condition}: {statement}", "except AttributeError: pass"]


def exact_or_none_lines(
    serializer: TypeSerializer[Any], function: GeneratedFunction, none: str, exact: str = "self._exact(value)"
) -> list[str]:
    """Lines that set the variable ``value`` to the value to keep, by a condition or by the expression ``exact``.

    ``none`` is the statement for None. For methods in which a call of a `compile_exact` function would double the cost.
    """
    condition = exact_condition(serializer, "value", "value", function) or "False"
    if ":=" in condition:
        found = [*guarded(condition, "kept = value"), f"if kept is None: value = {exact}"]
        return [f"if value is None: {none}", "else:", *indented(["kept = None", *found])]
    return [f"if {condition}: pass", f"elif value is None: {none}", f"else: value = {exact}"]


Load = Callable[[bytes, int], tuple[Any, int]]
"""Converts the bytes of a row at a position to the stored form; also returns the end position."""


class MemoryForm:
    """The form of the rows of one state in memory: ``serializer`` is its storage serializer.

    Rows of an unregistered state stay bytes, without a serializer.
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
        """Return a function that loads old rows: directly from old bytes to the new object, or to new bytes.

        An object is checked like an update, because a custom pair of serializers may return the old one unchanged.
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


def compile_size(serializer: TypeSerializer[Any]) -> Callable[[Any], int] | None:
    """A function that estimates the bytes of a value other than None; None if all values are small."""
    if serializer.length >= 0:
        return None
    function = GeneratedFunction("size", "value")
    expression = size_expression(serializer, "value", function)
    if expression is None:
        write = serializer.codec.write
        return lambda value: len(write(value))
    return function.compile([f"return {expression}"])
