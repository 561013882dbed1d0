"""Records of an input as state: how an operator that keeps them writes them, and makes records of them again.

They are written by a serializer that the user has given or, with a schema of the input, as rows of that: then they
evolve by the names of the columns (`statebackend.streaming.rows.record_serializer`).

The values of a record in the order of the columns, whatever the record is.

What comes from upstream is a row already. What a user's function makes of records, such as one that reduces two to one,
may be whatever it may emit: a row or tuple in order, a dict, a named tuple, an attrs or dataclass instance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from statebackend.streaming.errors import JobDefinitionError, format_value
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.record_serializer import stored_records
from statebackend.streaming.rows.row_reader import is_row_class, row_class
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["ElementForm", "element_form", "values_in_order"]


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
    raise TypeError(f"{format_value(record, 120)} is no record of the columns {', '.join(names)}")


@frozen
class ElementForm:
    """How records are stored: their serializer, and from a record to what it takes and back.

    ``record`` makes a record of whatever a user's function may have made of two.
    """

    serializer: TypeSerializer[Any]
    stored: Callable[[Any], Any]
    given: Callable[[Any], Any]
    record: Callable[[Any], Any]

    @classmethod
    def as_they_are(cls, serializer: TypeSerializer[Any]) -> ElementForm:
        """Records, or accumulators, that are stored by a serializer of the user's."""
        return cls(serializer, _unchanged, _unchanged, _unchanged)

    @classmethod
    def of_schema(cls, schema: DeclaredSchema, where: str) -> ElementForm:
        """Rows; raises `JobDefinitionError`, beginning with ``where``, for a column that no state can hold."""
        records, values = stored_records(schema.arrow, where), values_in_order(schema.names)
        to_row = functools.partial(tuple.__new__, row_class(schema.names))
        return cls(records.serializer, records.to_stored, records.to_row, lambda made: to_row(values(made)))


def element_form(
    given: TypeSerializer[Any] | None, schema: DeclaredSchema | None, where: str, who: str, argument: str
) -> ElementForm:
    """The form of the records of an input: as a serializer says or, without one, its schema.

    Raises `JobDefinitionError` if neither is known: ``who`` keeps records, and ``argument`` is what would name their
    type.
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
