"""Entries that an iterator gives can be read once: read again they would be fewer, or none, and nobody would know.

A second writing of the plan, a second state that is given the same iterator, and a generator that has ended are all
refused. What can be iterated over again (a list, a table, `Savepoint.read`) is not wrapped.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import Any

from attrs import define

from savepoints.writing.errors import PlanError

__all__ = ["ReadOnce"]


@define(eq=False)
class ReadOnce:
    """What an iterator gives of a state; raises `PlanError` where it is asked for a second time."""

    state_name: str
    entries: Iterator[Any]
    is_read: bool = False

    @classmethod
    def of(cls, state_name: str, entries: Any, known: list[ReadOnce]) -> Any:
        """The entries, wrapped if they are an iterator: by one of those known if that has the same, or a new one."""
        if not isinstance(entries, Iterator):
            return entries
        for one in known:
            if one.entries is entries:
                return one
        known.append(cls(state_name, entries))
        return known[-1]

    def __iter__(self) -> Iterator[Any]:
        if self.is_read or _has_ended(self.entries):
            raise PlanError(
                f"the entries of {self.state_name!r} were given by an iterator that has been read already: what is "
                f"left of it is not all. Give a list or a table, or make a new plan with a new iterator for each "
                f"writing and each state. Nothing was written"
            )
        self.is_read = True
        return self.entries


def _has_ended(entries: Iterable[Any]) -> bool:
    return isinstance(entries, GeneratorType) and inspect.getgeneratorstate(entries) == inspect.GEN_CLOSED
