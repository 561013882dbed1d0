"""Value state on the heap. A change is the new stored value, or `DELETED`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from snapshots.errors import SerializationError
from statebackend.descriptors import ValueStateDescriptor
from statebackend.exact_values import compile_exact, exact_condition, guarded
from statebackend.heap.handle import HeapStateHandle
from statebackend.heap.stored_form import Load
from statebackend.heap.table import DELETED, MISSING, HeapTable, Row, address_of_row
from statebackend.internal_states import InternalValueState
from statebackend.key_context import AnyKeyContext
from typeserializers.code_generation import GeneratedFunction
from typeserializers.type_serializer import TypeSerializer

T = TypeVar("T")


class ValueTable(HeapTable):
    """What is stored under a key is the value's stored form."""

    __slots__ = ()

    def merged(self, stored: Any, change: Any) -> Any:
        return MISSING if change is DELETED else change

    absorbed = merged

    def changed_rows(self) -> list[Row]:
        # The same as for other kinds without a generator per key: an epoch changes values more than anything else.
        base, groups, to_bytes, write = self.base, self.groups, self.keys.to_bytes, self.form.write
        rows: list[Row] = []
        for key, change in self.delta.items():
            if change is not DELETED:
                key_bytes, namespace = to_bytes(key)
                rows.append((groups[key], key_bytes, namespace, None, write(change)))
            elif key in base[groups[key]]:
                key_bytes, namespace = to_bytes(key)
                rows.append((groups[key], key_bytes, namespace, None, None))
        rows.sort(key=address_of_row)
        return rows

    def fold(self) -> None:
        base, groups = self.base, self.groups
        for key, change in self.delta.items():
            if change is DELETED:
                base[groups[key]].pop(key, None)
            else:
                base[groups[key]][key] = change
        self.delta.clear()
        groups.clear()

    def rows_of(self, stored: Any) -> Iterator[tuple[bytes | None, bytes]]:
        yield None, self.form.write(stored)

    def changed_rows_of(self, in_base: bool, change: Any) -> Iterator[tuple[bytes | None, bytes | None]]:
        if change is not DELETED:
            yield None, self.form.write(change)
        elif in_base:
            yield None, None

    def load_entry(self, key_group: int, key: Any, user_key: bytes | None, value: bytes | None, load: Load) -> None:
        if value is None:
            self.base[key_group].pop(key, None)
        else:
            self.base[key_group][key] = self.load_value(value, load)

    def entry_count(self) -> int:
        return sum(map(len, self.base.values()))


class HeapObjectValueState(HeapStateHandle, InternalValueState[T]):
    """Values of an immutable type; `update` is generated for the serializer (see `create_value_state`)."""

    __slots__ = ("_default", "_exact")

    def __init__(
        self, table: HeapTable, context: AnyKeyContext, descriptor: ValueStateDescriptor[T]
    ) -> None:
        super().__init__(table, context)
        self._default = descriptor.default
        self._exact = compile_exact(descriptor.serializer, self.describe)

    def value(self) -> T | None:
        value: Any = self._delta.get(self._context.key)
        if value is None:
            context = self._context
            value = self._base[context.key_group].get(context.key)
            return self._default if value is None else value
        return self._default if value is DELETED else value

    def update(self, value: T | None) -> None:
        raise NotImplementedError("made by create_value_state")

    def clear(self) -> None:
        key = self._context.key
        if key not in self._delta:
            self._admit(key, self._context.key_group)
        self._delta[key] = DELETED


class HeapEncodedValueState(HeapStateHandle, InternalValueState[T]):
    """Values of a mutable type, kept as bytes."""

    __slots__ = ("_encoded_default", "_read", "_serializer", "_write")

    def __init__(
        self, table: HeapTable, context: AnyKeyContext, descriptor: ValueStateDescriptor[T]
    ) -> None:
        super().__init__(table, context)
        serializer = descriptor.serializer
        self._serializer = serializer
        self._write = serializer.codec.write
        self._read = serializer.codec.read
        self._encoded_default = None if descriptor.default is None else self._encode(descriptor.default)

    def value(self) -> T | None:
        context = self._context
        encoded: Any = self._delta.get(context.key)
        if encoded is None:
            encoded = self._base[context.key_group].get(context.key)
        if encoded is None or encoded is DELETED:
            encoded = self._encoded_default
            if encoded is None:
                return None
        try:
            value, end = self._read(encoded, 0)
        except Exception as error:
            raise self._unreadable(error) from error
        if end != len(encoded):
            raise self._unreadable(f"it ends at byte {end} of {len(encoded)}")
        return value

    def update(self, value: T | None) -> None:
        if value is None:
            self.clear()
            return
        try:
            encoded = self._write(value)
        except Exception:
            encoded = self._encode(value)
        key = self._context.key
        if key not in self._delta:
            self._admit(key, self._context.key_group)
        self._delta[key] = encoded

    def clear(self) -> None:
        key = self._context.key
        if key not in self._delta:
            self._admit(key, self._context.key_group)
        self._delta[key] = DELETED

    def _encode(self, value: T) -> bytes:
        try:
            return self._serializer.to_bytes(value)
        except SerializationError as error:
            raise SerializationError(f"{self.describe()}: {error.serializer_name}", error.problems) from error


def create_value_state(
    table: HeapTable, context: AnyKeyContext, descriptor: ValueStateDescriptor[Any]
) -> HeapStateHandle:
    """The handle for a table and the form it keeps its values in."""
    if table.form.is_encoded:
        return HeapEncodedValueState(table, context, descriptor)
    return _object_value_state(descriptor.serializer)(table, context, descriptor)


@functools.lru_cache(maxsize=256)
def _object_value_state(serializer: TypeSerializer[Any]) -> type[HeapObjectValueState[Any]]:
    """A class whose `update` has the check of this serializer built in: a call would cost as much as the rest."""
    body = {"__slots__": (), "update": _compile_update(serializer)}
    return type("HeapObjectValueState", (HeapObjectValueState,), body)


def _compile_update(serializer: TypeSerializer[Any]) -> Callable[[Any, Any], None]:
    function = GeneratedFunction("update", "self, value")
    condition = exact_condition(serializer, "value", "value", function) or "False"
    lines = ["if value is None: return self.clear()"]
    lines += guarded(condition, "exact = value") if ":=" in condition else [f"if {condition}: pass"]
    if ":=" in condition:
        lines = ["exact = None", *lines, "if exact is None: value = self._exact(value)"]
    else:
        lines.append("else: value = self._exact(value)")
    lines += [
        "key = self._context.key",
        "if key not in self._delta: self._admit(key, self._context.key_group)",
        "self._delta[key] = value",
    ]
    return function.compile(lines)
