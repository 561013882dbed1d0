"""How the records of an input are written when they belong to a checkpoint: as rows of the schema that is declared.

Where no schema is declared (plain elements, or what a transform makes of records) nothing says what a record is, and
nothing is pickled: such an input has no form, and its channels are not overtaken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from snapshots.data_views import DataInputView
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import MalformedDataError, StateFormatError
from streamjobs.errors import JobDefinitionError
from streamjobs.operators.input_batch import place_of_input
from streamjobs.rows.declared_schema import DeclaredSchema
from streamjobs.rows.record_serializer import stored_records
from streamjobs.user_errors import cited
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["InputName", "RecordForm", "RecordForms", "forms_of_operators"]

InputName = tuple[str, int]
"""The uid of an operator, and the index of one of its inputs."""


@frozen(eq=False)
class RecordForm:
    """Records of one schema; ``envelope`` is what their serializer is, by which the same form is known again."""

    envelope: bytes
    column_count: int
    _serializer: TypeSerializer[Any]
    _to_stored: Callable[[Any], Any]
    _to_row: Callable[[Any], Any]

    def to_bytes(self, record: Any) -> bytes:
        """Raises `StateFormatError` for what is no row of the schema."""
        if not isinstance(record, tuple) or len(record) != self.column_count:
            raise MalformedDataError(f"{cited(record, 200)} is no row of the {self.column_count} columns declared")
        return self._serializer.to_bytes(self._to_stored(record))

    def from_bytes(self, data: bytes) -> Any:
        """The row; raises `StateFormatError` for bytes that are none."""
        source = DataInputView(data)
        stored = self._serializer.deserialize(source)
        if source.remaining:
            raise MalformedDataError(f"{source.remaining} bytes follow a record")
        try:
            return self._to_row(stored)
        except StateFormatError:
            raise
        except Exception as error:
            raise MalformedDataError(f"the columns of a record are none of the schema: {cited(error, 200)}") from error


RecordForms = Mapping[InputName, RecordForm]
"""The forms of all inputs of a job that have one."""


def _record_form(schema: DeclaredSchema | None, where: str) -> RecordForm | None:
    """The form of rows of a schema; None without one, and for one with a column that no state can hold."""
    if schema is None:
        return None
    try:
        records = stored_records(schema.arrow, where)
    except JobDefinitionError:
        return None
    envelope = snapshot_to_bytes(records.serializer.snapshot_configuration())
    return RecordForm(envelope, len(schema.names), records.serializer, records.to_stored, records.to_row)


def forms_of_operators(schemas: Mapping[str, Sequence[DeclaredSchema | None]]) -> RecordForms:
    """The forms of the inputs of operators, by their uids, of those inputs that have one."""
    forms = {
        (uid, index): _record_form(schema, place_of_input(uid, index, len(of_inputs)))
        for uid, of_inputs in schemas.items()
        for index, schema in enumerate(of_inputs)
    }
    return {name: form for name, form in forms.items() if form is not None}
