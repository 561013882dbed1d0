"""The serializers and record classes with which the contract changes schemas.

`FlightV1` becomes `FlightV2` by everything a record may go through at once. `WordSerializer` writes a word as its index
in a list of words: with another list it must be reconfigured, and would read other words if it were not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import attrs

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot, TypeSerializerSnapshot
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_shape import former_names
from typeserializers.records.records import AttrsSerializer

RECORD_NAME = "statebackend.contract.Flight"


@attrs.frozen
class DelayV1:
    """Nested in `FlightV1`."""

    minutes: int
    cause: str


@attrs.frozen
class DelayV2:
    """A field widened, one added."""

    minutes: float
    cause: str
    excused: bool = False


@attrs.frozen
class FlightV1:
    """An immutable record."""

    number: int
    late: int
    carrier: str
    delay: DelayV1 | None = None


@attrs.frozen
class FlightV2:
    """One field renamed and widened, one removed, one added, and the nested record changed."""

    number: int
    minutes_late: float = attrs.field(metadata=former_names("late"))
    delay: DelayV2 | None = None
    seats: int = 100


@attrs.frozen
class FlightV3:
    """Incompatible: a field has become another type."""

    number: str
    late: int
    carrier: str
    delay: DelayV1 | None = None


@attrs.define
class LegV1:
    """A mutable record."""

    airport: str
    minutes: int


@attrs.define
class LegV2:
    """A field widened, one added that is made by a factory."""

    airport: str
    minutes: float
    tags: list[str] = attrs.field(factory=list)


def flight_v1() -> AttrsSerializer[FlightV1]:
    """The serializer of the first version."""
    return AttrsSerializer(FlightV1, name=RECORD_NAME, field_serializers=_delay(DelayV1))


def flight_v2() -> AttrsSerializer[FlightV2]:
    """The serializer of the second version."""
    return AttrsSerializer(FlightV2, name=RECORD_NAME, field_serializers=_delay(DelayV2))


def flight_v3() -> AttrsSerializer[FlightV3]:
    """The serializer of a version that cannot take over."""
    return AttrsSerializer(FlightV3, name=RECORD_NAME, field_serializers=_delay(DelayV1))


def leg_v1() -> AttrsSerializer[LegV1]:
    """The serializer of the first version."""
    return AttrsSerializer(LegV1, name=RECORD_NAME + "Leg")


def leg_v2() -> AttrsSerializer[LegV2]:
    """The serializer of the second version."""
    return AttrsSerializer(LegV2, name=RECORD_NAME + "Leg")


def migrated_flight(old: FlightV1) -> FlightV2:
    """What a migration must make of a flight."""
    delay = None if old.delay is None else DelayV2(float(old.delay.minutes), old.delay.cause)
    return FlightV2(old.number, float(old.late), delay)


def migrated_leg(old: LegV1) -> LegV2:
    """What a migration must make of a leg."""
    return LegV2(old.airport, float(old.minutes))


def _delay(record_class: type) -> dict[str, TypeSerializer[Any]]:
    return {"delay": NullableSerializer(AttrsSerializer(record_class, name=RECORD_NAME + "Delay"))}


class WordSerializer(TypeSerializer[str]):
    """One byte, the index of the word; hand-written against the views, as a user's serializer would be."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def configuration(self) -> Hashable:
        return self.words

    @property
    def length(self) -> int:
        return 1

    @property
    def is_immutable_type(self) -> bool:
        return True

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return True

    def create_instance(self) -> str:
        return self.words[0]

    def serialize(self, value: str, out: DataOutputView) -> None:
        if value not in self.words:
            raise self.serialization_error(value, ValueError(value))
        out.write_unsigned_byte(self.words.index(value))

    def deserialize(self, source: DataInputView) -> str:
        index = source.read_unsigned_byte()
        if index >= len(self.words):
            raise MalformedDataError(f"there is no word {index}")
        return self.words[index]

    def problems(self, value: Any, path: str) -> Iterator[str]:
        yield f"{path or 'value'}: {value!r:.80} is none of {', '.join(self.words)}"

    def snapshot_configuration(self) -> WordSerializerSnapshot:
        return WordSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"WordSerializer{self.words!r}"


@register_snapshot("statebackend.contract.WordSerializerSnapshot")
class WordSerializerSnapshot(TypeSerializerSnapshot[str]):
    """The words in their order; reconfigures a serializer that has all of them."""

    def __init__(self, serializer: WordSerializer | None = None) -> None:
        self.words: tuple[str, ...] = () if serializer is None else serializer.words

    @property
    def current_version(self) -> int:
        return 1

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_int(len(self.words))
        for word in self.words:
            out.write_utf(word)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.words = tuple(source.read_utf() for _ in range(source.read_count(minimum_item_bytes=2)))

    def restore_serializer(self) -> WordSerializer:
        return WordSerializer(*self.words)

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[str]
    ) -> TypeSerializerSchemaCompatibility[str]:
        if not isinstance(new_serializer, WordSerializer) or not set(self.words) <= set(new_serializer.words):
            return TypeSerializerSchemaCompatibility.incompatible(
                Finding("", FieldVerdict.REFUSE, "word-removed", "a word is gone", "Keep it")
            )
        if new_serializer.words[: len(self.words)] == self.words:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        added = [word for word in new_serializer.words if word not in self.words]
        return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(
            WordSerializer(*self.words, *added)
        )


class CheckedLongSerializer(TypeSerializer[int]):
    """A long that must not be negative; takes over from `UncheckedLongSerializer` by a migration that may fail."""

    def create_instance(self) -> int:
        return 0

    @property
    def is_immutable_type(self) -> bool:
        return True

    def serialize(self, value: int, out: DataOutputView) -> None:
        if value < 0:
            raise self.serialization_error(value, ValueError(f"{value} is negative"))
        out.write_long(value)

    def deserialize(self, source: DataInputView) -> int:
        return source.read_long()

    def snapshot_configuration(self) -> TypeSerializerSnapshot[int]:
        return CheckedLongSerializerSnapshot()


class UncheckedLongSerializer(CheckedLongSerializer):
    """Any long."""

    def serialize(self, value: int, out: DataOutputView) -> None:
        out.write_long(value)

    def snapshot_configuration(self) -> TypeSerializerSnapshot[int]:
        return UncheckedLongSerializerSnapshot()


@register_snapshot("statebackend.contract.CheckedLongSerializerSnapshot")
class CheckedLongSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    def create_serializer(self) -> CheckedLongSerializer:
        return CheckedLongSerializer()

    def adopt_schema(self, old_snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSchemaCompatibility[int] | None:
        if isinstance(old_snapshot, UncheckedLongSerializerSnapshot):
            return TypeSerializerSchemaCompatibility.compatible_after_migration()
        return None


@register_snapshot("statebackend.contract.UncheckedLongSerializerSnapshot")
class UncheckedLongSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    def create_serializer(self) -> UncheckedLongSerializer:
        return UncheckedLongSerializer()
