"""State descriptors: what an operator registers in ``open()``.

A descriptor has a name, unique within its operator, a kind, and serializers by *role*. A serializer may be given as one
or as a type hint (`serializer_for`). From the user's serializers follow the *storage* serializer, which writes one
stored entry of the state: a value as it is, a chunk of list elements, a map value that may be None.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

from attrs import field, frozen

from statebackend.errors import StateRegistrationError
from typeserializers.inference import serializer_for
from typeserializers.lists import ListSerializer
from typeserializers.nullable import NullableSerializer
from typeserializers.type_serializer import TypeSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

VALUE_ROLE: Final = "value"
ELEMENT_ROLE: Final = "element"
USER_KEY_ROLE: Final = "user_key"


class StateKind(enum.Enum):
    """The kinds of keyed state; the values are written to disk and frozen."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"


def _serializer(given: Any) -> TypeSerializer[Any]:
    return given if isinstance(given, TypeSerializer) else serializer_for(given)


def _check_name(instance: Any, attribute: Any, name: Any) -> None:
    if not isinstance(name, str) or not name or len(name) > 200:
        raise StateRegistrationError(f"a state needs a name of 1 to 200 characters, not {name!r:.80}")


@frozen
class StateDescriptor:
    """What all kinds share; use one of the subclasses."""

    name: str = field(validator=_check_name)

    kind: ClassVar[StateKind]

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        """The user's serializers by role."""
        raise TypeError(f"{type(self).__name__} is no kind of state")

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> StateDescriptor:
        """The same state with other serializers, after one was reconfigured."""
        raise TypeError(f"{type(self).__name__} is no kind of state")


@frozen
class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key; ``default`` is what `value()` returns while there is none."""

    serializer: TypeSerializer[T] = field(converter=_serializer)
    default: T | None = None

    kind = StateKind.VALUE

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {VALUE_ROLE: self.serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> ValueStateDescriptor[T]:
        return ValueStateDescriptor(self.name, serializers[VALUE_ROLE], self.default)


@frozen
class ListStateDescriptor(StateDescriptor, Generic[T]):
    """A list of elements per key."""

    element_serializer: TypeSerializer[T] = field(converter=_serializer)

    kind = StateKind.LIST

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ELEMENT_ROLE: self.element_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> ListStateDescriptor[T]:
        return ListStateDescriptor(self.name, serializers[ELEMENT_ROLE])


@frozen
class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """A map per key, each entry stored by itself."""

    key_serializer: TypeSerializer[K] = field(converter=_serializer)
    value_serializer: TypeSerializer[V] = field(converter=_serializer)

    kind = StateKind.MAP

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {USER_KEY_ROLE: self.key_serializer, VALUE_ROLE: self.value_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> MapStateDescriptor[K, V]:
        return MapStateDescriptor(self.name, serializers[USER_KEY_ROLE], serializers[VALUE_ROLE])


def storage_serializer(kind: StateKind, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
    """The serializer of one stored entry: a value, a chunk of a list, a map value that may be None."""
    return _STORAGE[kind](serializers)


_STORAGE: Final[dict[StateKind, Callable[[Mapping[str, TypeSerializer[Any]]], TypeSerializer[Any]]]] = {
    StateKind.VALUE: lambda serializers: serializers[VALUE_ROLE],
    StateKind.LIST: lambda serializers: ListSerializer(serializers[ELEMENT_ROLE]),
    StateKind.MAP: lambda serializers: NullableSerializer(serializers[VALUE_ROLE]),
}
