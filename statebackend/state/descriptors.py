"""The base of all state descriptors: a name, a kind, and serializers by *role*.

An operator registers a descriptor in ``open()``. The name of a state is unique within its operator. A serializer is
passed as an object or as a type hint (`serializer_for`). The *storage* serializer of a state follows from the
serializers of the user: it writes one stored entry, as the kind defines it (`StoredKind`).

The default of a value state must have the type of the state. A type checker would infer ``object`` for ``int`` and
``"x"``. The constrained type variables here exclude ``object``, so ``ValueStateDescriptor("count", int, default="x")``
is a type error. For a type outside the constraints, pass its serializer: ``serializer_for(Hint)``.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import unicodedata
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar, overload

from attrs import field, frozen

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import StateFormatError, format_value
from statebackend.state.errors import StateBackendError, StateRegistrationError
from typeserializers.containers.converting import ConvertingSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.serializer_inference import serializer_for
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.times.python_times import PythonDateTimeSerializer

if TYPE_CHECKING:
    from types import UnionType
    from typing import TypeAlias, _SpecialForm

    from typing_extensions import Self

    TypeHint: TypeAlias = UnionType | _SpecialForm

T = TypeVar("T")
S = TypeVar("S")

VALUE_ROLE: Final = "value"
ELEMENT_ROLE: Final = "element"
USER_KEY_ROLE: Final = "user_key"

_MAX_NAME_CHARACTERS: Final = 200

_LEVELS_AROUND: Final = 2
"""How many serializers a state may add around the serializer of its values, such as one for the access time."""


class StoredKind(ABC):
    """A kind of stored state, independent of any store.

    There is one object per kind, a global of its module: ``VALUE`` of the kind "value".

    ``name`` is written to disk and frozen. ``getter`` is the method that registers such a state. ``fixed_roles`` maps
    the roles whose bytes determine the address of an entry to their names in messages. They are never migrated.
    """

    name: ClassVar[str]
    getter: ClassVar[str]
    fixed_roles: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @abstractmethod
    def storage_serializer(self, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
        """The serializer of one stored entry, from the serializers by role."""

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __reduce__(self) -> str:
        # A kind is one object even when pickled or copied: the global of its module with its name.
        return self.name.upper()


def as_serializer(given: TypeSerializer[T] | type[T] | TypeHint) -> TypeSerializer[T]:
    """Return a serializer unchanged, or the serializer of a type hint.

    Type checkers infer the type of a descriptor from it. They do not understand hints that are not classes, such as
    ``int | str`` and ``Annotated[...]``: annotate the variable of such a descriptor. Raises `UnknownTypeError` for a
    hint without a serializer, and `StateRegistrationError` for a serializer whose snapshot cannot be written or read
    again.
    """
    serializer: TypeSerializer[T] = given if isinstance(given, TypeSerializer) else serializer_for(given)
    try:
        snapshot_to_bytes(serializer.snapshot_configuration(), nesting=_LEVELS_AROUND)
    except StateFormatError as error:
        raise StateRegistrationError(
            f"state of type {serializer.type_name:.200} could be written, but never read: {error}"
        ) from error
    return serializer


def as_key_serializer(given: TypeSerializer[T] | type[T] | TypeHint) -> TypeSerializer[T]:
    """Like `as_serializer`, for the keys of a map. Timestamps are in UTC, so that one moment is one key."""
    return with_parts_replaced(as_serializer(given), _in_utc)


def _in_utc(serializer: TypeSerializer[Any]) -> TypeSerializer[Any] | None:
    if type(serializer) is not PythonDateTimeSerializer:
        return None
    return serializer if serializer.in_utc else PythonDateTimeSerializer(in_utc=True)


def with_parts_replaced(
    serializer: TypeSerializer[Any], replaced: Callable[[TypeSerializer[Any]], TypeSerializer[Any] | None]
) -> TypeSerializer[Any]:
    """Replace a serializer or its parts by the results of a function, which returns None to keep one."""
    made = replaced(serializer)
    if made is not None:
        return made
    if type(serializer) is ConvertingSerializer:
        inner = with_parts_replaced(serializer.inner, replaced)
        return serializer if inner is serializer.inner else serializer.around(inner)
    if type(serializer) is AttrsSerializer:
        parts = {part.name: with_parts_replaced(part.serializer, replaced) for part in serializer.fields}
        changed = any(parts[part.name] is not part.serializer for part in serializer.fields)
        return serializer.with_serializers(parts) if changed else serializer
    snapshot = serializer.snapshot_configuration()
    if not isinstance(snapshot, CompositeTypeSerializerSnapshot):
        return serializer
    nested = list(snapshot.nested_serializers(serializer))
    parts_now = [with_parts_replaced(part, replaced) for part in nested]
    if all(new is old for new, old in zip(parts_now, nested, strict=True)):
        return serializer
    around: TypeSerializer[Any] = snapshot.create_outer_serializer(parts_now)
    return around


_BIDIRECTIONAL: Final = frozenset(map(chr, (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))))
"""The characters that change the direction of text (Unicode Annex 9), so that a name looks like another one."""


def character_problem(name: str) -> str | None:
    """Return what follows "the name ..." for a name with a control or bidirectional character, otherwise None."""
    for character in name:
        category = unicodedata.category(character)
        code = f"U+{ord(character):04X}"
        if category in ("Cc", "Zl", "Zp"):
            return f"has the control character {code}; remove it"
        if category == "Cs":
            return f"has {code}, half of a surrogate pair; remove it"
        if character in _BIDIRECTIONAL:
            return f"has the bidirectional character {code}; remove it"
    return None


def check_elements(instance: Any, attribute: Any, serializer: TypeSerializer[Any]) -> None:
    """Raise `StateRegistrationError` if the elements of a list state may be None."""
    if isinstance(serializer, NullableSerializer):
        inner = serializer.inner.type_name
        raise StateRegistrationError(
            f"list state {instance.name!r}: None cannot be an element of a list state, so its elements cannot be "
            f"of type {serializer.type_name}; use {inner}"
        )


def check_state_name(what: str, name: object) -> None:
    """Raise `StateRegistrationError` if ``name`` is not a valid name; ``what`` names the state in messages."""
    if not isinstance(name, str) or not name or len(name) > _MAX_NAME_CHARACTERS:
        raise StateRegistrationError(
            f"{what} needs a name of 1 to {_MAX_NAME_CHARACTERS} characters, not {format_value(name)}"
        )
    problem = None if name.isprintable() else character_problem(name)
    if problem is not None:
        raise StateRegistrationError(f"the name {format_value(name)} of {what} {problem}")


class StateHolder:
    """The base of functions. A descriptor in the class body is registered before `open()`.

    In the opened object the attribute is the state itself, so no method has to set it.
    """


class OnClass(Generic[S]):
    """The base of descriptors that are allowed in a class body; ``S`` is the type of the state."""

    __slots__ = ()

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: StateHolder, owner: type | None = None) -> S: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> Self: ...
        def __get__(self, instance: object, owner: type | None = None) -> Any: ...

    else:

        def __get__(self, instance, owner=None):
            if not isinstance(instance, StateHolder):
                return self
            raise StateBackendError(
                f"state {self.name!r} of {type(instance).__name__} does not exist before open(): use it in "
                f"process_element and other methods that a job or a test harness calls, not in __init__ or setup()"
            )


def descriptors_on_class(holder: type) -> dict[str, Any]:
    """The descriptors in the bodies of a class and its bases, by attribute, bases first."""
    names = dict.fromkeys(name for part in reversed(holder.__mro__) for name in vars(part))
    found = {name: inspect.getattr_static(holder, name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, OnClass)}


def _check_name(instance: Any, attribute: Any, name: Any) -> None:
    check_state_name("a state", name)


@frozen
class Descriptor:
    """The base of all descriptors: of keyed state (`statebackend.state`), and of priority queues."""

    name: str = field(validator=_check_name)

    kind: ClassVar[StoredKind]

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        """The user's serializers by role."""
        raise TypeError(f"{type(self).__name__} is not a kind of state")

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> Descriptor:
        """Return the descriptor with other serializers, after one was reconfigured."""
        raise TypeError(f"{type(self).__name__} is not a kind of state")


if TYPE_CHECKING:
    import attr

    class _Dataclass(Protocol):
        __dataclass_fields__: ClassVar[dict[str, Any]]

    _Record: TypeAlias = attr.AttrsInstance | _Dataclass | enum.Enum
    _Collection: TypeAlias = list[Any] | dict[Any, Any] | set[Any] | frozenset[Any] | tuple[Any, ...]

Scalar = TypeVar(
    "Scalar",
    bool,
    int,
    float,
    str,
    bytes,
    decimal.Decimal,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
)
"""A type of single values."""

Composite = TypeVar("Composite", bound="_Record | _Collection")
"""A record class, an enum, or a collection with the types of its elements."""
