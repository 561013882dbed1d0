"""Stable names for snapshot classes: what the versioned envelope writes, and how it is found again.

A registered class is known by a frozen name and any number of aliases, so it may move or be renamed. A class that is
not registered is written as ``module:qualified.name`` and found by importing that module. Whatever is found must be a
subclass of `TypeSerializerSnapshot`: nothing else is ever instantiated, and nothing is unpickled. Where a serializer
is one of Flink's, its stable name is the name of Flink's snapshot class, so that the bytes are Flink's too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from snapshots.errors import SnapshotFormatError, UnknownSnapshotError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot

SnapshotClass = TypeVar("SnapshotClass", bound=type[TypeSerializerSnapshot[Any]])

_class_by_name: dict[str, type[TypeSerializerSnapshot[Any]]] = {}
_name_by_class: dict[type[TypeSerializerSnapshot[Any]], str] = {}


def register_snapshot(name: str, *, aliases: tuple[str, ...] = ()) -> Callable[[SnapshotClass], SnapshotClass]:
    """Class decorator: gives a snapshot class its frozen name, and the former names it must stay readable under.

    Raises `ValueError` when a name already belongs to another class.
    """

    def register(snapshot_class: SnapshotClass) -> SnapshotClass:
        for known in (name, *aliases):
            owner = _class_by_name.get(known)
            if owner is not None and _location(owner) != _location(snapshot_class):
                raise ValueError(
                    f"the snapshot name {known!r} belongs to {_location(owner)}; "
                    f"choose another name for {_location(snapshot_class)}"
                )
        for known in (name, *aliases):
            _class_by_name[known] = snapshot_class
        _name_by_class[snapshot_class] = name
        return snapshot_class

    return register


def registered_names() -> dict[str, type[TypeSerializerSnapshot[Any]]]:
    """All registered names and aliases with their classes, as a copy."""
    return dict(_class_by_name)


def snapshot_class_name(snapshot_class: type[TypeSerializerSnapshot[Any]]) -> str:
    """The name to write for a snapshot class; refuses a class that could not be found again."""
    name = _name_by_class.get(snapshot_class)
    if name is not None:
        return name
    if "<locals>" in snapshot_class.__qualname__:
        raise SnapshotFormatError(
            f"the snapshot class {_location(snapshot_class)} is local to a function and could not be found again: "
            f"move it to the top of its module or give it a name with @register_snapshot"
        )
    return _location(snapshot_class)


def snapshot_class_for(name: str) -> type[TypeSerializerSnapshot[Any]]:
    """The snapshot class of a written name; raises `UnknownSnapshotError` when there is none.

    What is found and is no snapshot class is refused with a `SnapshotFormatError`.
    """
    registered = _class_by_name.get(name)
    if registered is not None:
        return registered
    module_name, colon, qualified_name = name.partition(":")
    if not colon:
        raise UnknownSnapshotError(
            f"unknown serializer snapshot {name!r}: import the module that registers it, "
            f"or register the name as an alias of the class that replaced it"
        )
    try:
        found: object = importlib.import_module(module_name)
        for part in qualified_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UnknownSnapshotError(
            f"the serializer snapshot {name!r} cannot be imported ({error}): make it importable, "
            f"or register the name as an alias of the class that replaced it"
        ) from error
    if not (isinstance(found, type) and issubclass(found, TypeSerializerSnapshot)):
        raise SnapshotFormatError(f"{name!r} is not a TypeSerializerSnapshot and is refused")
    return found


def _location(snapshot_class: type[object]) -> str:
    return f"{snapshot_class.__module__}:{snapshot_class.__qualname__}"
