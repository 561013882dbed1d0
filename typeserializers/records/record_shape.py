"""The shape of a record class: its fields with their serializers, former names and defaults.

A shape is read once from an attrs class, dataclass or NamedTuple (`shape_of`). Two shapes are equal if their names,
their schema versions, and the names and serializers of their fields are: the class itself does not count, so that a
record restored without its class compares equal to one with it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
from attrs import field, frozen

from typeserializers.kernel.field_metadata import (
    CONVERTER_KEY,
    FORMER_NAMES_KEY,
    FieldConverter,
    RecordConverter,
    metadata_of,
)
from typeserializers.kernel.serializer_inference import Inference, UnknownTypeError
from typeserializers.kernel.type_serializer import TypeSerializer


class _Absent:
    """The type of `ABSENT`; its one instance stays itself when a serializer is pickled."""

    def __reduce__(self) -> str:
        return "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""Stands for 'no default'."""


@frozen
class RecordField:
    """One field: its name, serializer, former names, default and how it is passed to the constructor."""

    name: str
    serializer: TypeSerializer[Any]
    former_names: tuple[str, ...] = ()
    default: Any = field(default=ABSENT, eq=False)
    default_factory: Callable[[], Any] | None = field(default=None, eq=False)
    argument: str = field(default="", eq=False)
    keyword_only: bool = field(default=False, eq=False)
    converter: FieldConverter | None = field(default=None, eq=False)
    has_default: bool = field(init=False, eq=False, repr=False)
    """Whether a record written without this field can be completed."""

    @has_default.default
    def _has_default(self) -> bool:
        return self.default is not ABSENT or self.default_factory is not None

    def make_default(self) -> Any:
        """The default value, from the factory if there is one."""
        return self.default_factory() if self.default_factory is not None else self.default

    @property
    def refuses_none(self) -> bool:
        """Whether None must be refused here although the serializer would write it."""
        return self.serializer.accepts_none and not self.serializer.is_optional_type


@frozen
class RecordShape:
    """A record class as the serializer sees it."""

    name: str
    record_class: type = field(eq=False)
    fields: tuple[RecordField, ...]
    former_names: tuple[str, ...] = ()
    is_frozen: bool = field(default=False, eq=False)
    schema_version: int = 1
    converters: Mapping[int, RecordConverter] = field(factory=dict, eq=False)
    source_serializers: tuple[TypeSerializer[Any], ...] = field(default=(), eq=False)
    """Serializers of values that the converters get and the record itself has not."""

    def __attrs_post_init__(self) -> None:
        if self.schema_version < 1:
            raise ValueError(f"{self.name}: the schema version {self.schema_version} is not a number from 1 on")
        strange = sorted(version for version in self.converters if not 1 <= version < self.schema_version)
        if strange:
            raise ValueError(
                f"{self.name}: a converter from version {', '.join(map(str, strange))} is never used, because "
                f"schema_version is {self.schema_version}; a converter n leads from version n to version n + 1"
            )


def shape_of(
    record_class: type, field_serializers: Mapping[str, TypeSerializer[Any]], inference: Inference
) -> RecordShape:
    """The shape of a record class; raises `UnknownTypeError` with the path of what cannot be written."""
    where = inference.path or record_class.__name__
    if is_named_tuple(record_class):
        declared = [_named_tuple_field(record_class, name) for name in _named_tuple_names(record_class)]
        is_frozen = True
    elif attrs.has(record_class):
        declared = [_attrs_field(attribute) for attribute in attrs.fields(record_class)]
        is_frozen = bool(attrs.inspect(record_class).is_frozen)
    elif dataclasses.is_dataclass(record_class):
        declared = [_dataclass_field(item) for item in dataclasses.fields(record_class)]
        is_frozen = _is_frozen_dataclass(record_class)
    else:
        raise UnknownTypeError(f"{where}: {record_class!r} is neither an attrs class, a dataclass nor a NamedTuple")
    unknown = sorted(set(field_serializers) - {item["name"] for item in declared})
    if unknown:
        raise UnknownTypeError(f"{where}: field_serializers names {', '.join(unknown)}, which the class does not have")
    hints = _hints_of(record_class, where)
    fields = []
    for item in declared:
        name = item["name"]
        metadata = metadata_of(item.pop("metadata"), hints.get(name))
        if not item.pop("init"):
            raise UnknownTypeError(
                f"{where}.{name}: a field with init=False cannot be restored; derive it in a property instead"
            )
        serializer = field_serializers.get(name)
        if serializer is None:
            if name not in hints:
                raise UnknownTypeError(f"{where}.{name}: the field has no type hint; give it one")
            serializer = inference.below(f".{name}", record_class).serializer_for(hints[name])
        fields.append(
            RecordField(
                serializer=serializer,
                former_names=_names(metadata.get(FORMER_NAMES_KEY, ()), f"{where}.{name}"),
                converter=metadata.get(CONVERTER_KEY),
                **item,
            )
        )
    return RecordShape(
        name=record_class.__qualname__.rpartition("<locals>.")[2],
        record_class=record_class,
        fields=tuple(fields),
        former_names=_names(record_class.__dict__.get("__former_names__", ()), where),
        is_frozen=is_frozen,
        schema_version=record_class.__dict__.get("__schema_version__", 1),
        converters=dict(record_class.__dict__.get("__converters__", {})),
    )


