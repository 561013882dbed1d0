"""Serializers of integers of any size and of decimal numbers, in Flink's layout.

    integer := i32 0 null | i32 1 zero | i32 2 one | i32 3 ten | i32(byte count + 4) two's complement byte*
    decimal := integer(unscaled value) i32(scale), without the scale for null

A decimal is the unscaled value times ten to the power of minus the scale, so 1.50 and 1.5 have different bytes, as they
are different in Python's ``Decimal``. Values that Java's BigDecimal does not have are rejected: NaN, infinities and the
negative zero. Converting an integer to digits takes time that grows with the square of its size, so decimals have at
most `MAX_DIGITS` digits on read and write.
"""

from __future__ import annotations

import decimal
import operator
from collections.abc import Iterator
from typing import Any, Final

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import EndOfDataError, MalformedDataError, misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import BASE, nested_snapshot

MAX_DIGITS: Final = 32_768
"""The maximum number of digits of a decimal."""

_MAX_UNSCALED_BYTES: Final = 13_608
_MAX_BITS: Final = 8 * (0x7FFFFFFF - 4)
"""An integer of fewer bits can be written."""

_NULL: Final = bytes(4)
_SHORTCUTS: Final = {0: b"\0\0\0\1", 1: b"\0\0\0\2", 10: b"\0\0\0\3"}
_SHORTCUT_VALUES: Final = (None, 0, 1, 10)
_EXACT: Final = decimal.Context(
    prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[decimal.InvalidOperation]
)
_SHIFTED: Final = _EXACT.scaleb
_SMALL_BYTES: Final = 16
_LENGTHS: Final = tuple((size + 4).to_bytes(4, "big") for size in range(_SMALL_BYTES + 1))
"""The length of an integer of so many bytes."""

_SHIFTS: Final = tuple(decimal.Decimal(-scale) for scale in range(39))

_SMALL_DECIMAL: Final = (
    decimal.Decimal(1).__sizeof__() if decimal.Decimal("1" * 200).__sizeof__() > decimal.Decimal(1).__sizeof__() else -1
)
"""A decimal of this size has at most 76 digits; -1 if a decimal does not tell its size."""

_LARGEST_EXPONENT: Final = 1_000_000


def encode_integer(value: Any) -> bytes:
    """Returns the bytes of an integer or None; raises `TypeError` or `ValueError` with the reason."""
    if value is None:
        return _NULL
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError("is not an integer") from None
    known = _SHORTCUTS.get(number)
    if known is not None:
        return known
    # One bit more than the magnitude, for the sign; -2**(8n - 1) just fits n bytes.
    size = ((number if number >= 0 else ~number).bit_length() >> 3) + 1
    if size > 0x7FFFFFFF - 4:
        raise ValueError("takes more than 2**31 bytes")
    return (size + 4).to_bytes(4, "big") + number.to_bytes(size, "big", signed=True)


def decode_integer(data: bytes, position: int) -> tuple[int | None, int]:
    """Returns the integer at ``position``, or None, and the position after it."""
    start = position + 4
    if start > len(data):
        raise EndOfDataError(f"the length of a big integer at byte {position} is cut off: the data is truncated")
    length = int.from_bytes(data[position:start], "big", signed=True)
    if 0 <= length <= 3:
        return _SHORTCUT_VALUES[length], start
    if length < 5:
        raise MalformedDataError(f"invalid length {length} of a big integer at byte {position}: the data is damaged")
    end = start + length - 4
    if end > len(data):
        raise EndOfDataError(
            f"a big integer of {length - 4} bytes at byte {start} is cut off after {len(data) - start}: truncated"
        )
    return int.from_bytes(data[start:end], "big", signed=True), end


def encode_decimal(value: Any) -> bytes:
    """Returns the bytes of a decimal or None; an int becomes a decimal of scale 0."""
    if value is None:
        return _NULL
    if value.__class__ is decimal.Decimal:
        # The text has the digits and the scale, and no arithmetic is needed. With an exponent it is not an integer.
        whole, _, fraction = str(value).partition(".")
        scale = len(fraction)
        try:
            unscaled = int(whole + fraction)
        except ValueError:
            unscaled = 0
        size = ((unscaled if unscaled >= 0 else ~unscaled).bit_length() >> 3) + 1
        if size <= _SMALL_BYTES and unscaled not in _SHORTCUTS:
            return _LENGTHS[size] + (unscaled << 32 | scale).to_bytes(size + 4, "big", signed=True)
    elif not isinstance(value, decimal.Decimal):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError("is not a Decimal")
        if value.bit_length() > _MAX_UNSCALED_BYTES * 8:
            raise ValueError(f"has more than {MAX_DIGITS} digits")
        value = decimal.Decimal(value)
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError("is not finite, which a BigDecimal always is")
    if not value and value.is_signed():
        raise ValueError("is a negative zero, which a BigDecimal does not have")
    if value.adjusted() - exponent >= MAX_DIGITS:
        raise ValueError(f"has more than {MAX_DIGITS} digits")
    if not -(1 << 31) < exponent <= 1 << 31:
        raise ValueError(f"has the exponent {exponent}, and a scale has 32 bits")
    unscaled = int(value.scaleb(-exponent, _EXACT))
    return encode_integer(unscaled) + (-exponent).to_bytes(4, "big", signed=True)


