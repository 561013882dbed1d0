"""What a backend keeps of an immutable value: exactly what a reader of its bytes would get.

What `value()` returns must not depend on whether the process was restarted, or a cache written back, since the value
was given: a replay would go another way. So a value that is not yet what its bytes say (a bool for a long, a binary64
for a binary32, a list for a tuple) is written and read once. Most values need neither: for the built-in serializers a
condition is generated that holds only for values which fit and come back as they are, and such a value is kept as it
is. A serializer that no rule knows is always written and read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from snapshots.errors import SerializationError
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.ttl import TtlSerializer, TtlValue
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.code_generation import GeneratedFunction, indented
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.records import AttrsSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.strings import StringSerializer

Condition = Callable[[TypeSerializer[Any], str, str, GeneratedFunction], "str | None"]
"""``rule(serializer, first, again, function)``: an expression, or None if there is none for this serializer.

``first`` is the value where it is mentioned for the first time, which may bind the variable ``again``.
"""

_CONDITIONS: Final[dict[type[TypeSerializer[Any]], Condition]] = {}

_TIMESTAMP: Final = LongSerializer()

_ONE_DIGIT: Final = (1 << 30) - 1


def exact_condition(serializer: TypeSerializer[Any], first: str, again: str, function: GeneratedFunction) -> str | None:
    """An expression that is true only of a value which fits and which its bytes give back unchanged.

    It may raise AttributeError where an attribute of a record is missing. None if no rule knows the serializer.
    """
    rule = _CONDITIONS.get(type(serializer))
    return None if rule is None else rule(serializer, first, again, function)


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


def is_plain_text(text: str) -> bool:
    """Whether a text holds no surrogates, two of which would come back as one character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(bits: int) -> Condition:
    # Bounds in the source are constants of the generated code, which a call of bit_length() costs more than. Those of
    # one digit of Python's integers come first, since they are compared several times as fast.
    least, largest = -(1 << bits - 1), (1 << bits - 1) - 1

    def rule(serializer: TypeSerializer[Any], first: str, again: str, function: GeneratedFunction) -> str:
        within = f"{least} <= {again} <= {largest}"
        if largest > _ONE_DIGIT:
            within = f"(-{_ONE_DIGIT} <= {again} <= {_ONE_DIGIT} or {within})"
        return f"type({first}) is int and {within}"

    return rule


def _of_class(name: str) -> Condition:
    return lambda serializer, first, again, function: f"type({first}) is {name}"


def _text(serializer: TypeSerializer[Any], first: str, again: str, function: GeneratedFunction) -> str:
    is_plain = function.bind("is_plain_text", is_plain_text)
    return f"type({first}) is str and ({again}.isascii() or {is_plain}({again}))"


def _nullable(serializer: Any, first: str, again: str, function: GeneratedFunction) -> str | None:
    inner = exact_condition(serializer.inner, again, again, function)
    return None if inner is None else f"({first} is None or {inner})"


def _tuple(serializer: Any, first: str, again: str, function: GeneratedFunction) -> str | None:
    conditions = [f"type({first}) is tuple and len({again}) == {len(serializer.field_serializers)}"]
    items = [(part, f"{again}[{index}]") for index, part in enumerate(serializer.field_serializers)]
    return _all_parts(conditions, items, function)


def _record(serializer: Any, first: str, again: str, function: GeneratedFunction) -> str | None:
    if not serializer.is_immutable_type:
        return None
    expected = function.bind("record_class", serializer.record_class)
    items = [(part.serializer, f"{again}.{part.name}") for part in serializer.fields]
    return _all_parts([f"type({first}) is {expected}"], items, function)


def _ttl_value(serializer: Any, first: str, again: str, function: GeneratedFunction) -> str | None:
    expected = function.bind("ttl_value", TtlValue)
    items = [(_TIMESTAMP, f"{again}.last_access_timestamp"), (serializer.value_serializer, f"{again}.value")]
    return _all_parts([f"type({first}) is {expected}"], items, function)


def _all_parts(
    conditions: list[str], items: list[tuple[TypeSerializer[Any], str]], function: GeneratedFunction
) -> str | None:
    for part, expression in items:
        variable = function.fresh("p")
        condition = exact_condition(part, f"({variable} := {expression})", variable, function)
        if condition is None:
            return None
        conditions.append(condition)
    return " and ".join(conditions)


_CONDITIONS.update(
    {
        BooleanSerializer: _of_class("bool"),
        ByteSerializer: _integer(8),
        ShortSerializer: _integer(16),
        IntSerializer: _integer(32),
        LongSerializer: _integer(64),
        DoubleSerializer: _of_class("float"),
        StringSerializer: _text,
        BytesSerializer: _of_class("bytes"),
        NullableSerializer: _nullable,
        TupleSerializer: _tuple,
        AttrsSerializer: _record,
        TtlSerializer: _ttl_value,
    }
)
