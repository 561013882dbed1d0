"""Serializers of Java's primitive arrays: a count, and the elements at fixed width.

    array := i32(count) element*          big-endian; NaN canonical, as in `FloatSerializer` and `DoubleSerializer`

Values are read as an ``array.array`` of the element type (``numpy.frombuffer`` turns it into an ndarray without a
copy); booleans as a list, characters as a str. On write, a list, a tuple, a one-dimensional ndarray or any other buffer
is accepted if its elements fit: 300 does not fit a byte, and 2.0 is not an integer. An array of exactly the element
type is copied as a block and byte-swapped; everything else goes through ``struct``. Java's ``byte[]`` is
`BytesSerializer`.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import EndOfDataError, MalformedDataError, misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import ARRAY, nested_snapshot
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import BOOLEANS, stored_number

A = TypeVar("A")

BytePrimitiveArraySerializer = BytesSerializer
"""Java's ``byte[]`` under the name of Flink's serializer."""

_SWAPPED = sys.byteorder == "little"
_LITTLE_PREFIXES = {"<": True, ">": False, "!": False}
_KINDS = {"b": "i", "h": "i", "i": "i", "l": "i", "q": "i", "n": "i", "f": "f", "d": "f"}
"""The native format characters of signed integers and floats; the size comes from the buffer."""


class PrimitiveArraySerializer(CompiledTypeSerializer[A]):
    """Base class; a subclass defines how elements become bytes and back."""

    element_length: ClassVar[int]
    minimum_length = 4

    def encode(self, value: Any) -> bytes:
        """Encodes count and elements; raises `TypeError`, `ValueError` or `struct.error` if a value does not fit."""
        raise NotImplementedError

    def decode_elements(self, data: bytes) -> A:
        """Decodes the bytes of the elements."""
        raise NotImplementedError

    def decode(self, data: bytes, position: int) -> tuple[A, int]:
        """Returns the array at ``position`` and the position after it."""
        start = position + 4
        if start > len(data):
            raise EndOfDataError(f"the count of an array at byte {position} is cut off: the data is truncated")
        count = int.from_bytes(data[position:start], "big", signed=True)
        end = start + count * self.element_length
        if count < 0 or end > len(data):
            raise MalformedDataError(
                f"an array of {count} elements at byte {position} does not fit the {len(data) - start} bytes after it"
            )
        return self.decode_elements(data[start:end]), end

    def write_to(self, value: A, out: DataOutputView) -> None:
        out.write(self.encode(value))

    def read_from(self, source: DataInputView) -> A:
        value, source.position = self.decode(source.data, source.position)
        return value

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.append(f"{emitter.function.bind('encode', self.encode)}({value})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        result = emitter.function.fresh("v")
        emitter.line(f"{result}, pos = {emitter.function.bind('decode', self.decode)}(data, pos)")
        return result

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            self.encode(value)
        except (TypeError, ValueError, KeyError, OverflowError, struct.error) as error:
            yield misfit(path, value, f"does not fit {type(self).__name__}: {error}")


class NumberArraySerializer(PrimitiveArraySerializer["array.array[Any]"]):
    """Arrays of numbers; ``typecode`` is valid for both ``array.array`` and ``struct``."""

    typecode: ClassVar[str]

    def create_instance(self) -> array.array[Any]:
        return array.array(self.typecode)

    def copy(self, value: array.array[Any]) -> array.array[Any]:
        return self.from_bytes(self.to_bytes(value))

    def encode(self, value: Any) -> bytes:
        block = self.native_block(value)
        if block is not None:
            return struct.pack(">i", len(block)) + self._big_endian(block)
        elements = elements_of(value)
        return struct.pack(f">i{len(elements)}{self.typecode}", len(elements), *self.canonical(elements))

    def decode_elements(self, data: bytes) -> array.array[Any]:
        elements: array.array[Any] = array.array(self.typecode)
        elements.frombytes(data)
        if _SWAPPED:
            elements.byteswap()
        return elements

    def canonical(self, elements: Sequence[Any]) -> Sequence[Any]:
        """Returns the elements in the form to write."""
        return elements

    def native_block(self, value: Any) -> array.array[Any] | None:
        """Returns a copy of the elements if the value is a buffer of exactly this element type, else None."""
        if isinstance(value, array.array) and value.typecode == self.typecode:
            return value[:]
        if isinstance(value, (list, tuple)):
            return None
        try:
            view = memoryview(value)
        except TypeError:
            return None
        native = view.format[-1:]
        if view.format[:-1] in _LITTLE_PREFIXES and _LITTLE_PREFIXES[view.format[:-1]] != _SWAPPED:
            return None
        same = _KINDS.get(native) == _KINDS[self.typecode] and view.itemsize == self.element_length
        if not same or view.ndim != 1 or len(view.format) > 2:
            return None
        block: array.array[Any] = array.array(self.typecode)
        block.frombytes(view.tobytes())
        return block

    def _big_endian(self, block: array.array[Any]) -> bytes:
        if _SWAPPED:
            block.byteswap()
        return block.tobytes()


class FloatingPointArraySerializer(NumberArraySerializer):
    """Base class of float and double arrays: numbers are written as in `FloatingPointSerializer`."""

    def canonical(self, elements: Sequence[Any]) -> Sequence[Any]:
        typecode = self.typecode
        return [
            element if element.__class__ is float and element == element else stored_number(element, typecode)
            for element in elements
        ]

    def native_block(self, value: Any) -> array.array[Any] | None:
        block = super().native_block(value)
        if block is not None:
            total = sum(block)
            # A NaN makes the sum NaN. Opposite infinities do too; they only cost an extra pass.
            if total != total:
                block = array.array(self.typecode, self.canonical(block))
        return block


def elements_of(value: Any) -> Sequence[Any]:
    """Returns the elements of a list, tuple, ndarray or other buffer; raises `TypeError` for other values."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (bytes, bytearray, str)) or not hasattr(value, "tolist"):
        raise TypeError(f"an array or a list is needed, not {type(value).__name__}")
    elements: Any = value.tolist()
    if not isinstance(elements, list):
        raise TypeError("the array has no dimension")
    return elements


