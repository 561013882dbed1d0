"""What the program registered on the driver, for workers that never imported its modules.

Stored state names the classes that read it back. The driver knows them, for the program has imported their modules; a
worker reads restored state before the user's function has asked for anything. So what the driver knows goes along: for
each name the module to import when it is met, and the class itself where there is no module to import, as for those of
``__main__``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping

from attrs import frozen
from pyspark import cloudpickle

from snapshots.envelope import known_snapshot_classes, register_snapshot
from snapshots.permitted_modules import (
    allow_snapshot_modules,
    allowed_snapshot_modules,
    declare_snapshot_modules,
    declare_unavailable_snapshots,
)
from streamjobs.errors import MissingModuleError
from streamjobs.spark.tasks.program_pickles import pickled, unpickled
from streamjobs.user_errors import cited


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
        """What this process knows now."""
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
                unavailable.update(dict.fromkeys(names, f"it cannot be sent to the workers: {cited(error, 200)}"))
        return cls(allowed_snapshot_modules(), modules, pickles, unavailable)

    def install(self) -> None:
        """Makes them known in this process; imports nothing yet."""
        allow_snapshot_modules(*self.allowed)
        declare_snapshot_modules(self.modules)
        unavailable = dict(self.unavailable)
        for names, class_pickle in self.pickles.items():
            unavailable.update(_register_pickled(names, class_pickle))
        declare_unavailable_snapshots(unavailable)


@contextlib.contextmanager
def naming_missing_modules(where: str) -> Iterator[None]:
    """Turns an error that comes of a module missing on this worker into one that says how to bring it there."""
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
    """Registers a class under its names; gives the reason for each if that is not possible.

    That is no error by itself: most classes that a program knows are in no state of its job.
    """
    try:
        register_snapshot(names[0], aliases=names[1:])(unpickled(class_pickle))
    except Exception as error:
        return dict.fromkeys(names, f"it cannot be unpickled here: {cited(error, 200)}")
    return {}


def _missing_module(error: BaseException | None) -> str | None:
    # Causes of what users and libraries raise may go in a circle.
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return error.name
        seen.add(id(error))
        error = error.__cause__
    return None


def _is_importable(kind: type[object]) -> bool:
    """Whether another process finds the class by importing its module, as far as this one can tell."""
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
