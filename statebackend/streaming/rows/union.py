"""The union of streams: the common schema, and the conversion of rows to it.

    names    the names of the first stream, in its order; other streams need the same names in any order and case
    types    equal types, or the wider number:  tinyint < smallint < int < bigint < double,  float < double
             void becomes any other type

This is the part of Spark's rule that does not depend on session settings. On Spark, Spark also unifies other types
(decimal and integer, date and timestamp, string and most types). Errors are the same in every environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Final

from attrs import evolve

from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.declared_schema import Column, DeclaredSchema
from statebackend.streaming.rows.row_reader import row_class

__all__ = ["columns_do_not_fit", "rows_as", "united_guess", "united_schema"]

_WIDER: Final[Mapping[str, tuple[str, ...]]] = {
    "tinyint": ("smallint", "int", "bigint", "double"),
    "smallint": ("int", "bigint", "double"),
    "int": ("bigint", "double"),
    "bigint": ("double",),
    "float": ("double",),
}
"""The wider types of each number type."""


def columns_do_not_fit(streams: Iterable[Iterable[tuple[str, str]]], reason: str) -> JobDefinitionError:
    """Return the error for a union of streams with these columns, as names and types."""
    columns = "; ".join(", ".join(f"{name} {kind}" for name, kind in stream) for stream in streams)
    return JobDefinitionError(f"union() of streams with different columns: {columns}: {reason}")


def united_schema(schemas: Sequence[DeclaredSchema]) -> DeclaredSchema:
    """Return the schema of a union. Raises `JobDefinitionError` if the columns do not fit."""
    try:
        return reduce(_united, schemas)
    except _MisfitError as reason:
        streams = [[(column.name, column.type_name) for column in schema.columns] for schema in schemas]
        raise columns_do_not_fit(streams, str(reason)) from None


def united_guess(schemas: Sequence[DeclaredSchema]) -> DeclaredSchema:
    """Return a schema of the columns that all schemas share, with the wider type of each column.

    Used if the records may have other columns than the schemas.
    """
    first, *others = schemas
    columns = []
    for column in first.columns:
        found: Column | None = column
        for other in (_by_name(schema) for schema in others):
            same = other.get(column.name.lower())
            found = None if found is None or same is None or same.name != found.name else _wider(found, same)
        if found is not None:
            columns.append(found)
    return DeclaredSchema(tuple(columns))


def rows_as(source: DeclaredSchema, target: DeclaredSchema) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that converts rows to the schema of the union; rows of an equal schema stay unchanged."""
    positions = {name.lower(): position for position, name in enumerate(source.names)}
    order = [positions[name.lower()] for name in target.names]
    becomes_float = [
        column.type_name == "double" and source.columns[position].type_name not in ("double", "float", "void")
        for column, position in zip(target.columns, order, strict=True)
    ]
    if source.names == target.names and not any(becomes_float):
        return list
    new_row = partial(tuple.__new__, row_class(target.names))
    parts = list(zip(order, becomes_float, strict=True))

    def made(row: Any) -> Any:
        return new_row(
            float(row[position]) if is_float and row[position] is not None else row[position]
            for position, is_float in parts
        )

    return lambda rows: list(map(made, rows))


class _MisfitError(Exception):
    """The columns do not fit. The caller adds the list of columns to the message."""


def _by_name(schema: DeclaredSchema) -> Mapping[str, Column]:
    return {column.name.lower(): column for column in schema.columns}


def _united(first: DeclaredSchema, second: DeclaredSchema) -> DeclaredSchema:
    ours, theirs = _by_name(first), _by_name(second)
    alone = [column.name for name, column in {**ours, **theirs}.items() if name not in ours or name not in theirs]
    if alone:
        raise _MisfitError(f"not every stream has the column {alone[0]!r}")
    columns = []
    for name, column in ours.items():
        wider = _wider(column, theirs[name])
        if wider is None:
            raise _MisfitError(
                f"the column {column.name!r} is {column.type_name} and {theirs[name].type_name}; give it one type"
            )
        columns.append(wider)
    return DeclaredSchema(tuple(columns))


def _wider(column: Column, other: Column) -> Column | None:
    """Return a column that can hold the values of both, with the name of the first; None if there is none."""
    nullable = column.nullable or other.nullable
    if other.type_name in (column.type_name, "void") or column.type_name in _WIDER.get(other.type_name, ()):
        return evolve(column, nullable=nullable)
    if column.type_name == "void" or other.type_name in _WIDER.get(column.type_name, ()):
        return evolve(other, name=column.name, nullable=nullable)
    return None
