"""What a serializer may tell of its values without writing them, and whose word it is.

A serializer says by `TypeSerializer.emit_is_exact` which values come back from their bytes as they are, and by
`emit_size` about how much memory one takes. What it says holds for the code that it was written beside: a subclass that
writes or reads in another way says it again, or says nothing, which is always right and only slower.
"""

from __future__ import annotations

from typing import Any, Final

from typeserializers.kernel.code_generation import GeneratedFunction
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
    """An expression that is true only of a value which fits and which its bytes give back unchanged.

    ``first`` is the value where it is mentioned for the first time, which may bind the variable ``again``. It may raise
    AttributeError where an attribute of a record is missing. None if the serializer does not say.
    """
    if not is_own_word(type(serializer), "emit_is_exact"):
        return None
    return serializer.emit_is_exact(first, again, function)


def exact_parts(
    conditions: list[str], items: list[tuple[TypeSerializer[Any], str]], function: GeneratedFunction
) -> str | None:
    """The conditions, and those of parts, given as serializer and expression; None if one of them does not say."""
    for part, expression in items:
        variable = function.fresh("p")
        condition = exact_condition(part, f"({variable} := {expression})", variable, function)
        if condition is None:
            return None
        conditions.append(condition)
    return " and ".join(conditions)


PART_BYTES: Final = 32
"""What a part of fixed width takes up as an object."""


def size_expression(serializer: TypeSerializer[Any], value: str, function: GeneratedFunction) -> str | None:
    """An expression of about how many bytes a value takes up; None if the serializer does not say."""
    if serializer.length >= 0:
        return str(PART_BYTES + serializer.length)
    return serializer.emit_size(value, function) if is_own_word(type(serializer), "emit_size") else None


def size_of_parts(parts: list[tuple[TypeSerializer[Any], str]], function: GeneratedFunction) -> str | None:
    """The expression of the sizes of parts together; None if one of them does not say."""
    sizes = [size_expression(serializer, expression, function) for serializer, expression in parts]
    if None in sizes:
        return None
    return f"({' + '.join([str(PART_BYTES), *map(str, sizes)])})"


def is_plain_text(text: str) -> bool:
    """Whether a text holds no surrogates, two of which would come back as one character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_own_word(serializer_class: type[TypeSerializer[Any]], hook: str) -> bool:
    """Whether the class writes and reads as the class that has the hook, and so is bound by what that says."""
    for base in serializer_class.__mro__:
        if hook in base.__dict__:
            return True
        if any(method in base.__dict__ for method in _WRITING_AND_READING):
            return False
    return False
