"""Value state: one value per key and namespace.

stored entry                       value
stored entry with a time-to-live   ttl value(value)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import compress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from attrs import field, frozen

from snapshots.errors import SerializationError, format_value
from statebackend.state.descriptors import VALUE_ROLE, OnClass, as_serializer
from statebackend.state.errors import StateRegistrationError
from statebackend.state.internal_states import InternalState, Lifetime, Timed, TtlState
from statebackend.state.key_batch import KeyBatch
from statebackend.state.state_kind import HandleSource, StateDescriptor, StateKind, TableForm
from statebackend.state.states import ValueState
from statebackend.state.timed_access import TimedLines, set_timed_methods
from statebackend.state.ttl_config import StateTtlConfig
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer

if TYPE_CHECKING:
    from typing_extensions import Self

    from statebackend.state.descriptors import Composite, Scalar, StateHolder, TypeHint
    from statebackend.state.states import DefaultedValueState

T = TypeVar("T")

_TIME: Final = struct.Struct(">q")
"""The time before a value in a stored row."""


class InternalValueState(InternalState, ValueState[T]):
    """Value state with namespaces.

    Its bulk operations access many keys in the current namespace. A store overrides them if it is faster for many keys
    at once. Afterwards any key may be current.

    A store that keeps entries as bytes passes them on with `get_rows` and `put_rows`, so that a caller with a codec of
    columns creates no objects.
    """

    __slots__ = ()

    @classmethod
    def emit_read_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["stored = self.value()"]

    @classmethod
    def emit_write_stored(cls, function: GeneratedFunction) -> list[str]:
        return ["self.update(stored)"]

    @property
    def row_serializer(self) -> TypeSerializer[T] | None:
        """The serializer of the rows of `get_rows` and `put_rows`; None if the handle does not have these methods."""
        return None

    def get_rows(self, keys: KeyBatch) -> list[bytes | None]:
        """Return the stored bytes of each key, or those of the default, or None."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows")

    def put_rows(self, keys: KeyBatch, rows: Sequence[bytes | None]) -> None:
        """Set the stored bytes of each key, which `row_serializer` must be able to read. None clears."""
        raise NotImplementedError(f"{type(self).__name__} keeps no rows")

    def get_many(self, keys: KeyBatch) -> list[T | None]:
        """Return the value of each key, as `value` does."""
        self.read_ahead(keys.keys, keys.key_groups)
        return [self.value() for _ in keys.each()]

    def put_many(self, keys: KeyBatch, values: Sequence[T | None]) -> None:
        """Set the value of each key, as `update` does. The last value of a key that occurs twice counts.

        Raises `SerializationError` for a value that does not fit. Values before it may be set.
        """
        for _, value in zip(keys.each(), values, strict=True):
            self.update(value)


