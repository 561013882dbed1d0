"""Serializers that change by writing, in the two ways there are, and what they become.

A `PojoSerializer` meets subclasses that nobody registered: their names are in the bytes, their fields in the snapshot
alone. A `LearningWordSerializer` gives every new word the next number: the bytes are numbers, the words are in the
snapshot alone. Whoever loses what they have learned reads other values, or none.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Annotated, Any

import attrs

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojos import PojoSerializer
from typeserializers.scalars.fixed_width import IntSerializer

Int = Annotated[int, IntSerializer()]

BASE_NAME = "statebackend.contract.Place"
TOWN_NAME = "statebackend.contract.Town"
PORT_NAME = "statebackend.contract.Port"


@attrs.define
class PlaceV1:
    """The class that is declared."""

    __pojo_class__ = BASE_NAME
    id: Int


@attrs.define
class TownV1(PlaceV1):
    """A subclass that nobody registers."""

    __pojo_class__ = TOWN_NAME
    area: Int = 0
    extra: Int = 0


@attrs.define
class PortV1(PlaceV1):
    """Another one."""

    __pojo_class__ = PORT_NAME
    berths: Int = 0
    depth: Int = 0


@attrs.define
class PlaceV2:
    """The same class of the next program."""

    __pojo_class__ = BASE_NAME
    id: Int


@attrs.define
class TownV2(PlaceV2):
    """A field removed and one added: as many bytes as before, and other ones."""

    __pojo_class__ = TOWN_NAME
    extra: Int = 0
    zone: Int = 0


@attrs.define
class PortV2(PlaceV2):
    """The same with its fields in another alphabetical order."""

    __pojo_class__ = PORT_NAME
    anchorages: Int = 0
    berths: Int = 0


@attrs.define
class PlaceV3:
    """A class whose own fields change, while its subclasses stay what they are in version 1."""

    __pojo_class__ = BASE_NAME
    id: Int
    name: str | None = None


@attrs.define
class TownV3(PlaceV3):
    """A subclass of version 3."""

    __pojo_class__ = TOWN_NAME
    area: Int = 0
    extra: Int = 0


@attrs.define
class PlaceV4:
    """What version 3 becomes."""

    __pojo_class__ = BASE_NAME
    id: Int
    name: str | None = None


@attrs.define
class TownV4(PlaceV4):
    """Changed as in version 2."""

    __pojo_class__ = TOWN_NAME
    extra: Int = 0
    zone: Int = 0


def places_v1() -> PojoSerializer[Any]:
    """The serializer of the first program."""
    return PojoSerializer(PlaceV1)


def places_v2() -> PojoSerializer[Any]:
    """The serializer of the second program."""
    return PojoSerializer(PlaceV2)


def places_v3() -> PojoSerializer[Any]:
    """The serializer of a program that changes the class, and no subclass."""
    return PojoSerializer(PlaceV3)


def places_v4() -> PojoSerializer[Any]:
    """The serializer of the program behind that, which changes a subclass."""
    return PojoSerializer(PlaceV4)


class LearningWordSerializer(TypeSerializer[str]):
    """One byte, the number of the word; a word that was not written before gets the next number.

    What one instance has learned, its duplicates know.
    """

    def __init__(self, words: tuple[str, ...] = ()) -> None:
        self.words = list(words)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"words": list(self.words)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(tuple(state["words"]))  # type: ignore[misc]

    def configuration(self) -> Hashable:
        return ()

    @property
    def length(self) -> int:
        return 1

    @property
    def is_immutable_type(self) -> bool:
        return True

    def create_instance(self) -> str:
        return ""

    def duplicate(self) -> LearningWordSerializer:
        return LearningWordSerializer(tuple(self.words))

    def serialize(self, value: str, out: DataOutputView) -> None:
        if not isinstance(value, str):
            raise self.serialization_error(value, TypeError(f"{value!r:.80} is no word"))
        with self._lock:
            if value not in self.words:
                self.words.append(value)
        out.write_unsigned_byte(self.words.index(value))

    def deserialize(self, source: DataInputView) -> str:
        number = source.read_unsigned_byte()
        if number >= len(self.words):
            raise MalformedDataError(f"there is no word {number} among {self.words}")
        return self.words[number]

    def snapshot_configuration(self) -> LearningWordSerializerSnapshot:
        return LearningWordSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"LearningWordSerializer({', '.join(self.words)})"


@register_snapshot("statebackend.contract.LearningWordSerializerSnapshot")
class LearningWordSerializerSnapshot(TypeSerializerSnapshot[str]):
    """The words by their numbers. A new serializer is reconfigured to know them."""

    def __init__(self, serializer: LearningWordSerializer | None = None) -> None:
        self.words: tuple[str, ...] = () if serializer is None else tuple(serializer.words)

    @property
    def current_version(self) -> int:
        return 1

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_int(len(self.words))
        for word in self.words:
            out.write_utf(word)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.words = tuple(source.read_utf() for _ in range(source.read_count(minimum_item_bytes=2)))

    def restore_serializer(self) -> LearningWordSerializer:
        return LearningWordSerializer(self.words)

    def merged_with(self, other: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[str] | None:
        assert isinstance(other, LearningWordSerializerSnapshot)
        longer, shorter = sorted((self, other), key=lambda one: len(one.words), reverse=True)
        return longer if longer.words[: len(shorter.words)] == shorter.words else None

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[str]
    ) -> TypeSerializerSchemaCompatibility[str]:
        if not isinstance(new_serializer, LearningWordSerializer):
            return TypeSerializerSchemaCompatibility.incompatible(
                Finding("", FieldVerdict.REFUSE, "another-serializer", "these are words", "Keep the serializer")
            )
        known = tuple(new_serializer.words)
        if known[: len(self.words)] == self.words:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        if self.words[: len(known)] != known:
            return TypeSerializerSchemaCompatibility.incompatible(
                Finding("", FieldVerdict.REFUSE, "other-words", f"{known} are not {self.words}", "Begin anew")
            )
        return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(
            LearningWordSerializer(self.words)
        )
