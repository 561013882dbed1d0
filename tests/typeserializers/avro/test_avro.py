"""Avro: values, bounds on hostile bytes, and Avro's schema resolution as compatibility results."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from record_versions import compatibility_of, migrated, rules, written

import typeserializers as ts
from migration import MigrationError, SchemaMigration
from snapshots import DataInputView, DataOutputView, FieldCompatibility, SnapshotFormatError, StateFormatError
from statebackend.testing.upgrades import migration_between
from typeserializers.avro import AvroSerializer, is_recursive, is_risky, skip


def record(*fields: Any, name: str = "Flight", **more: Any) -> AvroSerializer:
    declared = [{"name": part[0], "type": part[1], **(part[2] if len(part) > 2 else {})} for part in fields]
    return AvroSerializer({"type": "record", "name": name, "fields": declared, **more})


def decimals(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def test_values_and_logical_types_round_trip() -> None:
    serializer = record(
        ("n", "long"), ("d", decimals(10, 2)), ("t", {"type": "int", "logicalType": "date"}), ("u", ["null", "string"])
    )
    value = {"n": 5, "d": decimal.Decimal("1.25"), "t": datetime.date(2024, 2, 29), "u": None}
    assert serializer.from_bytes(serializer.to_bytes(value)) == value
    assert written(serializer).restore_serializer() == serializer
    assert serializer.from_bytes(serializer.to_bytes(serializer.create_instance())) == serializer.create_instance()


@pytest.mark.parametrize("value", [{"n": 2**40}, {"n": "x"}, {}, {"n": 1, "m": 2}, None, 5, {"n": None}])
def test_a_value_outside_of_the_schema_is_rejected(value: Any) -> None:
    with pytest.raises(ts.SerializationError):
        record(("n", "int")).to_bytes(value)


def test_an_error_names_the_field() -> None:
    with pytest.raises(ts.SerializationError, match=r"Flight\.n"):
        record(("n", "int")).to_bytes({"n": 2**40})


UTC = datetime.timezone.utc
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL_MILLIS = {"type": "long", "logicalType": "local-timestamp-millis"}
TIME_MILLIS = {"type": "int", "logicalType": "time-millis"}
DATE = {"type": "int", "logicalType": "date"}
BRANCHES = [{"type": "record", "name": name, "fields": [{"name": "n", "type": "int"}]} for name in ("First", "Second")]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("double", 2**53 + 1),
        ("float", 2**24 + 1),
        ("float", 1e300),
        (["null", "double"], 2**53 + 1),
        (["double", "long"], 2**53 + 1),
        (MILLIS, datetime.datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        (MILLIS, datetime.datetime(2024, 1, 1)),
        (MILLIS, 5),
        (LOCAL_MILLIS, datetime.datetime(2024, 1, 1, tzinfo=UTC)),
        (TIME_MILLIS, datetime.time(0, 0, 0, 1)),
        (TIME_MILLIS, datetime.time(1, tzinfo=UTC)),
        (DATE, datetime.datetime(2024, 1, 1, 5)),
        (BRANCHES, ("Second", {"n": 1})),
    ],
)
def test_a_value_that_would_change_is_rejected(schema: Any, value: Any) -> None:
    with pytest.raises(ts.SerializationError, match=r"comes? back|matches more than one record of the union"):
        AvroSerializer(schema).to_bytes(value)
    inside = record(("n", "int"), ("list", {"type": "array", "items": {"type": "map", "values": schema}}))
    with pytest.raises(ts.SerializationError, match=r"comes? back|matches more than one record of the union"):
        inside.to_bytes({"n": 1, "list": [{}, {"k": value}]})


def test_the_path_of_a_changing_value_is_named() -> None:
    serializer = record(("of", {"type": "array", "items": {"type": "map", "values": "double"}}))
    with pytest.raises(
        ts.SerializationError, match=r"\.of\[1\]\.k: 9007199254740993 would come back as 9007199254740992\.0"
    ):
        serializer.to_bytes({"of": [{}, {"k": 2**53 + 1, "l": 1.5}]})


@pytest.mark.parametrize(
    ("schema", "value", "read"),
    [
        ("double", 3, 3.0),
        ("float", 0.1, 0.10000000149011612),
        ("float", float("-inf"), float("-inf")),
        ({"type": "array", "items": "double"}, (1, 2.5), [1.0, 2.5]),
        ({"type": "array", "items": "float"}, (0.5, 0.1), [0.5, 0.10000000149011612]),
        # A pair could also mean the name of a record and the record.
        (
            record(("n", "double"), ("of", {"type": "array", "items": "string"})).schema,
            {"n": 0.5, "of": ("a", "b")},
            {"n": 0.5, "of": ["a", "b"]},
        ),
        (["null", "float", "double"], 1e300, 1e300),
        (
            MILLIS,
            datetime.datetime(2024, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
            datetime.datetime(2024, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
        ),
        (["null", *BRANCHES], ("First", {"n": 1}), {"n": 1}),
    ],
)
def test_a_value_that_round_trips_is_accepted(schema: Any, value: Any, read: Any) -> None:
    serializer = AvroSerializer(schema)
    assert serializer.from_bytes(serializer.to_bytes(value)) == read


def test_nan_and_infinity_are_accepted() -> None:
    for schema in ("float", "double"):
        serializer = record(("n", schema), ("m", "double"))
        read = serializer.from_bytes(serializer.to_bytes({"n": float("nan"), "m": 0.5}))
        assert read["n"] != read["n"]
        assert read["m"] == 0.5


@pytest.mark.parametrize(
    "schema", [MILLIS, LOCAL_MILLIS, TIME_MILLIS, DATE, decimals(5, 2), {"type": "string", "logicalType": "uuid"}]
)
def test_the_empty_value_of_a_logical_type_can_be_written(schema: Any) -> None:
    serializer = record(("of", schema))
    empty = serializer.create_instance()
    assert serializer.from_bytes(serializer.to_bytes(empty)) == empty


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}


def test_hostile_bytes_are_rejected_in_bounded_time() -> None:
    many_nulls = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\0"
    with pytest.raises(ts.MalformedDataError, match="without bytes"):
        AvroSerializer({"type": "array", "items": "null"}).from_bytes(many_nulls)
    with pytest.raises(ts.MalformedDataError, match="nested deeper"):
        AvroSerializer(NODE).from_bytes(b"\x02" * 1_000_000 + b"\0")
    with pytest.raises(ts.StateFormatError):
        AvroSerializer("string").from_bytes(many_nulls)
    with pytest.raises(ts.StateFormatError):
        AvroSerializer({"type": "array", "items": "long"}).from_bytes(many_nulls)


def test_a_value_nested_too_deep_is_rejected_before_the_library_reads_it() -> None:
    value: Any = {"next": None}
    for _ in range(100_000):
        value = {"next": value}
    with pytest.raises(ts.SerializationError):
        AvroSerializer(NODE).to_bytes(value)
    while value["next"] is not None:
        value = value["next"]


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"type": "record"}, "{", {"type": "enum", "name": "E"}, 5, ["int", "what"]]
)
def test_an_invalid_schema_is_rejected(schema: Any) -> None:
    with pytest.raises((SnapshotFormatError, ValueError)):
        AvroSerializer(schema)


A, B = ("a", "int"), ("b", "string")


@pytest.mark.parametrize(
    ("old", "new", "kind", "rule"),
    [
        (record(A), record(A), "AS_IS", {}),
        (record(A), record(A, doc="better words"), "AS_IS", {}),
        (record(A), record(A, ("b", "long", {"default": 7})), "AFTER_MIGRATION", {".b": "avro-field-added"}),
        (record(A), record(A, B), "INCOMPATIBLE", {".b": "avro-field-added-without-default"}),
        (record(A, B), record(A), "AFTER_MIGRATION", {".b": "avro-field-removed"}),
        (record(A, B), record(B, A), "AFTER_MIGRATION", {"": "avro-fields-reordered"}),
        (record(A), record(("x", "int", {"aliases": ["a"]})), "AFTER_MIGRATION", {".x": "avro-field-renamed"}),
        (record(A), record(("a", "double")), "AFTER_MIGRATION", {".a": "avro-promoted"}),
        (record(("a", "long")), record(A), "INCOMPATIBLE", {".a": "avro-type-changed"}),
        (record(B), record(("b", "bytes")), "AFTER_MIGRATION", {".b": "avro-promoted"}),
        (record(A), record(A, name="Plane"), "INCOMPATIBLE", {"": "avro-renamed"}),
        (record(A), record(A, name="Plane", aliases=["Flight"]), "AFTER_MIGRATION", {"": "avro-schema-changed"}),
        (record(A), record(("a", ["null", "int"])), "AFTER_MIGRATION", {"": "avro-schema-changed"}),
        (
            record(("a", ["null", "string"])),
            record(("a", ["null", "int"])),
            "INCOMPATIBLE",
            {".a<string>": "avro-union-branch"},
        ),
        (record(("a", ["null", "int"])), record(A), "INCOMPATIBLE", {".a<null>": "avro-type-changed"}),
        (record(("a", decimals(9, 2))), record(("a", decimals(12, 3))), "AFTER_MIGRATION", {}),
        (record(("a", decimals(9, 2))), record(("a", decimals(10, 2))), "AFTER_MIGRATION", {}),
        (record(("a", ["int", "long"])), record(("a", "long")), "AFTER_MIGRATION", {".a": "avro-union-changed"}),
        (record(("a", ["int", "long"])), record(("a", "string")), "INCOMPATIBLE", {".a": "avro-union-changed"}),
        (record(("a", decimals(9, 2))), record(("a", decimals(11, 4))), "AFTER_MIGRATION", {}),
        (record(("a", decimals(9, 2))), record(("a", decimals(9, 2))), "AS_IS", {}),
        (record(("a", decimals(9, 2))), record(("a", decimals(8, 2))), "INCOMPATIBLE", {".a": "avro-decimal-narrowed"}),
        (record(("a", decimals(9, 2))), record(("a", decimals(9, 3))), "INCOMPATIBLE", {".a": "avro-decimal-narrowed"}),
        (record(("a", decimals(10, 2))), record(("a", "bytes")), "INCOMPATIBLE", {".a": "avro-logical-type"}),
        (
            record(("a", {"type": "array", "items": "int"})),
            record(("a", {"type": "array", "items": "string"})),
            "INCOMPATIBLE",
            {".a[]": "avro-type-changed"},
        ),
        (
            record(("a", {"type": "enum", "name": "E", "symbols": ["A", "B"]})),
            record(("a", {"type": "enum", "name": "E", "symbols": ["A"]})),
            "INCOMPATIBLE",
            {".a": "avro-enum-symbols-removed"},
        ),
        (
            record(("a", {"type": "enum", "name": "E", "symbols": ["A", "B"]})),
            record(("a", {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"})),
            "AFTER_MIGRATION",
            {".a": "avro-enum-symbols-removed"},
        ),
        (
            record(("a", {"type": "enum", "name": "E", "symbols": ["A", "B"]})),
            record(("a", {"type": "enum", "name": "E", "symbols": ["B", "A"]})),
            "AFTER_MIGRATION",
            {".a": "avro-enum-symbols-changed"},
        ),
        (AvroSerializer("int"), ts.IntSerializer(), "INCOMPATIBLE", {"": "serializer-class"}),
    ],
)
def test_schemas_are_resolved_by_avros_rules(old: Any, new: Any, kind: str, rule: dict[str, str]) -> None:
    compatibility = compatibility_of(old, new)
    assert compatibility.kind.name == kind, str(compatibility)
    assert rule.items() <= rules(compatibility).items()


@pytest.mark.parametrize(("old", "new", "bits"), [("int", "float", 24), ("long", "float", 24), ("long", "double", 53)])
def test_a_promotion_names_its_rounding_limit(old: str, new: str, bits: int) -> None:
    [issue] = compatibility_of(record(("a", old)), record(("a", new))).issues
    assert f"beyond 2**{bits} it is rounded" in issue.reason
    [issue] = compatibility_of(record(("a", "int")), record(("a", "double"))).issues
    assert "rounded" not in issue.reason


def test_values_are_migrated_with_defaults_aliases_and_wider_decimals() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    old = record(("a", "int"), ("gone", "string"), ("d", decimals(6, 2)), ("t", millis))
    new = record(
        ("d", decimals(10, 4)),
        ("x", "double", {"aliases": ["a"]}),
        ("more", ["null", "string"], {"default": None}),
        ("t", {"type": "long", "logicalType": "timestamp-micros"}),
    )
    assert compatibility_of(old, new).is_after_migration
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.timezone.utc)
    value = {"a": 3, "gone": "x", "d": decimal.Decimal("12.34"), "t": moment}
    expected = {"d": decimal.Decimal("12.3400"), "x": 3.0, "more": None, "t": moment}
    assert migrated(old, new, value) == expected


def test_a_recursive_schema_evolves() -> None:
    new = {**NODE, "fields": [*NODE["fields"], {"name": "w", "type": "int", "default": 1}]}
    pair = AvroSerializer(NODE), AvroSerializer(new)
    assert compatibility_of(*pair).is_after_migration
    assert migrated(*pair, {"next": {"next": None}}) == {"next": {"next": None, "w": 1}, "w": 1}


def test_invalid_text_bytes_stop_the_migration() -> None:
    migration: SchemaMigration[Any] = migration_between(AvroSerializer("bytes"), AvroSerializer("string"))
    with pytest.raises(MigrationError, match="utf-8"):
        migration.to_bytes(AvroSerializer("bytes").to_bytes(b"\xff"))


PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string", "bytes"])
UNIONS = st.lists(PRIMITIVES, min_size=1, max_size=3, unique=True)
LEAVES = PRIMITIVES | UNIONS
PARTS = (
    LEAVES
    | LEAVES.map(lambda inner: {"type": "array", "items": inner})
    | LEAVES.map(lambda inner: {"type": "map", "values": inner})
)
RECORDS = st.dictionaries(st.sampled_from("abcd"), PARTS, max_size=4).map(lambda parts: record(*parts.items()))

VALUES: dict[str, Any] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "bytes": st.text(st.characters(exclude_categories=["Cs"]), max_size=5).map(str.encode),
}


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, str):
        found: st.SearchStrategy[Any] = VALUES[schema]
        return found
    if isinstance(schema, list):
        # The library writes a whole number as the first numeric member. A number that this float would round is
        # rejected.
        whole = st.integers(-(2**24), 2**24)
        is_rounded = not {"float", "double"}.isdisjoint(schema)
        return st.one_of(*(whole if is_rounded and one in ("int", "long") else values_of(one) for one in schema))
    if schema["type"] == "array":
        return st.lists(values_of(schema["items"]), max_size=3)
    if schema["type"] == "map":
        return st.dictionaries(st.text("xyz", max_size=2), values_of(schema["values"]), max_size=3)
    return st.fixed_dictionaries({part["name"]: values_of(part["type"]) for part in schema["fields"]})


@settings(max_examples=examples(150))
@given(st.data(), RECORDS, RECORDS)
def test_everything_that_the_result_allows_can_be_read(
    data: st.DataObject, old: AvroSerializer, new: AvroSerializer
) -> None:
    compatibility = compatibility_of(old, new)
    value = data.draw(values_of(old.schema))
    encoded = old.to_bytes(value)
    assert old.to_bytes(old.from_bytes(encoded)) == encoded
    if compatibility.is_incompatible:
        return
    migration: SchemaMigration[Any] = migration_between(old, new)
    result = migration.to_value(encoded)
    assert new.to_bytes(result) == migration.to_bytes(encoded)
    if compatibility.is_as_is:
        assert migration.to_bytes(encoded) == encoded


@settings(max_examples=examples(100))
@given(RECORDS, st.binary(max_size=60))
def test_any_bytes_are_a_value_or_rejected(serializer: AvroSerializer, data: bytes) -> None:
    try:
        serializer.from_bytes(data)
    except ts.StateFormatError:
        return


def named(schema: Any) -> Any:
    return AvroSerializer(schema).named


def plain(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": part, "type": kind} for part, kind in fields]}


def chain_of(link: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Chain", "fields": [{"name": "next", "type": link}]}


ENDLESS: dict[str, Any] = {
    "union": chain_of(["null", "Chain"]),
    "array": chain_of({"type": "array", "items": "Chain"}),
    "map": chain_of({"type": "map", "values": "Chain"}),
    "map in a union": chain_of(["null", {"type": "map", "values": {"type": "array", "items": "Chain"}}]),
    "named in a map": {"type": "map", "values": chain_of(["null", "Chain"])},
}
PAID: dict[str, Any] = {
    "array": {"type": "array", "items": "long"},
    "map of nulls": {"type": "map", "values": "null"},
    "record twice": plain("Outer", ("a", plain("Inner", ("x", "int"))), ("b", "double"), ("c", "Inner")),
    "fixed": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 1}},
}
FREE: dict[str, Any] = {
    "nulls": {"type": "array", "items": "null"},
    "fixed of nothing": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
    "empty records": {"type": "array", "items": plain("Empty")},
    "in a map": {"type": "map", "values": {"type": "array", "items": "null"}},
    "in a union": ["string", {"type": "array", "items": "null"}],
    "in a record": plain("Outer", ("a", "int"), ("b", {"type": "array", "items": plain("Inner", ("n", "null"))})),
    "in an array": {"type": "array", "items": {"type": "array", "items": "null"}},
    "named in a map": plain(
        "Outer",
        ("a", {"type": "map", "values": plain("Inner", ("n", "null"))}),
        ("b", {"type": "array", "items": "Inner"}),
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_recursive_schema_has_endless_values(name: str) -> None:
    schemas = named(ENDLESS[name])
    assert is_recursive(schemas)
    assert is_risky(schemas)


def test_a_schema_is_bounded_by_its_bytes() -> None:
    for name, schema in PAID.items():
        assert not is_recursive(named(schema)), name
        assert not is_risky(named(schema)), name
    for name, schema in FREE.items():
        assert not is_recursive(named(schema)), name
        assert is_risky(named(schema)), name


@pytest.mark.parametrize(
    ("schema", "data", "end"),
    [
        ("null", "", 0),
        ("boolean", "01", 1),
        ("float", "00000000", 4),
        ("double", "0000000000000000", 8),
        ("long", "8001", 2),
        ("string", "046162", 3),
        ("bytes", "00", 1),
        ({"type": "fixed", "name": "F", "size": 3}, "010203", 3),
        (["null", "long"], "0202", 2),
        ({"type": "array", "items": "long"}, "04020400", 4),
        ({"type": "array", "items": "long"}, "0304020400", 5),
        ({"type": "map", "values": "long"}, "020261040200", None),
        ({"type": "map", "values": "long"}, "0202610400", 5),
    ],
)
def test_a_value_is_skipped_to_its_end_and_not_beyond(schema: Any, data: str, end: int | None) -> None:
    schemas, encoded = named(schema), bytes.fromhex(data)
    if end is None:
        with pytest.raises(StateFormatError):
            skip(schemas, encoded, 0)
        return
    assert skip(schemas, b"before" + encoded + b"behind", 6) == 6 + end
    for cut in range(len(encoded)):
        with pytest.raises(StateFormatError):
            skip(schemas, encoded[:cut], 0)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("string", "01" + "61" * 4),
        ({"type": "map", "values": "long"}, "020102" + "00" * 4),
        (["null", "long"], "04" + "00" * 4),
        (["null", "long"], "01" + "00" * 4),
        ("long", "ff" * 12),
    ],
)
def test_an_invalid_value_is_not_skipped(schema: Any, data: str) -> None:
    with pytest.raises(StateFormatError):
        skip(named(schema), bytes.fromhex(data), 0)


def test_the_fields_of_a_renamed_record_are_checked() -> None:
    old = record(("a", "int"), ("b", "int"))
    renamed = record(("a", "string"), ("b", "int"), name="Trip", aliases=["Flight"])
    compatibility = compatibility_of(old, renamed)
    assert compatibility.is_incompatible
    assert [issue.path for issue in compatibility.issues if issue.compatibility is FieldCompatibility.REJECT] == [".a"]
    assert not compatibility_of(
        old, record(("a", "int"), ("b", "int"), name="Trip", aliases=["Flight"])
    ).is_incompatible


def test_a_snapshot_of_a_later_version_is_rejected() -> None:
    for serializer in [record(("a", "int"))]:
        snapshot = serializer.snapshot_configuration()
        out = DataOutputView()
        snapshot.write_snapshot(out)
        with pytest.raises(StateFormatError, match="version"):
            snapshot.read_snapshot(snapshot.current_version + 1, DataInputView(out.to_bytes()))
