"""Stable names for snapshot classes: what the versioned envelope writes, and how it is found again.

A registered class is known by a frozen name and any number of aliases, so it may move or be renamed. A class that is
not registered is written as ``module:qualified.name`` and found if this process has defined a class of that name.
Where a serializer is one of Flink's, its stable name is the name of Flink's snapshot class, so that the bytes are
Flink's too.

Bytes must never choose what code runs. So reading a snapshot imports nothing, except modules that the program has
allowed by name (`allow_snapshot_modules`), and those whose names another process of the same program has declared; only
subclasses of `TypeSerializerSnapshot` are ever instantiated, and nothing is unpickled.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from snapshots.errors import SnapshotFormatError, UnknownSnapshotError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, defined_snapshot_classes, location_of

SnapshotClass = TypeVar("SnapshotClass", bound=type[TypeSerializerSnapshot[Any]])

_class_by_name: dict[str, type[TypeSerializerSnapshot[Any]]] = {}
_name_by_class: dict[type[TypeSerializerSnapshot[Any]], str] = {}
_allowed_modules: set[str] = set()
_declared_modules: dict[str, str] = {}
_unavailable: dict[str, str] = {}


def register_snapshot(name: str, *, aliases: tuple[str, ...] = ()) -> Callable[[SnapshotClass], SnapshotClass]:
    """Class decorator: gives a snapshot class its frozen name, and the former names it must stay readable under.

    Raises `ValueError` when a name already belongs to another class.
    """

    def register(snapshot_class: SnapshotClass) -> SnapshotClass:
        for known in (name, *aliases):
            owner = _class_by_name.get(known)
            if owner is not None and location_of(owner) != location_of(snapshot_class):
                raise ValueError(
                    f"the snapshot name {known!r} belongs to {location_of(owner)}; "
                    f"choose another name for {location_of(snapshot_class)}"
                )
        for known in (name, *aliases):
            _class_by_name[known] = snapshot_class
        _name_by_class[snapshot_class] = name
        return snapshot_class

    return register


def registered_names() -> dict[str, type[TypeSerializerSnapshot[Any]]]:
    """All registered names and aliases with their classes, as a copy."""
    return dict(_class_by_name)


def known_snapshot_classes() -> dict[type[TypeSerializerSnapshot[Any]], tuple[str, ...]]:
    """All snapshot classes of this process that can be written, each with its name and then its aliases."""
    known: dict[type[TypeSerializerSnapshot[Any]], tuple[str, ...]] = {
        snapshot_class: (snapshot_class_name(snapshot_class),)
        for snapshot_class in (*defined_snapshot_classes().values(), *_name_by_class)
    }
    for name, snapshot_class in _class_by_name.items():
        if name not in known[snapshot_class]:
            known[snapshot_class] = (*known[snapshot_class], name)
    return known


def declare_snapshot_modules(modules: Mapping[str, str]) -> None:
    """Says in which modules the classes of these names are; each is imported when its name is met first.

    For a process that reads what another process of the same program wrote, and has not imported what that one has.
    """
    _declared_modules.update(modules)


def declare_unavailable_snapshots(reasons: Mapping[str, str]) -> None:
    """Says why there are no classes of these names here; the reason is in the error when one of them is met."""
    _unavailable.update(reasons)


def snapshot_class_name(snapshot_class: type[TypeSerializerSnapshot[Any]]) -> str:
    """The name to write for a snapshot class; refuses a class that could not be found again."""
    name = _name_by_class.get(snapshot_class)
    if name is not None:
        return name
    if "<locals>" in snapshot_class.__qualname__:
        raise SnapshotFormatError(
            f"the snapshot class {location_of(snapshot_class)} is local to a function and could not be found again: "
            f"move it to the top of its module or give it a name with @register_snapshot"
        )
    return location_of(snapshot_class)


def allow_snapshot_modules(*modules: str) -> None:
    """Lets snapshots of unregistered classes be found by importing these modules, or modules inside these packages.

    Needed only by a program that reads state without importing the modules of the serializers that wrote it. What such
    a module does when it is imported is then up to whoever may write the state: name modules of serializers, and no
    package that has anything else in it.
    """
    _allowed_modules.update(modules)


def allowed_snapshot_modules() -> frozenset[str]:
    """The modules and packages that `allow_snapshot_modules` was given in this process."""
    return frozenset(_allowed_modules)


def snapshot_class_for(name: str) -> type[TypeSerializerSnapshot[Any]]:
    """The snapshot class of a written name; raises `UnknownSnapshotError` when there is none."""
    known = _class_by_name.get(name) or defined_snapshot_classes().get(name)
    if known is not None:
        return known
    if name in _declared_modules:
        return _imported(name, _declared_modules[name])
    module, colon, _ = name.partition(":")
    if not colon or name in _unavailable:
        because = f" ({_unavailable[name]})" if name in _unavailable else ""
        raise UnknownSnapshotError(
            f"unknown serializer snapshot {name!r}{because}: import the module that registers it, "
            f"or register the name as an alias of the class that replaced it"
        )
    if not _is_allowed(module):
        raise UnknownSnapshotError(
            f"the serializer snapshot {name!r} is of a class that this process has not defined, and it is not imported "
            f"because bytes name it: import it in the program, let snapshots.allow_snapshot_modules({module!r}) allow "
            f"it, or register the name as an alias of the class that replaced it"
        )
    return _imported(name, module)


def _imported(name: str, module: str) -> type[TypeSerializerSnapshot[Any]]:
    """The class of a name, found by importing a module that the program, and not the bytes, has chosen."""
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise UnknownSnapshotError(
            f"the module {module!r} of the serializer snapshot {name!r} cannot be imported "
            f"({type(error).__name__}: {error}): make it importable, or register the name as an alias "
            f"of the class that replaced it"
        ) from error
    found = _class_by_name.get(name) or defined_snapshot_classes().get(name)
    if found is None:
        raise UnknownSnapshotError(
            f"the module of the serializer snapshot {name!r} does not define it any more: "
            f"register the name as an alias of the class that replaced it"
        )
    return found


def _is_allowed(module: str) -> bool:
    return any(module == allowed or module.startswith(f"{allowed}.") for allowed in _allowed_modules)
