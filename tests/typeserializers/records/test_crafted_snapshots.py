"""Forged snapshots: names with another meaning in Python, and schemas with missing parts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
import pytest

import typeserializers as ts
from snapshots import (
    DataOutputView,
    StateFormatError,
    TypeSerializerSnapshot,
    resolve_compatibility,
    snapshot_class_name,
    snapshot_from_bytes,
    snapshot_to_bytes,
    write_versioned_snapshot,
)
from typeserializers.containers.nullable import NullableSerializerSnapshot
from typeserializers.pojos.pojo_shape import stand_in_shape
from typeserializers.records.record_serializer import stand_in_class

LONG = ts.LongSerializer()


def of_fields(*names: str) -> TypeSerializerSnapshot[Any]:
    """The snapshot of a record of longs with these fields, as read from bytes."""
    snapshot = ts.AttrsSerializer(attrs.make_class("Any", {"a": attrs.field(type=int)})).snapshot_configuration()
    (field,) = snapshot.record.fields
    snapshot.record = attrs.evolve(
        snapshot.record, name="Nowhere", fields=tuple(attrs.evolve(field, name=name) for name in names)
    )
    return snapshot


@pytest.mark.parametrize(
    "names",
    [
        ("self",),
        ("self", "self_", "self__"),
        ("_setattr", "self"),
        ("mro", "attrs"),
        ("_", "__x"),
        ("x_", "_x"),
        ("cls", "value", "data"),
    ],
)
def test_a_record_without_its_class_may_have_any_field_name(names: tuple[str, ...]) -> None:
    restored = snapshot_from_bytes(snapshot_to_bytes(of_fields(*names))).restore_serializer()
    encoded = b"".join(LONG.to_bytes(number) for number in range(len(names)))
    value = restored.from_bytes(encoded)
    assert [getattr(value, name) for name in names] == list(range(len(names)))
    assert restored.to_bytes(value) == encoded
    assert restored.to_bytes(restored.copy(value)) == encoded


@pytest.mark.parametrize("names", [("\ufb01",), ("fi", "\ufb01"), ("__slots__",), ("__init__",), ("a", "__dict__")])
def test_a_name_that_python_normalises_is_rejected(names: tuple[str, ...]) -> None:
    with pytest.raises(StateFormatError, match="without a name"):
        snapshot_from_bytes(snapshot_to_bytes(of_fields(*names)))


def test_a_class_with_a_field_that_python_normalises_is_rejected() -> None:
    made = attrs.make_class("Made", {"\ufb01": attrs.field(type=int)})
    with pytest.raises(ts.UnknownTypeError, match="cannot be the name of a field"):
        ts.AttrsSerializer(made)


@dataclasses.dataclass
class Selfish:
    self: int
    data: int = 0


def test_a_field_may_have_the_name_self() -> None:
    serializer = ts.serializer_for(Selfish)
    assert serializer.from_bytes(serializer.to_bytes(Selfish(3))) == Selfish(3)


@pytest.mark.parametrize("names", [("self", "\ufb01", "fi"), ("__slots__", "class", "class_"), ("self",)])
def test_a_pojo_without_its_class_may_have_any_name(names: tuple[str, ...]) -> None:
    shape = stand_in_shape("a.Gone", [(name, "a.Gone", LONG) for name in names])
    serializer = ts.PojoSerializer.from_shape(shape)
    value = serializer.create_instance()
    for number, part in enumerate(serializer.fields):
        object.__setattr__(value, part.attribute, number)
    read = serializer.from_bytes(serializer.to_bytes(value))
    assert [getattr(read, part.attribute) for part in serializer.fields] == list(range(len(names)))


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "a.Flight",
    "fields": [
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "f", "type": {"type": "fixed", "name": "X", "size": 4}},
        {"name": "m", "type": {"type": "map", "values": "int"}},
        {"name": "l", "type": {"type": "array", "items": ["null", "a.Flight"]}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
    ],
}


def damaged(schema: Any) -> Iterator[Any]:
    """The schema with each of its parts missing, and with other content in its place."""
    yield from (None, 7, "x", {}, [], {"type": schema})
    if isinstance(schema, dict):
        for key in schema:
            yield {other: value for other, value in schema.items() if other != key}
            yield from ({**schema, key: part} for part in damaged(schema[key]))
    if isinstance(schema, list):
        for index in range(len(schema)):
            yield schema[:index] + schema[index + 1 :]
            yield from ([*schema[:index], part, *schema[index + 1 :]] for part in damaged(schema[index]))


def used(data: bytes, new: ts.TypeSerializer[Any]) -> None:
    """Every operation on a snapshot; only errors of the library may be raised."""
    try:
        snapshot = snapshot_from_bytes(data)
        resolve_compatibility(snapshot, new)
        restored = snapshot.restore_serializer()
        hash((restored, restored.length, restored.minimum_length, restored.type_name, repr(restored)))
        restored.to_bytes(restored.create_instance())
    except StateFormatError:
        pass


def test_an_avro_schema_with_parts_missing_is_rejected_by_name() -> None:
    serializer = ts.AvroSerializer(AVRO)
    for schema in damaged(AVRO):
        out = DataOutputView()
        out.write_utf(snapshot_class_name(type(serializer.snapshot_configuration())))
        out.write_int(1)
        out.write_sized_bytes(json.dumps(schema).encode())
        used(out.to_bytes(), serializer)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "enum", "name": "E", "symbols": []}, "the enum 'E' has no symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "not an Avro schema"),
        ({"type": "fixed", "name": "X", "size": -1}, "the fixed 'X' has no size"),
        ({"type": "fixed", "name": "X", "size": True}, "the fixed 'X' has no size"),
        ([], "a union without branches"),
        ({"type": "bytes", "logicalType": "decimal"}, "a decimal of precision None"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, "a decimal of precision 0"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, "scale"),
    ],
)
def test_an_avro_schema_without_values_is_rejected(schema: Any, message: str) -> None:
    with pytest.raises(StateFormatError, match=message):
        ts.AvroSerializer(schema)
    ts.AvroSerializer({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 2})


def test_an_avro_schema_has_a_maximal_nesting() -> None:
    def arrays(levels: int) -> Any:
        schema: Any = "int"
        for _ in range(levels):
            schema = {"type": "array", "items": schema}
        return schema

    assert ts.AvroSerializer(arrays(200)).create_instance() == []
    with pytest.raises(StateFormatError, match="deeper than 200"):
        ts.AvroSerializer(arrays(201))
    endless = ts.AvroSerializer({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]})
    with pytest.raises(StateFormatError, match="without an end"):
        endless.create_instance()


def test_an_arrow_schema_with_invalid_text_is_rejected() -> None:
    inner = pa.struct([pa.field("inner_name", pa.timestamp("us", "Europe/Berlin"))])
    serializer = ts.ArrowSerializer(pa.schema([pa.field("outer_name", pa.list_(inner))]))
    data = snapshot_to_bytes(serializer.snapshot_configuration())
    for text in (b"outer_name", b"inner_name", b"Europe/Berlin"):
        start = data.index(text)
        with pytest.raises(StateFormatError, match="Arrow schema"):
            snapshot_from_bytes(data[:start] + b"\xff" + data[start + 1 :])
    for position in range(data.index(b"statebackend") + 40, len(data), 3):
        used(data[:position] + bytes([data[position] ^ 0x80]) + data[position + 1 :], serializer)


def test_a_variant_of_flink_has_a_result_in_any_position() -> None:
    variant = ts.VariantSerializerSnapshot()
    data = snapshot_to_bytes(variant)
    assert b"org.apache.flink.api.common.typeutils.base.VariantSerializer$VariantSerializerSnapshot" in data
    assert snapshot_to_bytes(snapshot_from_bytes(data)) == data
    inside = NullableSerializerSnapshot.around(variant)
    for old, new in ((variant, LONG), (inside, ts.NullableSerializer(LONG)), (variant, ts.serializer_for(int | str))):
        compatibility = resolve_compatibility(snapshot_from_bytes(snapshot_to_bytes(old)), new)
        assert compatibility.is_incompatible
        assert "Variant" in str(compatibility)
        assert "In Flink" in str(compatibility)


def record_bytes(
    version: int = 1, schema_version: int | None = None, names: tuple[str, ...] = ("a",), flag: int = 0
) -> bytes:
    """A record of longs, byte by byte."""
    out = DataOutputView()
    out.write_utf("statebackend.AttrsSerializerSnapshot")
    out.write_int(version)
    if schema_version is not None:
        out.write_int(schema_version)
    out.write_utf("Nowhere")
    out.write_int(len(names))
    for name in names:
        out.write_utf(name)
        out.write_int(0)
        out.write_byte(flag)
        if flag:
            out.write_sized_bytes(LONG.to_bytes(7))
        write_versioned_snapshot(out, LONG.snapshot_configuration())
    return out.to_bytes()


def test_a_record_is_read_by_its_format() -> None:
    for data in (
        record_bytes(),
        record_bytes(version=2, schema_version=2),
        record_bytes(names=("a", "b")),
        record_bytes(flag=1),
        record_bytes(flag=2),
    ):
        assert snapshot_to_bytes(snapshot_from_bytes(data)) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (record_bytes(names=("a", "a")), "a field twice: a, a"),
        (record_bytes(version=2, schema_version=0), "schema version 0"),
        (record_bytes(version=2, schema_version=-1), "schema version -1"),
        (record_bytes(flag=3), "kind 3"),
        (record_bytes(flag=-1), "kind -1"),
        (record_bytes(version=3), "version 3"),
    ],
)
def test_a_record_outside_of_its_format_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(StateFormatError, match=message):
        snapshot_from_bytes(data)


@pytest.mark.parametrize("names", [["\ufb01", "fi"], ["a", "a"], ["__eq__"], ["class"]])
def test_no_class_is_created_for_invalid_names(names: list[str]) -> None:
    with pytest.raises(StateFormatError, match="fields that no class can have"):
        stand_in_class("Nowhere", names)
