"""State descriptors: what an operator registers in ``open()``.

A descriptor has a name, unique within its operator, a kind, and serializers by *role*. A serializer may be given as one
or as a type hint (`serializer_for`). From the user's serializers follow the *storage* serializer, which writes one
stored entry of the state: a value or an accumulator as it is, a chunk of list elements, a map value that may be None.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, overload

from attrs import evolve, field, frozen

from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import SerializationError, StateFormatError
from snapshots.value_text import shown
from statebackend.api.aggregate_function import AggregateFunction, ReduceFunction
from statebackend.api.errors import StateRegistrationError
from statebackend.api.time_to_live import StateTtlConfig
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.serializer_inference import serializer_for
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import NullValueSerializer

if TYPE_CHECKING:
    from types import UnionType
    from typing import TypeAlias, _SpecialForm

    from statebackend.api.typed_defaults import Composite, Scalar

    TypeHint: TypeAlias = UnionType | _SpecialForm

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
O = TypeVar("O")  # noqa: E741

VALUE_ROLE: Final = "value"
ELEMENT_ROLE: Final = "element"
USER_KEY_ROLE: Final = "user_key"
ACCUMULATOR_ROLE: Final = "accumulator"

_LEVELS_AROUND: Final = 2
"""How many serializers a state may put around that of its values, such as one for the time of their last access."""


class StateKind(enum.Enum):
    """The kinds of keyed state; the values are written to disk and frozen."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"
    PRIORITY_QUEUE = "priority_queue"


def as_serializer(given: TypeSerializer[T] | type[T] | TypeHint) -> TypeSerializer[T]:
    """A serializer as it is, or that of a type hint.

    Type checkers infer the type of a descriptor from it. Hints that are no classes for them, such as ``int | str`` and
    ``Annotated[...]``, they do not understand: annotate the variable that such a descriptor goes to.
    Raises `UnknownTypeError` for a hint that means no serializer, `StateRegistrationError` for a serializer whose
    snapshot cannot be written, or could not be read again.
    """
    serializer: TypeSerializer[T] = given if isinstance(given, TypeSerializer) else serializer_for(given)
    try:
        snapshot_to_bytes(serializer.snapshot_configuration(), nesting=_LEVELS_AROUND)
    except StateFormatError as error:
        raise StateRegistrationError(
            f"state of {serializer.type_name:.200} could be written and never read again: {error}"
        ) from error
    return serializer


def _check_name(instance: Any, attribute: Any, name: Any) -> None:
    if not isinstance(name, str) or not name or len(name) > 200:
        raise StateRegistrationError(f"a state needs a name of 1 to 200 characters, not {shown(name)}")
    if "\0" in name:
        raise StateRegistrationError(f"the name {shown(name)} of a state has a NUL in it; leave it out")


def _check_ttl(instance: Any, attribute: Any, ttl: Any) -> None:
    if ttl is not None and not isinstance(ttl, StateTtlConfig):
        raise StateRegistrationError(f"state {instance.name!r}: ttl must be a StateTtlConfig, not {shown(ttl)}")


@frozen
class StateDescriptor:
    """What all kinds share; use one of the subclasses.

    With ``ttl``, values, list elements and map entries expire each by themselves (`StateTtlConfig`).
    """

    name: str = field(validator=_check_name)
    ttl: StateTtlConfig | None = field(default=None, validator=_check_ttl, kw_only=True)

    kind: ClassVar[StateKind]

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        """The user's serializers by role."""
        raise TypeError(f"{type(self).__name__} is no kind of state")

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> StateDescriptor:
        """The same state with other serializers, after one was reconfigured."""
        raise TypeError(f"{type(self).__name__} is no kind of state")


