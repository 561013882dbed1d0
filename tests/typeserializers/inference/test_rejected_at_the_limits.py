"""Rejected serializers and values, on both sides of each limit."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import attrs
import pyarrow as pa
import pytest

import typeserializers as ts
from migration.conversion import ConversionScope
from migration.conversion_table import CONVERSIONS
from snapshots import (
    SerializationError,
    SnapshotFormatError,
    UnresolvableSerializerError,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from typeserializers.containers.primitive_arrays import elements_of
from typeserializers.pojos.pojo_serializer import MAX_REGISTERED_SUBCLASSES, PojoSerializer
from typeserializers.scalars import enums
from typeserializers.scalars.enums import MAX_CONSTANTS

LONG = ts.LongSerializer()


@attrs.define
class Base:
    __pojo_class__ = "limits.Base"
    number: int = 0


@attrs.define
class Chained:
    __pojo_class__ = "limits.Chained"
    next: Chained | None = None


@attrs.frozen
class Holder:
    chained: Chained


def test_a_recursive_pojo_is_rejected_by_path() -> None:
    with pytest.raises(ts.UnknownTypeError, match=r"\.next.*: Chained contains itself, which Flink's POJOs do not"):
        ts.serializer_for(Chained)
    with pytest.raises(ts.UnknownTypeError, match=r"\.chained\.next.*: Chained contains itself"):
        ts.serializer_for(Holder)


def test_a_null_in_a_required_field_of_a_pojo_is_rejected_by_name() -> None:
    serializer = ts.PojoSerializer(Base)
    with pytest.raises(SerializationError, match="number"):
        serializer.to_bytes(Base(None))  # type: ignore[arg-type]


def test_a_tag_of_one_byte_distinguishes_256_subclasses() -> None:
    shape = ts.PojoSerializer(Base).shape
    others = [ts.PojoSerializer(Base)] * MAX_REGISTERED_SUBCLASSES
    assert len(PojoSerializer.from_shape(shape, others).registered_subclasses) == 256
    with pytest.raises(ValueError, match=r"limits.Base: 257 subclasses cannot be registered, a tag is one byte"):
        PojoSerializer.from_shape(shape, [*others, others[0]])


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def test_a_subclass_that_is_no_pojo_is_damage() -> None:
    sub = attrs.make_class("Sub", {}, bases=(Base,))
    sub.__pojo_class__ = "limits.Sub"  # type: ignore[attr-defined]
    snapshot = ts.PojoSerializer(Base, registered_subclasses=[sub]).snapshot_configuration()
    data = snapshot_to_bytes(snapshot)
    part, other = (
        sized(snapshot_to_bytes(one.snapshot_configuration())) for one in (ts.PojoSerializer(sub), ts.LongSerializer())
    )
    assert data.count(part) == 1
    damaged = snapshot_from_bytes(data.replace(part, other))
    with pytest.raises(SnapshotFormatError, match=r"the subclass limits.Sub is not a POJO: the bytes are damaged"):
        damaged.restore_serializer()


@pytest.mark.parametrize("count", [1, MAX_CONSTANTS])
def test_an_enum_has_at_most_the_readable_number_of_constants(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enums, "MAX_CONSTANTS", 3)
    most: Any = enum.Enum("Limited", [f"C{number}" for number in range(3)])
    snapshot = ts.EnumSerializer(most).snapshot_configuration()
    assert snapshot_from_bytes(snapshot_to_bytes(snapshot)).restore_serializer()
    more: Any = enum.Enum("Limited", [f"C{number}" for number in range(4)])
    with pytest.raises(ValueError, match="the enum Limited has 4 constants, the limit is 3"):
        ts.EnumSerializer(more)


@pytest.mark.parametrize("constants", [("A", "mro"), ("_A_", "B"), ("A", "")])
def test_invalid_enum_constants_are_rejected(constants: tuple[str, ...]) -> None:
    with pytest.raises(
        UnresolvableSerializerError, match=r"the enum my.Old has constants that no Python enum can have"
    ):
        enums.stand_in_for("my.Old", constants)


def test_a_record_has_existing_fields_with_types_and_arguments() -> None:
    @attrs.frozen
    class Untyped:
        unknown = attrs.field()

    @dataclasses.dataclass
    class Derived:
        number: int
        twice: int = dataclasses.field(init=False, default=0)

    for made, reported in (
        (lambda: ts.AttrsSerializer(Untyped), r"Untyped\.unknown: the field has no type hint; give it one"),
        (lambda: ts.serializer_for(Derived), r"Derived\.twice: a field with init=False cannot be restored"),
        (
            lambda: ts.AttrsSerializer(Base, field_serializers={"nubmer": LONG}),
            "Base: field_serializers names nubmer, which the class does not have",
        ),
        (lambda: ts.AttrsSerializer(Base, field_serializers={"number": LONG, "b": LONG, "a": LONG}), "names a, b, wh"),
    ):
        with pytest.raises(ts.UnknownTypeError, match=reported):
            made()
    serializer = ts.AttrsSerializer(Untyped, field_serializers={"unknown": LONG})
    assert serializer.from_bytes(serializer.to_bytes(Untyped(5))) == Untyped(5)


def test_empty_composites_are_rejected_by_the_constructor() -> None:
    with pytest.raises(ValueError, match="needs at least one field; for the empty tuple use Tuple0Serializer"):
        ts.TupleSerializer([])
    with pytest.raises(ValueError, match="needs at least one converter; else use the inner serializer"):
        ts.ConvertingSerializer(LONG, {})


def test_arrow_columns_have_distinct_names() -> None:
    with pytest.raises(ValueError, match="two fields of the same name: a, b, a"):
        ts.ArrowSerializer(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.int8())]))
    snapshot: Any = ts.ArrowSerializer(pa.schema([("a", pa.int8()), ("b", pa.int8())])).snapshot_configuration()
    snapshot.schema = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    with pytest.raises(
        SnapshotFormatError,
        match=r"the Arrow schema in the snapshot is not of Statebackend: .*two fields of the same name",
    ):
        snapshot_from_bytes(snapshot_to_bytes(snapshot)).restore_serializer()


class Buffer:
    """An array interface: a list of elements, or one element without dimension."""

    def __init__(self, content: Any) -> None:
        self.tolist = lambda: content


def test_an_array_without_a_dimension_is_rejected() -> None:
    with pytest.raises(TypeError, match="the array has no dimension"):
        elements_of(Buffer(5))
    assert elements_of(Buffer([5])) == [5]


def test_a_class_known_by_name_only_is_not_guessed() -> None:
    named = ts.PickleSerializer.named("my.module:Thing")
    for ask in (lambda: named.python_type, named.create_instance):
        with pytest.raises(UnresolvableSerializerError, match=r"my.module:Thing is known only by its name"):
            ask()


class Unwilling:
    """Raises when it is pickled or unpickled."""

    def __init__(self, is_written: bool) -> None:
        self.is_written = is_written

    def __reduce__(self) -> Any:
        if not self.is_written:
            raise OSError("not this one")
        return _reject, ()


def _reject() -> Any:
    raise OSError("not again")


def test_an_exception_of_pickle_is_an_error_of_the_serializer() -> None:
    serializer = ts.PickleSerializer(Unwilling)
    with pytest.raises(SerializationError, match="not this one"):
        serializer.to_bytes(Unwilling(False))
    data = serializer.to_bytes(Unwilling(True))
    with pytest.raises(ts.MalformedDataError, match="not again"):
        serializer.from_bytes(data)


def test_a_reference_to_a_record_is_invalid_outside_of_it() -> None:
    scope = ConversionScope(CONVERSIONS)
    assert scope.inside("Node", "the conversion").record_named("Node") == "the conversion"
    with pytest.raises(UnresolvableSerializerError, match="the reference to Node is outside the record Node"):
        scope.inside("Leaf", "the conversion").record_named("Node")
