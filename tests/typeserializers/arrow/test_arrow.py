"""Arrow: record batches and struct values, bounds on hostile bytes, and evolution by name."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from typing import Any

import pyarrow as pa
import pytest
from record_versions import compatibility_of, migrated, rules, written

import typeserializers as ts
from migration import MigrationError
from snapshots import DataInputView, DataOutputView, FieldCompatibility
from statebackend.testing.upgrades import migration_between
from typeserializers.evolution.simple_evolution import resolve_types
from typeserializers.kernel.compiled import MAX_EMPTY_ELEMENTS

SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.int8()))])
BATCH = pa.record_batch([[1, None], ["x", "é"], [[1], None]], schema=SCHEMA)


def batches(*fields: Any) -> ts.ArrowSerializer:
    return ts.ArrowSerializer(pa.schema(list(fields)))


def structs(*fields: Any) -> ts.ArrowStructSerializer:
    return ts.ArrowStructSerializer(pa.struct(list(fields)))


def test_batches_and_structs_round_trip() -> None:
    serializer = ts.ArrowSerializer(SCHEMA)
    data = serializer.to_bytes(BATCH)
    assert serializer.from_bytes(data).equals(BATCH)
    assert serializer.to_bytes(BATCH.slice(1)) == serializer.to_bytes(BATCH.slice(1))
    assert written(serializer).restore_serializer() == serializer
    value = {"a": 5, "b": None, "c": [1, 2]}
    struct = ts.ArrowStructSerializer(pa.struct(list(SCHEMA)))
    assert struct.from_bytes(struct.to_bytes(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        {"a": 2**40, "b": "x"},
        {"a": 1},
        {"a": 1, "b": "x", "c": 2},
        {"a": "x", "b": "y"},
        {"a": None, "b": "x"},
    ],
)
def test_an_invalid_struct_is_rejected(value: Any) -> None:
    serializer = structs(pa.field("a", pa.int32(), nullable=False), ("b", pa.string()))
    with pytest.raises(ts.SerializationError):
        serializer.to_bytes(value)


UTC = datetime.timezone.utc
DAY = datetime.datetime(2024, 1, 1)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.float64(), 2**53 + 1),
        (pa.float32(), 1e300),
        (pa.timestamp("ms"), DAY.replace(microsecond=1)),
        (pa.timestamp("us"), DAY.replace(tzinfo=UTC)),
        (pa.timestamp("us"), DAY.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))),
        (pa.timestamp("us", "UTC"), DAY),
        (pa.timestamp("us", "UTC"), 5),
        (pa.date32(), DAY),
        (pa.time32("ms"), datetime.time(0, 0, 0, 1)),
        (pa.time64("us"), datetime.time(1, tzinfo=UTC)),
        (pa.duration("s"), datetime.timedelta(microseconds=1)),
        (pa.string(), b"text"),
        (pa.binary(), "bytes"),
        (pa.map_(pa.string(), pa.int32()), {"k": 1}),
    ],
)
def test_a_value_that_would_change_is_rejected(kind: pa.DataType, value: Any) -> None:
    for fields, given in (
        ([("f", kind)], {"f": value}),
        ([("of", pa.list_(pa.struct([("f", kind)])))], {"of": [None, {"f": None}, {"f": value}]}),
    ):
        with pytest.raises(ts.SerializationError, match=r"\.f:"):
            structs(*fields).to_bytes(given)


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (pa.int64(), 1.0, 1),
        (pa.float64(), 3, 3.0),
        (pa.float32(), 0.1, 0.10000000149011612),
        (pa.list_(pa.float32()), (0.5, 0.1), [0.5, 0.10000000149011612]),
        (pa.map_(pa.string(), pa.float32()), [("k", 0.1)], [("k", 0.10000000149011612)]),
        (pa.timestamp("us", "Europe/Zurich"), DAY.replace(tzinfo=UTC), DAY.replace(tzinfo=UTC)),
        (pa.decimal128(5, 2), 3, decimal.Decimal(3)),
    ],
)
def test_a_value_that_round_trips_is_accepted(kind: pa.DataType, value: Any, read: Any) -> None:
    serializer = structs(("f", kind))
    assert serializer.from_bytes(serializer.to_bytes({"f": value})) == {"f": read}


def test_nan_and_infinity_are_accepted() -> None:
    serializer = structs(("f", pa.float64()), ("g", pa.list_(pa.float32())))
    read = serializer.from_bytes(serializer.to_bytes({"f": math.nan, "g": [math.nan, 0.5]}))
    assert [math.isnan(part) for part in (read["f"], *read["g"])] == [True, True, False]


def test_a_batch_of_another_schema_is_rejected() -> None:
    with pytest.raises(ts.SerializationError, match="another schema"):
        batches(("a", pa.int64())).to_bytes(BATCH)


def test_dictionary_encoded_columns_are_rejected_by_the_constructor() -> None:
    with pytest.raises(ValueError, match="cast them"):
        batches(("a", pa.list_(pa.dictionary(pa.int8(), pa.string()))))


def test_compressed_bodies_are_rejected() -> None:
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    batch = pa.record_batch([[0] * 10_000], schema=pa.schema([("a", pa.int64())]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = reader.read_next_message().serialize().to_pybytes()
    serializer = batches(("a", pa.int64()))
    with pytest.raises(ts.MalformedDataError, match="compressed"):
        serializer.from_bytes(len(message).to_bytes(4, "big") + message)


def test_damaged_bytes_yield_a_batch_or_are_rejected() -> None:
    serializer, chance = ts.ArrowSerializer(SCHEMA), random.Random(5)
    data = serializer.to_bytes(BATCH)
    rejected = 0
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        try:
            serializer.from_bytes(bytes(damaged)).to_pylist()
        except ts.StateFormatError:
            rejected += 1
    assert rejected > 1000


@pytest.mark.parametrize(
    ("old", "new", "kind", "rule"),
    [
        (batches(("a", pa.int32())), batches(("a", pa.int32())), "AS_IS", {}),
        (batches(("a", pa.int32())), batches(("a", pa.int64())), "AFTER_MIGRATION", {".a": "arrow-type-widened"}),
        (batches(("a", pa.int64())), batches(("a", pa.int32())), "INCOMPATIBLE", {".a": "arrow-type-changed"}),
        (batches(("a", pa.int32())), batches(("b", pa.int32())), "AFTER_MIGRATION", {".a": "arrow-field-removed"}),
        (
            batches(("a", pa.int32())),
            batches(("a", pa.int32()), pa.field("b", pa.int8(), nullable=False)),
            "INCOMPATIBLE",
            {".b": "arrow-field-added-required"},
        ),
        (
            batches(("a", pa.decimal128(9, 2))),
            batches(("a", pa.decimal128(12, 3))),
            "AFTER_MIGRATION",
            {".a": "arrow-type-widened"},
        ),
        (batches(("a", pa.decimal128(9, 2))), batches(("a", pa.decimal128(9, 3))), "INCOMPATIBLE", {}),
        (batches(("a", pa.timestamp("ms"))), batches(("a", pa.timestamp("us"))), "AFTER_MIGRATION", {}),
        (batches(("a", pa.timestamp("us"))), batches(("a", pa.timestamp("ms"))), "INCOMPATIBLE", {}),
        (
            batches(("a", pa.list_(pa.struct([("x", pa.int8())])))),
            batches(("a", pa.list_(pa.struct([("y", pa.string()), ("x", pa.int16())])))),
            "AFTER_MIGRATION",
            {".a[].y": "arrow-field-added", ".a[].x": "arrow-type-widened"},
        ),
        (
            batches(("a", pa.int32())),
            batches(pa.field("a", pa.int32(), nullable=False)),
            "INCOMPATIBLE",
            {".a": "arrow-field-became-required"},
        ),
        (batches(("a", pa.int32())), structs(("a", pa.int32())), "INCOMPATIBLE", {"": "serializer-class"}),
    ],
)
def test_schemas_evolve_by_name(old: Any, new: Any, kind: str, rule: dict[str, str]) -> None:
    compatibility = compatibility_of(old, new)
    assert compatibility.kind.name == kind, str(compatibility)
    assert rule.items() <= rules(compatibility).items()


def test_batches_and_structs_are_migrated() -> None:
    old_type = [("a", pa.int32()), ("gone", pa.string()), ("s", pa.list_(pa.struct([("x", pa.int8())])))]
    stops = pa.list_(pa.struct([("y", pa.string()), ("x", pa.int16())]))
    new_type = [("s", stops), ("n", pa.int8()), ("a", pa.float64())]
    value = {"a": 3, "gone": "x", "s": [{"x": 1}, None]}
    expected = {"s": [{"y": None, "x": 1}, None], "n": None, "a": 3.0}
    assert migrated(structs(*old_type), structs(*new_type), value) == expected
    batch = pa.RecordBatch.from_pylist([value], schema=pa.schema(old_type))
    assert migrated(batches(*old_type), batches(*new_type), batch).to_pylist() == [expected]


def test_a_value_that_a_cast_would_change_stops_the_migration() -> None:
    old, new = structs(("a", pa.int64())), structs(("a", pa.float64()))
    with pytest.raises(MigrationError):
        migration_between(old, new).to_value(old.to_bytes({"a": 2**53 + 1}))


@pytest.mark.parametrize(
    ("old", "new", "is_allowed"),
    [
        (pa.int8(), pa.float32(), True),
        (pa.int16(), pa.float32(), True),
        (pa.uint16(), pa.float32(), True),
        (pa.int32(), pa.float32(), False),
        (pa.int32(), pa.float64(), True),
        (pa.int8(), pa.float16(), False),
        (pa.int8(), pa.int16(), True),
        (pa.int16(), pa.int16(), True),
        (pa.int16(), pa.int8(), False),
        (pa.uint8(), pa.int8(), False),
        (pa.uint8(), pa.int16(), True),
        (pa.uint8(), pa.uint16(), True),
        (pa.int8(), pa.uint16(), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.decimal128(9, 2), pa.decimal128(10, 2), True),
        (pa.decimal128(9, 2), pa.decimal128(10, 3), True),
        (pa.decimal128(9, 2), pa.decimal128(9, 3), False),
        (pa.decimal128(9, 2), pa.decimal128(10, 1), False),
        (pa.decimal256(9, 2), pa.decimal128(9, 2), False),
        (pa.timestamp("ms"), pa.timestamp("us"), True),
        (pa.timestamp("us"), pa.timestamp("ms"), False),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us"), False),
        (pa.timestamp("ms"), pa.duration("us"), False),
        (pa.duration("s"), pa.duration("ns"), True),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), True),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32()), False),
        (pa.map_(pa.string(), pa.int32()), pa.list_(pa.int32()), False),
        (pa.list_(pa.int32(), 2), pa.list_(pa.int64(), 2), True),
        (pa.list_(pa.int32(), 2), pa.list_(pa.int32(), 3), False),
        (pa.list_(pa.int32()), pa.large_list(pa.int32()), False),
        (pa.null(), pa.string(), True),
        (pa.bool_(), pa.float64(), False),
        (pa.float64(), pa.decimal128(38, 2), False),
        (pa.float32(), pa.int64(), False),
    ],
)
def test_a_type_widens_if_every_value_is_kept(old: pa.DataType, new: pa.DataType, is_allowed: bool) -> None:
    rejected = [found for found in resolve_types(old, new, "") if found.compatibility is FieldCompatibility.REJECT]
    assert (not rejected) == is_allowed
    assert (resolve_types(old, new, "") == []) == (old == new)


def of_batch(batch: pa.RecordBatch) -> bytes:
    message = batch.serialize().to_pybytes()
    return len(message).to_bytes(4, "big") + bytes(message)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_struct_value_is_one_row(rows: int) -> None:
    serializer = structs(("a", pa.int32()))
    data = of_batch(pa.record_batch([pa.array([1] * rows, pa.int32())], schema=pa.schema([("a", pa.int32())])))
    with pytest.raises(ts.StateFormatError, match=f"is one row, found {rows}"):
        serializer.from_bytes(data)


def test_more_rows_than_the_bytes_allow_are_rejected() -> None:
    # Columns of nulls take no bytes, for any number of rows.
    schema = pa.schema([("a", pa.null())])

    def data(rows: int) -> bytes:
        return of_batch(pa.record_batch([pa.nulls(rows)], schema=schema))

    most = 8 * (len(data(1)) - 4) + MAX_EMPTY_ELEMENTS
    serializer = ts.ArrowSerializer(schema)
    assert serializer.from_bytes(data(most)).num_rows == most
    with pytest.raises(ts.StateFormatError, match=f"claims more than {most} values"):
        serializer.from_bytes(data(most + 1))


def test_a_batch_is_not_copied_and_a_struct_is() -> None:
    assert ts.ArrowSerializer(SCHEMA).copy(BATCH) is BATCH
    value = {"a": 5, "b": None, "c": [1, 2]}
    copied = ts.ArrowStructSerializer(pa.struct(list(SCHEMA))).copy(value)
    assert copied == value
    assert copied["c"] is not value["c"]


def test_a_snapshot_of_a_later_version_is_rejected() -> None:
    for serializer in [ts.ArrowSerializer(SCHEMA), ts.ArrowStructSerializer(pa.struct(list(SCHEMA)))]:
        snapshot = serializer.snapshot_configuration()
        out = DataOutputView()
        snapshot.write_snapshot(out)
        with pytest.raises(ts.StateFormatError, match="version"):
            snapshot.read_snapshot(snapshot.current_version + 1, DataInputView(out.to_bytes()))
