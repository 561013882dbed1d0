"""Lets a function emit objects of any kind in this process, so that tests can inspect them.

A record has only the columns of its schema. So the emitted objects are kept in a list here, and only their positions
go through the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statebackend import KeyedProcessFunction, ProcessContext

OBJECT = "object bigint"
"""The schema of an operator that emits such objects."""

_emitted: list[Any] = []


def emitting_objects(function: KeyedProcessFunction[Any, Any, Any]) -> KeyedProcessFunction[Any, Any, Any]:
    """The function in a subclass of the same name that collects emitted objects."""
    kind = type(function)

    def process_element(self: Any, value: Any, context: ProcessContext[Any]) -> Any:
        result = kind.process_element(self, value, context)
        # The operator must reject a result that is not an iterable of records.
        is_records = type(result) in (list, tuple, set) or hasattr(result, "__next__")
        return map(_numbered, result) if is_records else result

    made: Any = object.__new__(type(kind.__name__, (kind,), {"process_element": process_element}))
    made.__dict__.update(function.__dict__)
    return made  # type: ignore[no-any-return]


def _numbered(value: Any) -> tuple[int]:
    _emitted.append(value)
    return (len(_emitted) - 1,)


def collecting(results: list[Any]) -> Callable[[Any], None]:
    """A sink that appends the objects to a list."""
    return lambda row: results.append(_emitted[row["object"]])
