"""What a record class says about the evolution of its fields, beside their names and types.

It is metadata of the field in attrs classes and dataclasses, and may stand in ``Annotated`` in any record class, which
is the only place a NamedTuple has:

    minutes_late: float = attrs.field(default=0.0, metadata=former_names("late"))
    departure: int = attrs.field(metadata={**former_names("time"), **converted_by(parse_time)})
    airport: Annotated[str, former_names("last_airport")]

The class as a whole says what it needs in attributes: ``__former_names__`` (a tuple of names),
``__schema_version__`` (an int, 1 if absent) and ``__converters__`` (version -> function).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from attrs import frozen

FORMER_NAMES_KEY: Final = "statebackend.former_names"
CONVERTER_KEY: Final = "statebackend.converter"

FieldConverter = Callable[[Any], Any]
"""From the value that the old field had to one that fits the new field."""

RecordConverter = Callable[[dict[str, Any]], Mapping[str, Any]]
"""From the field values of one schema version, by name, to those of the next; it may change its argument."""


def former_names(*names: str) -> Mapping[str, Any]:
    """Field metadata that declares the names a field had before; works for every kind of record class."""
    return {FORMER_NAMES_KEY: tuple(names)}


def converted_by(converter: FieldConverter) -> Mapping[str, Any]:
    """Field metadata that says how to make the field's value from an old one of a type that no rule covers.

    ``converter(old_value)`` returns the new value. It is used only where the verdict would otherwise be a refusal: once
    the state is written anew, it has nothing to do and may be removed.
    """
    return {CONVERTER_KEY: converter}


@frozen
class ReadingConverter:
    """A converter of records, and the old fields that it reads."""

    function: RecordConverter
    fields: tuple[str, ...]

    def __call__(self, values: dict[str, Any]) -> Mapping[str, Any]:
        return self.function(values)


def reads_fields(*names: str) -> Callable[[RecordConverter], ReadingConverter]:
    """Declares which old fields a converter in ``__converters__`` reads.

    A field that the new class no longer has is reported as lost unless a converter declares that it reads it.

    Args:
        *names: The fields, by the names that they have in the stored state.

    Returns:
        A decorator for the converter.

    Example:
        ```python
        @reads_fields("route")
        def split_route(old):
            origin, dest = old.pop("route").split("-")
            return {**old, "origin": origin, "dest": dest}
        ```
    """
    return lambda function: ReadingConverter(function, names)


def metadata_of(declared: Mapping[Any, Any], hint: Any) -> dict[str, Any]:
    """What the field's own metadata and the ``Annotated`` around its hint say together; the former wins."""
    said: dict[str, Any] = {}
    if typing.get_origin(hint) is Annotated:
        for extra in typing.get_args(hint)[1:]:
            if isinstance(extra, Mapping):
                said.update(extra)
    said.update(declared)
    return {key: said[key] for key in (FORMER_NAMES_KEY, CONVERTER_KEY) if key in said}


def name_of(function: Callable[..., Any]) -> str:
    """The name of a converter in findings and errors."""
    if isinstance(function, ReadingConverter):
        return name_of(function.function)
    return getattr(function, "__qualname__", None) or repr(function)
