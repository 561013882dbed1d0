"""Hand-written serializers that evolve: words stored as numbers, and longs with a check.

A `LearningWordSerializer` assigns the next number to each new word. The bytes are numbers and only the snapshot has the
words, so every snapshot of a backend must store the current serializer snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot, TypeSerializerSnapshot
from typeserializers.kernel.type_serializer import TypeSerializer


class WordsSnapshot(TypeSerializerSnapshot[str]):
    """The words in order. Subclasses check compatibility and restore."""

    current_version = 1

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.words = tuple(words)

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_int(len(self.words))
        for word in self.words:
            out.write_utf(word)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.words = tuple(source.read_utf() for _ in range(source.read_count(minimum_item_bytes=2)))


class WordSerializer(TypeSerializer[str]):
    """Writes one byte, the index of the word. It uses the views, as a user's serializer does."""

    length = 1
    is_immutable_type = True
    equal_values_have_equal_bytes = True

    def __init__(self, *words: str) -> None:
        self.words = words

    def configuration(self) -> Hashable:
        return self.words

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
        yield f"{path or 'value'}: {value!r:.80} is not one of {', '.join(self.words)}"

    def snapshot_configuration(self) -> WordSerializerSnapshot:
        return WordSerializerSnapshot(self.words)

    def __repr__(self) -> str:
        return f"WordSerializer{self.words!r}"


@register_snapshot("statebackend.contract.WordSerializerSnapshot")
class WordSerializerSnapshot(WordsSnapshot):
    """The words in order. Reconfigures a serializer that has all of them."""

    def restore_serializer(self) -> WordSerializer:
        return WordSerializer(*self.words)

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[str]
    ) -> TypeSerializerSchemaCompatibility[str]:
        if not isinstance(new_serializer, WordSerializer) or not set(self.words) <= set(new_serializer.words):
            return TypeSerializerSchemaCompatibility.incompatible(
                CompatibilityIssue(
                    "", FieldCompatibility.REJECT, "word-removed", "a word was removed", "Keep all words"
                )
            )
        if new_serializer.words[: len(self.words)] == self.words:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        added = [word for word in new_serializer.words if word not in self.words]
        return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(
            WordSerializer(*self.words, *added)
        )


class LearningWordSerializer(TypeSerializer[str]):
    """Writes one byte, the number of the word. A new word gets the next number.

    Duplicates share the learned words.
    """

    length = 1
    is_immutable_type = True

    def __init__(self, words: tuple[str, ...] = ()) -> None:
        self.words = list(words)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"words": list(self.words)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(tuple(state["words"]))  # type: ignore[misc]

    def configuration(self) -> Hashable:
        return ()

    def create_instance(self) -> str:
        return ""

    def duplicate(self) -> LearningWordSerializer:
        return LearningWordSerializer(tuple(self.words))

    def serialize(self, value: str, out: DataOutputView) -> None:
        if not isinstance(value, str):
            raise self.serialization_error(value, TypeError(f"{value!r:.80} is not a word"))
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
        return LearningWordSerializerSnapshot(self.words)

    def __repr__(self) -> str:
        return f"LearningWordSerializer({', '.join(self.words)})"


@register_snapshot("statebackend.contract.LearningWordSerializerSnapshot")
class LearningWordSerializerSnapshot(WordsSnapshot):
    """The words by their numbers. A new serializer is reconfigured to know them."""

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
                CompatibilityIssue(
                    "",
                    FieldCompatibility.REJECT,
                    "another-serializer",
                    "another class of serializer",
                    "Keep the serializer",
                )
            )
        known = tuple(new_serializer.words)
        if known[: len(self.words)] == self.words:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        if self.words[: len(known)] != known:
            return TypeSerializerSchemaCompatibility.incompatible(
                CompatibilityIssue(
                    "",
                    FieldCompatibility.REJECT,
                    "other-words",
                    f"the numbers of {known} differ from those of {self.words}",
                    "Start without state",
                )
            )
        return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(
            LearningWordSerializer(self.words)
        )


class CheckedLongSerializer(TypeSerializer[int]):
    """A long that must not be negative; a migration from `UncheckedLongSerializer` may fail."""

    is_immutable_type = True

    def create_instance(self) -> int:
        return 0

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
    serializer_class = CheckedLongSerializer

    def adopt_schema(self, old_snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSchemaCompatibility[int] | None:
        if isinstance(old_snapshot, UncheckedLongSerializerSnapshot):
            return TypeSerializerSchemaCompatibility.compatible_after_migration()
        return None


@register_snapshot("statebackend.contract.UncheckedLongSerializerSnapshot")
class UncheckedLongSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    serializer_class = UncheckedLongSerializer
