"""Invalid old bytes raise an error in both forms of a migration, without large use of time or memory."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import attrs
import pytest

import typeserializers as ts
from migration import MigrationError, SchemaMigration
from migration.conversion import RequiredPartSerializer
from snapshots.compatibility import PartsPlan
from snapshots.data_views import DataInputView
from snapshots.errors import MalformedDataError
from statebackend.testing.upgrades import migration_between
from typeserializers.evolution.record_evolution import resolve_part
from typeserializers.kernel.compiled import MAX_EMPTY_ELEMENTS

INT, LONG = ts.IntSerializer(), ts.LongSerializer()


@attrs.frozen
class Empty:
    pass


@attrs.frozen
class Filled:
    number: int = 7


def forms(migration: SchemaMigration[Any]) -> tuple[Any, Any]:
    return migration.to_value, lambda data: migration.new.from_bytes(migration.to_bytes(data))


def record(record_class: type, **options: Any) -> ts.AttrsSerializer[Any]:
    return ts.AttrsSerializer(record_class, name="damaged.Record", **options)


TOO_MANY = MAX_EMPTY_ELEMENTS + 1
COUNTED = [
    (ts.ListSerializer, b""),
    (lambda inner: ts.MapSerializer(INT, inner), b""),
    (lambda inner: ts.TupleSerializer([LONG, ts.ListSerializer(inner)]), bytes(8)),
]


@pytest.mark.parametrize(("around", "front"), COUNTED)
def test_a_count_of_more_elements_than_bytes_is_rejected_before_any_is_created(around: Any, front: bytes) -> None:
    # The elements take no bytes, so only their count can be rejected.
    migration = migration_between(around(record(Empty)), around(record(Filled)))
    for convert in forms(migration):
        with pytest.raises(MigrationError, match=f"invalid count {TOO_MANY}"):
            convert(front + TOO_MANY.to_bytes(4, "big"))


def test_a_null_has_the_length_that_its_serializer_wrote() -> None:
    old = ts.ListSerializer(ts.NullableSerializer(INT, pad_null_value=True))
    new = ts.ListSerializer(ts.NullableSerializer(LONG, pad_null_value=True))
    migration = SchemaMigration(
        old, new, PartsPlan((PartsPlan((resolve_part(INT.snapshot_configuration(), LONG).plan,)),))
    )
    values = [None, 5, None, None, -1]
    data = old.to_bytes(values)
    assert migration.to_value(data) == values
    assert migration.to_bytes(data) == new.to_bytes(values)


class Paint(enum.Enum):
    RED = 1
    BLUE = 2


def test_an_unknown_ordinal_is_rejected() -> None:
    old = ts.EnumSerializer(Paint, name="damaged.Paint")
    repainted = enum.Enum("Paint", ["BLUE", "RED", "GREEN"])  # type: ignore[misc]
    migration = migration_between(old, ts.EnumSerializer(repainted, name="damaged.Paint"))
    assert migration.to_value(old.to_bytes(Paint.BLUE)) is repainted["BLUE"]
    for ordinal in (2, -1):
        for convert in forms(migration):
            with pytest.raises(MigrationError, match=f"{ordinal} is not the ordinal of a constant"):
                convert(ordinal.to_bytes(4, "big", signed=True))


def pojo(**fields: Any) -> Any:
    hints = {name: hint for name, (hint, *_) in fields.items()}
    namespace = {name: default[0] for name, (_, *default) in fields.items() if default}
    cls = type("Versioned", (), {"__annotations__": hints, "__pojo_class__": "damaged.Versioned", **namespace})
    return ts.PojoSerializer(attrs.define(cls))


def test_a_null_in_a_field_of_a_pojo_that_is_not_optional_is_rejected() -> None:
    old, new = pojo(a=(int,), b=(int | None,)), pojo(a=(int,), b=(int | None,), c=(int, 3))
    migration = migration_between(old, new)
    value = old.record_class(1, None)
    assert migration.to_value(old.to_bytes(value)) == new.record_class(1, None, 3)
    for convert in forms(migration):
        with pytest.raises(MigrationError, match=r"\.a is null"):
            convert(b"\x02\x01\x01")


def test_a_subclass_of_a_pojo_under_an_unknown_tag_is_rejected() -> None:
    @attrs.define
    class Base:
        __pojo_class__ = "damaged.Base"
        id: int

    @attrs.define
    class Wider:
        __pojo_class__ = "damaged.Base"
        id: int
        more: int = 0

    migration = migration_between(ts.PojoSerializer(Base), ts.PojoSerializer(Wider))
    for convert in forms(migration):
        for tag in (0, 1, 255):
            with pytest.raises(MigrationError, match="unknown kind of object"):
                convert(b"\x08" + bytes((tag,)) + b"\x02\0" + bytes(8))


def text_of_even(number: int) -> str:
    if number % 2:
        raise ValueError("odd")
    return str(number)


def test_a_failing_field_of_a_pojo_is_found_after_a_null_field() -> None:
    converting = ts.ConvertingSerializer(ts.StringSerializer(), {LONG: text_of_even})
    old = pojo(a=(int | None,), b=(int | None,), c=(int,))
    new = pojo(a=(int | None,), b=(int | None,), c=(Annotated[str, converting],))
    migration = migration_between(old, new)
    assert migration.to_value(old.to_bytes(old.record_class(None, 5, 4))) == new.record_class(None, 5, "4")
    for convert in forms(migration):
        with pytest.raises(MigrationError, match=r"\.c: .*odd.*the old value is 3"):
            convert(old.to_bytes(old.record_class(None, 5, 3)))


@attrs.define
class Held:
    __pojo_class__ = "damaged.Held"
    id: int


@attrs.define
class HeldWider:
    __pojo_class__ = "damaged.Held"
    id: int
    more: int = 7


NULL_OF_A_POJO = b"\x01"
TEXT = ts.StringSerializer()


def test_a_null_without_a_matching_union_member_is_rejected_even_if_a_member_reads_it() -> None:
    old = ts.UnionSerializer([ts.PojoSerializer(Held), TEXT])
    new = ts.UnionSerializer([TEXT, ts.PojoSerializer(HeldWider)])
    migration = migration_between(old, new)
    assert migration.to_value(old.to_bytes(Held(3))) == HeldWider(3, 7)
    null = old.prefixes[0] + NULL_OF_A_POJO
    for convert in forms(migration):
        with pytest.raises(MigrationError, match="is null, but the field was not optional"):
            convert(null)


def test_a_null_does_not_become_a_union_member_that_excludes_it() -> None:
    migration = migration_between(ts.PojoSerializer(Held), ts.UnionSerializer([TEXT, ts.PojoSerializer(HeldWider)]))
    assert migration.to_value(ts.PojoSerializer(Held).to_bytes(Held(3))) == HeldWider(3, 7)
    for convert in forms(migration):
        with pytest.raises(MigrationError, match="is null, but the field was not optional"):
            convert(NULL_OF_A_POJO)


def test_required_fields_are_checked_in_bytes_too() -> None:
    required = RequiredPartSerializer(ts.NullableSerializer(LONG), "number")
    assert required.deserialize(DataInputView(b"\0" + bytes(8))) == 0
    with pytest.raises(MalformedDataError, match=r"\.number is null, but the field was not optional"):
        required.deserialize(DataInputView(b"\x01"))