@frozen(init=False)
class ValueStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key; ``default`` is what `value()` returns while there is none.

    Raises `StateRegistrationError` for a default that the serializer cannot write. For type checkers, `value()` of a
    state with a default is never None, and a default of another type is an error (`statebackend.api.typed_defaults`).
    """

    serializer: TypeSerializer[T] = field(converter=as_serializer)
    default: T | None = None

    kind = StateKind.VALUE

    if TYPE_CHECKING:

        @overload
        def __new__(
            cls, name: str, serializer: TypeSerializer[T] | type[T] | TypeHint, *, ttl: StateTtlConfig | None = None
        ) -> ValueStateDescriptor[T]: ...
        @overload
        def __new__(
            cls, name: str, serializer: TypeSerializer[T], default: T, *, ttl: StateTtlConfig | None = None
        ) -> DefaultedValueStateDescriptor[T]: ...
        @overload
        def __new__(
            cls, name: str, serializer: TypeHint, default: Any, *, ttl: StateTtlConfig | None = None
        ) -> DefaultedValueStateDescriptor[Any]: ...
        @overload
        def __new__(
            cls, name: str, serializer: type[Scalar], default: Scalar, *, ttl: StateTtlConfig | None = None
        ) -> DefaultedValueStateDescriptor[Scalar]: ...
        @overload
        def __new__(
            cls, name: str, serializer: type[Composite], default: Composite, *, ttl: StateTtlConfig | None = None
        ) -> DefaultedValueStateDescriptor[Composite]: ...
        @overload
        def __new__(
            cls, name: str, serializer: TypeSerializer[T] | type[T], default: None, *, ttl: StateTtlConfig | None = None
        ) -> ValueStateDescriptor[T]: ...
        def __new__(cls, *arguments: Any, **options: Any) -> Any: ...

    else:

        def __init__(self, name, serializer, default=None, *, ttl=None):
            self.__attrs_init__(name, serializer, default, ttl=ttl)

    def __attrs_post_init__(self) -> None:
        if self.default is not None:
            try:
                self.serializer.to_bytes(self.default)
            except SerializationError as error:
                raise StateRegistrationError(
                    f"state {self.name!r}: the default {shown(self.default)} is not a value of the state: {error}"
                ) from error

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {VALUE_ROLE: self.serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> ValueStateDescriptor[T]:
        serializer: TypeSerializer[T] = serializers[VALUE_ROLE]
        return ValueStateDescriptor(self.name, serializer, self.default, ttl=self.ttl)


if TYPE_CHECKING:

    class DefaultedValueStateDescriptor(ValueStateDescriptor[T]):
        """What a `ValueStateDescriptor` with a default is to type checkers."""


@frozen
class ListStateDescriptor(StateDescriptor, Generic[T]):
    """A list of elements per key."""

    element_serializer: TypeSerializer[T] = field(converter=as_serializer)

    kind = StateKind.LIST

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ELEMENT_ROLE: self.element_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> ListStateDescriptor[T]:
        return evolve(self, element_serializer=serializers[ELEMENT_ROLE])


@frozen
class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """A map per key, each entry stored by itself."""

    key_serializer: TypeSerializer[K] = field(converter=as_serializer)
    value_serializer: TypeSerializer[V] = field(converter=as_serializer)

    kind = StateKind.MAP

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {USER_KEY_ROLE: self.key_serializer, VALUE_ROLE: self.value_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> MapStateDescriptor[K, V]:
        return evolve(self, key_serializer=serializers[USER_KEY_ROLE], value_serializer=serializers[VALUE_ROLE])


def _check_reduce_function(instance: Any, attribute: Any, function: Any) -> None:
    if not callable(function):
        raise StateRegistrationError(
            f"reducing state {instance.name!r} needs a function of two values, not {shown(function)}"
        )


def _check_aggregate_function(instance: Any, attribute: Any, function: Any) -> None:
    if not isinstance(function, AggregateFunction):
        raise StateRegistrationError(
            f"aggregating state {instance.name!r} needs an instance of an AggregateFunction, not {shown(function)}"
        )


@frozen
class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key, into which ``reduce_function`` folds every value that is added.

    The function is no part of what is stored: it may change from one run to the next. Descriptors are equal only if
    their functions are.
    """

    reduce_function: ReduceFunction[T] = field(validator=_check_reduce_function)
    serializer: TypeSerializer[T] = field(converter=as_serializer)

    kind = StateKind.REDUCING

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {VALUE_ROLE: self.serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> ReducingStateDescriptor[T]:
        return evolve(self, serializer=serializers[VALUE_ROLE])

    @property
    def stored_value(self) -> ValueStateDescriptor[T]:
        """The value state that the folded value is kept in."""
        return ValueStateDescriptor(self.name, self.serializer)


@frozen
class AggregatingStateDescriptor(StateDescriptor, Generic[I, A, O]):
    """One accumulator per key, into which ``aggregate_function`` folds every value that is added.

    As with reducing state, the function may change from one run to the next; the accumulator is what is stored.
    """

    aggregate_function: AggregateFunction[I, A, O] = field(validator=_check_aggregate_function)
    accumulator_serializer: TypeSerializer[A] = field(converter=as_serializer)

    kind = StateKind.AGGREGATING

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ACCUMULATOR_ROLE: self.accumulator_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> AggregatingStateDescriptor[I, A, O]:
        return evolve(self, accumulator_serializer=serializers[ACCUMULATOR_ROLE])

    @property
    def stored_value(self) -> ValueStateDescriptor[A]:
        """The value state that the accumulator is kept in."""
        return ValueStateDescriptor(self.name, self.accumulator_serializer)


@frozen
class PriorityQueueDescriptor(StateDescriptor, Generic[T]):
    """A queue of elements in the order of their bytes, kept by key group and not by key: timers.

    The serializer must write what comes first as the smaller bytes, compared as unsigned, as `TimerSerializer` does.
    It is registered with `KeyedStateBackend.get_priority_queue`.
    """

    element_serializer: TypeSerializer[T] = field(converter=as_serializer)

    kind = StateKind.PRIORITY_QUEUE

    def __attrs_post_init__(self) -> None:
        if self.ttl is not None:
            raise StateRegistrationError(f"priority queue {self.name!r}: its elements are removed, and never expire")

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ELEMENT_ROLE: self.element_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> PriorityQueueDescriptor[T]:
        return evolve(self, element_serializer=serializers[ELEMENT_ROLE])


def storage_serializer(kind: StateKind, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
    """The serializer of one stored entry: a value, a chunk of a list, a map value that may be None, an accumulator.

    An element of a queue is stored in the place of a key, with nothing as its value.
    """
    return _STORAGE[kind](serializers)


_STORAGE: Final[dict[StateKind, Callable[[Mapping[str, TypeSerializer[Any]]], TypeSerializer[Any]]]] = {
    StateKind.VALUE: lambda serializers: serializers[VALUE_ROLE],
    StateKind.LIST: lambda serializers: ListSerializer(serializers[ELEMENT_ROLE]),
    StateKind.MAP: lambda serializers: NullableSerializer(serializers[VALUE_ROLE]),
    StateKind.REDUCING: lambda serializers: serializers[VALUE_ROLE],
    StateKind.AGGREGATING: lambda serializers: serializers[ACCUMULATOR_ROLE],
    StateKind.PRIORITY_QUEUE: lambda _: NullValueSerializer(),
}
