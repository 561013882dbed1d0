"""What defines the serializers of a program in another process: what the program knew, and modules to import."""

from __future__ import annotations

import importlib

from attrs import frozen

from snapshots.permitted_modules import allow_snapshot_modules
from streamjobs.spark.state_tables.table_options import HOW_TO_SHIP, StateTableError
from streamjobs.spark.tasks.program_modules import ProgramModules

__all__ = ["Program"]


@frozen
class Program:
    """See the module."""

    known: ProgramModules | None
    modules: tuple[str, ...]

    def install(self) -> None:
        """Makes it known here. Raises `StateTableError` for a module that cannot be imported."""
        if self.known is not None:
            self.known.install()
        allow_snapshot_modules(*self.modules)
        for module in self.modules:
            _import(module)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise StateTableError(
            f"the module {module!r} of the option modules cannot be imported ({error}): {HOW_TO_SHIP}"
        ) from error
