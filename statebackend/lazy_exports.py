"""Exports of a package that are imported on first use (PEP 562).

Importing ``statebackend`` must be cheap and must not fail: pytest imports it in every run, for the plugin. So the check
for foreign files (`snapshots.packages`) runs when a name is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: The name of the package.
        names: The exported names, by the module that defines them.
    """
    module_of = {name: module for module, exported in names.items() for name in exported}

    def get(name: str) -> Any:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        _check_packages()
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

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
