"""Which modules may be imported to find the class of a snapshot that this process has not defined.

Stored bytes must never choose what code runs. Reading a snapshot therefore imports only modules that the program
allowed by name (`allow_snapshot_modules`), and modules that another process of the same program declared.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

from snapshots.errors import UnknownSnapshotError

_allowed_modules: set[str] = set()
_declared_modules: dict[str, str] = {}
_unavailable: dict[str, str] = {}


def declare_snapshot_modules(modules: Mapping[str, str]) -> None:
    """Declares the modules of snapshot classes by name; each module is imported when its name is first read.

    Used by a process that reads what another process of the same program wrote, before it imported the same modules.
    """
    _declared_modules.update(modules)


def declare_unavailable_snapshots(reasons: Mapping[str, str]) -> None:
    """Declares why the classes of these names are missing; the error for such a name contains the reason."""
    _unavailable.update(reasons)


def allow_snapshot_modules(*modules: str) -> None:
    """Allows importing these modules, or modules inside these packages, to find unregistered snapshot classes.

    Needed only if a program reads state without importing the modules of its serializers. Anyone who can write the
    state can then trigger the import of such a module. Name modules of serializers only, and no larger package.
    """
    _allowed_modules.update(modules)


def allowed_snapshot_modules() -> frozenset[str]:
    """Returns the modules and packages that this process allowed with `allow_snapshot_modules`."""
    return frozenset(_allowed_modules)


_SCALA: Final = "types of Flink's Scala API cannot be read. Use POJOs or tuples in the job"
_SQL: Final = "this type of Flink SQL cannot be read. Cast the column to another type in the query"
_PATTERNS: Final = "partial matches of Flink's pattern matching (CEP) cannot be read. Remove the pattern from the job"
_FIXES: Final = (
    ("org.apache.flink.cep.", _PATTERNS),
    ("org.apache.flink.table.", _SQL),
    ("org.apache.flink.api.scala.", _SCALA),
    ("org.apache.flink.runtime.types.", _SCALA),
)
"""What to do in Flink, by the package of the snapshot."""


def import_class_of(name: str) -> None:
    """Imports the module of the snapshot class of that name, if the program allowed or declared it.

    Raises:
        UnknownSnapshotError: The program did not, or the module cannot be imported.
    """
    if name in _declared_modules:
        _import(name, _declared_modules[name])
        return
    for package, fix in _FIXES:
        if name.startswith(package):
            raise UnknownSnapshotError(
                f"unknown serializer snapshot {name!r}: {fix}, and take a savepoint of that job; or register a "
                f"snapshot class under this name"
            )
    module, colon, _ = name.partition(":")
    if not colon or name in _unavailable:
        because = f" ({_unavailable[name]})" if name in _unavailable else ""
        raise UnknownSnapshotError(
            f"unknown serializer snapshot {name!r}{because}: import the module that registers it, "
            f"or register the name as an alias of the class that replaced it"
        )
    if module == "__main__" and not _is_allowed(module):
        raise UnknownSnapshotError(
            f"the serializer snapshot {name!r} names a class of a program that ran as a script, and no other process "
            f"can find it: register the class with @register_snapshot('a.name.for.ever', aliases=({name!r},)) "
            f"in an imported module"
        )
    if not _is_allowed(module):
        raise UnknownSnapshotError(
            f"the serializer snapshot {name!r} names a class that this process has not defined, and stored bytes may "
            f"not choose imports: import it in the program, allow it with "
            f"snapshots.allow_snapshot_modules({module!r}), or register the name as an alias of the class that "
            f"replaced it"
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
