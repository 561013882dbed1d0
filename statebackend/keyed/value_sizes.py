"""How many bytes a value takes up, estimated for what it costs to ask.

Whoever keeps objects and is bounded by bytes asks at every write, so the estimate is generated code that looks at the
parts whose size varies: texts, byte strings (`TypeSerializer.emit_size`). A serializer that says nothing of it is asked
to write the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import size_expression


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
