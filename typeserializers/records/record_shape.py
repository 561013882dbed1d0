"""The shape of a record class: its fields with their serializers, former names and defaults.

The family of the class describes it once (`shape_of`). Two shapes are equal if their names, schema versions, field
names and field serializers are equal. The class does not count, so that a record restored without its class equals one
with it.

`field_names` returns the names of the fields of any record class without resolving its type hints, for printing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
from attrs import field, frozen

from typeserializers.kernel.record_families import (
    ABSENT,
    CONVERTER_KEY,
    FORMER_NAMES_KEY,
    DeclaredField,
    FieldConverter,
    RecordConverter,
    RecordFamily,
    metadata_of,
)
from typeserializers.kernel.serializer_inference import Inference, UnknownTypeError, checked_former_names
from typeserializers.kernel.type_serializer import TypeSerializer

_FIELDS_OF_A_CLASS: Final = ("__dataclass_fields__", "__struct_fields__", "__pydantic_fields__")
"""The attributes with the field names of dataclasses, msgspec structs and pydantic models."""


def field_names(kind: type) -> tuple[str, ...] | None:
    """Returns the field names in order; None for a class without fields. A NamedTuple has `_fields`."""
    if attrs.has(kind):
        return tuple(attribute.name for attribute in attrs.fields(kind))
    return next((tuple(getattr(kind, one)) for one in _FIELDS_OF_A_CLASS if hasattr(kind, one)), None)


@frozen
class RecordField:
    """A field: its name, serializer, former names, default and how it is passed to the constructor."""

    name: str
    serializer: TypeSerializer[Any]
    former_names: tuple[str, ...] = ()
    default: Any = field(default=ABSENT, eq=False)
    default_factory: Callable[[], Any] | None = field(default=None, eq=False)
    argument: str = field(default="", eq=False)
    keyword_only: bool = field(default=False, eq=False)
    converter: FieldConverter | None = field(default=None, eq=False)
    declared_rename: Callable[[str], str] | None = field(default=None, eq=False)
    """Returns the code that declares a former name, for fields that no class declares; empty if there is none."""
    has_default: bool = field(init=False, eq=False, repr=False)
    """Whether a record written without this field can be completed."""

    @has_default.default
    def _has_default(self) -> bool:
        return self.default is not ABSENT or self.default_factory is not None

    def make_default(self) -> Any:
        """Returns the default value, from the factory if there is one."""
        return self.default_factory() if self.default_factory is not None else self.default

    @property
    def rejects_none(self) -> bool:
        """Whether None must be rejected although the serializer would write it."""
        return self.serializer.accepts_none and not self.serializer.is_optional_type


@frozen
class RecordShape:
    """A record class as its serializer uses it."""

    name: str
    record_class: type = field(eq=False)
    fields: tuple[RecordField, ...]
    former_names: tuple[str, ...] = ()
    is_frozen: bool = field(default=False, eq=False)
    maker: Callable[..., Any] | None = field(default=None, eq=False)
    """Creates a record from its fields; None for the class itself."""
    schema_version: int = 1
    converters: Mapping[int, RecordConverter] = field(factory=dict, eq=False)
    source_serializers: tuple[TypeSerializer[Any], ...] = field(default=(), eq=False)
    """Serializers of values that converters receive and the record does not have."""

    @property
    def makes_records(self) -> Callable[..., Any]:
        """The callable that creates a record from its fields, by position or by name."""
        return self.maker or self.record_class

    def record_of(self, items: Sequence[Any]) -> Any:
        """The record with these values, one for each of `fields`, in their order; raises what the class raises."""
        positional = [item for part, item in zip(self.fields, items, strict=True) if not part.keyword_only]
        named = {part.argument: item for part, item in zip(self.fields, items, strict=True) if part.keyword_only}
        return self.makes_records(*positional, **named)

    def __attrs_post_init__(self) -> None:
        if self.schema_version < 1:
            raise ValueError(f"{self.name}: the schema version {self.schema_version} must be an integer of 1 or more")
        names = [part.name for part in self.fields]
        if len(set(names)) < len(names):
            # Its snapshot could be written, but not read.
            raise ValueError(f"{self.name}: two fields have the same name: {', '.join(names)}")
        strange = sorted(version for version in self.converters if not 1 <= version < self.schema_version)
        if strange:
            raise ValueError(
                f"{self.name}: a converter from version {', '.join(map(str, strange))} is never used, because "
                f"schema_version is {self.schema_version}; converter n converts version n to version n + 1"
            )


def shape_of(
    record_class: type, field_serializers: Mapping[str, TypeSerializer[Any]], inference: Inference
) -> RecordShape:
    """The shape of a record class; raises `UnknownTypeError` with the path of what cannot be written."""
    where = inference.path or record_class.__name__
    family = inference.rules.family_of(record_class)
    if family is None:
        families = ", ".join(known.description for known in inference.rules.families)
        raise UnknownTypeError(f"{where}: {record_class!r} is not a record; records are {families}")
    rejection = family.rejection(record_class)
    if rejection is not None:
        place = f"{where}: {record_class.__name__}" if inference.path else where
        raise UnknownTypeError(f"{place}: {rejection}")
    declared = _declared_fields(family, record_class, where)
    unknown = sorted(set(field_serializers) - {item.name for item in declared})
    if unknown:
        raise UnknownTypeError(f"{where}: field_serializers names {', '.join(unknown)}, which the class does not have")
    return RecordShape(
        name=record_class.__qualname__.rpartition("<locals>.")[2],
        record_class=record_class,
        fields=tuple(
            _field_of(item, field_serializers.get(item.name), record_class, inference, where) for item in declared
        ),
        former_names=checked_former_names(record_class.__dict__.get("__former_names__", ()), where),
        is_frozen=family.is_frozen(record_class),
        maker=family.maker(record_class),
        schema_version=record_class.__dict__.get("__schema_version__", 1),
        converters=dict(record_class.__dict__.get("__converters__", {})),
    )


def _field_of(
    item: DeclaredField,
    serializer: TypeSerializer[Any] | None,
    record_class: type,
    inference: Inference,
    where: str,
) -> RecordField:
    place = f"{where}.{item.name}"
    try:
        metadata = metadata_of(item.metadata, item.hint)
    except ValueError as error:
        raise UnknownTypeError(f"{place}: {error}") from None
    if not item.is_given:
        raise UnknownTypeError(f"{place}: a field with init=False cannot be restored; derive it in a property instead")
    if serializer is None:
        if item.hint is ABSENT:
            raise UnknownTypeError(f"{place}: the field has no type hint; give it one")
        serializer = inference.below(f".{item.name}", record_class).serializer_for(item.hint)
    declared_names = checked_former_names(metadata.get(FORMER_NAMES_KEY, ()), place)
    return RecordField(
        name=item.name,
        serializer=serializer,
        former_names=tuple(dict.fromkeys((*declared_names, *item.former_names))),
        default=item.default,
        default_factory=item.default_factory,
        argument=item.argument or item.name,
        keyword_only=item.keyword_only,
        converter=metadata.get(CONVERTER_KEY),
    )


def _declared_fields(family: RecordFamily, record_class: type, where: str) -> Sequence[DeclaredField]:
    try:
        return family.fields(record_class)
    except (NameError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise UnknownTypeError(
            f"{where}: a type hint cannot be resolved ({reason}); define the types at the top of a module that can be "
            f"imported (the workers do not find those of a main script or notebook), or pass field_serializers"
        ) from error