class ValueKind(StateKind):
    """Value state: one value per key."""

    name = "value"
    getter = "get_state"
    form = TableForm.VALUE
    handle_class = InternalValueState
    timed_role = VALUE_ROLE
    reads = MappingProxyType({"value": ""})
    writes = MappingProxyType({"update": "value", "clear": ""})

    def storage_serializer(self, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return serializers[VALUE_ROLE]

    def create_handle(self, table: HandleSource, context: Any, descriptor: ValueStateDescriptor[Any]) -> InternalState:
        state: InternalState = table.value_state(context, descriptor.serializer, descriptor.default)
        return state

    def timed_descriptor(
        self,
        descriptor: ValueStateDescriptor[Any],
        serializers: Mapping[str, TypeSerializer[Any]],
        lifetime: Lifetime,
    ) -> StateDescriptor:
        return ValueStateDescriptor(descriptor.name, serializers[VALUE_ROLE])

    def descriptor_in_use(
        self, descriptor: ValueStateDescriptor[Any], serializers: Mapping[str, TypeSerializer[Any]]
    ) -> ValueStateDescriptor[Any]:
        # The serializer in use, perhaps a reconfigured one, copies the default.
        stored: Any = serializers[VALUE_ROLE]
        return descriptor.with_serializers({VALUE_ROLE: stored.value_serializer})

    def timed_handle(
        self, stored: InternalValueState[Timed[Any]], lifetime: Lifetime, descriptor: ValueStateDescriptor[Any]
    ) -> TtlState:
        return TtlValueState(stored, lifetime, descriptor)


VALUE: Final = ValueKind()


@frozen(init=False)
class ValueStateDescriptor(StateDescriptor, OnClass[ValueState[T]]):
    """One value per key; `value()` returns ``default`` if there is none.

    Raises `StateRegistrationError` for a default that the serializer cannot write. For type checkers, `value()` of a
    state with a default is never None, and a default of another type is an error (`statebackend.state.descriptors`).
    """

    serializer: TypeSerializer[T] = field(converter=as_serializer)
    default: T | None = field(default=None, eq=False)
    _default_bytes: bytes | None = field(default=None, init=False, repr=False)
    """Descriptors are compared by these bytes: a NaN differs from itself, and a value may define its own equality."""

    kind = VALUE

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
                encoded = self.serializer.to_bytes(self.default)
                object.__setattr__(self, "_default_bytes", encoded)
                # A default reads as if it were stored: True of an int state as 1.
                object.__setattr__(self, "default", self.serializer.from_bytes(encoded))
            except SerializationError as error:
                raise StateRegistrationError(
                    f"state {self.name!r}: the default {format_value(self.default)} is not a value of the "
                    f"state: {error}"
                ) from error

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {VALUE_ROLE: self.serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> ValueStateDescriptor[T]:
        serializer: TypeSerializer[T] = serializers[VALUE_ROLE]
        return ValueStateDescriptor(self.name, serializer, self.default, ttl=self.ttl)


if TYPE_CHECKING:

    class DefaultedValueStateDescriptor(ValueStateDescriptor[T]):
        """The type of a `ValueStateDescriptor` with a default, for type checkers."""

        @overload
        def __get__(self, instance: StateHolder, owner: type | None = None) -> DefaultedValueState[T]: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> Self: ...
        def __get__(self, instance: object, owner: type | None = None) -> Any: ...


def _timed_methods(lines: TimedLines) -> dict[str, tuple[str, list[str]]]:
    absent = "default if encoded_default is None else read_default(encoded_default)"
    return {
        "value": ("", [*lines.visible(absent), "return value"]),
        "update": (
            "value",
            [
                *lines.start,
                *lines.kept_or_clear,
                "stored = (value, now_ms)",
                *lines.write,
            ],
        ),
    }


class TtlValueState(TtlState, InternalValueState[T]):
    """Value state with a time-to-live. An expired value is replaced by the default. Its accessors are generated."""

    __slots__ = ("_default", "_encoded_default", "_serializer", "update", "value")

    value: Any
    update: Any

    def __init__(
        self, stored: InternalValueState[Timed[T]], lifetime: Lifetime, descriptor: ValueStateDescriptor[T]
    ) -> None:
        super().__init__(stored, lifetime)
        serializer = self._serializer = descriptor.serializer
        self._default = descriptor.default
        self._encoded_default: bytes | None = None
        if descriptor.default is not None and not serializer.is_immutable_type:
            # The caller owns the returned value, so each call returns a copy.
            self._encoded_default = serializer.to_bytes(descriptor.default)
        self.set_methods()

    @property
    def row_serializer(self) -> TypeSerializer[T] | None:
        # With visible expired values, the first of two equal keys sees a value that the second does not.
        is_possible = self._stored.row_serializer is not None and not self.lifetime.returns_expired
        return self._serializer if is_possible else None

    def get_rows(self, keys: KeyBatch) -> list[bytes | None]:
        if not len(keys):
            return []
        self._clean_up_for(keys)
        now_ms = self.lifetime.clock()
        expired_ms, size, read = now_ms - self.lifetime.ttl_ms, _TIME.size, _TIME.unpack_from
        stored: list[bytes | None] = self._stored.get_rows(keys)
        times = [now_ms if row is None else read(row)[0] for row in stored]
        rows = [None if row is None else row[size:] for row in stored]
        if min(times) <= expired_ms:
            expired = [time <= expired_ms for time in times]
            rows = [None if is_expired else row for row, is_expired in zip(rows, expired, strict=True)]
            self._stored.put_rows(keys.only(expired), [None] * expired.count(True))
        if self.lifetime.renews_on_read:
            is_older = [row is not None and time < now_ms for row, time in zip(rows, times, strict=True)]
            if any(is_older):
                self.put_rows(keys.only(is_older), list(compress(rows, is_older)))
        if self._default is None:
            return rows
        default = self._serializer.to_bytes(self._default)
        return [default if row is None else row for row in rows]

    def put_rows(self, keys: KeyBatch, rows: Sequence[bytes | None]) -> None:
        self._clean_up_for(keys)
        time = _TIME.pack(self.lifetime.clock())
        self._stored.put_rows(keys, [None if row is None else time + row for row in rows])

    def _clean_up_for(self, keys: KeyBatch) -> None:
        """Clean up as often as single accesses do."""
        cleanup, now_ms = self.cleanup, self.lifetime.clock()
        if cleanup is None or cleanup.due_ms > now_ms or not len(keys):
            return
        keys.set_key(keys.keys[0], keys.key_groups[0])
        for _ in range(len(keys)):
            if cleanup.due_ms > now_ms:
                break
            cleanup()

    def remove_expired(self) -> None:
        stored: Timed[T] | None = self._stored.value()
        if stored is not None and self.lifetime.is_expired(stored):
            self._stored.clear()

    def set_methods(self) -> None:
        set_timed_methods(
            self,
            self._stored,
            self._serializer,
            _timed_methods,
            default=self._default,
            encoded_default=self._encoded_default,
            read_default=self._serializer.from_bytes,
        )
