"""Record families: ways of writing a class whose objects are their fields, such as attrs classes or pydantic models.

A family says which classes are of it, what their fields are, and how one is made again. All else is the same for every
record: how it is stored, how it evolves, in what words it is rejected. So a class of one family takes over the state of
a class of another that has its name and fields.

Families are part of the rules of inference (`typeserializers.kernel.serializer_inference.InferenceRules`): those of
this library, of a module that registers its own, or of the rules that a program passes.

What a record class says about the evolution of its fields, beside their names and types.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

from attrs import field, frozen

__all__ = ["ABSENT", "DeclaredField", "RecordFamily", "resolved_hints"]


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

    ``converter(old_value)`` returns the new value. It is used only where the compatibility result would otherwise be a
    rejection: once the state is written again, it has nothing to do and may be removed.
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
    """The name of a converter in issues and errors."""
    if isinstance(function, ReadingConverter):
        return name_of(function.function)
    return getattr(function, "__qualname__", None) or repr(function)


class _Absent:
    """The type of `ABSENT`; its one instance stays itself when a serializer is pickled."""

    def __reduce__(self) -> str:
        return "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""Stands for 'no default', and for 'no type hint'."""


@frozen
class DeclaredField:
    """A field as its class declares it; ``hint`` is its type with what stands around it in ``Annotated``.

    ``argument`` is how it is passed to what makes a record, by place unless ``keyword_only``. ``metadata`` is what the
    class says of the field (`typeserializers.kernel.record_families`), and ``former_names`` are names that the class
    itself knows the field by beside its own. A ``default_factory`` takes no argument. A field that ``is_given`` is one
    that a constructor takes; any other is rejected, because it could not be restored.
    """

    name: str
    hint: Any
    default: Any = ABSENT
    default_factory: Callable[[], Any] | None = None
    argument: str = ""
    keyword_only: bool = False
    metadata: Mapping[Any, Any] = field(factory=dict)
    former_names: tuple[str, ...] = ()
    is_given: bool = True


class RecordFamily(ABC):
    """See the module; a family has no state. The head of `docs/serializers.md` says how one is added."""

    description: str
    """What its classes are called, in the plural."""

    @abstractmethod
    def recognizes(self, candidate: type) -> bool:
        """Whether the class is one of this family. Imports nothing: who has such a class has imported what it needs."""

    @abstractmethod
    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        """The fields of a class of this family, in the order in which they are written.

        Raises `NameError` or `TypeError` for a type hint that cannot be resolved.
        """

    @abstractmethod
    def is_frozen(self, record_class: Any) -> bool:
        """Whether the fields of an object can never be set to other values."""

    def forgets_fields_of(self, candidate: type) -> bool:
        """Whether the class inherits from one of this family and is none itself: its own fields would be lost."""
        return False

    def rejection(self, record_class: Any) -> str | None:
        """Why no class like this can be stored, with what to do; None if it can."""
        return None

    def maker(self, record_class: Any) -> Callable[..., Any] | None:
        """What makes a record of its fields, where that is not the class itself; it can be pickled."""
        return None


def resolved_hints(record_class: Any) -> dict[str, Any]:
    """The type hints of a class by field, names in them resolved; raises `NameError` or `TypeError`."""
    try:
        return typing.get_type_hints(record_class, include_extras=True)
    except NameError:
        # A class inside a function cannot be found by its own name, which a record that contains itself needs.
        own_name = {record_class.__name__: record_class}
        return typing.get_type_hints(record_class, localns=own_name, include_extras=True)
