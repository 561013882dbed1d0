"""A record class as a POJO of Flink: the name of its Java class, and its fields in alphabetical order.

A class names its Java class in ``__pojo_class__``, and so does the base class that declares an inherited field. A field
is optional if its hint is. In the encoding every field has a null flag, so the `NullableSerializer` around an inferred
optional field is removed; one that is passed explicitly stays.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

from snapshots.composite import CompositeTypeSerializerSnapshot
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.serializer_inference import DEFAULT_RULES, Inference, InferenceRules, UnknownTypeError
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_format import WrittenPart, WrittenPojo
from typeserializers.records.record_format import is_field_name
from typeserializers.records.record_serializer import (
    AttrsSerializer,
    arguments_of,
    check_defaults,
    check_shape,
    check_values_are_kept,
    reject_undecorated,
    stand_in_class,
)
from typeserializers.records.record_shape import RecordField, RecordShape, shape_of

POJO_CLASS_ATTRIBUTE: Final = "__pojo_class__"


@frozen
class PojoField:
    """A field: its Java name and declaring class, its serializer, and its attribute in the record."""

    name: str
    declaring_class: str = field(eq=False)
    serializer: TypeSerializer[Any]
    record_field: RecordField = field(eq=False)
    is_optional: bool = field(eq=False)

    @property
    def former_names(self) -> tuple[str, ...]:
        """The former names of the field."""
        return self.record_field.former_names

    @property
    def attribute(self) -> str:
        """The attribute of the record; another name if Python reserves the Java name."""
        return self.record_field.name

    @property
    def completes_old_values(self) -> bool:
        """Whether a value written without this field can be completed."""
        return self.record_field.has_default or self.is_optional

    def make_default(self) -> Any:
        """Returns the value for objects without this field: its default, else None or the zero of its type."""
        if self.record_field.has_default:
            return self.record_field.make_default()
        return None if self.is_optional else self.serializer.create_instance()


@frozen
class PojoShape:
    """A record class with its fields in wire order."""

    name: str
    record_class: type = field(eq=False)
    fields: tuple[PojoField, ...]
    record: AttrsSerializer[Any] = field(eq=False)
    """Constructs records from the values of the attributes, in their order in the class."""
    former_names: tuple[str, ...] = field(default=(), eq=False)
    is_stand_in: bool = field(default=False, eq=False)
    rules: InferenceRules = field(default=DEFAULT_RULES, eq=False)
    """The inference rules, also for subclasses that are met later."""

    def written_fields(self) -> tuple[WrittenPart, ...]:
        """Returns the fields as stored in a snapshot."""
        return tuple(
            WrittenPart(one.name, one.serializer.snapshot_configuration(), one.declaring_class) for one in self.fields
        )

    @property
    def construction_order(self) -> tuple[int, ...]:
        """Returns for each attribute of the record the wire index of its field."""
        place_of = {part.attribute: place for place, part in enumerate(self.fields)}
        return tuple(place_of[part.name] for part in self.record.fields)


def pojo_name(record_class: type) -> str:
    """Returns the Java class of a record class, or else its own full name."""
    declared = record_class.__dict__.get(POJO_CLASS_ATTRIBUTE)
    if isinstance(declared, str):
        return declared
    return f"{record_class.__module__}.{record_class.__qualname__}".replace("<locals>.", "")


def pojo_shape_of(
    record_class: type, name: str | None, field_serializers: Mapping[str, TypeSerializer[Any]], inference: Inference
) -> PojoShape:
    """Returns the shape of a class; raises `UnknownTypeError` with the path of an unsupported field."""
    where = inference.path or record_class.__name__
    reject_undecorated(record_class, inference.rules, where)
    record = shape_of(record_class, field_serializers, inference)
    check_shape(record, where)
    check_defaults(record, where)
    check_values_are_kept(record, where)
    fields = []
    for part in record.fields:
        serializer, is_optional = part.serializer, part.serializer.is_optional_type
        if part.name not in field_serializers:
            _reject_records(serializer, f"{where}.{part.name}")
            if isinstance(serializer, NullableSerializer):
                serializer = serializer.inner
        declaring = next(
            (base for base in record_class.__mro__ if part.name in inspect.get_annotations(base)), record_class
        )
        declaring_name = name if name is not None and declaring is record_class else pojo_name(declaring)
        fields.append(PojoField(part.name, declaring_name, serializer, part, is_optional))
    return PojoShape(
        name or pojo_name(record_class),
        record_class,
        in_wire_order(fields),
        AttrsSerializer.from_shape(record),
        record.former_names,
        rules=inference.rules,
    )


def in_wire_order(fields: list[PojoField]) -> tuple[PojoField, ...]:
    """Sorts the fields by name as Java does: by UTF-16 code unit."""
    return tuple(sorted(fields, key=lambda part: part.name.encode("utf-16-be", "surrogatepass")))


def stand_in_shape(name: str, fields: list[tuple[str, str, TypeSerializer[Any]]]) -> PojoShape:
    """Returns the shape of a missing class from (name, declaring class, serializer) of each field, all optional."""
    attributes = _attribute_names([field_name for field_name, _, _ in fields])
    stand_in = stand_in_class(name.replace("$", "."), attributes, default=None)
    arguments = arguments_of(stand_in)
    made = []
    for (field_name, declaring, serializer), attribute, argument in zip(fields, attributes, arguments, strict=True):
        part = RecordField(attribute, serializer, default=None, argument=argument)
        made.append(PojoField(field_name, declaring, serializer, part, True))
    record = RecordShape(name, stand_in, tuple(part.record_field for part in made))
    return PojoShape(name, stand_in, in_wire_order(made), AttrsSerializer.from_shape(record), is_stand_in=True)


def restored_shape(
    pojo: WrittenPojo, serializers: Sequence[TypeSerializer[Any]], known: Iterable[PojoShape]
) -> PojoShape:
    """Returns the first known shape with exactly the stored fields, else that of a stand-in."""
    names = [part.name for part in pojo.fields]
    for shape in known:
        if [part.name for part in shape.fields] == names and [part.serializer for part in shape.fields] == serializers:
            return shape
    return stand_in_shape(
        pojo.name,
        [
            (part.name, part.declaring_class or pojo.name, serializer)
            for part, serializer in zip(pojo.fields, serializers, strict=True)
        ],
    )


def all_subclasses(record_class: type) -> Iterator[type]:
    """Yields all direct and indirect subclasses of a class."""
    subclasses: list[type] = record_class.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from all_subclasses(subclass)


def _attribute_names(names: list[str]) -> list[str]:
    """Returns an attribute for each Java name; names become generated code, so they must be identifiers."""
    taken: set[str] = set()
    attributes: list[str] = []
    for name in names:
        usable = is_field_name(name) or keyword.iskeyword(name)
        attribute = name if usable and not name.startswith("__") else f"field_{len(attributes)}"
        while keyword.iskeyword(attribute) or attribute in taken:
            attribute += "_"
        taken.add(attribute)
        attributes.append(attribute)
    return attributes


def _reject_records(serializer: TypeSerializer[Any], where: str) -> None:
    for inner in all_of_composites(serializer):
        if isinstance(inner, AttrsSerializer):
            raise UnknownTypeError(
                f"{where}: {inner.record_class.__name__} inside a POJO must be one too: give it "
                f'{POJO_CLASS_ATTRIBUTE} = "name of its Java class", or pass field_serializers'
            )


def all_of_composites(serializer: TypeSerializer[Any]) -> Iterator[TypeSerializer[Any]]:
    """Yields the serializer and, for tuples and similar types, the nested ones; not those of records."""
    yield serializer
    snapshot = serializer.snapshot_configuration()
    if isinstance(snapshot, CompositeTypeSerializerSnapshot):
        for nested in snapshot.nested_serializers(serializer):
            yield from all_of_composites(nested)
