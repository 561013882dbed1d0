"""Lets a function emit objects of any kind in this process, for tests that inspect them.

Records have a schema, which says what a column may hold. What is emitted here is kept aside, and only its number goes
through the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statebackend import KeyedProcessFunction, ProcessContext

OBJECT = "object bigint"
"""The schema of such an operator."""

_emitted: list[Any] = []


def emitting_objects(function: KeyedProcessFunction[Any, Any, Any]) -> KeyedProcessFunction[Any, Any, Any]:
    """The function, in a class of the same name, whose emitted objects are collected."""
    kind = type(function)

    def process_element(self: Any, value: Any, context: ProcessContext[Any]) -> Any:
        result = kind.process_element(self, value, context)
        # What is not an iterable of records is for the operator to reject.
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
