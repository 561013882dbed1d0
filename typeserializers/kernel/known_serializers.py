"""Restores serializers with the classes of the program, and the names of Flink's snapshot classes.

A snapshot has the names of records, enums and classes and never imports any. A name is not looked up in the classes
that this process happens to have loaded, because the same state would then be read differently in another process. It
is looked up in serializers that the program passes, and in everything inside them:

    serializer = restored_with(snapshot, new_serializer)

Without any, a record or an enum is restored as a stand-in with the same fields or constants, and no pickle is
unpickled. A context variable passes the known serializers to the nested snapshots.

Flink's names are our stable names wherever the layout is Flink's. They are written in every snapshot: never change
them.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.references import all_inside
from typeserializers.kernel.type_serializer import TypeSerializer

BASE: Final = "org.apache.flink.api.common.typeutils.base."
ARRAY: Final = BASE + "array."
RUNTIME: Final = "org.apache.flink.api.java.typeutils.runtime."


def nested_snapshot(package: str, serializer: str) -> str:
    """Returns the usual name: a class ``XSerializerSnapshot`` inside ``XSerializer``."""
    return f"{package}{serializer}${serializer}Snapshot"


S = TypeVar("S", bound=TypeSerializer[Any])

_Known = tuple[TypeSerializer[Any], ...]

_known: contextvars.ContextVar[_Known] = contextvars.ContextVar("known_serializers", default=())


@contextmanager
def known_serializers(*serializers: TypeSerializer[Any]) -> Iterator[None]:
    """Restores snapshots inside the block with the classes of these serializers and of all nested ones."""
    found: list[TypeSerializer[Any]] = []
    _collect(serializers, found)
    token = _known.set(tuple(found))
    try:
        yield
    finally:
        _known.reset(token)


def known_of(serializer_class: type[S]) -> Iterator[S]:
    """Returns the known serializers of a class, in the order passed."""
    return (serializer for serializer in _known.get() if isinstance(serializer, serializer_class))


def restored_with(snapshot: TypeSerializerSnapshot[Any], *serializers: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Restores a serializer with the classes of these serializers, by name.

    Raises what `restore_serializer` raises.
    """
    with known_serializers(*serializers):
        return snapshot.restore_serializer()


def _collect(serializers: tuple[TypeSerializer[Any], ...], found: list[TypeSerializer[Any]]) -> None:
    for serializer in serializers:
        for inside in all_inside(serializer):
            found.append(inside)
            _collect(tuple(inside.source_serializers), found)
