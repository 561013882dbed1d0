"""Pickles of what belongs to a program, for processes that have not imported it.

A class of ``__main__``, of a notebook or of a function travels by value: unpickling makes it anew, or finds the one
that the process has of it. Where cloudpickle, which does that, is not enough:

* It makes the class in any case, and drops it where the process has one. A snapshot class that was dropped would stand
  for its location from then on, without anything in it; here the one that is given out does.
* A class inside another arrives under its bare name. Records and snapshots are stored under the qualified one.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from snapshots.type_serializer_snapshot import (
    TypeSerializerSnapshot,
    define_snapshot_class,
    without_defining_snapshot_classes,
)

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
        return _made_class, (obj.__qualname__, make, arguments), *rest


_PARTS_OF_A_CLASS = 6
"""What is made first and filled then, by a function of its own; other classes are found by their names."""


def _made_class(qualified_name: str, make: Callable[..., type[Any]], arguments: tuple[Any, ...]) -> type[Any]:
    """The class that the process has of that pickle, or a new one, which is filled behind this."""
    with without_defining_snapshot_classes():
        made = make(*arguments)
    made.__qualname__ = qualified_name
    if issubclass(made, TypeSerializerSnapshot):
        define_snapshot_class(made)
    return made
