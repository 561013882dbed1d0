"""Record families: kinds of classes whose objects consist of fields, such as attrs classes or pydantic models.

A family recognizes its classes, lists their fields, and creates an object from its fields. Everything else is the same
for every record: storage, evolution and error messages. So a class of one family can restore the state of a class of
another family with the same name and fields. Families are part of the inference rules
(`typeserializers.kernel.serializer_inference.InferenceRules`).

The evolution of a field is declared in its metadata (attrs classes and dataclasses) or in ``Annotated`` (any record
class):

    minutes_late: float = attrs.field(default=0.0, metadata=former_names("late"))
    departure: int = attrs.field(metadata={**former_names("time"), **converted_by(parse_time)})
    airport: Annotated[str, former_names("last_airport")]

The evolution of the class is declared in attributes: ``__former_names__`` (a tuple of names), ``__schema_version__``
(an int, 1 if absent) and ``__converters__`` (version -> function).
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Annotated, Any, Final, Union

from attrs import field, frozen

__all__ = ["ABSENT", "DeclaredField", "RecordFamily", "resolved_hints"]


FORMER_NAMES_KEY: Final = "statebackend.former_names"
CONVERTER_KEY: Final = "statebackend.converter"

FieldConverter = Callable[[Any], Any]
"""Converts the value of the old field to one that fits the new field."""

RecordConverter = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Converts the field values of one schema version, by name, to those of the next; may modify its argument."""


class _FieldMetadata(dict[str, Any]):
    """Metadata that can be hashed, because `typing` hashes the members of ``Annotated[str, metadata] | None``."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self)))

    def __or__(self, other: Mapping[str, Any]) -> _FieldMetadata:  # type: ignore[override]
        return _FieldMetadata({**self, **other})


def former_names(*names: str) -> Mapping[str, Any]:
    """Returns field metadata that declares the former names of a field, for every kind of record class."""
    return _FieldMetadata({FORMER_NAMES_KEY: tuple(names)})


def converted_by(converter: FieldConverter) -> Mapping[str, Any]:
    """Returns field metadata with a converter for old values of a type that no rule covers.

    ``converter(old_value)`` returns the new value. It is used only if the field would otherwise be incompatible. An
    optional old field passes None, too. Once the state is rewritten, the converter is no longer needed and may be
    removed.
    """
    return _FieldMetadata({CONVERTER_KEY: converter})


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
    """Merges the field's metadata with that in its ``Annotated`` hint; the former wins.

    ``Annotated[str, metadata] | None`` declares the same as ``Annotated[str | None, metadata]``. Raises `ValueError`
    for metadata of a part of the field, such as ``list[Annotated[str, metadata]]``.
    """
    merged: dict[str, Any] = {}
    while True:
        arguments = typing.get_args(hint)
        if typing.get_origin(hint) is Annotated:
            hint = arguments[0]
            for extra in reversed(arguments[1:]):
                if isinstance(extra, Mapping):
                    merged = {**extra, **merged}
        elif typing.get_origin(hint) is Union and type(None) in arguments and len(arguments) == 2:
            [hint] = (argument for argument in arguments if argument is not type(None))
        else:
            break
    if _has_metadata(hint):
        raise ValueError(
            "former_names and converted_by belong to the field, not to a part of its type: write "
            "Annotated[<type of the field>, ...]; a converter gets the whole value of the field"
        )
    merged.update(declared)
    return {key: merged[key] for key in (FORMER_NAMES_KEY, CONVERTER_KEY) if key in merged}


def _has_metadata(hint: Any) -> bool:
    if isinstance(hint, Mapping):
        return FORMER_NAMES_KEY in hint or CONVERTER_KEY in hint
    return any(map(_has_metadata, typing.get_args(hint)))


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a converter for issues and errors."""
    if isinstance(function, ReadingConverter):
        return name_of(function.function)
    return getattr(function, "__qualname__", None) or repr(function)


