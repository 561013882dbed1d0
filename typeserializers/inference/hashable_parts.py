"""Refusing sets and maps whose elements or keys Python cannot hash: nothing could ever be read into them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.errors import StateFormatError
from typeserializers.kernel.serializer_inference import UnknownTypeError
from typeserializers.kernel.type_serializer import TypeSerializer

_INSTEAD: Final[dict[Any, str]] = {
    list: "a tuple of fixed length, or a str or bytes made of it",
    dict: "a frozenset of pairs, or a frozen record",
    set: "a frozenset",
}


def refuse_unhashable(serializer: TypeSerializer[Any], path: str, what: str) -> None:
    """Raises `UnknownTypeError` if values are of a type without a hash, or hold some that are compared with them."""
    for part in _hashed_with(serializer):
        try:
            value_class = part.python_type
        except (StateFormatError, TypeError, ValueError):
            continue  # A record that is still being described, or cannot be made without its values.
        if value_class.__hash__ is None:
            instead = _INSTEAD.get(value_class, f"a frozen class in place of {part.type_name}")
            raise UnknownTypeError(
                f"{path or 'the type'}: a {part.type_name} has no hash and cannot be {what}; write {instead}"
            )


def _hashed_with(serializer: TypeSerializer[Any]) -> Iterator[TypeSerializer[Any]]:
    """The serializer and, for tuples and the like, those inside; what a record's hash depends on is its own."""
    yield serializer
    snapshot = serializer.snapshot_configuration()
    if isinstance(snapshot, CompositeTypeSerializerSnapshot):
        for nested in snapshot.nested_serializers(serializer):
            yield from _hashed_with(nested)
