"""The families of record classes that Python users write most: attrs classes, dataclasses and NamedTuples."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any, Final

import attrs

from typeserializers.kernel.record_families import ABSENT, DeclaredField, RecordFamily, resolved_hints

__all__ = ["AttrsFamily", "DataclassFamily", "NamedTupleFamily"]

_MARKS: Final = ("__attrs_attrs__", "__dataclass_fields__")
"""What a decorator leaves in the class that it was put on."""


class AttrsFamily(RecordFamily):
    """Classes made by ``attrs.define``, ``attrs.frozen`` and their kin."""

    description = "attrs classes"

    def recognizes(self, candidate: type) -> bool:
        # A class that only inherits from an attrs class was not made one itself, and attrs knows no fields of it.
        return "__attrs_attrs__" in candidate.__dict__

    def forgets_fields_of(self, candidate: type) -> bool:
        return attrs.has(candidate) and not _is_marked(candidate)

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        hints = resolved_hints(record_class)
        return [_attrs_field(one, hints.get(one.name, ABSENT)) for one in attrs.fields(record_class)]

    def is_frozen(self, record_class: Any) -> bool:
        return bool(attrs.inspect(record_class).is_frozen)


class DataclassFamily(RecordFamily):
    """Classes made by ``dataclasses.dataclass``."""

    description = "dataclasses"

    def recognizes(self, candidate: type) -> bool:
        return dataclasses.is_dataclass(candidate) and "__attrs_attrs__" not in candidate.__dict__

    def forgets_fields_of(self, candidate: type) -> bool:
        return dataclasses.is_dataclass(candidate) and not _is_marked(candidate)

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        hints = resolved_hints(record_class)
        return [_dataclass_field(one, hints.get(one.name, ABSENT)) for one in dataclasses.fields(record_class)]

    def is_frozen(self, record_class: Any) -> bool:
        return bool(record_class.__dataclass_params__.frozen)


class NamedTupleFamily(RecordFamily):
    """Classes made by ``typing.NamedTuple``."""

    description = "NamedTuples"

    def recognizes(self, candidate: type) -> bool:
        return issubclass(candidate, tuple) and hasattr(candidate, "_field_defaults")

    def forgets_fields_of(self, candidate: type) -> bool:
        is_other = "_field_defaults" not in candidate.__dict__
        return self.recognizes(candidate) and is_other and bool(inspect.get_annotations(candidate))

    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        hints, defaults = resolved_hints(record_class), record_class._field_defaults
        return [
            DeclaredField(name, hints.get(name, ABSENT), defaults.get(name, ABSENT), argument=name)
            for name in record_class._fields
        ]

    def is_frozen(self, record_class: Any) -> bool:
        return True

    def refusal(self, record_class: Any) -> str | None:
        for base in record_class.__mro__:
            if "_field_defaults" in base.__dict__:
                break
            if "__new__" in base.__dict__:
                return (
                    f"{base.__name__} is a NamedTuple with a __new__ of its own, so that reading would change "
                    f"what was written; put what it does into a classmethod that makes the value"
                )
        return None


def _is_marked(candidate: type) -> bool:
    return any(mark in candidate.__dict__ for mark in _MARKS)


def _attrs_field(attribute: attrs.Attribute[Any], hint: Any) -> DeclaredField:
    default: Any = attribute.default
    factory = None
    if default is attrs.NOTHING:
        default = ABSENT
    elif isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        # A factory that takes the instance cannot complete a record that does not exist yet.
        factory = None if default.takes_self else default.factory
        default = ABSENT
    return DeclaredField(
        attribute.name,
        hint,
        default,
        factory,
        attribute.alias or attribute.name,
        bool(attribute.kw_only),
        attribute.metadata,
        is_given=bool(attribute.init),
    )


def _dataclass_field(item: dataclasses.Field[Any], hint: Any) -> DeclaredField:
    # A class of the main script travels to the workers by value, and its MISSING is then a copy of the real one.
    missing = type(dataclasses.MISSING).__qualname__
    factory: Any = item.default_factory
    return DeclaredField(
        item.name,
        hint,
        ABSENT if type(item.default).__qualname__ == missing else item.default,
        None if type(factory).__qualname__ == missing else factory,
        item.name,
        bool(item.kw_only),
        item.metadata,
        is_given=bool(item.init),
    )
