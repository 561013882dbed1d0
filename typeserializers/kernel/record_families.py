"""Record families: ways of writing a class whose objects are their fields, such as attrs classes or pydantic models.

A family says which classes are of it, what their fields are, and how one is made again. All else is the same for every
record: how it is stored, how it evolves, in what words it is refused. So a class of one family takes over the state of
a class of another that has its name and fields.

Families are part of the rules of inference (`typeserializers.kernel.serializer_inference.InferenceRules`): those of
this library, of a module that registers its own, or of the rules that a program passes.
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

__all__ = ["ABSENT", "DeclaredField", "RecordFamily", "resolved_hints"]


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
    class says of the field (`typeserializers.kernel.field_metadata`), and ``former_names`` are names that the class
    itself knows the field by beside its own. A ``default_factory`` takes no argument. A field that ``is_given`` is one
    that a constructor takes; any other is refused, because it could not be restored.
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

    def refusal(self, record_class: Any) -> str | None:
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
