"""State without keys as columns of Arrow: those of a list's elements, or of the keys and values of broadcast state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from savepoints.tabular.column_forms import ColumnForm
from savepoints.tabular.known_forms import ColumnForms
from statebackend.api.errors import StateRestoreError
from statebackend.api.operator_state_descriptors import ELEMENT_ROLE, KEY_ROLE, VALUE_ROLE
from statebackend.operator_state.operator_state_handles import StatePart
from statebackend.operator_state.operator_state_rows import OperatorStateRow
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["OperatorStateColumns", "decoded_cell"]

SUBTASK: Final = pa.field("subtask", pa.int32(), nullable=False)
"""The column of the subtask that has a row."""

_COLUMNS: Final = {ELEMENT_ROLE: "value", KEY_ROLE: "key", VALUE_ROLE: "value"}
"""The column of a role."""


@frozen
class OperatorStateColumns:
    """What was stored under one schema."""

    state_name: str
    _columns: Mapping[str, tuple[TypeSerializer[Any], ColumnForm]]

    @classmethod
    def of(
        cls, state_name: str, part: StatePart, forms: ColumnForms, known: Sequence[TypeSerializer[Any]] = ()
    ) -> OperatorStateColumns:
        """Those of a part, in these forms; ``known`` are serializers of the program.

        Raises `UnresolvableSerializerError` for a type that is not known here.
        """
        columns = {}
        for role in part.envelopes:
            serializer = restored_with(part.snapshot(state_name, role), *known)
            columns[_COLUMNS[role]] = serializer, forms.of(serializer)
        return cls(state_name, columns)

    def schema(self, *, has_subtask: bool = True) -> pa.Schema:
        """The columns, first of all the subtask if that is wanted."""
        held = [pa.field(name, form.data_type) for name, (_, form) in self._columns.items()]
        return pa.schema([SUBTASK, *held] if has_subtask else held)

    @property
    def notes(self) -> dict[str, str]:
        """What stands in the place of something else, by its path."""
        return {path: note for name, (_, form) in self._columns.items() for path, note in form.notes(name)}

    def batch(self, subtask: int, rows: Iterable[OperatorStateRow], schema: pa.Schema) -> pa.RecordBatch:
        """Stored rows of a subtask, of which there is one at least, as the columns of this schema.

        Raises `StateRestoreError` for a row that cannot be read, `ColumnValueError` for a value that does not fit.
        """
        keys, values = zip(*rows, strict=True)
        cells = {"key": keys, "value": values}
        arrays = [
            pa.repeat(pa.scalar(subtask, pa.int32()), len(values)) if name == SUBTASK.name else self._array(name, cells)
            for name in schema.names
        ]
        return pa.record_batch(arrays, schema=schema)

    def _array(self, name: str, cells: Mapping[str, Sequence[bytes | None]]) -> pa.Array:
        serializer, form = self._columns[name]
        return form.array(
            [None if cell is None else decoded_cell(self.state_name, serializer, cell) for cell in cells[name]]
        )


def decoded_cell(state_name: str, serializer: TypeSerializer[Any], cell: bytes) -> Any:
    """An element, key or value of a state without keys. Raises `StateRestoreError` for bytes that cannot be read."""
    try:
        return serializer.from_bytes(cell)
    except Exception as error:
        # A serializer may be anybody's: whatever it makes of bytes that do not fit, one kind of error comes out.
        told = str(error) or type(error).__name__
        raise StateRestoreError(f"operator state {state_name!r}: a row cannot be read: {told}") from error
