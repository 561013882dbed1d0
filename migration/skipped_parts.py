"""Reading past what a migration drops: its bytes are stepped over, and nothing is made of them.

A part whose field is gone need not mean anything to the new program. The class of a pickle may be gone too, and
unpickling is refused, and unwanted, where nobody needs the value; a record class may have begun to refuse old values.
So in their place stands what reads as many bytes and returns an object that stands for nothing. Whatever else is
around them, of whatever class, is put together anew from these parts and reads as ever.
"""

from __future__ import annotations

from typing import Any

import attrs

from migration.reading_parts import ReadingSerializer
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView
from snapshots.errors import UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.held_parts import all_inside
from typeserializers.kernel.references import ReferenceSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.opaque.pickles import PickleSerializer
from typeserializers.pojos.pojos import PojoSerializer
from typeserializers.records.record_construction import settable_twin
from typeserializers.records.records import AttrsSerializer


def skipping(serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """What reads the bytes of a value that nobody needs; the serializer itself where reading it cannot fail."""
    return _Replacing().of(serializer)


class _SkippedSerializer(ReadingSerializer):
    """Reads as many bytes as another serializer; what it returns is hashable and equal to nothing else."""

    def __init__(self, skipped: TypeSerializer[Any]) -> None:
        self.skipped = skipped

    @property
    def length(self) -> int:
        return self.skipped.length

    @property
    def minimum_length(self) -> int:
        return self.skipped.minimum_length

    def create_instance(self) -> object:
        return object()

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:  # type: ignore[override]
        # What is around it is compiled as a whole, for reading and writing, and then only reads.
        emitter.append(f"{emitter.function.bind('refuse', self.write_to)}({value}, None)")

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:  # type: ignore[override]
        return self.skipped.snapshot_configuration()


class _SkippedPickle(_SkippedSerializer):
    """Steps over the length and the bytes."""

    def read_from(self, source: DataInputView) -> object:
        source.read_sized_bytes()
        return object()

    def emit_read(self, emitter: ReadEmitter) -> str:
        read = emitter.function.bind("step_over", _step_over)
        emitter.line(f"pos = {read}(data, pos)")
        return f"{emitter.function.bind('nothing', object)}()"


class _SkippedRecord(_SkippedSerializer):
    """Reads the fields and makes no record of them."""

    def __init__(self, skipped: AttrsSerializer[Any]) -> None:
        super().__init__(skipped)
        self.parts: list[TypeSerializer[Any]] = []

    def read_from(self, source: DataInputView) -> object:
        for part in self.parts:
            part.deserialize(source)
        return object()

    def emit_read(self, emitter: ReadEmitter) -> str:
        for part in self.parts:
            part.emit_read(emitter)
        return f"{emitter.function.bind('nothing', object)}()"


class _Replacing:
    """Remembers what it has replaced, since a record may contain itself."""

    def __init__(self) -> None:
        self._replaced: dict[int, ReferenceSerializer] = {}

    def of(self, serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
        if isinstance(serializer, ReferenceSerializer):
            return self._of_reference(serializer)
        if isinstance(serializer, PickleSerializer):
            return _SkippedPickle(serializer)
        if not any(map(_may_fail, all_inside(serializer))):
            return serializer
        if isinstance(serializer, AttrsSerializer):
            record = _SkippedRecord(serializer)
            self._replaced[id(serializer)] = ReferenceSerializer(serializer.shape.name, record)
            record.parts = [self.of(part.serializer) for part in serializer.fields]
            return record
        if isinstance(serializer, PojoSerializer):
            return self._of_pojo(serializer)
        snapshot = serializer.snapshot_configuration()
        if not isinstance(snapshot, CompositeTypeSerializerSnapshot):
            return serializer
        rebuilt: TypeSerializer[Any] = snapshot.create_outer_serializer(
            [self.of(part) for part in snapshot.nested_serializers(serializer)]
        )
        return rebuilt

    def _of_pojo(self, pojo: PojoSerializer[Any]) -> PojoSerializer[Any]:
        fields = tuple(attrs.evolve(part, serializer=self.of(part.serializer)) for part in pojo.fields)
        return PojoSerializer.from_shape(
            attrs.evolve(pojo.shape, fields=fields),
            [self._of_pojo(subclass) for subclass in pojo.registered_subclasses],
            [self._of_pojo(subclass) for subclass in pojo.unregistered_subclasses],
        )

    def _of_reference(self, reference: ReferenceSerializer) -> TypeSerializer[Any]:
        try:
            target = reference.target
        except UnresolvableSerializerError:
            return reference
        known = self._replaced.get(id(target))
        if known is None:
            known = self._replaced[id(target)] = ReferenceSerializer(reference.name)
            known.bind(reference.name, self.of(target))
        return known


def _may_fail(serializer: TypeSerializer[Any]) -> bool:
    if isinstance(serializer, AttrsSerializer):
        return settable_twin(serializer.record_class) is None
    return isinstance(serializer, (PickleSerializer, ReferenceSerializer))


def _step_over(data: bytes, position: int) -> int:
    source = DataInputView(data, position)
    source.read_sized_bytes()
    return source.position
