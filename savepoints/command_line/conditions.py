"""Conditions on entries: ``value.sales>3``, ``key=shop 7``, ``value.note!=null``.

    condition := path operator literal     path := column ("." field)*     operator := = | != | < | <= | > | >=

A path begins with a column of the entries and leads through fields of records, or text keys of maps. It must exist in
the schema of the state. The literal is read as the type that the schema has there, and values are compared as that
type: see `savepoints.reading.stored_types`. ``null`` is compared with = and != only. A field is null in an entry that
does not have it, and null is neither less nor greater than anything.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import frozen

from savepoints.reading.stored_types import StoredType, Unparsed, equals, part_of

__all__ = ["Condition", "ConditionError", "namespace_condition", "parsed_condition"]

_CONDITION: Final = re.compile(r"\s*([^\s=!<>]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)

_RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class ConditionError(ValueError):
    """A text is not a condition, or not one on the entries of this state."""


@frozen
class Condition:
    """A condition before it is known what the entries are; ``text`` names it in errors."""

    text: str
    path: tuple[str, ...]
    relation: str
    literal: Unparsed

    def test(self, columns: Mapping[str, StoredType]) -> Callable[[Any], bool]:
        """The test of an entry of a state with these columns.

        Raises `ConditionError` if the path does not exist there, or the literal is not of the type that it leads to.
        """
        stored = self._type(columns)
        try:
            holds = self._compared(stored)
        except ValueError as error:
            raise ConditionError(f"{self.text}: {error}") from error
        column, *fields = self.path

        def test(entry: Any) -> bool:
            value = getattr(entry, _ATTRIBUTES.get(column, column))
            for name in fields:
                value = None if value is None else part_of(value, name)
            return holds(value)

        return test

    def _type(self, columns: Mapping[str, StoredType]) -> StoredType:
        column, *fields = self.path
        if column not in columns:
            raise ConditionError(f"{self.text}: the entries have no {column!r}; they have {', '.join(columns)}")
        stored, path = columns[column], column
        for name in fields:
            part = stored.part(name)
            if part is None:
                known = f"; it has the fields {', '.join(stored.field_names)}" if stored.field_names else ""
                raise ConditionError(f"{self.text}: {path} is of type {stored.name} and has no field {name!r}{known}")
            stored, path = part, f"{path}.{name}"
        return stored

    def _compared(self, stored: StoredType) -> Callable[[Any], bool]:
        if self.relation in ("=", "!="):
            is_equal, wanted = equals(stored, self.literal), self.relation == "="
            return lambda value: is_equal(value) is wanted
        if self.literal == "null":
            raise ValueError("null has no order: use = or !=")
        relation = _RELATIONS[self.relation]
        sort_key, key = stored.order(self.literal)
        return lambda value: value is not None and stored.accepts(value) and bool(relation(sort_key(value), key))


_ATTRIBUTES: Final = {"subtask": "subtask_index"}
"""The columns whose attribute of an entry has another name."""


def parsed_condition(text: str) -> Condition:
    """The condition. Raises `ConditionError`, with an example, for a text that is not a condition."""
    matched = _CONDITION.fullmatch(text)
    if matched is None:
        raise ConditionError(
            f"--where {text!r} is not a condition; write a path, one of = != {' '.join(_RELATIONS)}, and a value: "
            f"value.n>3"
        )
    return Condition(f"--where {text!r}", tuple(matched[1].split(".")), matched[2], Unparsed(matched[3]))


def namespace_condition(text: str) -> Condition:
    """The condition that an entry is in a namespace: text, or JSON with some fields of it, such as ``{"start": 0}``."""
    return Condition(f"--namespace {text!r}", ("namespace",), "=", Unparsed(text))