class ShortPrimitiveArraySerializer(NumberArraySerializer):
    """``short[]`` as ``array.array('h')``."""

    typecode = "h"
    element_length = 2

    def snapshot_configuration(self) -> ShortPrimitiveArraySerializerSnapshot:
        return ShortPrimitiveArraySerializerSnapshot()


class IntPrimitiveArraySerializer(NumberArraySerializer):
    """``int[]`` as ``array.array('i')``."""

    typecode = "i"
    element_length = 4

    def snapshot_configuration(self) -> IntPrimitiveArraySerializerSnapshot:
        return IntPrimitiveArraySerializerSnapshot()


class LongPrimitiveArraySerializer(NumberArraySerializer):
    """``long[]`` as ``array.array('q')``."""

    typecode = "q"
    element_length = 8

    def snapshot_configuration(self) -> LongPrimitiveArraySerializerSnapshot:
        return LongPrimitiveArraySerializerSnapshot()


class FloatPrimitiveArraySerializer(FloatingPointArraySerializer):
    """``float[]`` as ``array.array('f')``."""

    typecode = "f"
    element_length = 4

    def snapshot_configuration(self) -> FloatPrimitiveArraySerializerSnapshot:
        return FloatPrimitiveArraySerializerSnapshot()


class DoublePrimitiveArraySerializer(FloatingPointArraySerializer):
    """``double[]`` as ``array.array('d')``."""

    typecode = "d"
    element_length = 8

    def snapshot_configuration(self) -> DoublePrimitiveArraySerializerSnapshot:
        return DoublePrimitiveArraySerializerSnapshot()


class BooleanPrimitiveArraySerializer(PrimitiveArraySerializer["list[bool]"]):
    """``boolean[]`` as a list of bool."""

    element_length = 1

    def create_instance(self) -> list[bool]:
        return []

    def encode(self, value: Any) -> bytes:
        elements = elements_of(value)
        return struct.pack(">i", len(elements)) + bytes(map(BOOLEANS.__getitem__, elements))

    def decode_elements(self, data: bytes) -> list[bool]:
        return list(map(bool, data))

    def snapshot_configuration(self) -> BooleanPrimitiveArraySerializerSnapshot:
        return BooleanPrimitiveArraySerializerSnapshot()


class CharPrimitiveArraySerializer(PrimitiveArraySerializer[str]):
    """``char[]`` as a str: the UTF-16 code units, lone surrogates included."""

    element_length = 2
    is_immutable_type = True
    equal_values_have_equal_bytes = True

    def create_instance(self) -> str:
        return ""

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"a str is needed, not {type(value).__name__}")
        units = value.encode("utf-16-be", "surrogatepass")
        return struct.pack(">i", len(units) // 2) + units

    def decode_elements(self, data: bytes) -> str:
        return data.decode("utf-16-be", "surrogatepass")

    def snapshot_configuration(self) -> CharPrimitiveArraySerializerSnapshot:
        return CharPrimitiveArraySerializerSnapshot()


@register_snapshot(nested_snapshot(ARRAY, "ShortPrimitiveArraySerializer"))
class ShortPrimitiveArraySerializerSnapshot(SimpleTypeSerializerSnapshot["array.array[Any]"]):
    serializer_class = ShortPrimitiveArraySerializer


@register_snapshot(nested_snapshot(ARRAY, "IntPrimitiveArraySerializer"))
class IntPrimitiveArraySerializerSnapshot(SimpleTypeSerializerSnapshot["array.array[Any]"]):
    serializer_class = IntPrimitiveArraySerializer


@register_snapshot(nested_snapshot(ARRAY, "LongPrimitiveArraySerializer"))
class LongPrimitiveArraySerializerSnapshot(SimpleTypeSerializerSnapshot["array.array[Any]"]):
    serializer_class = LongPrimitiveArraySerializer


@register_snapshot(nested_snapshot(ARRAY, "FloatPrimitiveArraySerializer"))
class FloatPrimitiveArraySerializerSnapshot(SimpleTypeSerializerSnapshot["array.array[Any]"]):
    serializer_class = FloatPrimitiveArraySerializer


@register_snapshot(nested_snapshot(ARRAY, "DoublePrimitiveArraySerializer"))
class DoublePrimitiveArraySerializerSnapshot(SimpleTypeSerializerSnapshot["array.array[Any]"]):
    serializer_class = DoublePrimitiveArraySerializer


@register_snapshot(nested_snapshot(ARRAY, "BooleanPrimitiveArraySerializer"))
class BooleanPrimitiveArraySerializerSnapshot(SimpleTypeSerializerSnapshot["list[bool]"]):
    serializer_class = BooleanPrimitiveArraySerializer


@register_snapshot(nested_snapshot(ARRAY, "CharPrimitiveArraySerializer"))
class CharPrimitiveArraySerializerSnapshot(SimpleTypeSerializerSnapshot[str]):
    serializer_class = CharPrimitiveArraySerializer
