"""POJOs: records in the layout of Flink's PojoSerializer.

    pojo   := 01                                null
            | 02 field*                         exactly this class; fields in alphabetical order of their names
            | 04 UTF(class name) pojo           an unregistered subclass, in its own complete encoding
            | 08 u8(tag) pojo                   a registered subclass: its index in the registrations
    field  := 01 | 00 value                     null, or a value; also for Java's primitives

Use it for state that is shared with Flink or comes from Flink. For other state,
`typeserializers.records.record_serializer` is smaller and evolves further. The evolution rules are in
`typeserializers.evolution.pojo_evolution`. The classes are attrs classes, dataclasses or NamedTuples. A Java class and
its subclasses correspond to a Python class and its subclasses:

    @attrs.define
    class Base:
        __pojo_class__ = "com.example.Base"
        id: Annotated[int, IntSerializer()]

A class name that is read is looked up among registered classes, subclasses in this process, and those in the snapshot.
Nothing is imported.

Snapshots of several writers are merged into one with all subclasses that any of them met. The class and its fields must
be equal, and a tag must have one meaning: the registrations of one writer are a prefix of those of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import attrs
from attrs import evolve

from snapshots.composite import merge_snapshots
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError, SnapshotFormatError, UnknownSubclassError, format_value, misfit
from snapshots.type_serializer_snapshot import RuledTypeSerializerSnapshot, TypeSerializerSnapshot
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter, indented
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import RUNTIME, known_of
from typeserializers.kernel.references import ReferenceSerializer
from typeserializers.kernel.serializer_inference import DEFAULT_RULES, Inference, InferenceRules
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_format import (
    CURRENT_VERSION,
    UnreadableSnapshot,
    WrittenPart,
    WrittenPojo,
    parts_of,
    read_pojo,
    write_pojo,
)
from typeserializers.pojos.pojo_shape import (
    POJO_CLASS_ATTRIBUTE,
    PojoField,
    PojoShape,
    all_subclasses,
    pojo_name,
    pojo_shape_of,
    restored_shape,
)
from typeserializers.records.record_serializer import settable_twin

NULL: Final = 0x01
EXACT_CLASS: Final = 0x02
UNREGISTERED_SUBCLASS: Final = 0x04
REGISTERED_SUBCLASS: Final = 0x08

MAX_REGISTERED_SUBCLASSES: Final = 256


def unregistered_prefix(name: str) -> bytes:
    """Returns the bytes before an object of an unregistered subclass."""
    out = DataOutputView()
    out.write_unsigned_byte(UNREGISTERED_SUBCLASS)
    out.write_utf(name)
    return out.to_bytes()


def reject_none(name: str) -> None:
    """Raises `TypeError` for None in a field that is not optional."""
    raise TypeError(f".{name} is None, but the field is not optional")


def reject_null(name: str) -> None:
    """Raises `MalformedDataError` for the null flag of a field that is not optional."""
    raise MalformedDataError(f".{name} is null, but is not optional")


def merged_pojo(one: WrittenPojo, other: WrittenPojo) -> WrittenPojo | None:
    """Returns the POJO with the subclasses of both; None if one snapshot cannot read the bytes of both."""
    longer, shorter = sorted((one.registered, other.registered), key=len, reverse=True)
    tags = _names(longer)
    # Parts are equal whatever their snapshots.
    if one.name != other.name or one.fields != other.fields or _names(shorter) != tags[: len(shorter)]:
        return None
    fields = _merged_by_name([*one.fields, *other.fields])
    subclasses = _merged_by_name([*longer, *shorter, *one.unregistered, *other.unregistered])
    if fields is None or subclasses is None:
        return None
    met = dict.fromkeys(_names([*one.unregistered, *other.unregistered]))
    return WrittenPojo(
        one.name,
        tuple(fields[part.name] for part in one.fields),
        tuple(subclasses[name] for name in tags),
        tuple(subclasses[name] for name in met),
    )


def _names(parts: Iterable[WrittenPart]) -> list[str]:
    return [part.name for part in parts]


def _merged_by_name(parts: Iterable[WrittenPart]) -> dict[str, WrittenPart] | None:
    merged: dict[str, WrittenPart] = {}
    for part in parts:
        known = merged.get(part.name)
        both = part if known is None else _merged(known, part)
        if both is None:
            return None
        merged[part.name] = both
    return merged


def _merged(one: WrittenPart, other: WrittenPart) -> WrittenPart | None:
    if isinstance(one.snapshot, UnreadableSnapshot) or isinstance(other.snapshot, UnreadableSnapshot):
        return one if _unread(one) is not None and _unread(one) == _unread(other) else None
    snapshot = merge_snapshots(one.snapshot, other.snapshot)
    return None if snapshot is None else evolve(one, snapshot=snapshot)


def _unread(part: WrittenPart) -> bytes | None:
    return part.snapshot.data if isinstance(part.snapshot, UnreadableSnapshot) else None


R = TypeVar("R")


class PojoSerializer(CompiledTypeSerializer["R | None"], Generic[R]):
    """Writes the fields of a record class in the layout of Flink's POJOs.

    Args:
        record_class: The class of the values.
        name: The name of the Java class; by default ``__pojo_class__``.
        field_serializers: Serializers by field name, which replace those of the type hints.
        registered_subclasses: Subclasses, or their serializers, in the order of Flink's registrations. A subclass that
            is not registered is written with its name.
        rules: The rules from type hints to serializers.

    Raises:
        UnknownTypeError: The class or a field cannot be a POJO.
        ValueError: There are more than 256 registrations.
    """

    accepts_none = True

    def __init__(
        self,
        record_class: type[R],
        *,
        name: str | None = None,
        field_serializers: Mapping[str, TypeSerializer[Any]] | None = None,
        registered_subclasses: Sequence[type | PojoSerializer[Any]] = (),
        rules: InferenceRules = DEFAULT_RULES,
    ) -> None:
        shape = pojo_shape_of(record_class, name, field_serializers or {}, Inference(rules=rules))
        subclasses = [
            item if isinstance(item, PojoSerializer) else PojoSerializer(item, rules=rules)
            for item in registered_subclasses
        ]
        self._set_up(shape, subclasses)

    @classmethod
    def from_shape(
        cls,
        shape: PojoShape,
        registered: Sequence[PojoSerializer[Any]] = (),
        unregistered: Sequence[PojoSerializer[Any]] = (),
    ) -> PojoSerializer[Any]:
        """Creates the serializer of a shape that was restored from a snapshot or inferred elsewhere."""
        serializer: PojoSerializer[Any] = cls.__new__(cls)
        serializer._set_up(shape, registered)
        for subclass in unregistered:
            serializer._unregistered.setdefault(subclass.shape.name, subclass)
        return serializer

    def _set_up(self, shape: PojoShape, registered: Sequence[PojoSerializer[Any]]) -> None:
        if len(registered) > MAX_REGISTERED_SUBCLASSES:
            raise ValueError(f"{shape.name}: {len(registered)} subclasses cannot be registered, a tag is one byte")
        self.shape = shape
        self.registered_subclasses = tuple(registered)
        self._unregistered: dict[str, PojoSerializer[Any]] = {}

    @property
    def unregistered_subclasses(self) -> tuple[PojoSerializer[Any], ...]:
        """The serializers of unregistered subclasses that were met."""
        return tuple(self._unregistered.values())

    @property
    def record_class(self) -> type[R]:
        """The class of the values."""
        return self.shape.record_class

    @property
    def fields(self) -> tuple[PojoField, ...]:
        """The fields in wire order."""
        return self.shape.fields

    @property
    def may_reject_what_it_wrote(self) -> bool:
        return settable_twin(self.record_class) is None or super().may_reject_what_it_wrote

    def configuration(self) -> Hashable:
        return self.shape, self.shape.record_class, self.registered_subclasses

    @property
    def python_type(self) -> type[R]:
        return self.shape.record_class

    @property
    def former_type_names(self) -> Sequence[str]:
        # Members of a union are compared by the names of their Python classes.
        return [name.replace("$", ".").rpartition(".")[2] for name in self.shape.former_names]

    def create_instance(self) -> R:
        return self._construct([part.make_default() for part in self.fields])

    def copy(self, value: R | None) -> R | None:
        if value is None:
            return None
        if value.__class__ is not self.record_class:
            return self._subclass_of(value)[1].copy(value)
        items = []
        for part in self.fields:
            item = getattr(value, part.attribute)
            items.append(None if item is None else part.serializer.copy(item))
        return self._construct(items)

    def subclass_named(self, name: str) -> PojoSerializer[Any] | None:
        """Returns the serializer of a subclass by its Java name: registered, met before, or a Python subclass."""
        subclass = self.found_subclass(name)
        if subclass is None or any(subclass is registered for registered in self.registered_subclasses):
            return subclass
        return self._meet(subclass)

    def named(self, name: str) -> PojoSerializer[Any] | None:
        """This serializer or that of a subclass, by its Java name."""
        return self if self.shape.name == name else self.found_subclass(name)

    def found_subclass(self, name: str) -> PojoSerializer[Any] | None:
        """Like `subclass_named`, but does not store the result."""
        for subclass in self.registered_subclasses:
            if subclass.shape.name == name:
                return subclass
        known = self._unregistered.get(name)
        if known is not None:
            return known
        # A class with slots is created twice, and the first one may still exist: the last one counts.
        for candidate in reversed(list(all_subclasses(self.record_class))):
            if pojo_name(candidate) == name and self.shape.rules.family_of(candidate) is not None:
                return PojoSerializer(candidate, rules=self.shape.rules)
        return None

    def keep_subclass(self, subclass: PojoSerializer[Any]) -> PojoSerializer[Any]:
        """Adds an unregistered subclass with the serializer of another POJO serializer."""
        return self._meet(subclass)

    def write_to(self, value: R | None, out: DataOutputView) -> None:
        if value.__class__ is not self.record_class:
            out.write(self._write_other(value))
            return
        out.write_unsigned_byte(EXACT_CLASS)
        for part in self.fields:
            item = getattr(value, part.attribute)
            if item is None and not part.is_optional:
                reject_none(part.name)
            out.write_boolean(item is None)
            if item is not None:
                part.serializer.serialize(item, out)

    def read_from(self, source: DataInputView) -> R | None:
        flags = source.read_unsigned_byte()
        if flags != EXACT_CLASS:
            value: R | None
            value, source.position = self._read_other(source.data, source.position, flags)
            return value
        items = []
        for part in self.fields:
            is_null = source.read_boolean()
            if is_null and not part.is_optional:
                reject_null(part.name)
            items.append(None if is_null else part.serializer.deserialize(source))
        return self._construct(items)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        encoded = function.fresh("b")
        exact = emitter.child()
        exact.fixed("B", str(EXACT_CLASS))
        for part in self.fields:
            self._emit_write_field(exact, part, exact.once(f"{value}.{part.attribute}"))
        exact.line(f"{encoded} = {exact.expression()}")
        emitter.line(f"if {value}.__class__ is {function.bind('record_class', self.record_class)}:")
        emitter.lines += indented(exact.lines)
        emitter.line(f"else: {encoded} = {function.bind('write_other', self._write_other)}({value})")
        emitter.append(encoded)

    def _emit_write_field(self, emitter: WriteEmitter, part: PojoField, item: str) -> None:
        if not part.is_optional:
            emitter.line(f"if {item} is None: {emitter.function.bind('reject', reject_none)}({part.name!r})")
            emitter.fixed("?", "False")
            part.serializer.emit_write(emitter, item)
            return
        encoded = emitter.function.fresh("b")
        present = emitter.child()
        present.fixed("?", "False")
        part.serializer.emit_write(present, item)
        present.line(f"{encoded} = {present.expression()}")
        emitter.line(f"if {item} is None: {encoded} = b'\\x01'")
        emitter.line("else:")
        emitter.lines += indented(present.lines)
        emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        flags, result = emitter.fixed("B"), function.fresh("v")
        exact = emitter.child()
        items = [self._emit_read_field(exact, part) for part in self.fields]
        exact.line(f"{result} = {self.emit_construction(exact, items)}")
        emitter.block(f"if {flags} == {EXACT_CLASS}:", exact)
        other = function.bind("read_other", self._read_other)
        emitter.line(f"else: {result}, pos = {other}(data, pos, {flags})")
        return result

    def _emit_read_field(self, emitter: ReadEmitter, part: PojoField) -> str:
        is_null, item = emitter.fixed("?"), emitter.function.fresh("x")
        if not part.is_optional:
            emitter.line(f"if {is_null}: {emitter.function.bind('reject', reject_null)}({part.name!r})")
            return part.serializer.emit_read(emitter)
        present = emitter.child()
        expression = part.serializer.emit_read(present)
        present.line(f"{item} = {expression}")
        emitter.line(f"if {is_null}: {item} = None")
        emitter.block("else:", present)
        return item

    def emit_construction(self, emitter: ReadEmitter, items: list[str]) -> str:
        """Emits the construction of a record from the expressions of its fields in wire order."""
        return self.shape.record.emit_construction(emitter, [items[place] for place in self.shape.construction_order])

    def duplicate(self) -> PojoSerializer[R]:
        # Learning subclasses is thread-safe, so it needs no duplicate.
        held = [*(part.serializer for part in self.fields), *self.registered_subclasses, *self.unregistered_subclasses]
        if all(one.duplicate() is one for one in held):
            return self
        return self._with_parts(lambda part: part.duplicate(), lambda subclass: subclass.duplicate())

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> PojoSerializer[Any]:
        return self._with_parts(part, lambda subclass: subclass.stepping_over(part))

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value is None:
            return
        if value.__class__ is not self.record_class:
            try:
                subclass = self._subclass_of(value)[1]
            except TypeError as error:
                yield misfit(path, value, error)
                return
            yield from subclass.problems(value, path)
            return
        for part in self.fields:
            where = f"{path}.{part.attribute}"
            try:
                item = getattr(value, part.attribute)
            except AttributeError:
                yield f"{where}: the attribute is missing"
                continue
            if item is not None:
                yield from part.serializer.problems(item, where)
            elif not part.is_optional:
                yield f"{where}: None, but the field is not optional"

    def snapshot_configuration(self) -> PojoSerializerSnapshot[R]:
        return PojoSerializerSnapshot(self)

    def reconfigured(
        self,
        fields: Mapping[str, TypeSerializer[Any]],
        subclasses: Mapping[str, PojoSerializer[Any]],
        tags: Sequence[str],
    ) -> PojoSerializer[R]:
        """Returns the serializer with other field serializers and with the old tags first."""
        parts = [attrs.evolve(part, serializer=fields.get(part.name, part.serializer)) for part in self.fields]
        own = {subclass.shape.name: subclass for subclass in self.registered_subclasses}
        registered = [subclasses[name] for name in tags]
        registered += [subclasses.get(name, subclass) for name, subclass in own.items() if name not in tags]
        # Subclasses met elsewhere stay known; registered ones are known by their tag.
        unregistered = {name: subclass for name, subclass in self._unregistered.items() if name not in own}
        unregistered |= subclasses
        met = [subclass for name, subclass in unregistered.items() if name not in tags]
        return PojoSerializer.from_shape(attrs.evolve(self.shape, fields=tuple(parts)), registered, met)

    def _with_parts(
        self,
        part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]],
        of_subclass: Callable[[PojoSerializer[Any]], PojoSerializer[Any]],
    ) -> PojoSerializer[R]:
        known = (*self.unregistered_subclasses, *self.registered_subclasses)
        subclasses = {subclass.shape.name: of_subclass(subclass) for subclass in known}
        fields = {field.name: part(field.serializer) for field in self.fields}
        return self.reconfigured(fields, subclasses, [subclass.shape.name for subclass in self.registered_subclasses])

    def held_serializers(self) -> Sequence[TypeSerializer[Any]]:
        """The serializers of the fields and subclasses."""
        # An unregistered subclass is not part of the configuration; only its name is known, as for a reference.
        references = [ReferenceSerializer(name) for name in self._unregistered]
        return [*(part.serializer for part in self.fields), *self.registered_subclasses, *references]

    def rebound(self, targets: Mapping[str, TypeSerializer[Any]]) -> PojoSerializer[R]:
        """Returns itself: a POJO contains no references."""
        return self

    def _construct(self, items: list[Any]) -> R:
        record: R = self.shape.record.record_of([items[place] for place in self.shape.construction_order])
        return record

    def _meet(self, subclass: PojoSerializer[Any]) -> PojoSerializer[Any]:
        # Two threads may meet a class at once; they create equal serializers, and one of them stays.
        return self._unregistered.setdefault(subclass.shape.name, subclass)

    def _subclass_of(self, value: Any) -> tuple[bytes, PojoSerializer[Any]]:
        """Returns the prefix for the class of the value, and the serializer of that class."""
        for tag, subclass in enumerate(self.registered_subclasses):
            if subclass.record_class is value.__class__:
                return bytes((REGISTERED_SUBCLASS, tag)), subclass
        for subclass in self._unregistered.values():
            if subclass.record_class is value.__class__:
                return unregistered_prefix(subclass.shape.name), subclass
        if not isinstance(value, self.record_class) or self.shape.rules.family_of(value.__class__) is None:
            raise TypeError(f"is not a {self.shape.name}")
        subclass = self._meet(PojoSerializer(value.__class__, rules=self.shape.rules))
        return unregistered_prefix(subclass.shape.name), subclass

    def _write_other(self, value: Any) -> bytes:
        if value is None:
            return bytes((NULL,))
        try:
            prefix, subclass = self._subclass_of(value)
        except TypeError as error:
            raise TypeError(f"{format_value(value)} {error}") from error
        return prefix + subclass.codec.write(value)

    def _read_other(self, data: bytes, position: int, flags: int) -> tuple[Any, int]:
        if flags == NULL:
            return None, position
        source = DataInputView(data, position)
        if flags == REGISTERED_SUBCLASS:
            tag = source.read_unsigned_byte()
            if tag >= len(self.registered_subclasses):
                raise MalformedDataError(
                    f"{self.shape.name}: the tag {tag} at byte {position} belongs to no registered subclass; "
                    f"there are {len(self.registered_subclasses)}"
                )
            return self.registered_subclasses[tag].codec.read(data, source.position)
        if flags == UNREGISTERED_SUBCLASS:
            name = source.read_utf()
            subclass = self.subclass_named(name)
            if subclass is None:
                raise UnknownSubclassError(
                    f"{self.shape.name}: the subclass {name!r} at byte {position} is not known here; define a subclass "
                    f'of {self.record_class.__name__} with {POJO_CLASS_ATTRIBUTE} = "{name}"'
                )
            return subclass.codec.read(data, source.position)
        raise MalformedDataError(f"{self.shape.name}: {flags:#x} before byte {position} is not a kind of object")

    def __repr__(self) -> str:
        return f"PojoSerializer({self.shape.name})"


@register_snapshot(RUNTIME + "PojoSerializerSnapshot")
class PojoSerializerSnapshot(RuledTypeSerializerSnapshot["R | None"], Generic[R]):
    """The class, its fields, and its registered and met subclasses."""

    current_version = CURRENT_VERSION

    def __init__(self, serializer: PojoSerializer[R] | None = None) -> None:
        self.pojo = WrittenPojo("", ())
        if serializer is not None:
            known = serializer.registered_subclasses, serializer.unregistered_subclasses
            subclasses = (parts_of([(one.shape.name, one) for one in subclasses]) for subclasses in known)
            self.pojo = WrittenPojo(serializer.shape.name, serializer.shape.written_fields(), *subclasses)

    def write_snapshot(self, out: DataOutputView) -> None:
        write_pojo(self.pojo, out)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        if read_version != CURRENT_VERSION:
            raise SnapshotFormatError(
                f"version {read_version} of a POJO snapshot is not read; write it again with a release of Flink that "
                f"knows version {CURRENT_VERSION}"
            )
        self.pojo = read_pojo(source)

    def restore_serializer(self) -> PojoSerializer[R]:
        """Restores the class of that name and shape if a known serializer has it, else a stand-in."""
        serializers = [part.snapshot.restore_serializer() for part in self.pojo.fields]
        registered = [_restored_subclass(part) for part in self.pojo.registered]
        unregistered = [_restored_subclass(part) for part in self.pojo.unregistered]
        named = (known.named(self.pojo.name) for known in known_of(PojoSerializer))
        shapes = [found.shape for found in named if found is not None]
        return PojoSerializer.from_shape(restored_shape(self.pojo, serializers, shapes), registered, unregistered)

    def merged_with(self, other: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[R | None] | None:
        """Merges the subclasses of both."""
        assert isinstance(other, PojoSerializerSnapshot)
        pojo = merged_pojo(self.pojo, other.pojo)
        if pojo is None:
            return None
        merged: PojoSerializerSnapshot[R] = PojoSerializerSnapshot()
        merged.pojo = pojo
        return merged


def _restored_subclass(part: WrittenPart) -> PojoSerializer[Any]:
    restored = part.snapshot.restore_serializer()
    if not isinstance(restored, PojoSerializer):
        raise SnapshotFormatError(f"the subclass {part.name} is not a POJO: the bytes are damaged")
    return restored
