"""The values of a record in the order of the columns, whatever the record is.

What comes from upstream is a row already. What a user's function makes of records, such as one that reduces two to one,
may be whatever it may emit: a row or tuple in order, a dict, a named tuple, an attrs or dataclass instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streamjobs.rows.row import is_row_class
from streamjobs.user_errors import cited

__all__ = ["values_in_order"]


def values_in_order(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the values of a record; it raises `TypeError` for one that has not exactly the columns."""

    def values(record: Any) -> tuple[Any, ...]:
        if is_row_class(record.__class__) and tuple(getattr(record, "__fields__", ())) == names:
            row: tuple[Any, ...] = record
            return row
        return _values(names, record)

    return values


def _values(names: tuple[str, ...], record: Any) -> tuple[Any, ...]:
    if type(record) is tuple or (isinstance(record, tuple) and getattr(record, "_fields", None) == names):
        if len(record) == len(names):
            return record
    elif hasattr(record, "asDict"):
        record = record.asDict()
    if isinstance(record, Mapping):
        if record.keys() == set(names):
            return tuple([record[name] for name in names])
    elif not isinstance(record, tuple) and all(hasattr(record, name) for name in names):
        return tuple([getattr(record, name) for name in names])
    raise TypeError(f"{cited(record, 120)} is no record of the columns {', '.join(names)}")
