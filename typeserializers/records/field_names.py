"""The names of the fields of any object that is a record, without its type hints: for printing and for emitting it."""

from __future__ import annotations

from typing import Final

import attrs

__all__ = ["field_names"]

_FIELDS_OF_A_CLASS: Final = ("__dataclass_fields__", "__struct_fields__", "__pydantic_fields__")
"""Where dataclasses, msgspec structs and pydantic models have the names of their fields."""


def field_names(kind: type) -> tuple[str, ...] | None:
    """The names in their order; None for a class that has no such fields. Those of a NamedTuple are its `_fields`."""
    if attrs.has(kind):
        return tuple(attribute.name for attribute in attrs.fields(kind))
    return next((tuple(getattr(kind, one)) for one in _FIELDS_OF_A_CLASS if hasattr(kind, one)), None)
