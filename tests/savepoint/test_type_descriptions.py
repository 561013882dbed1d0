"""Types as text: number widths are always shown, and different types have different texts."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pytest

import typeserializers as ts
from statebackend.savepoint.type_descriptions import describe_type

INT, LONG, TEXT = ts.IntSerializer(), ts.LongSerializer(), ts.StringSerializer()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (ts.ListSerializer, "list[{}]"),
        (ts.ArrayListSerializer, "list[{}]"),
        (ts.SetSerializer, "set[{}]"),
        (ts.FrozenSetSerializer, "frozenset[{}]"),
        (ts.NullableSerializer, "{} | None"),
        (ts.GenericArraySerializer, "array[{} | None]"),
        (lambda part: ts.MapSerializer(part, TEXT), "dict[{}, str]"),
        (lambda part: ts.MapSerializer(TEXT, ts.ListSerializer(part)), "dict[str, list[{}]]"),
        (lambda part: ts.TupleSerializer([TEXT, part]), "tuple[str, {}]"),
        (lambda part: ts.EitherSerializer(TEXT, part), "Left[str] | Right[{}]"),
        (lambda part: ts.UnionSerializer([part, TEXT]), "{} | str"),
        (lambda part: ts.RowSerializer([TEXT, part], ["a", "b"]), "Row[a: str, b: {}]"),
        (lambda part: ts.ListSerializer(ts.RowSerializer([part])), "list[Row[0: {}]]"),
        (ts.TtlSerializer, "{} with the time of its last access"),
        (lambda part: ts.TimerSerializer(part, TEXT), "timer of {} in str"),
    ],
)
def test_a_widening_inside_of_any_container_is_visible(make: Any, name: str) -> None:
    narrow, wide = (describe_type(make(part).snapshot_configuration()) for part in (INT, LONG))
    assert (narrow.name, wide.name) == (name.format("int32"), name.format("int64"))


def test_numbers_of_fields_arrays_and_foreign_schemas_are_distinct() -> None:
    @attrs.frozen
    class Legs:
        counts: list[int]

    [record] = describe_type(ts.AttrsSerializer(Legs).snapshot_configuration()).records
    assert [one.type_name for one in record.fields] == ["list[int64]"]
    reported = [
        describe_type(serializer.snapshot_configuration()).name
        for serializer in (
            ts.IntPrimitiveArraySerializer(),
            ts.LongPrimitiveArraySerializer(),
            ts.AvroSerializer("int"),
            ts.AvroSerializer("long"),
            ts.ArrowStructSerializer(pa.schema({"n": pa.int32()})),
            ts.ArrowStructSerializer(pa.schema({"n": pa.int64()})),
            ts.ArrowSerializer(pa.schema({"n": pa.int32()})),
            ts.ArrowSerializer(pa.schema({"n": pa.int64()})),
        )
    ]
    assert len(set(reported)) == len(reported)
