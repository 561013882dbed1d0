"""What the names in a snapshot may mean: the serializers that whoever restores it passes.

A snapshot has the names of records, enums and classes, and never imports any. Which class a name means is not looked up
in what this process happens to have made before, since the same state would then be read in one way here and in another
there. It is looked up among the serializers of the program that are passed, with everything inside them:

    serializer = restored_with(snapshot, new_serializer)

Without any, a record or an enum is restored as a stand-in, which has the same fields or constants, and no pickle is
unpickled. What is passed travels to `TypeSerializerSnapshot.restore_serializer` of the snapshots inside by the context
of the call, so that a snapshot which has nothing to look up need not know of it.

The names of Flink's snapshot classes, used as our stable names wherever the layout is Flink's.

They are written to disk in every snapshot: do not change them.
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
    """The usual form: a class ``XSerializerSnapshot`` inside ``XSerializer``."""
    return f"{package}{serializer}${serializer}Snapshot"


S = TypeVar("S", bound=TypeSerializer[Any])

_Known = tuple[TypeSerializer[Any], ...]

_known: contextvars.ContextVar[_Known] = contextvars.ContextVar("known_serializers", default=())


@contextmanager
def known_serializers(*serializers: TypeSerializer[Any]) -> Iterator[None]:
    """Inside the block, snapshots are restored with the classes of these serializers, and of all inside them."""
    found: list[TypeSerializer[Any]] = []
    _collect(serializers, found)
    token = _known.set(tuple(found))
    try:
        yield
    finally:
        _known.reset(token)


def known_of(serializer_class: type[S]) -> Iterator[S]:
    """The known serializers of a class, as they were passed."""
    return (serializer for serializer in _known.get() if isinstance(serializer, serializer_class))


def restored_with(snapshot: TypeSerializerSnapshot[Any], *serializers: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """The serializer that a snapshot describes, with the classes of these serializers where their names are met.

    Raises what `restore_serializer` does.
    """
    with known_serializers(*serializers):
        return snapshot.restore_serializer()


def _collect(serializers: tuple[TypeSerializer[Any], ...], found: list[TypeSerializer[Any]]) -> None:
    for serializer in serializers:
        for inside in all_inside(serializer):
            found.append(inside)
            _collect(tuple(inside.source_serializers), found)
