"""Every golden value of Flink is written to its bytes, read, and written again."""

from __future__ import annotations

import math
from typing import Any

import flink_values
import pytest

import typeserializers as ts
from snapshots import DataInputView, DataOutputView, resolve_compatibility, snapshot_from_bytes, snapshot_to_bytes

NAMES = sorted(flink_values.SERIALIZERS)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            math.copysign(1, left) == math.copysign(1, right) and left == right
        )
    if isinstance(left, ts.Row):
        return left.fields == right.fields and left.kind == right.kind
    if hasattr(left, "typecode"):
        return left.typecode == right.typecode and all(map(same, left, right)) and len(left) == len(right)
    return type(left) is type(right) and bool(left == right)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_written_like_flink(name: str) -> None:
    serializer = flink_values.WRITERS[name]
    for value, expected in flink_values.golden_values(name):
        assert serializer.to_bytes(value).hex() == expected.hex()
        out = DataOutputView()
        serializer.serialize(value, out)
        assert out.to_bytes().hex() == expected.hex()


@pytest.mark.parametrize("name", NAMES)
def test_values_round_trip_to_the_byte(name: str) -> None:
    serializer = flink_values.WRITERS[name]
    for value, data in flink_values.golden_values(name):
        read = serializer.from_bytes(data)
        if not (isinstance(value, ts.Row) and value.names is not None):
            assert same(read, value), (read, value)
        assert serializer.to_bytes(read) == data
        assert same(serializer.deserialize(DataInputView(data)), read)


@pytest.mark.parametrize("name", NAMES)
def test_the_complete_sequence_is_read(name: str) -> None:
    serializer = flink_values.WRITERS[name]
    pairs = flink_values.golden_values(name)
    data = b"".join(part for _, part in pairs)
    source, position = DataInputView(data), 0
    for _, part in pairs:
        by_view = serializer.deserialize(source)
        by_codec, position = serializer.codec.read(data, position)
        assert serializer.to_bytes(by_view) == serializer.to_bytes(by_codec) == part
        assert source.position == position
    assert position == len(data)


@pytest.mark.parametrize("name", NAMES)
def test_snapshots_round_trip_to_the_byte(name: str) -> None:
    data = bytes.fromhex(flink_values.SERIALIZERS[name]["snapshotHex"])
    snapshot = snapshot_from_bytes(data)
    assert snapshot_to_bytes(snapshot) == data
    assert snapshot_to_bytes(flink_values.WRITERS[name].snapshot_configuration()) == data
    restored = snapshot.restore_serializer()
    assert snapshot_to_bytes(restored.snapshot_configuration()) == data
    assert resolve_compatibility(snapshot, flink_values.WRITERS[name]).is_as_is
    for _, value in flink_values.golden_values(name):
        assert restored.to_bytes(restored.from_bytes(value)) == value


@pytest.mark.parametrize("name", NAMES)
def test_lengths_and_nulls_equal_those_of_flink(name: str) -> None:
    golden, serializer = flink_values.SERIALIZERS[name], flink_values.WRITERS[name]
    # Flink's void namespace claims no length but takes a byte.
    expected = 1 if name == "void-namespace" else golden["fixedLength"]
    assert serializer.length == expected
    assert serializer.accepts_none == golden["nullSupported"]
    for _, data in flink_values.golden_values(name):
        assert len(data) >= serializer.minimum_length


def test_a_null_sql_timestamp_is_twelve_bytes_both_ways() -> None:
    serializer = ts.SqlTimestampSerializer()
    null = bytes.fromhex("8000000000000000" + "00000000")
    assert serializer.to_bytes(None) == null
    stream = null + serializer.to_bytes(ts.SqlTimestamp(-1, 999_000_001))
    source = DataInputView(stream)
    assert serializer.deserialize(source) is None
    assert serializer.deserialize(source) == ts.SqlTimestamp(-1, 999_000_001)


def test_a_named_row_is_read_with_the_names_of_its_serializer() -> None:
    serializer = flink_values.WRITERS["row-named"]
    read = serializer.from_bytes(serializer.to_bytes(ts.Row.named(l=9, kind=ts.RowKind.DELETE)))
    assert read == ts.Row.named(i=None, s=None, l=9, kind=ts.RowKind.DELETE)
