"""Hooks that answer questions about values without writing them, and when they may be trusted.

`TypeSerializer.emit_is_exact` finds values that are read back unchanged. `emit_exact_parts` converts only the parts of
a value that are not. `emit_size` estimates the memory of a value. A hook is valid only for the read and write code of
the class that defines it. A subclass with other code must define it again; without it, results stay correct but slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter
from typeserializers.kernel.type_serializer import TypeSerializer

_WRITING_AND_READING: Final = (
    "serialize",
    "deserialize",
    "write_to",
    "read_from",
    "emit_write",
    "emit_read",
    "create_codec",
)


def exact_condition(serializer: TypeSerializer[Any], first: str, again: str, function: GeneratedFunction) -> str | None:
    """Returns an expression that is true only if the value fits and is read back unchanged; None if there is none.

    ``first`` is the first use of the value and may bind the variable ``again``. The expression may raise AttributeError
    if an attribute of a record is missing.
    """
    if not is_own_word(type(serializer), "emit_is_exact"):
        return None
    return serializer.emit_is_exact(first, again, function)


def exact_parts(
    conditions: list[str], items: list[tuple[TypeSerializer[Any], str]], function: GeneratedFunction
) -> str | None:
    """Combines the conditions with those of the parts; None if a part has none."""
    for part, expression in items:
        variable = function.fresh("p")
        condition = exact_condition(part, f"({variable} := {expression})", variable, function)
        if condition is None:
            return None
        conditions.append(condition)
    return " and ".join(conditions)


def emit_exact(serializer: TypeSerializer[Any], emitter: ReadEmitter, value: str) -> str:
    """Emits code that makes of a variable what would be read back; returns an expression.

    Only the parts without a condition are written and read. The code raises any exception for a value that does not
    fit.
    """
    function = emitter.function
    exact = function.fresh("x")
    condition = exact_condition(serializer, value, value, function)
    other = emitter.child()
    parts = serializer.emit_exact_parts(other, value) if is_own_word(type(serializer), "emit_exact_parts") else None
    if parts is None:
        write, read = function.bind("write", serializer.to_bytes), function.bind("read", serializer.from_bytes)
        parts = f"{read}({write}({value}))"
    other.line(f"{exact} = {parts}")
    if condition is None:
        emitter.lines += other.lines
    else:
        emitter.line(f"if {condition}: {exact} = {value}")
        emitter.block("else:", other)
    return exact


def compile_exact_parts(serializer: TypeSerializer[Any]) -> Callable[[Any], Any] | None:
    """A function from a value to what would be read back, as `emit_exact`; None if no part can be left as it is."""
    function = GeneratedFunction("exact", "value")
    emitter = ReadEmitter(function)
    if not is_own_word(type(serializer), "emit_exact_parts"):
        return None
    parts = serializer.emit_exact_parts(emitter, "value")
    if parts is None:
        return None
    emitter.flush()
    return function.compile([*emitter.lines, f"return {parts}"])


PART_BYTES: Final = 32
"""The size of a fixed-width part as an object."""


def size_expression(serializer: TypeSerializer[Any], value: str, function: GeneratedFunction) -> str | None:
    """Returns an expression of the approximate size of a value in bytes; None if there is none."""
    if serializer.length >= 0:
        return str(PART_BYTES + serializer.length)
    return serializer.emit_size(value, function) if is_own_word(type(serializer), "emit_size") else None


def size_of_parts(parts: list[tuple[TypeSerializer[Any], str]], function: GeneratedFunction) -> str:
    """Returns the expression of the sum of the sizes of the parts; a part of unknown size is written."""
    sizes = [str(PART_BYTES)]
    for serializer, expression in parts:
        size = size_expression(serializer, expression, function)
        if size is None:
            size = f"len({function.bind('write', serializer.codec.write)}({expression}))"
        sizes.append(size)
    return f"({' + '.join(sizes)})"


def is_plain_text(text: str) -> bool:
    """Whether a text has no surrogates; two of them would be read back as one character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_own_word(serializer_class: type[TypeSerializer[Any]], hook: str) -> bool:
    """Whether the class uses the read and write code of the class that defines the hook."""
    for base in serializer_class.__mro__:
        if hook in base.__dict__:
            return True
        if any(method in base.__dict__ for method in _WRITING_AND_READING):
            return False
    return False
