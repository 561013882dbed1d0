"""The stored form of the records of an input.

Records are written by the serializer that the user passes or, if the input has a schema, as rows of this schema. Rows
evolve by column name (`statebackend.streaming.rows.record_serializer`). Records from upstream are rows already. A user
function, such as a reduce function, may return any value that it may emit: a row or tuple in column order, a dict, a
named tuple, an attrs or dataclass instance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from snapshots.errors import format_value
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.record_serializer import stored_form
from statebackend.streaming.rows.row_reader import is_row_class, row_class
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["ElementForm", "element_form", "values_in_order"]


def values_in_order(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of a record in column order. It raises `TypeError` for other columns.

    Results of user functions may have any accepted kind of record.
    """

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
    raise TypeError(f"{format_value(record, 120)} is not a record of the columns {', '.join(names)}")


@frozen
class ElementForm:
    """The stored form of records: a serializer, and conversions to and from its values.

    ``record`` converts the result of a user function to a record.
    """

    serializer: TypeSerializer[Any]
    stored: Callable[[Any], Any]
    given: Callable[[Any], Any]
    record: Callable[[Any], Any]

    @classmethod
    def as_they_are(cls, serializer: TypeSerializer[Any]) -> ElementForm:
        """Create the form for a serializer of the user: records or accumulators are not converted."""
        return cls(serializer, _unchanged, _unchanged, _unchanged)

    @classmethod
    def of_schema(cls, schema: DeclaredSchema, where: str) -> ElementForm:
        """Create the form for rows of a schema.

        Raises `JobDefinitionError`, starting with ``where``, for an unsupported column type.
        """
        records, values = stored_form(schema, where), values_in_order(schema.names)
        if schema.record_class is not None:
            return cls.as_they_are(records.serializer)
        to_row = functools.partial(tuple.__new__, row_class(schema.names))
        return cls(records.serializer, records.to_stored, records.to_row, lambda made: to_row(values(made)))


def element_form(
    given: TypeSerializer[Any] | None, schema: DeclaredSchema | None, where: str, who: str, argument: str
) -> ElementForm:
    """Return the form of the records of an input, from the serializer or, without one, from the schema.

    Raises `JobDefinitionError` if both are unknown. In the message, ``who`` names the part that stores records, and
    ``argument`` the argument that sets their type.
    """
    if given is not None:
        return ElementForm.as_they_are(given)
    if schema is None:
        raise JobDefinitionError(
            f"{where}: {who} records, and their type is not known, because the input has no schema; pass "
            f"{argument}=... as a type hint or serializer, or declare the schema of the source"
        )
    return ElementForm.of_schema(schema, where)


def _unchanged(value: Any) -> Any:
    return value
