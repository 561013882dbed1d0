"""Says which foreign file stands in the place of one of our packages, before an import of it fails in the dark.

The packages have plain names, and Python looks beside the program first: a user's ``snapshots.py`` there is found in
the place of our package, and what fails is some import deep inside another one. Each package imports this module first.
It looks where each of the others would come from, once in a process, without importing any, and takes as foreign what
has not the submodule that ours has.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from typing import Final

SUBMODULE_OF: Final = {
    "snapshots": "compatibility",
    "typeserializers": "kernel",
    "migration": "schema_migration",
    "checkpointing": "coordinator",
    "statebackend": "keyed",
    "savepoints": "restored_state",
    "streamjobs": "runtime",
}
"""The packages that need each other, and a submodule by which ours are known."""


def foreign_packages() -> dict[str, str]:
    """The files that are found in the place of our packages, by the name of the package."""
    found: dict[str, str] = {}
    for package, submodule in SUBMODULE_OF.items():
        try:
            spec = importlib.util.find_spec(package)
        except ValueError:
            # A module of that name was put together by hand.
            found[package] = repr(sys.modules[package])
            continue
        if spec is None:
            continue
        locations = spec.submodule_search_locations
        if locations is None or PathFinder.find_spec(f"{package}.{submodule}", list(locations)) is None:
            found[package] = spec.origin or ", ".join(locations or ())
    return found


def check_floors() -> None:
    """Raises `ImportError`, in one line, if a foreign file stands in the place of one of our packages."""
    foreign = foreign_packages()
    if foreign:
        files = "; ".join(
            f"{path} is found in the place of the package {package!r}" for package, path in foreign.items()
        )
        raise ImportError(
            f"{files} of Statebackend: rename it, or move it from the first place where Python looks, {sys.path[0]!r}"
        )


check_floors()
