"""The elements of one state without keys: one by one as objects, or as tables of Arrow, as `StateEntries` are.

Those of all subtasks, one subtask after the other; of broadcast state, the entries of every copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from checkpointing.errors import SavepointError
from checkpointing.storage.file_system import CheckpointFileSystem
from savepoints.reading.plain_values import plain_value, printed_value
from savepoints.reading.stored_types import LONG, StateCondition, stored_type
from savepoints.tabular.known_forms import ColumnForms
from savepoints.tabular.operator_state_columns import OperatorStateColumns, decoded_cell
from statebackend.operator_state.operator_state_handles import StatePart
from statebackend.operator_state.operator_state_rows import batches, read_slices
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["OperatorStateElement", "OperatorStateElements"]


_COLUMN_OF_ROLE: Final = {"element": "value"}


@frozen
class OperatorStateElement:
    """One element of a list of operator state, or one entry of a broadcast state, and the subtask that has it."""

    subtask_index: int
    key: Any
    value: Any


def _plain(one: OperatorStateElement, plain: Callable[[Any], Any]) -> dict[str, Any]:
    key = {} if one.key is None else {"key": plain(one.key)}
    return {"subtask": one.subtask_index, **key, "value": plain(one.value)}


class OperatorStateElements:
    """See the module; ``parts`` are what each subtask has, by its index. Nothing is read before it is asked for."""

    def __init__(
        self,
        state_name: str,
        parts: Sequence[tuple[int, StatePart]],
        file_system: CheckpointFileSystem,
        known: Sequence[TypeSerializer[Any]] = (),
        forms: ColumnForms | None = None,
    ) -> None:
        self._state_name = state_name
        self._parts = tuple(parts)
        self._file_system = file_system
        self._known = tuple(known)
        self._forms = forms or ColumnForms()

    def with_forms(self, forms: ColumnForms) -> OperatorStateElements:
        """The same elements, whose tables have other forms."""
        return OperatorStateElements(self._state_name, self._parts, self._file_system, self._known, forms)

    def __iter__(self) -> Iterator[OperatorStateElement]:
        """The elements; raises as iterating over `StateEntries` does."""
        for index, part in self._parts:
            yield from self._read(index, part, self._serializers(part))

    def _serializers(self, part: StatePart) -> Mapping[str, TypeSerializer[Any]]:
        snapshots = {role: part.snapshot(self._state_name, role) for role in part.envelopes}
        return {role: restored_with(snapshot, *self._known) for role, snapshot in snapshots.items()}

    def _read(
        self, index: int, part: StatePart, serializers: Mapping[str, TypeSerializer[Any]]
    ) -> Iterator[OperatorStateElement]:
        read = {role: partial(decoded_cell, self._state_name, one) for role, one in serializers.items()}
        for key, value in read_slices(self._file_system, part.slices):
            if key is None:
                yield OperatorStateElement(index, None, read["element"](value or b""))
            else:
                read_value = None if value is None else read["value"](value)
                yield OperatorStateElement(index, read["key"](key), read_value)

    def plain(self) -> Iterator[dict[str, Any]]:
        """The elements as plain data, by the names of their columns."""
        return (_plain(one, plain_value) for one in self)

    def printed(self, conditions: Sequence[StateCondition] = ()) -> Iterator[dict[str, Any]]:
        """The elements that satisfy all conditions; see `StateEntries.printed`."""
        found = []
        for index, part in self._parts:
            serializers = self._serializers(part)
            types = {_COLUMN_OF_ROLE.get(role, role): stored_type(one) for role, one in serializers.items()}
            tests = [one({"subtask": LONG, **types}) for one in conditions]
            found.append((index, part, serializers, tests))
        return (
            _plain(element, printed_value)
            for index, part, serializers, tests in found
            for element in self._read(index, part, serializers)
            if all(test(element) for test in tests)
        )

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the tables; reads nothing. Raises as `to_arrow_batches`."""
        return self._columns[-1].schema()

    @property
    def notes(self) -> dict[str, str]:
        """What stands in tables in the place of something else, by its path."""
        return self._columns[-1].notes

    def to_arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """The elements in batches that are bounded in rows and stored bytes.

        Raises `ColumnValueError` for a value that does not fit its column, `SavepointError` if subtasks have stored the
        state in schemas that are different tables, and what iterating raises.
        """
        schema = self.arrow_schema
        for (index, part), columns in zip(self._parts, self._columns, strict=True):
            for rows in batches(read_slices(self._file_system, part.slices)):
                yield columns.batch(index, rows, schema)

    @cached_property
    def _columns(self) -> Sequence[OperatorStateColumns]:
        every = [OperatorStateColumns.of(self._state_name, part, self._forms, self._known) for _, part in self._parts]
        last = every[-1].schema()
        if not all(one.schema().equals(last) for one in every):
            raise SavepointError(
                f"operator state {self._state_name!r} is not one table: subtasks have stored it in different types; "
                f"read its elements one by one"
            )
        return every
