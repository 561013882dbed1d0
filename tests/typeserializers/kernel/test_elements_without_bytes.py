"""Elements without bytes: the number that a reader creates is bounded at any depth."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import typeserializers as ts
from snapshots import DataInputView, DataOutputView, SerializationError, StateFormatError
from statebackend.testing.serializers import peak_memory_of
from typeserializers.kernel.compiled import MAX_EMPTY_ELEMENTS


@attrs.frozen
class Nothing:
    """A record without fields."""


EMPTY: dict[str, tuple[ts.TypeSerializer[Any], Any]] = {
    "null values": (ts.NullValueSerializer(), None),
    "empty records": (ts.AttrsSerializer(Nothing), Nothing()),
    "tuples of nothing": (ts.TupleSerializer([ts.NullValueSerializer()] * 2), (None, None)),
}

NESTED = {
    "list": lambda inner: ts.ListSerializer(inner),
    "array": lambda inner: ts.GenericArraySerializer(inner),
    "map": lambda inner: ts.MapSerializer(ts.ByteSerializer(), inner),
    "array list of tuples": lambda inner: ts.ArrayListSerializer(ts.TupleSerializer([inner])),
    "optional": lambda inner: ts.ListSerializer(ts.NullableSerializer(inner)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_the_readable_number_is_written(name: str) -> None:
    element, value = EMPTY[name]
    for serializer in (ts.ListSerializer(element), ts.ArrayListSerializer(element)):
        values = [value] * MAX_EMPTY_ELEMENTS
        encoded = serializer.to_bytes(values)
        assert encoded == MAX_EMPTY_ELEMENTS.to_bytes(4, "big")
        assert serializer.from_bytes(encoded) == values
        assert serializer.deserialize(DataInputView(encoded)) == values


@pytest.mark.parametrize("name", EMPTY)
def test_a_larger_number_is_neither_written_nor_read(name: str) -> None:
    element, value = EMPTY[name]
    serializer = ts.ListSerializer(element)
    values = [value] * (MAX_EMPTY_ELEMENTS + 1)
    with pytest.raises(SerializationError, match="elements without bytes"):
        serializer.to_bytes(values)
    out = DataOutputView()
    with pytest.raises(SerializationError, match="elements without bytes"):
        serializer.serialize(values, out)
    encoded = len(values).to_bytes(4, "big")
    with pytest.raises(StateFormatError):
        serializer.from_bytes(encoded)
    with pytest.raises(StateFormatError):
        serializer.deserialize(DataInputView(encoded))


@pytest.mark.parametrize("outer", NESTED)
@pytest.mark.parametrize("name", EMPTY)
def test_a_few_bytes_cannot_use_much_memory(name: str, outer: str) -> None:
    element, _ = EMPTY[name]
    serializer = NESTED[outer](ts.ListSerializer(element))
    claim = MAX_EMPTY_ELEMENTS.to_bytes(4, "big")
    prefix = {"array": b"\x01", "optional": b"\0"}.get(outer, b"")
    items = [bytes((key, 0)) if outer == "map" else prefix for key in range(32)]
    data = len(items).to_bytes(4, "big") + b"".join(item + claim for item in items)
    assert len(serializer.from_bytes(data)) == len(items)
    assert peak_memory_of(lambda: serializer.from_bytes(data)) < 20_000 * len(data)


def test_avro_items_without_bytes_are_bounded_in_every_value_and_when_written() -> None:
    serializer = ts.AvroSerializer({"type": "array", "items": "null"})
    most = [None] * MAX_EMPTY_ELEMENTS
    assert serializer.from_bytes(serializer.to_bytes(most)) == most
    with pytest.raises(SerializationError):
        serializer.to_bytes([*most, None])
