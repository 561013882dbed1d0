"""The check for foreign files that hide one of our packages. Each package runs it first.

The four packages have plain names. Python looks beside the program first, so a user's ``snapshots.py`` hides our
package, and some import deep inside another package fails. `check_packages` names that file instead.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Final

__all__ = ["SUBMODULE_OF", "check_packages", "foreign_packages"]

SUBMODULE_OF: Final = {
    "snapshots": "compatibility",
    "typeserializers": "kernel",
    "migration": "schema_migration",
    "statebackend": "checkpoint",
}
"""The packages, and a submodule that identifies ours."""


def foreign_packages() -> dict[str, str]:
    """Returns the files that hide our packages, by the name of the package."""
    found: dict[str, str] = {}
    for package, submodule in SUBMODULE_OF.items():
        try:
            spec = find_spec(package)
        except ValueError:
            # The module was created by hand and has no spec.
            found[package] = repr(sys.modules[package])
            continue
        if spec is None:
            continue
        locations = spec.submodule_search_locations
        if locations is None or PathFinder.find_spec(f"{package}.{submodule}", list(locations)) is None:
            found[package] = spec.origin or ", ".join(locations or ())
    return found


_checked: list[bool] = []


def check_packages() -> None:
    """Raises `ImportError`, in one line, if a foreign file hides one of our packages."""
    if _checked:
        return
    foreign = foreign_packages()
    if foreign:
        files = "; ".join(f"{path} is found in place of the package {package!r}" for package, path in foreign.items())
        raise ImportError(
            f"{files} of Statebackend: rename it, or move it from the first place where Python looks, {sys.path[0]!r}"
        )
    _checked.append(True)
