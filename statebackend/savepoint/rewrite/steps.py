"""Steps that transform the entries of a state for the new savepoint: filter them, or change values or keys.

A step receives and returns a batch of entries. If a function of the plan raises or returns an invalid result, the
`PlanError` names the state and the key and has the original exception as its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import frozen

from snapshots.errors import format_value
from statebackend.savepoint.errors import PlanError, failed_function
from statebackend.savepoint.rewrite.entry_codec import EntryBatch, times_after_change
from statebackend.savepoint.stored_entries import StateEntry


class Step(Protocol):
    """One transformation of entries."""

    @property
    def reads_values(self) -> bool:
        """Whether it needs whole values. The chunks of a list are then joined first."""

    @property
    def change_number(self) -> int | None:
        """The number of a filter's change in the plan, from 1, for counting removed entries. None for other steps."""

    def apply(self, batch: EntryBatch) -> EntryBatch:
        """Return the transformed entries."""


@frozen
class KeepKeys:
    """Keeps the keys for which the predicate is True."""

    predicate: Callable[[Any], bool]
    change_number: int | None = None

    reads_values = False

    def apply(self, batch: EntryBatch) -> EntryBatch:
        keys = batch.column("key")
        return batch.kept(_checked_flags(batch, _called(self.predicate, keys, batch)))


@frozen
class KeepEntries:
    """Keeps the entries for which the predicate is True."""

    predicate: Callable[[StateEntry], bool]
    change_number: int | None = None

    reads_values = True

    def apply(self, batch: EntryBatch) -> EntryBatch:
        return batch.kept(_checked_flags(batch, _called(self.predicate, batch.entries(), batch)))


@frozen
class ChangeValues:
    """Replaces each value. The value of a list state is the whole list."""

    function: Callable[[Any], Any]

    reads_values = True
    change_number = None

    def apply(self, batch: EntryBatch) -> EntryBatch:
        return _with_values(batch, self.function, batch.column("value"))


@frozen
class ChangeEntries:
    """As `ChangeValues`, with a function of the whole entry."""

    function: Callable[[StateEntry], Any]

    reads_values = True
    change_number = None

    def apply(self, batch: EntryBatch) -> EntryBatch:
        return _with_values(batch, self.function, batch.entries())


@frozen
class ChangeKeys:
    """Replaces each key. Namespaces, times and values stay with it."""

    function: Callable[[Any], Any]

    # Join chunks first: if two keys become equal, their lists must not be read as chunks of one list.
    reads_values = True
    change_number = None

    def apply(self, batch: EntryBatch) -> EntryBatch:
        return batch.changed("key", _called(self.function, batch.column("key"), batch))


def _with_values(batch: EntryBatch, function: Callable[[Any], Any], arguments: Sequence[Any]) -> EntryBatch:
    if not (batch.schema.is_list and batch.schema.is_timed):
        return batch.changed("value", _called(function, arguments, batch))
    # The function may modify its argument.
    before = [list(value) for value in batch.column("value")]
    values = _called(function, arguments, batch)
    times = list(map(times_after_change, before, values, batch.column("last_access_ms")))
    return batch.changed("value", values).changed("last_access_ms", times)


def _called(function: Callable[[Any], Any], values: Sequence[Any], batch: EntryBatch) -> list[Any]:
    results: list[Any] = []
    try:
        # After a failure, the length of the list is the index of the failed value.
        results.extend(map(function, values))
    except Exception as error:
        # Add state and key to the error of the user's function.
        raise failed_function(batch.schema.name, batch.column("key")[len(results)], error) from error
    return results


def _checked_flags(batch: EntryBatch, flags: list[Any]) -> list[bool]:
    for row, flag in enumerate(flags):
        if flag is not True and flag is not False:
            raise PlanError(
                f"state {batch.schema.name!r}, key {format_value(batch.column('key')[row])}: a predicate returned "
                f"{format_value(flag)}, which is neither True nor False. Nothing was written"
            )
    return flags
