"""Pickles of a program's classes and registrations, for workers that have not imported the program.

A class of ``__main__``, a notebook or a function is pickled by value: unpickling creates it, or finds the one that the
process already has. cloudpickle does that, with five gaps that are closed here:

* It always creates the class, and drops it if the process has one. A dropped snapshot class would stay registered
  without content. Here the existing class is registered.
* A nested class arrives under its bare name. Records and snapshots are stored under the qualified name.
* An enum whose constants have aliases cannot be unpickled, nor can a flag with names for several bits.
* An enum that inherits from a dataclass cannot be unpickled.
* Constants of an enum lose the attributes that ``__init__`` or ``__new__`` of the enum sets.

Stored state names the classes that read it. A worker reads restored state before the user's function runs any code. So
the driver sends its registrations: for each name the module to import, or the class itself if there is no module to
import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen
from pyspark import cloudpickle

from snapshots.envelope import known_snapshot_classes, register_snapshot
from snapshots.errors import format_value
from snapshots.permitted_modules import (
    allow_snapshot_modules,
    allowed_snapshot_modules,
    declare_snapshot_modules,
    declare_unavailable_snapshots,
)
from snapshots.type_serializer_snapshot import (
    TypeSerializerSnapshot,
    define_snapshot_class,
    without_defining_snapshot_classes,
)
from statebackend.streaming.errors import MissingModuleError

__all__ = ["pickled", "unpickled"]


def pickled(value: Any) -> bytes:
    """The pickle of a value, by value for what belongs to no module that is imported; raises what cloudpickle does."""
    with io.BytesIO() as file:
        _ProgramPickler(file).dump(value)  # type: ignore[no-untyped-call]
        return file.getvalue()


def unpickled(data: bytes) -> Any:
    """What was pickled; raises `ModuleNotFoundError` for a module that is not here."""
    return pickle.loads(data)


class _ProgramPickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if not isinstance(obj, type) or not isinstance(reduced, tuple) or len(reduced) < _PARTS_OF_A_CLASS:
            return reduced
        make, arguments, *rest = reduced
        if isinstance(obj, enum.EnumMeta):
            arguments, rest = _whole_enum(obj, arguments, rest)
        return _made_class, (obj.__qualname__, make, arguments), *rest


_PARTS_OF_A_CLASS = 6
"""The reduced form of a class that is created first and filled later; other classes are found by name."""


def _whole_enum(kind: Any, arguments: tuple[Any, ...], rest: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the reduced form with the aliases and the attributes of the constants.

    Names that iteration omits move to the members. cloudpickle sets them afterwards, which an enum rejects.
    """
    bases, name, qualified_name, _, *others = arguments
    members = {one: _as_written(member, kind) for one, member in kind.__members__.items()}
    (attributes, slots), *remaining, fill = rest
    kept = {one: value for one, value in attributes.items() if one not in members}
    own = {one: _own_attributes(member) for one, member in kind.__members__.items() if _own_attributes(member)}
    return (bases, name, qualified_name, members, *others), [(fill, (kept, slots), own), *remaining, _filled_enum]


def _as_written(member: enum.Enum, kind: Any) -> Any:
    """Return what makes a constant: its value, or the fields of a dataclass from which the enum inherits."""
    value = member.value
    if dataclasses.is_dataclass(value) and issubclass(kind, type(value)):
        return tuple(getattr(value, one.name) for one in dataclasses.fields(value) if one.init)
    return value


def _own_attributes(member: enum.Enum) -> dict[str, Any]:
    """Return the attributes of a constant, without those that its class sets, such as ``_value_``."""
    return {name: value for name, value in vars(member).items() if not re.fullmatch("_.*_", name)}


def _filled_enum(kind: Any, state: tuple[Callable[[type, Any], object], Any, dict[str, dict[str, Any]]]) -> None:
    fill, of_class, own = state
    fill(kind, of_class)
    for name, attributes in own.items():
        vars(kind.__members__[name]).update(attributes)


def _made_class(qualified_name: str, make: Callable[..., type[Any]], arguments: tuple[Any, ...]) -> type[Any]:
    """Return the class that this process has of that pickle, or a new one, which pickle fills later."""
    with without_defining_snapshot_classes():
        made = make(*arguments)
    made.__qualname__ = qualified_name
    if issubclass(made, TypeSerializerSnapshot):
        define_snapshot_class(made)
    return made


@frozen
class ProgramModules:
    """The snapshot classes of a program: names and modules, and pickles of those that belong to no module.

    ``unavailable`` are the names of classes that cannot be pickled, with the reason; ``allowed`` are the modules that
    the program allows to be imported for what it reads.
    """

    allowed: frozenset[str]
    modules: Mapping[str, str]
    pickles: Mapping[tuple[str, ...], bytes]
    unavailable: Mapping[str, str]

    @classmethod
    def of_this_process(cls) -> ProgramModules:
        """Return the classes that this process knows now."""
        modules: dict[str, str] = {}
        pickles: dict[tuple[str, ...], bytes] = {}
        unavailable: dict[str, str] = {}
        for snapshot_class, names in known_snapshot_classes().items():
            if _is_importable(snapshot_class):
                modules.update(dict.fromkeys(names, snapshot_class.__module__))
                continue
            try:
                pickles[names] = pickled(snapshot_class)
            except Exception as error:
                unavailable.update(
                    dict.fromkeys(names, f"it cannot be sent to the workers: {format_value(error, 200)}")
                )
        return cls(allowed_snapshot_modules(), modules, pickles, unavailable)

    def install(self) -> None:
        """Register them in this process without importing anything."""
        allow_snapshot_modules(*self.allowed)
        declare_snapshot_modules(self.modules)
        unavailable = dict(self.unavailable)
        for names, class_pickle in self.pickles.items():
            unavailable.update(_register_pickled(names, class_pickle))
        declare_unavailable_snapshots(unavailable)


@contextlib.contextmanager
def naming_missing_modules(where: str) -> Iterator[None]:
    """Raise `MissingModuleError` with a fix instead of an error that a missing module of this worker has caused."""
    try:
        yield
    except Exception as error:
        missing = _missing_module(error)
        if missing is None or isinstance(error, MissingModuleError):
            raise
        raise MissingModuleError(
            f"{where}: the module {missing!r} is not on this worker ({type(error).__name__}: {error}). Send it along "
            f"with spark.sparkContext.addPyFile(...) or spark-submit --py-files, install it on all executors, or put "
            f"its directory on their PYTHONPATH (spark.executorEnv.PYTHONPATH)"
        ) from error


def _register_pickled(names: tuple[str, ...], class_pickle: bytes) -> Mapping[str, str]:
    """Register a class under its names; return the reason for each name if that fails.

    This is not an error: most classes that a program knows are in no state of its job.
    """
    try:
        register_snapshot(names[0], aliases=names[1:])(unpickled(class_pickle))
    except Exception as error:
        return dict.fromkeys(names, f"it cannot be unpickled here: {format_value(error, 200)}")
    return {}


def _missing_module(error: BaseException | None) -> str | None:
    # The causes of errors of users and libraries may form a cycle.
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name
        seen.add(id(error))
        error = error.__cause__
    return None


def _is_importable(kind: type[object]) -> bool:
    """Whether another process should find the class by importing its module."""
    if kind.__module__ == "__main__" or _travels_by_value(kind.__module__):
        return False
    found: object = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _travels_by_value(module: str) -> bool:
    by_value = cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
    parts = module.split(".")
    return any(".".join(parts[:length]) in by_value for length in range(1, len(parts) + 1))
