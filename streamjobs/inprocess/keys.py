"""Keys of plain Python records: how they are taken out, which types they have, which key group they belong to."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from streamjobs.errors import JobDefinitionError
from streamjobs.rows.declared_schema import DeclaredSchema
from streamjobs.user_errors import cited

_TYPE_NAMES: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "bigint",
    bytes: "binary",
    datetime.date: "date",
    datetime.datetime: "timestamp",
}


def field_getter(key: Any, place: str, given_to: str) -> Callable[[Any], Any]:
    """A function from a record to one column: a field by name, or what the given function returns.

    The getter raises `JobDefinitionError` for a record without the field. ``place`` is how errors call who was given
    the column, by the method ``given_to``.
    """
    if callable(key):
        function: Callable[[Any], Any] = key
        return function
    if not isinstance(key, str):
        raise JobDefinitionError(f"{place}: {given_to} takes field names or functions, not {type(key).__name__}")
    path = key.split(".")

    def get(record: Any) -> Any:
        try:
            # As on Spark, a field of exactly this name comes before the field of a field.
            return _field(record, key) if _has_field(record, key) else functools.reduce(_field, path, record)
        except (KeyError, AttributeError) as error:
            raise JobDefinitionError(
                f"{place}: {given_to}({key!r}), but a record has no field of that name: {cited(record, 200)}"
            ) from error

    return get


def _has_field(record: Any, name: str) -> bool:
    if isinstance(record, Mapping):
        return name in record
    # A Row has methods of a tuple, which are no fields: row["count"] is the column, row.count is not.
    return name in getattr(record, "__fields__", ()) or hasattr(record, name)


def _field(record: Any, name: str) -> Any:
    has_items = isinstance(record, Mapping) or name in getattr(record, "__fields__", ())
    return record[name] if has_items else getattr(record, name)


def column_types(
    getters: Sequence[Callable[[Any], Any]],
    declared: DeclaredSchema | None,
    keys: Sequence[Any],
    first_record: Any,
    operator_uid: str,
) -> tuple[str, ...]:
    """The Spark names of the key columns' types: as declared, else those of the first record's values."""
    types = []
    for key, get in zip(keys, getters, strict=True):
        known = declared.type_of(key) if declared is not None and isinstance(key, str) else None
        if known is not None:
            types.append(known)
            continue
        value = get(first_record)
        name = _TYPE_NAMES.get(type(value))
        if name is None:
            raise JobDefinitionError(
                f"operator {operator_uid!r}: the key {key!r} is {cited(value, 80)}, a {type(value).__name__}, "
                f"which cannot be a key; keys are {', '.join(kind.__name__ for kind in _TYPE_NAMES)}"
            )
        types.append(name)
    return tuple(types)