def is_named_tuple(candidate: Any) -> bool:
    """Whether this is a class made by ``typing.NamedTuple``."""
    return isinstance(candidate, type) and issubclass(candidate, tuple) and hasattr(candidate, "_field_defaults")


def is_record_class(candidate: Any) -> bool:
    """Whether this is a class that can be a record: an attrs class, a dataclass or a NamedTuple."""
    # A class that only inherits from an attrs class was not made one itself, and attrs knows no fields of it.
    return isinstance(candidate, type) and (
        "__attrs_attrs__" in candidate.__dict__ or dataclasses.is_dataclass(candidate) or is_named_tuple(candidate)
    )


def _names(names: Any, where: str) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UnknownTypeError(f"{where}: former names are a tuple of names; write ({names!r},)")
    return tuple(names)


def _attrs_field(attribute: attrs.Attribute[Any]) -> dict[str, Any]:
    default: Any = attribute.default
    factory = None
    if default is attrs.NOTHING:
        default = ABSENT
    elif isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        # A factory that takes the instance cannot complete a record that does not exist yet.
        factory = None if default.takes_self else default.factory
        default = ABSENT
    return {
        "name": attribute.name,
        "metadata": attribute.metadata,
        "default": default,
        "default_factory": factory,
        "argument": attribute.alias or attribute.name,
        "keyword_only": bool(attribute.kw_only),
        "init": bool(attribute.init),
    }


def _dataclass_field(item: dataclasses.Field[Any]) -> dict[str, Any]:
    # A class of the main script travels to the workers by value, and its MISSING is then a copy of the real one.
    missing = type(dataclasses.MISSING).__qualname__
    return {
        "name": item.name,
        "metadata": item.metadata,
        "default": ABSENT if type(item.default).__qualname__ == missing else item.default,
        "default_factory": None if type(item.default_factory).__qualname__ == missing else item.default_factory,
        "argument": item.name,
        "keyword_only": bool(item.kw_only),
        "init": bool(item.init),
    }


def _named_tuple_names(record_class: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = record_class._fields
    return names


def _named_tuple_field(record_class: Any, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "metadata": {},
        "default": record_class._field_defaults.get(name, ABSENT),
        "default_factory": None,
        "argument": name,
        "keyword_only": False,
        "init": True,
    }


def _is_frozen_dataclass(record_class: type) -> bool:
    return bool(record_class.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _hints_of(record_class: type, where: str) -> dict[str, Any]:
    try:
        try:
            return typing.get_type_hints(record_class, include_extras=True)
        except NameError:
            # A class inside a function cannot be found by its own name, which a record that contains itself needs.
            own_name = {record_class.__name__: record_class}
            return typing.get_type_hints(record_class, localns=own_name, include_extras=True)
    except (NameError, TypeError) as error:
        raise UnknownTypeError(
            f"{where}: a type hint cannot be resolved ({error}); define the types at the top of a module that can be "
            f"imported (the workers do not find those of a main script or notebook), or pass field_serializers"
        ) from error
