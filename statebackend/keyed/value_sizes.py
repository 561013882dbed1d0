"""How many bytes a value takes up, estimated for what it costs to ask.

Whoever keeps objects and is bounded by bytes asks at every write, so the estimate of the built-in serializers is
generated code that looks at the parts whose size varies: texts, byte strings. A serializer that no rule knows is asked
to write the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.records import AttrsSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.strings import StringSerializer

_PART_BYTES: Final = 32
"""What a part of fixed width takes up as an object."""

Rule = Callable[[Any, str, GeneratedFunction], "str | None"]
"""``rule(serializer, expression, function)``: an expression of the size in bytes, or None if there is none."""


def compile_size(serializer: TypeSerializer[Any]) -> Callable[[Any], int] | None:
    """A function from a value, not None, to about how many bytes it takes up; None if all values are small alike."""
    if serializer.length >= 0:
        return None
    function = GeneratedFunction("size", "value")
    expression = _size(serializer, "value", function)
    if expression is None:
        write = serializer.codec.write
        return lambda value: len(write(value))
    return function.compile([f"return {expression}"])


def _size(serializer: TypeSerializer[Any], expression: str, function: GeneratedFunction) -> str | None:
    if serializer.length >= 0:
        return str(_PART_BYTES + serializer.length)
    rule = _RULES.get(type(serializer))
    return None if rule is None else rule(serializer, expression, function)


def _sized(serializer: Any, expression: str, function: GeneratedFunction) -> str:
    return f"{expression}.__sizeof__()"


def _nullable(serializer: Any, expression: str, function: GeneratedFunction) -> str | None:
    variable = function.fresh("n")
    inner = _size(serializer.inner, variable, function)
    return None if inner is None else f"({_PART_BYTES} if ({variable} := {expression}) is None else {inner})"


def _tuple(serializer: Any, expression: str, function: GeneratedFunction) -> str | None:
    return _sum([(part, f"{expression}[{index}]") for index, part in enumerate(serializer.field_serializers)], function)


def _record(serializer: Any, expression: str, function: GeneratedFunction) -> str | None:
    return _sum([(part.serializer, f"{expression}.{part.name}") for part in serializer.fields], function)


def _ttl_value(serializer: Any, expression: str, function: GeneratedFunction) -> str | None:
    return _sum([(serializer.value_serializer, f"{expression}.value")], function)


def _sum(parts: list[tuple[TypeSerializer[Any], str]], function: GeneratedFunction) -> str | None:
    sizes = [_size(serializer, expression, function) for serializer, expression in parts]
    if None in sizes:
        return None
    return f"({' + '.join([str(_PART_BYTES), *map(str, sizes)])})"


_RULES: Final[dict[type[TypeSerializer[Any]], Rule]] = {
    StringSerializer: _sized,
    BytesSerializer: _sized,
    NullableSerializer: _nullable,
    TupleSerializer: _tuple,
    AttrsSerializer: _record,
    TtlSerializer: _ttl_value,
}
