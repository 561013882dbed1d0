"""Exports of a package that are imported on first use (PEP 562), by the imports in its ``__init__.pyi`` (SPEC 1).

Each exported name is in one place: type checkers and editors read the stub, and so does `lazy_exports`. It reads the
stub when a name is first used. Importing ``statebackend`` must be cheap and must not fail: pytest imports it in every
run, for the plugin. So the check for foreign files (`snapshots.packages`) runs then, too.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package with an ``__init__.pyi``."""

    @cache
    def modules() -> dict[str, str]:
        stub = (pkgutil.get_data(package, "__init__.pyi") or b"").decode()
        imports = re.findall(r"^from (\S+) import (\([^)]*\)|.*)", stub, re.MULTILINE)
        return {name: module for module, names in imports for name in re.findall(r"(\w+) as \1\b", names)}

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted(modules())
        # Python looks for dunder names, such as ``__path__``, when it imports.
        module = None if name.startswith("__") else modules().get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        _check_packages()
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules()})

    return get, names_of_package


def _check_packages() -> None:
    try:
        from snapshots.packages import check_packages
    except ImportError as error:
        import snapshots

        raise ImportError(
            f"{snapshots.__file__} is found in place of the package 'snapshots' of Statebackend: rename it"
        ) from error
    check_packages()
