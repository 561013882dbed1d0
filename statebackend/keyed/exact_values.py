"""What a backend keeps of an immutable value: exactly what a reader of its bytes would get.

What `value()` returns must not depend on whether the process was restarted, or a cache written back, since the value
was given: a replay would go another way. So a value that is not yet what its bytes say (a bool for a long, a binary64
for a binary32, a list for a tuple) is written and read once. Most values need neither: serializers give a condition
that holds only for values which fit and come back as they are (`TypeSerializer.emit_is_exact`), and such a value is
kept as it is. What a serializer says nothing of is always written and read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snapshots.errors import SerializationError
from typeserializers.kernel.code_generation import GeneratedFunction, indented
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import exact_condition


def compile_exact(
    serializer: TypeSerializer[Any], describe: Callable[[], str], refuse_none: bool = False
) -> Callable[[Any], Any]:
    """A function from a given value to the one to keep; raises `SerializationError`, with ``describe()`` in it.

    With ``refuse_none`` None does not fit even if the serializer would write it.
    """
    to_bytes, from_bytes = serializer.to_bytes, serializer.from_bytes

    def written_and_read(value: Any) -> Any:
        if value is None and refuse_none:
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
    if refuse_none and serializer.accepts_none:
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
