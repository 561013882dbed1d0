"""Migrated values have the new types and share nothing with defaults or other values."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

import typeserializers as ts
from migration.record_conversions import fitted_by
from migration.schema_migration import MigrationError
from snapshots.errors import MalformedDataError
from statebackend.testing.upgrades import migration_between

LONG = ts.LongSerializer()


def record(record_class: type, **options: Any) -> ts.AttrsSerializer[Any]:
    return ts.AttrsSerializer(record_class, name="alone.Record", **options)


@attrs.frozen
class Old:
    number: int


@attrs.frozen
class OldBefore:
    number: int
    seen: list[int]


@attrs.frozen
class WithDefault:
    number: int
    seen: list[int] = [1]  # noqa: RUF008


@attrs.define
class OldPojo:
    __pojo_class__ = "alone.Pojo"
    number: int


@attrs.define
class PojoWithDefault:
    __pojo_class__ = "alone.Pojo"
    number: int
    seen: list[int] = [1]  # noqa: RUF008


def same(values: dict[str, Any]) -> dict[str, Any]:
    return values


DEFAULTED = [
    (record(Old), record(WithDefault), Old(3)),
    (record(Old), record(WithDefault, schema_version=2, converters={1: same}), Old(3)),
    (ts.PojoSerializer(OldPojo), ts.PojoSerializer(PojoWithDefault), OldPojo(3)),
]


@pytest.mark.parametrize(("old", "new", "value"), DEFAULTED)
def test_the_default_of_an_added_field_is_created_for_each_value(old: Any, new: Any, value: Any) -> None:
    migration = migration_between(old, new)
    first, second = (migration.to_value(old.to_bytes(value)) for _ in range(2))
    first.seen.append(2)
    assert (first.seen, second.seen) == ([1, 2], [1])
    assert migration.to_value(old.to_bytes(value)).seen == [1]


ALWAYS_THE_SAME = {"number": 8}


def returns_what_it_keeps(values: dict[str, Any]) -> dict[str, Any]:
    return ALWAYS_THE_SAME


def takes_apart(values: dict[str, Any]) -> dict[str, Any]:
    return {"number": values.pop("number")}


def test_a_converter_may_modify_the_value_that_the_former_one_keeps() -> None:
    converters = {1: returns_what_it_keeps, 2: takes_apart}
    migration = migration_between(record(Old), record(Old, schema_version=3, converters=converters))
    for _ in range(2):
        assert migration.to_value(record(Old).to_bytes(Old(3))) == Old(8)


def as_float(values: dict[str, Any]) -> dict[str, Any]:
    return {"number": float(values["number"])}


@attrs.frozen
class Real:
    number: float


def test_a_value_made_by_a_converter_is_independent_even_if_equal_to_the_old_one() -> None:
    migration = migration_between(record(Old), record(Real, schema_version=2, converters={1: as_float}))
    value = migration.to_value(record(Old).to_bytes(Old(3)))
    assert (type(value.number), value.number) == (float, 3.0)


def nothing(value: int) -> None:
    return None


def test_a_converter_that_returns_none_for_a_required_field_is_reported_even_if_its_serializer_writes_none() -> None:
    convert = fitted_by(nothing, ts.NullableSerializer(LONG), is_required=True)
    with pytest.raises(MalformedDataError, match="the converter nothing returned None, but the field is not optional"):
        convert(3)
    assert fitted_by(nothing, ts.NullableSerializer(LONG))(3) is None


@attrs.frozen
class Leaf:
    number: int


@attrs.frozen
class Middle:
    leaf: Leaf


@attrs.frozen
class Outer:
    middle: Middle


@attrs.frozen
class RejectingLeaf:
    number: int = attrs.field(validator=attrs.validators.lt(5))


@attrs.frozen
class RejectingMiddle:
    leaf: RejectingLeaf


@attrs.frozen
class RejectingOuter:
    middle: RejectingMiddle
    added: int = 0


def test_a_value_that_an_unchanged_part_now_rejects_is_found_inside_it() -> None:
    def outer(classes: Sequence[type]) -> ts.AttrsSerializer[Any]:
        leaf = ts.AttrsSerializer(classes[2], name="alone.Leaf")
        middle = ts.AttrsSerializer(classes[1], name="alone.Middle", field_serializers={"leaf": leaf})
        return record(classes[0], field_serializers={"middle": middle})

    old, new = outer([Outer, Middle, Leaf]), outer([RejectingOuter, RejectingMiddle, RejectingLeaf])
    migration = migration_between(old, new)
    assert migration.to_value(old.to_bytes(Outer(Middle(Leaf(4))))) == RejectingOuter(RejectingMiddle(RejectingLeaf(4)))
    for convert in (migration.to_value, migration.to_bytes):
        with pytest.raises(MigrationError, match=r"\.middle\.leaf: ValueError"):
            convert(old.to_bytes(Outer(Middle(Leaf(6)))))


def test_a_logical_default_of_avro_has_the_type_that_its_schema_reads() -> None:
    date = {"type": "int", "logicalType": "date"}
    fields: list[dict[str, Any]] = [{"name": "number", "type": "long"}]
    schema = {"type": "record", "name": "alone.Reading", "fields": fields}
    later = {**schema, "fields": [*fields, {"name": "day", "type": date, "default": 1}]}
    old, new = ts.AvroSerializer(schema), ts.AvroSerializer(later)
    migration = migration_between(old, new)
    data = old.to_bytes({"number": 3})
    assert migration.to_value(data) == {"number": 3, "day": datetime.date(1970, 1, 2)}
    assert migration.to_value(data) == new.from_bytes(migration.to_bytes(data))