def identity_of(function: Callable[..., Any]) -> Hashable:
    """Returns what equal converters have in common; a lambda that is created or unpickled again equals the first one.

    `typing` keeps one object for equal hints. Without the converters, ``Annotated[str, serializer]`` would be the hint
    of another state, with the converters of that state.
    """
    if isinstance(function, ReadingConverter):
        return identity_of(function.function)
    if not isinstance(function, FunctionType):
        return _hashable(function)
    bound = [cell.cell_contents for cell in function.__closure__ or ()]
    bound += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return function.__code__, *map(_hashable, bound)


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return id(value)
    # 1, True and 1.0 are equal, and a converter may return another value with each.
    return type(value), value


class _Absent:
    """The type of `ABSENT`; its one instance stays itself when a serializer is pickled."""

    def __reduce__(self) -> str:
        return "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""Means 'no default' or 'no type hint'."""


@frozen
class DeclaredField:
    """A field as its class declares it.

    Attributes:
        name: The name of the field.
        hint: Its type hint, including ``Annotated``.
        default: Its default value.
        default_factory: A function without arguments that creates its default.
        argument: The name of its argument in the constructor of records.
        keyword_only: Whether this argument is passed by keyword; otherwise it is passed by position.
        metadata: The metadata of the field, which may declare its evolution.
        former_names: Other names of the field that the class defines, such as aliases.
        is_given: Whether the constructor takes the field. Any other field is rejected: it could not be restored.
        needs_other_fields: Whether the class computes the default from other fields.
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
    needs_other_fields: bool = False


class RecordFamily(ABC):
    """A family of record classes, without state. `docs/record-families.md` explains how to add one."""

    description: str
    """The name of its classes, in the plural."""

    @abstractmethod
    def recognizes(self, candidate: type) -> bool:
        """Whether the class belongs to this family. It imports nothing: such a class implies its library is loaded."""

    @abstractmethod
    def fields(self, record_class: Any) -> Sequence[DeclaredField]:
        """Returns the fields of a class of this family, in the order in which they are written.

        Raises `NameError` or `TypeError` for a type hint that cannot be resolved.
        """

    @abstractmethod
    def is_frozen(self, record_class: Any) -> bool:
        """Whether the fields of an object cannot be changed."""

    def forgets_fields_of(self, candidate: type) -> bool:
        """Whether the class only inherits from a class of this family, so that its own fields would be lost."""
        return False

    def rejection(self, record_class: Any) -> str | None:
        """Returns why such a class cannot be stored, and the fix; None if it can."""
        return None

    def maker(self, record_class: Any) -> Callable[..., Any] | None:
        """Returns the picklable factory of records if it is not the class itself."""
        return None


def resolved_hints(record_class: Any) -> dict[str, Any]:
    """Returns the resolved type hints of a class by field; raises `NameError` or `TypeError`.

    A field of a generic base class has the type that the class binds: ``int`` in ``class Prices(Box[int])``.
    """
    try:
        hints = typing.get_type_hints(record_class, include_extras=True)
    except NameError:
        # A record that contains itself needs its own name, which is not global for a class inside a function.
        own_name = {record_class.__name__: record_class}
        hints = typing.get_type_hints(record_class, localns=own_name, include_extras=True)
    arguments: dict[Any, dict[Any, Any]] = {}
    for kind in record_class.__mro__:
        bound = arguments.get(kind, {})
        for base in vars(kind).get("__orig_bases__", ()):
            origin = typing.get_origin(base)
            values = (_with_arguments(value, bound) for value in typing.get_args(base))
            arguments[origin] = dict(zip(getattr(origin, "__parameters__", ()), values, strict=False))
    for kind in reversed(record_class.__mro__):
        if arguments.get(kind):
            own = vars(kind).get("__annotations__", {})
            hints.update({name: _with_arguments(hints[name], arguments[kind]) for name in own if name in hints})
    return hints


def _with_arguments(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    """Replace the type variables of a hint."""
    if isinstance(hint, typing.TypeVar):
        return arguments.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or typing.get_origin(hint) is None:
        return hint
    return hint[tuple(arguments.get(one, one) for one in parameters)]
