"""Serializers of Flink whose values only Java can read: their snapshots are read and written back, and judged.

State of Kryo or of a Variant cannot be taken over: what Kryo writes depends on Java classes, and Variants have no
counterpart here. Its snapshot is still understood, so that everything beside such a state can be restored, and the
verdict on it says what to do about it in Flink.

    Kryo    := version 2: UTF(class), and three optional maps: registrations, serializers, serializer classes
    Variant := version 3, no content
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final, NoReturn

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.containers.optional_maps import OptionalEntry, read_optional_map, write_optional_map
from typeserializers.kernel.flink_names import BASE, RUNTIME, nested_snapshot
from typeserializers.kernel.type_serializer import TypeSerializer

_KRYO_MAPS: Final = 3


class UnsupportedSerializerSnapshot(TypeSerializerSnapshot[Any]):
    """A serializer that cannot be rebuilt here; every verdict on another one is *incompatible*."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """Why the values cannot be read here."""

    @property
    @abstractmethod
    def way_out(self) -> str:
        """What to do in Flink, so that they can be."""

    def restore_serializer(self) -> NoReturn:
        raise UnresolvableSerializerError(f"{self.reason}. {self.way_out}")

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        return TypeSerializerSchemaCompatibility.incompatible(
            Finding("", FieldVerdict.REFUSE, "serializer-of-java", self.reason, self.way_out)
        )


@register_snapshot(RUNTIME + "kryo.KryoSerializerSnapshot")
class KryoSerializerSnapshot(UnsupportedSerializerSnapshot):
    """The Java class of the values, and what was registered for Kryo."""

    def __init__(self) -> None:
        self.java_class = ""
        self._maps: tuple[tuple[OptionalEntry, ...], ...] = ((),) * _KRYO_MAPS

    @property
    def current_version(self) -> int:
        return 2

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(self.java_class)
        for entries in self._maps:
            write_optional_map(out, entries)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.java_class = source.read_utf()
        self._maps = tuple(read_optional_map(source) for _ in range(_KRYO_MAPS))

    @property
    def reason(self) -> str:
        return f"Flink wrote {self.java_class} with Kryo, whose bytes only the Java classes can read"

    @property
    def way_out(self) -> str:
        return (
            f"In Flink, give {self.java_class} a serializer with a format (make it a POJO, or use Avro), move the "
            f"state over in a job that reads the one and writes the other, and take a savepoint of that; or register "
            f"the state under another name"
        )


@register_snapshot(nested_snapshot(BASE, "VariantSerializer"))
class VariantSerializerSnapshot(UnsupportedSerializerSnapshot):
    """A semi-structured value of Flink 2.1 and later."""

    reason = "Flink wrote a Variant, which has no counterpart here"
    way_out = (
        "In Flink, turn the Variant into a string or a row of its fields, and take a savepoint of that; or register "
        "the state under another name"
    )

    @property
    def current_version(self) -> int:
        return 3

    def write_snapshot(self, out: DataOutputView) -> None:
        """There is nothing to write."""

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
