"""Records: attrs classes and dataclasses, the serializer that evolves.

    record := field*        in the order of the class, each as its own serializer writes it

The bytes carry no names: names, former names and defaults are in the snapshot. A field is optional exactly if its
serializer is (`float | None` is a `NullableSerializer`); None in any other field is refused. The rules of evolution
are in `typeserializers.record_evolution`.

A rename is declared on the field, and stays declared for as long as state of the old name may exist:

    @attrs.frozen
    class Aircraft:
        minutes_late: float = attrs.field(default=0.0, metadata=former_names("late"))

The snapshot (the format is ours and frozen):

    content := UTF(record name) i32(fields) field*
    field   := UTF(name) i32(former names) UTF* default envelope(serializer)
    default := 00 none | 01 value: i32(length) bytes | 02 factory: i32(length) bytes of one made value
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from snapshots.compatibility import CompatibilityKind, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import read_versioned_snapshot, write_versioned_snapshot
from snapshots.errors import MalformedDataError, SerializationError, SnapshotFormatError
from snapshots.registry import register_snapshot
from snapshots.simple import another_serializer
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.compiled import CompiledTypeSerializer
from typeserializers.inference import Inference
from typeserializers.record_evolution import WrittenField, WrittenRecord, judge_record
from typeserializers.record_shape import ABSENT, RecordField, RecordShape, known_shapes, remember_shape, shape_of
from typeserializers.references import bind_references, collected_references, rebound
from typeserializers.type_serializer import TypeSerializer

R = TypeVar("R")


class AttrsSerializer(CompiledTypeSerializer[R]):
    """Writes the fields of an attrs class or dataclass; evolves by name (see `typeserializers.record_evolution`).

    ``field_serializers`` overrides what the type hints say. ``name`` is the stable name of the record, the class's
    own by default; ``former_names`` are those it had before. Raises `UnknownTypeError` for a class or field that
    cannot be a record.
    """

    def __init__(
        self,
        record_class: type[R],
        *,
        field_serializers: Mapping[str, TypeSerializer[Any]] | None = None,
        name: str | None = None,
        former_names: tuple[str, ...] = (),
    ) -> None:
        with collected_references() as references:
            shape = shape_of(record_class, field_serializers or {}, Inference())
        self.shape = attrs.evolve(
            shape, name=name or shape.name, former_names=tuple(former_names) or shape.former_names
        )
        bind_references(references, record_class, self.shape.name, self)
        remember_shape(self.shape)

    @classmethod
    def from_shape(cls, shape: RecordShape) -> AttrsSerializer[Any]:
        """The serializer of a shape that was restored from a snapshot or inferred elsewhere."""
        serializer: AttrsSerializer[Any] = cls.__new__(cls)
        serializer.shape = shape
        return serializer

    @property
    def record_class(self) -> type[R]:
        """The class of the values."""
        return self.shape.record_class

    @property
    def fields(self) -> tuple[RecordField, ...]:
        """The fields, in the order in which they are written."""
        return self.shape.fields

    @property
    def length(self) -> int:
        lengths = [part.serializer.length for part in self.fields]
        return -1 if -1 in lengths else sum(lengths)

    @property
    def minimum_length(self) -> int:
        return sum(part.serializer.minimum_length for part in self.fields)

    @property
    def is_immutable_type(self) -> bool:
        return self.shape.is_frozen and all(part.serializer.is_immutable_type for part in self.fields)

    def configuration(self) -> Hashable:
        return self.shape, self.shape.record_class

    def create_instance(self) -> R:
        return self._construct(
            [part.make_default() if part.has_default else part.serializer.create_instance() for part in self.fields]
        )

    def copy(self, value: R) -> R:
        if self.is_immutable_type:
            return value
        return self._construct([part.serializer.copy(getattr(value, part.name)) for part in self.fields])

    def duplicate(self) -> AttrsSerializer[R]:
        parts = [attrs.evolve(part, serializer=part.serializer.duplicate()) for part in self.fields]
        if all(new.serializer is old.serializer for new, old in zip(parts, self.fields, strict=True)):
            return self
        return AttrsSerializer.from_shape(attrs.evolve(self.shape, fields=tuple(parts)))

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> AttrsSerializer[R]:
        """The same record with other serializers for some fields (after a nested reconfiguration)."""
        parts = [attrs.evolve(part, serializer=serializers.get(part.name, part.serializer)) for part in self.fields]
        record = AttrsSerializer.from_shape(attrs.evolve(self.shape, fields=tuple(parts)))
        # A record inside itself must go on with the new serializers too.
        parts = [attrs.evolve(part, serializer=rebound(part.serializer, self.shape.name, record)) for part in parts]
        record.shape = attrs.evolve(self.shape, fields=tuple(parts))
        return record

    def write_to(self, value: R, out: DataOutputView) -> None:
        if value.__class__ is not self.shape.record_class:
            raise TypeError(f"{self.shape.name} is needed, not {type(value).__name__}")
        for part in self.fields:
            item = getattr(value, part.name)
            if item is None and part.refuses_none:
                raise TypeError(f".{part.name} is None")
            part.serializer.serialize(item, out)

    def read_from(self, source: DataInputView) -> R:
        items = []
        for part in self.fields:
            item = part.serializer.deserialize(source)
            if item is None and part.refuses_none:
                raise MalformedDataError(f".{part.name} is null before byte {source.position}, but is not optional")
            items.append(item)
        return self._construct(items)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        value = emitter.once(value)
        refuse = emitter.function.bind("refuse", self._refuse_class)
        expected = emitter.function.bind("record_class", self.shape.record_class)
        emitter.line(f"if {value}.__class__ is not {expected}: {refuse}({value})")
        for part in self.fields:
            expression = f"{value}.{part.name}"
            if part.refuses_none:
                expression = emitter.once(expression)
                emitter.line(f"if {expression} is None: {refuse}({value})")
            part.serializer.emit_write(emitter, expression)

    def emit_read(self, emitter: ReadEmitter) -> str:
        arguments = []
        for part in self.fields:
            expression = part.serializer.emit_read(emitter)
            if part.refuses_none:
                emitter.line(f"if {expression} is None: {emitter.function.bind('refuse', _refuse_null)}('{part.name}')")
            arguments.append(expression)
        return self.emit_construction(emitter.function, arguments)

    def emit_construction(self, function: GeneratedFunction, arguments: list[str]) -> str:
        """The expression of a new record from the expressions of its fields."""
        record_class = function.bind("record_class", self.shape.record_class)
        passed = [
            f"{part.argument}={argument}" if part.keyword_only else argument
            for part, argument in zip(self.fields, arguments, strict=True)
        ]
        return f"{record_class}({', '.join(passed)})"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value.__class__ is not self.shape.record_class:
            yield f"{path or 'value'}: {value!r:.80} is not a {self.shape.name}"
            return
        for part in self.fields:
            where = f"{path}.{part.name}"
            try:
                item = getattr(value, part.name)
            except AttributeError:
                yield f"{where}: the attribute is missing"
                continue
            if item is None and not part.serializer.is_optional_type:
                yield f"{where}: None, but the field is not optional"
            else:
                yield from part.serializer.problems(item, where)

    def snapshot_configuration(self) -> AttrsSerializerSnapshot[R]:
        return AttrsSerializerSnapshot(self)

    def _construct(self, items: list[Any]) -> R:
        positional = [item for part, item in zip(self.fields, items, strict=True) if not part.keyword_only]
        named = {part.argument: item for part, item in zip(self.fields, items, strict=True) if part.keyword_only}
        record: R = self.shape.record_class(*positional, **named)
        return record

    def _refuse_class(self, value: Any) -> None:
        raise TypeError(f"not a writable {self.shape.name}: {value!r:.80}")

    def __repr__(self) -> str:
        return f"AttrsSerializer({self.shape.name})"


def _refuse_null(name: str) -> None:
    raise MalformedDataError(f".{name} is null, but is not optional")


@register_snapshot("statebackend.AttrsSerializerSnapshot")
class AttrsSerializerSnapshot(TypeSerializerSnapshot[R]):
    """The record as it was written: names, former names, defaults and the snapshots of the field serializers."""

    def __init__(self, serializer: AttrsSerializer[R] | None = None) -> None:
        self.record = WrittenRecord("", ())
        if serializer is not None:
            self.record = WrittenRecord(
                serializer.shape.name,
                tuple(
                    WrittenField(
                        part.name,
                        part.serializer.snapshot_configuration(),
                        part.former_names,
                        part.default_factory is not None,
                        _encoded_default(part),
                    )
                    for part in serializer.fields
                ),
            )

    @property
    def current_version(self) -> int:
        return 1

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(self.record.name)
        out.write_int(len(self.record.fields))
        for part in self.record.fields:
            out.write_utf(part.name)
            out.write_int(len(part.former_names))
            for name in part.former_names:
                out.write_utf(name)
            if part.default is None:
                out.write_byte(0)
            else:
                out.write_byte(2 if part.default_is_made else 1)
                out.write_sized_bytes(part.default)
            write_versioned_snapshot(out, part.snapshot)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        name = source.read_utf()
        # A field takes at least two name lengths or counts, a default flag and an envelope.
        fields = tuple(_read_field(source) for _ in range(source.read_count(minimum_item_bytes=13)))
        names = [part.name for part in fields]
        if len(set(names)) != len(names):
            raise SnapshotFormatError(f"the record {name} has a field twice: {', '.join(names)}; the bytes are damaged")
        self.record = WrittenRecord(name, fields)

    def restore_serializer(self) -> AttrsSerializer[R]:
        """Reads the old bytes as the class of that name and shape if this process has it, else as a stand-in."""
        with collected_references() as references:
            serializers = [part.snapshot.restore_serializer() for part in self.record.fields]
        restored = self._restore_around(serializers)
        bind_references(references, self.record.name, self.record.name, restored)
        return restored

    def _restore_around(self, serializers: list[TypeSerializer[Any]]) -> AttrsSerializer[R]:
        for shape in reversed(known_shapes(self.record.name)):
            if [part.name for part in shape.fields] == [part.name for part in self.record.fields] and [
                part.serializer for part in shape.fields
            ] == serializers:
                return AttrsSerializer.from_shape(shape)
        fields = tuple(
            RecordField(part.name, serializer, part.former_names, *_decoded_default(part, serializer), part.name)
            for part, serializer in zip(self.record.fields, serializers, strict=True)
        )
        stand_in = attrs.make_class(
            self.record.name.rpartition(".")[2] or "Record",
            {part.name: attrs.field(alias=part.name) for part in self.record.fields},
            frozen=True,
        )
        return AttrsSerializer.from_shape(RecordShape(self.record.name, stand_in, fields, is_frozen=True))

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[R]) -> TypeSerializerSchemaCompatibility[R]:
        if type(new_serializer) is not AttrsSerializer:
            return TypeSerializerSchemaCompatibility.incompatible(
                another_serializer(f"AttrsSerializer({self.record.name})", repr(new_serializer))
            )
        judgement = judge_record(self.record, new_serializer.shape)
        if judgement.kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER:
            return TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(
                new_serializer.with_serializers(judgement.reconfigured), judgement.findings
            )
        return TypeSerializerSchemaCompatibility(judgement.kind, judgement.findings)


def _encoded_default(part: RecordField) -> bytes | None:
    if not part.has_default:
        return None
    try:
        return part.serializer.to_bytes(part.make_default())
    except SerializationError as error:
        raise SerializationError(
            f"field {part.name}", (f".{part.name}: its default cannot be written: {error}",)
        ) from error


def _decoded_default(part: WrittenField, serializer: TypeSerializer[Any]) -> tuple[Any, Any]:
    if part.default is None:
        return ABSENT, None
    encoded = part.default
    if part.default_is_made:
        return ABSENT, lambda: serializer.from_bytes(encoded)
    return serializer.from_bytes(encoded), None


def _read_field(source: DataInputView) -> WrittenField:
    name = source.read_utf()
    former = tuple(source.read_utf() for _ in range(source.read_count(minimum_item_bytes=2)))
    flag = source.read_byte()
    if flag not in (0, 1, 2):
        raise SnapshotFormatError(f"field {name}: the default has kind {flag}, known are 0 to 2; the bytes are damaged")
    default = source.read_sized_bytes() if flag else None
    return WrittenField(name, read_versioned_snapshot(source), former, flag == 2, default)
