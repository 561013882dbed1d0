"""Rare values and declarations: subclasses of dates, arrays of another byte order, renamed POJOs."""

from __future__ import annotations

import ctypes
import datetime
from typing import Any

import attrs
import pytest

import typeserializers as ts
from snapshots import SnapshotFormatError, resolve_compatibility, snapshot_from_bytes, snapshot_to_bytes
from statebackend.testing.upgrades import migration_between
from typeserializers.avro import check_schema


class Holiday(datetime.date):
    """A subclass of date."""


class Pause(datetime.timedelta):
    """A subclass of timedelta."""


@pytest.mark.parametrize(
    ("serializer", "given", "plain"),
    [
        (ts.serializer_for(datetime.date), Holiday(2026, 1, 6), datetime.date(2026, 1, 6)),
        (ts.serializer_for(datetime.timedelta), Pause(1, 2, 3), datetime.timedelta(1, 2, 3)),
    ],
    ids=["date", "timedelta"],
)
def test_a_subclass_of_a_time_is_read_back_as_the_base_class(serializer: Any, given: Any, plain: Any) -> None:
    again = serializer.from_bytes(serializer.to_bytes(given))
    assert (again, type(again)) == (plain, type(plain))
    for wrong in (datetime.datetime(2026, 1, 6), 5, "2026-01-06", None):
        with pytest.raises(ts.SerializationError):
            serializer.to_bytes(wrong)


@pytest.mark.parametrize(
    ("serializer", "kind"),
    [
        (ts.ShortPrimitiveArraySerializer(), ctypes.c_int16),
        (ts.IntPrimitiveArraySerializer(), ctypes.c_int32),
        (ts.LongPrimitiveArraySerializer(), ctypes.c_int64),
        (ts.DoublePrimitiveArraySerializer(), ctypes.c_double),
    ],
    ids=repr,
)
@pytest.mark.parametrize("order", ["__ctype_le__", "__ctype_be__"])
def test_an_array_of_either_byte_order_keeps_its_elements(serializer: Any, kind: Any, order: str) -> None:
    elements = [1, 258, -3]

    class Ordered(ctypes.Array):  # type: ignore[type-arg]
        _type_ = getattr(kind, order)
        _length_ = 3

        def tolist(self) -> list[Any]:
            return list(self)

    assert serializer.to_bytes(Ordered(*elements)) == serializer.to_bytes(elements)


def pojo(class_name: str, *former: str) -> ts.PojoSerializer[Any]:
    @attrs.define
    class Point:
        __pojo_class__ = class_name
        __former_names__ = former
        x: int = 0

    return ts.PojoSerializer(Point)


def test_a_renamed_pojo_class_is_compatible_if_declared() -> None:
    old = pojo("my.old.Point")
    snapshot: Any = snapshot_from_bytes(snapshot_to_bytes(old.snapshot_configuration()))
    data = old.to_bytes(old.record_class(7))
    renamed = pojo("my.new.Point", "my.older.Point", "my.old.Point")
    compatibility = resolve_compatibility(snapshot, renamed)
    assert not compatibility.is_incompatible, str(compatibility)
    assert "pojo-class-renamed" in {issue.rule for issue in compatibility.issues}
    assert migration_between(snapshot, renamed).to_value(data) == renamed.record_class(7)
    for silent in (pojo("my.new.Point"), pojo("my.new.Point", "my.older.Point")):
        rejected = resolve_compatibility(snapshot, silent)
        assert rejected.is_incompatible
        assert "pojo-class" in {issue.rule for issue in rejected.issues}


def test_another_class_is_no_pojo_without_problems() -> None:
    assert list(pojo("my.Point").problems(None, "here")) == []


@pytest.mark.parametrize("wrapped", [{"type": {"type": "long"}}, {"type": ["null", "long"]}], ids=str)
def test_a_wrapped_avro_type_is_not_a_schema(wrapped: Any) -> None:
    for schema in (wrapped, {"type": "record", "name": "R", "fields": [{"name": "n", "type": wrapped}]}):
        with pytest.raises(SnapshotFormatError, match="this is not an Avro schema"):
            ts.AvroSerializer(schema)
        with pytest.raises(SnapshotFormatError, match="is a type inside a type; write the inner one alone"):
            check_schema(schema)