def decode_decimal(data: bytes, position: int) -> tuple[decimal.Decimal | None, int]:
    """Returns the decimal at ``position``, or None, and the position after it."""
    start = position
    unscaled, position = decode_integer(data, position)
    if unscaled is None:
        return None, position
    end = position + 4
    if end > len(data):
        raise EndOfDataError(f"the scale of a decimal at byte {position} is cut off: the data is truncated")
    scale = int.from_bytes(data[position:end], "big", signed=True)
    if position - start > _MAX_UNSCALED_BYTES + 4:
        raise MalformedDataError(f"a decimal at byte {start} has more than {MAX_DIGITS} digits")
    value = decimal.Decimal(unscaled)
    if value.adjusted() >= MAX_DIGITS:
        raise MalformedDataError(f"a decimal at byte {start} has more than {MAX_DIGITS} digits")
    return (value.scaleb(-scale, _EXACT) if scale else value), end


class BigIntSerializer(CompiledTypeSerializer["int | None"]):
    """An int of any size, or None."""

    minimum_length = 4
    is_immutable_type = True
    accepts_none = True
    equal_values_have_equal_bytes = True

    def create_instance(self) -> int:
        return 0

    def write_to(self, value: int | None, out: DataOutputView) -> None:
        out.write(encode_integer(value))

    def read_from(self, source: DataInputView) -> int | None:
        value, source.position = decode_integer(source.data, source.position)
        return value

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        encoded, size = function.fresh("b"), function.fresh("n")
        lengths, shortcuts = function.bind("lengths", _LENGTHS), function.bind("shortcuts", _SHORTCUTS)
        emitter.line(f"{size} = {_SMALL_BYTES}")
        emitter.line(f"if {value}.__class__ is int and {value} not in {shortcuts}:")
        emitter.line(f"    {size} = ({value} if {value} >= 0 else ~{value}).bit_length() >> 3")
        emitter.line(f"if {size} < {_SMALL_BYTES}:")
        emitter.line(f"    {encoded} = {lengths}[{size} + 1] + {value}.to_bytes({size} + 1, 'big', signed=True)")
        emitter.line(f"else: {encoded} = {function.bind('encode_integer', encode_integer)}({value})")
        emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        result = function.fresh("v")
        decode = function.bind("decode_integer", decode_integer)
        emitter.line("n = int.from_bytes(data[pos:pos + 4], 'big')")
        emitter.line("e = pos + n")
        emitter.line(f"if 4 < n <= {_SMALL_BYTES + 4} and e <= len(data):")
        emitter.line(f"    {result} = int.from_bytes(data[pos + 4:e], 'big', signed=True); pos = e")
        emitter.line(f"else: {result}, pos = {decode}(data, pos)")
        return result

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        return f"type({first}) is int and {again}.bit_length() < {_MAX_BITS}"

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return f"{value}.__sizeof__()"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            encode_integer(value)
        except (TypeError, ValueError) as error:
            yield misfit(path, value, error)

    def snapshot_configuration(self) -> BigIntSerializerSnapshot:
        return BigIntSerializerSnapshot()


class BigDecSerializer(CompiledTypeSerializer["decimal.Decimal | None"]):
    """A finite ``Decimal`` with its scale, or None; an int is accepted and is read back as a Decimal."""

    minimum_length = 4
    is_immutable_type = True
    accepts_none = True

    def create_instance(self) -> decimal.Decimal:
        return decimal.Decimal(0)

    def write_to(self, value: decimal.Decimal | None, out: DataOutputView) -> None:
        out.write(encode_decimal(value))

    def read_from(self, source: DataInputView) -> decimal.Decimal | None:
        value, source.position = decode_decimal(source.data, source.position)
        return value

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.append(f"{emitter.function.bind('encode_decimal', encode_decimal)}({value})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        result = function.fresh("v")
        shifts, shifted = function.bind("shifts", _SHIFTS), function.bind("shifted", _SHIFTED)
        emitter.line("n = int.from_bytes(data[pos:pos + 4], 'big')")
        emitter.line("e = pos + 4 + n")
        # The unscaled value and the scale as one number.
        is_small = f"4 < n <= {_SMALL_BYTES + 4} and e <= len(data)"
        emitter.line(f"n = int.from_bytes(data[pos + 4:e], 'big', signed=True) if {is_small} else -1")
        emitter.line(f"if n & 0xFFFFFFFF < {len(_SHIFTS)}:")
        emitter.line(f"    {result} = {shifted}(n >> 32, {shifts}[n & 0xFFFFFFFF]); pos = e")
        emitter.line(f"else: {result}, pos = {function.bind('decode_decimal', decode_decimal)}(data, pos)")
        return result

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        decimal_class = function.bind("decimal", decimal.Decimal)
        return (
            f"type({first}) is {decimal_class} and {again}.is_finite() and ({again} or not {again}.is_signed())"
            f" and {again}.__sizeof__() <= {_SMALL_DECIMAL}"
            f" and -{_LARGEST_EXPONENT} < {again}.adjusted() < {_LARGEST_EXPONENT}"
        )

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return f"{value}.__sizeof__()"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            encode_decimal(value)
        except (TypeError, ValueError) as error:
            yield misfit(path, value, error)

    def snapshot_configuration(self) -> BigDecSerializerSnapshot:
        return BigDecSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "BigIntSerializer"))
class BigIntSerializerSnapshot(SimpleTypeSerializerSnapshot["int | None"]):
    serializer_class = BigIntSerializer


@register_snapshot(nested_snapshot(BASE, "BigDecSerializer"))
class BigDecSerializerSnapshot(SimpleTypeSerializerSnapshot["decimal.Decimal | None"]):
    serializer_class = BigDecSerializer
