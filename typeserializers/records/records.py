"""Records: classes of any family (`typeserializers.kernel.record_families`), the serializer that evolves.

    record := field*        in the order of the class, each as its own serializer writes it

The bytes carry no names: names, former names, defaults and the schema version are in the snapshot
(`typeserializers.records.record_format`). A field is optional exactly if its serializer is (`float | None` is a
`NullableSerializer`); None in any other field is refused. The rules of evolution are in
`typeserializers.evolution.record_evolution`.

A rename is declared on the field, and stays declared for as long as state of the old name may exist:

    @attrs.frozen
    class Aircraft:
        minutes_late: float = attrs.field(default=0.0, metadata=former_names("late"))

What no rule covers is left to converters, each from one schema version to the next:

    AttrsSerializer(Aircraft, schema_version=3, converters={1: minutes_from_seconds, 2: split_route})
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import attrs

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError
from snapshots.type_serializer_snapshot import RuledTypeSerializerSnapshot, TypeSerializerSnapshot
from snapshots.value_text import misfit, shown
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.field_metadata import RecordConverter
from typeserializers.kernel.known_serializers import known_of
from typeserializers.kernel.references import bind_references, collected_references, rebound, refers_to
from typeserializers.kernel.serializer_inference import DEFAULT_RULES, Inference, InferenceRules
from typeserializers.kernel.stepping_over import SteppedOverParts
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import exact_parts, size_of_parts
from typeserializers.records.record_checks import (
    check_defaults,
    check_shape,
    check_values_are_kept,
    refuse_undecorated,
)
from typeserializers.records.record_construction import arguments_of, emit_fields, settable_twin, stand_in_class
from typeserializers.records.record_format import (
    NEWEST_VERSION,
    WrittenRecord,
    decoded_default,
    merged_record,
    read_record,
    version_for,
    write_record,
    written_record,
)
from typeserializers.records.record_shape import RecordField, RecordShape, shape_of

R = TypeVar("R")


class AttrsSerializer(CompiledTypeSerializer[R]):
    """Writes the fields of a record class; evolves by name (see `typeserializers.evolution.record_evolution`).

    ``field_serializers`` overrides what the type hints say. ``name`` is the stable name of the record, the class's
    own by default; ``former_names`` are those it had before. ``schema_version`` counts the changes that need a
    converter, and ``converters`` maps a version to the function that leads from it to the next: it gets the values of
    the fields by name, in a dict, and returns those of the next version. What the last one returns is completed by the
    rules: values that no converter touched are widened, and absent fields get their defaults. The last four may stand
    on the class instead: ``__former_names__``, ``__schema_version__``, ``__converters__``. ``source_serializers`` are
    those of old values whose classes converters need: of pickles, and of records that are to be more than stand-ins.
    ``rules`` say what the type hints mean.

    Raises `UnknownTypeError` for a class or field that cannot be a record, `ValueError` for a converter that could
    never be used.
    """

    def __init__(
        self,
        record_class: type[R],
        *,
        field_serializers: Mapping[str, TypeSerializer[Any]] | None = None,
        name: str | None = None,
        former_names: tuple[str, ...] = (),
        schema_version: int | None = None,
        converters: Mapping[int, RecordConverter] | None = None,
        source_serializers: Sequence[TypeSerializer[Any]] = (),
        rules: InferenceRules = DEFAULT_RULES,
    ) -> None:
        refuse_undecorated(record_class, rules, record_class.__name__)
        with collected_references() as references:
            shape = shape_of(record_class, field_serializers or {}, Inference(rules=rules))
        check_shape(shape, record_class.__name__)
        self.shape = attrs.evolve(
            shape,
            name=name or shape.name,
            former_names=tuple(former_names) or shape.former_names,
            schema_version=shape.schema_version if schema_version is None else schema_version,
            converters=shape.converters if converters is None else dict(converters),
            source_serializers=tuple(source_serializers),
        )
        bind_references(references, record_class, self.shape.name, self)
        check_defaults(self.shape, record_class.__name__)
        check_values_are_kept(self.shape, record_class.__name__)

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

    @property
    def may_refuse_what_it_wrote(self) -> bool:
        # A converter may return anything, and a constructor that does more than set fields may refuse it.
        has_converter = bool(self.shape.converters) or any(part.converter for part in self.fields)
        return has_converter or settable_twin(self.record_class) is None or super().may_refuse_what_it_wrote

    def configuration(self) -> Hashable:
        return self.shape, self.shape.record_class

    @property
    def python_type(self) -> type[R]:
        return self.shape.record_class

    @property
    def type_name(self) -> str:
        return self.shape.name

    @property
    def former_type_names(self) -> Sequence[str]:
        return self.shape.former_names

    def create_instance(self) -> R:
        return self.record_of(
            [part.make_default() if part.has_default else part.serializer.create_instance() for part in self.fields]
        )

    def copy(self, value: R) -> R:
        if self.is_immutable_type:
            return value
        return self.record_of([part.serializer.copy(getattr(value, part.name)) for part in self.fields])

    def duplicate(self) -> AttrsSerializer[R]:
        duplicates = {part.name: part.serializer.duplicate() for part in self.fields}
        if all(duplicates[part.name] is part.serializer for part in self.fields):
            return self
        return self.with_serializers(duplicates)

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> AttrsSerializer[R]:
        """The same record with other serializers for some fields (after a nested reconfiguration)."""
        return self.with_fields([(part, serializers.get(part.name, part.serializer)) for part in self.fields])

    def with_fields(
        self,
        fields: list[tuple[RecordField, TypeSerializer[Any]]],
        targets: Mapping[str, TypeSerializer[Any]] = MappingProxyType({}),
    ) -> AttrsSerializer[R]:
        """The same record with these fields and serializers; inside itself it goes on with them too.

        ``targets`` are what references to the records around it are bound to, by name.
        """
        record: AttrsSerializer[R] = AttrsSerializer.from_shape(self.shape)
        inside = {**targets, self.shape.name: record}
        parts = [attrs.evolve(part, serializer=rebound(serializer, inside)) for part, serializer in fields]
        record.shape = attrs.evolve(self.shape, fields=tuple(parts))
        return record

    @property
    def source_serializers(self) -> Sequence[TypeSerializer[Any]]:
        return self.shape.source_serializers

    def held_serializers(self) -> Sequence[TypeSerializer[Any]]:
        """The serializers of the fields."""
        return [part.serializer for part in self.fields]

    def rebound(self, targets: Mapping[str, TypeSerializer[Any]]) -> AttrsSerializer[R]:
        """The record with the references to enclosing records bound to other serializers of them."""
        around = {name: target for name, target in targets.items() if name != self.shape.name}
        if not refers_to(self, around):
            return self
        return self.with_fields([(part, part.serializer) for part in self.fields], around)

    def write_to(self, value: R, out: DataOutputView) -> None:
        if value.__class__ is not self.shape.record_class:
            self._refuse_class(value)
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
        return self.record_of(items)

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
        return self.emit_construction(emitter, arguments)

    def emit_construction(self, emitter: ReadEmitter, arguments: list[str]) -> str:
        """Emits the making of a record from the expressions of its fields; returns the expression of it."""
        record_class = self.shape.record_class
        twin = None if self.shape.maker else settable_twin(record_class)
        if twin is not None:
            pairs = [(part.name, argument) for part, argument in zip(self.fields, arguments, strict=True)]
            return emit_fields(emitter, twin, record_class, pairs)
        passed = [
            f"{part.argument}={argument}" if part.keyword_only else argument
            for part, argument in zip(self.fields, arguments, strict=True)
        ]
        return f"{emitter.function.bind('make_record', self.shape.makes_records)}({', '.join(passed)})"

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
        parts = [part(field.serializer) for field in self.fields]
        sets_fields = settable_twin(self.record_class) is not None
        if sets_fields and all(new is field.serializer for new, field in zip(parts, self.fields, strict=True)):
            return self
        return SteppedOverParts(self, parts)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value.__class__ is not self.shape.record_class:
            yield misfit(path, value, f"is not a {self.shape.name}")
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

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        if not self.is_immutable_type:
            return None
        expected = function.bind("record_class", self.record_class)
        items = [(part.serializer, f"{again}.{part.name}") for part in self.fields]
        return exact_parts([f"type({first}) is {expected}"], items, function)

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return size_of_parts([(part.serializer, f"{value}.{part.name}") for part in self.fields], function)

    def snapshot_configuration(self) -> AttrsSerializerSnapshot[R]:
        return AttrsSerializerSnapshot(self)

    def record_of(self, items: list[Any]) -> R:
        """The record with these values, one for each of `fields`, in their order; raises what the class raises."""
        record: R = self.shape.record_of(items)
        return record

    def _refuse_class(self, value: Any) -> None:
        raise TypeError(f"not a writable {self.shape.name}: {shown(value)}")

    def __repr__(self) -> str:
        return f"AttrsSerializer({self.shape.name})"


def _refuse_null(name: str) -> None:
    raise MalformedDataError(f".{name} is null, but is not optional")


@register_snapshot("statebackend.AttrsSerializerSnapshot")
class AttrsSerializerSnapshot(RuledTypeSerializerSnapshot[R]):
    """The record as it was written: names, former names, defaults and the snapshots of the field serializers."""

    def __init__(self, serializer: AttrsSerializer[R] | None = None) -> None:
        self._is_filled = serializer is not None
        self.record = WrittenRecord("", ()) if serializer is None else written_record(serializer.shape)

    @property
    def current_version(self) -> int:
        """The version that this record is written in; of an empty snapshot, the newest that can be read."""
        return version_for(self.record) if self._is_filled else NEWEST_VERSION

    def write_snapshot(self, out: DataOutputView) -> None:
        write_record(self.record, out)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.record = read_record(read_version, source)
        self._is_filled = True

    def restore_serializer(self) -> AttrsSerializer[R]:
        """Reads the old bytes as the class of that name and shape if a known serializer has it, else as a stand-in."""
        with collected_references() as references:
            serializers = [part.snapshot.restore_serializer() for part in self.record.fields]
        restored: AttrsSerializer[R] = AttrsSerializer.from_shape(self._shape_around(serializers))
        bind_references(references, self.record.name, self.record.name, restored)
        return restored

    def _shape_around(self, serializers: list[TypeSerializer[Any]]) -> RecordShape:
        names = [part.name for part in self.record.fields]
        for known in known_of(AttrsSerializer):
            shape = known.shape
            if (
                shape.name == self.record.name
                and [part.name for part in shape.fields] == names
                and [part.serializer for part in shape.fields] == serializers
            ):
                fields = tuple(
                    attrs.evolve(part, serializer=serializer, former_names=written.former_names)
                    for part, serializer, written in zip(shape.fields, serializers, self.record.fields, strict=True)
                )
                return attrs.evolve(shape, fields=fields, schema_version=self.record.schema_version, converters={})
        stand_in = stand_in_class(self.record.name, names)
        parts = zip(self.record.fields, serializers, arguments_of(stand_in), strict=True)
        fields = tuple(
            RecordField(part.name, serializer, part.former_names, *decoded_default(part, serializer), argument)
            for part, serializer, argument in parts
        )
        return RecordShape(
            self.record.name, stand_in, fields, is_frozen=True, schema_version=self.record.schema_version
        )

    def merged_with(self, other: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[R] | None:
        """The same record around the merged snapshots of its fields."""
        assert isinstance(other, AttrsSerializerSnapshot)
        merged: AttrsSerializerSnapshot[R] = AttrsSerializerSnapshot()
        record = merged_record(self.record, other.record)
        if record is None:
            return None
        merged.record, merged._is_filled = record, True
        return merged
