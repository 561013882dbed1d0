"""What all kinds of state handle on the heap share."""

from __future__ import annotations

from typing import Any

from statebackend.api.errors import StateRestoreError, unreadable_entry
from statebackend.heap.entry_table import HeapTable
from statebackend.keyed.closed_entries import ClosedEntries
from statebackend.kinds.internal_states import HandleContext, InternalState


class HeapStateHandle(InternalState):
    """A view of a table for the current key; the table's dicts are held directly, since every access goes to them."""

    __slots__ = ("_before", "_changes", "_context", "_live", "_olders", "_table")

    def __init__(self, table: HeapTable, context: HandleContext) -> None:
        self._table = table
        self._context = context
        self._live: Any
        self._changes: Any
        self._before: Any
        self._olders: list[Any]
        self.bind()

    @property
    def key_context(self) -> HandleContext:
        return self._context

    def bind(self) -> None:
        """Takes up the dicts of the table's current epoch."""
        history = self._table.history
        epoch = history.epoch
        self._live, self._changes, self._before = history.live, epoch.changes, epoch.before
        self._olders = epoch.olders

    def describe(self) -> str:
        """The state, for messages."""
        return f"state {self._table.name!r}"

    def close(self) -> None:
        """Makes every later access an error."""
        if self._table.handle is self:
            self._table.handle = None
        self._live = self._changes = ClosedEntries(self._table.name)

    def unreadable(self, error: object) -> StateRestoreError:
        """What to raise for a stored value that cannot be read."""
        return unreadable_entry(self.describe(), self._table.form.serializer, error)
