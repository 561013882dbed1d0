"""Values as bytes, with the errors that handles raise for what does not fit: the same in every store.

A value that is encoded when it is given, and decoded when it is asked for, makes true most of what is promised of
values: a misfit is refused before anything changes, what was given or returned is the caller's own, a value is what its
bytes say from the first read on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from snapshots.errors import SerializationError
from snapshots.value_text import shown
from statebackend.api.errors import null_element, unreadable_entry
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")


def encoded(state_name: str, serializer: TypeSerializer[T], value: T) -> bytes:
    """The bytes of a value; raises `SerializationError`, naming the state and the path in the value."""
    try:
        return serializer.to_bytes(value)
    except SerializationError as error:
        raise error.within(f"state {state_name!r}") from error


def encoded_user_key(state_name: str, serializer: TypeSerializer[T], key: T) -> bytes:
    """The bytes of a key of a map, as `encoded`; None is refused even if the serializer would write it."""
    if key is None:
        raise SerializationError(f"state {state_name!r}", ("None cannot be a key of a map state",))
    return encoded(state_name, serializer, key)


def encoded_user_value(state_name: str, serializer: TypeSerializer[T], key: Any, value: T) -> bytes:
    """The bytes of a value of a map, as `encoded`; an error names the key too."""
    try:
        return encoded(state_name, serializer, value)
    except SerializationError as error:
        raise error.at(f"{{{shown(key)}}}") from error


def checked_elements(state_name: str, elements: Iterable[T]) -> list[T]:
    """The elements to add to a list, as a list; None among them is refused, with its place."""
    checked = list(elements)
    for position, element in enumerate(checked):
        if element is None:
            raise null_element(f"state {state_name!r}", position)
    return checked


def decoded(state_name: str, serializer: TypeSerializer[T], data: bytes) -> T:
    """The value of stored bytes; raises `StateRestoreError`, naming the state, if they are not the serializer's."""
    try:
        return serializer.from_bytes(data)
    except Exception as error:
        raise unreadable_entry(f"state {state_name!r}", serializer, error) from error
