"""Which modules may be imported to find the class of a snapshot that this process has not defined.

Bytes must never choose what code runs. So reading a snapshot imports nothing, except modules that the program has
allowed by name (`allow_snapshot_modules`), and those whose names another process of the same program has declared.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from snapshots.errors import UnknownSnapshotError

_allowed_modules: set[str] = set()
_declared_modules: dict[str, str] = {}
_unavailable: dict[str, str] = {}


def declare_snapshot_modules(modules: Mapping[str, str]) -> None:
    """Says in which modules the classes of these names are; each is imported when its name is met first.

    For a process that reads what another process of the same program wrote, and has not imported what that one has.
    """
    _declared_modules.update(modules)


def declare_unavailable_snapshots(reasons: Mapping[str, str]) -> None:
    """Says why there are no classes of these names here; the reason is in the error when one of them is met."""
    _unavailable.update(reasons)


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


def import_class_of(name: str) -> None:
    """Imports the module in which the snapshot class of that name is, if the program, and not the bytes, has chosen it.

    Raises `UnknownSnapshotError` if it has not, or the module cannot be imported.
    """
    if name in _declared_modules:
        _import(name, _declared_modules[name])
        return
    module, colon, _ = name.partition(":")
    if not colon or name in _unavailable:
        because = f" ({_unavailable[name]})" if name in _unavailable else ""
        raise UnknownSnapshotError(
            f"unknown serializer snapshot {name!r}{because}: import the module that registers it, "
            f"or register the name as an alias of the class that replaced it"
        )
    if module == "__main__" and not _is_allowed(module):
        raise UnknownSnapshotError(
            f"the serializer snapshot {name!r} is of a class of a program that was run as a script, which no other "
            f"process finds: give the class a name with @register_snapshot('a.name.for.ever', aliases=({name!r},)), "
            f"in a module that is imported"
        )
    if not _is_allowed(module):
        raise UnknownSnapshotError(
            f"the serializer snapshot {name!r} is of a class that this process has not defined, and it is not imported "
            f"because bytes name it: import it in the program, let snapshots.allow_snapshot_modules({module!r}) allow "
            f"it, or register the name as an alias of the class that replaced it"
        )
    _import(name, module)


def _import(name: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise UnknownSnapshotError(
            f"the module {module!r} of the serializer snapshot {name!r} cannot be imported "
            f"({type(error).__name__}: {error}): make it importable, or register the name as an alias "
            f"of the class that replaced it"
        ) from error


def _is_allowed(module: str) -> bool:
    return any(module == allowed or module.startswith(f"{allowed}.") for allowed in _allowed_modules)
