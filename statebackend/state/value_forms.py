"""How many bytes a value takes up, estimated for what it costs to ask.

Whoever keeps objects and is bounded by bytes asks at every write, so the estimate is generated code that looks at the
parts whose size varies: texts, byte strings (`TypeSerializer.emit_size`). A serializer that says nothing of it is asked
to write the value.

What a backend keeps of an immutable value: exactly what a reader of its bytes would get.

What `value()` returns must not depend on whether the process was restarted, or a cache written back, since the value
was given: a replay would go another way. So a value that is not yet what its bytes say (a bool for a long, a binary64
for a binary32, a list for a tuple) is written and read once. Most values need neither: serializers give a condition
that holds only for values which fit and come back as they are (`TypeSerializer.emit_is_exact`), and such a value is
kept as it is. What a serializer says nothing of is always written and read.

In what form state that lies in memory keeps its values: the heap's, and operator state whatever the backend.

Values of an immutable type are kept as *objects*: reading one costs a dict look-up. A value of a mutable type must be
copied on its way in and out, and checked on its way in; its bytes are both at once, so it is kept *encoded*. It then
takes less memory than the object, a snapshot has nothing left to encode, and what a caller does to its own object
cannot reach the state. How keys stand in dicts is in `statebackend.state.entry_keys`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migration.schema_migration import SchemaMigration
from snapshots.errors import SerializationError
from typeserializers.kernel.code_generation import GeneratedFunction, indented
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import exact_condition, size_expression


def compile_exact(
    serializer: TypeSerializer[Any], describe: Callable[[], str], reject_none: bool = False
) -> Callable[[Any], Any]:
    """A function from a given value to the one to keep; raises `SerializationError`, with ``describe()`` in it.

    With ``reject_none`` None does not fit even if the serializer would write it.
    """
    to_bytes, from_bytes = serializer.to_bytes, serializer.from_bytes

    def written_and_read(value: Any) -> Any:
        if value is None and reject_none:
            raise SerializationError(describe(), ("value: None does not fit here",))
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
    """Lines that run the statement if the condition holds; a missing attribute counts as 'does not hold'."""
    return ["try:", f"    if {condition}: {statement}", "except AttributeError: pass"]


def exact_or_none_lines(serializer: TypeSerializer[Any], function: GeneratedFunction, none: str) -> list[str]:
    """Lines that make the variable ``value`` of a method what is to be kept, by a condition or by ``self._exact``.

    ``none`` is the statement for None. For whom a call of what `compile_exact` makes would cost as much as the rest.
    """
    condition = exact_condition(serializer, "value", "value", function) or "False"
    if ":=" in condition:
        found = [*guarded(condition, "exact = value"), "if exact is None: value = self._exact(value)"]
        return [f"if value is None: {none}", "else:", *indented(["exact = None", *found])]
    return [f"if {condition}: pass", f"elif value is None: {none}", "else: value = self._exact(value)"]


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


def compile_size(serializer: TypeSerializer[Any]) -> Callable[[Any], int] | None:
    """A function from a value, not None, to about how many bytes it takes up; None if all values are small alike."""
    if serializer.length >= 0:
        return None
    function = GeneratedFunction("size", "value")
    expression = size_expression(serializer, "value", function)
    if expression is None:
        write = serializer.codec.write
        return lambda value: len(write(value))
    return function.compile([f"return {expression}"])
