"""The records in flight as operator state: a split list, which any parallelism can deal out.

    element := tuple(optional i64 event time in ms, optional text of the key, record)

The record is written as `streamjobs.rows.record_serializer` says, so that it lives on when the schema of the input
changes. The text of the key is what errors show of it; requests know no key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from attrs import frozen

from statebackend.api.operator_state_descriptors import SplitListStateDescriptor
from statebackend.api.states import ListState
from streamjobs.api.functions import RuntimeContext
from streamjobs.errors import JobDefinitionError
from streamjobs.rows.declared_schema import DeclaredSchema, place_of_output
from streamjobs.rows.record_serializer import StoredRecords, stored_records
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.strings import StringSerializer

__all__ = ["STATE_NAME", "InFlightRecord", "RecordsSnapshot", "record_serializer", "snapshot_of_records"]

STATE_NAME: Final = "records-in-flight"
"""The name of the operator state; written to disk and frozen."""


@frozen
class InFlightRecord:
    """A record, its event time in milliseconds since 1970, and its key as errors show it."""

    value: Any
    timestamp: int | None
    key: str | None


class RecordsSnapshot(Protocol):
    """What a snapshot says of the records in flight."""

    def restored(self) -> list[InFlightRecord]:
        """Those of the snapshot that was restored, in the order in which they came in."""

    def update(self, records: Iterable[InFlightRecord]) -> None:
        """Says what a snapshot is to hold from here on."""


class _StateOfRecords:
    def __init__(self, state: ListState[Any], form: StoredRecords) -> None:
        self._state = state
        self._form = form

    def restored(self) -> list[InFlightRecord]:
        to_row = self._form.to_row
        return [InFlightRecord(to_row(stored), timestamp, key) for timestamp, key, stored in self._state.get()]

    def update(self, records: Iterable[InFlightRecord]) -> None:
        to_stored = self._form.to_stored
        self._state.update([(one.timestamp, one.key, to_stored(one.value)) for one in records])


class _NoState:
    """Where nothing is known of the records: nothing of them can be in a snapshot."""

    def restored(self) -> list[InFlightRecord]:
        return []

    def update(self, records: Iterable[InFlightRecord]) -> None:
        pass


def snapshot_of_records(context: RuntimeContext, schema: DeclaredSchema | None, *, needed: bool) -> RecordsSnapshot:
    """Registers the state of records of that schema.

    Raises `JobDefinitionError` if the state is needed and cannot be: the schema is not known, or has a column that no
    state can hold.
    """
    place = place_of_output(context.operator_uid)
    try:
        form = None if schema is None else stored_records(schema.arrow, place)
    except JobDefinitionError:
        if needed:
            raise
        return _NoState()
    if form is None:
        if needed:
            raise JobDefinitionError(
                f"{place}: carry_in_flight puts records into checkpoints, and the schema of "
                f"its input is not known; declare it, as in from_elements(..., schema='name type, ...')"
            )
        return _NoState()
    descriptor = SplitListStateDescriptor(STATE_NAME, record_serializer(form))
    return _StateOfRecords(context.operator_state.get_list_state(descriptor), form)


def record_serializer(form: StoredRecords) -> TypeSerializer[Any]:
    """The serializer of the elements of the state; see the module."""
    return TupleSerializer(
        [NullableSerializer(LongSerializer()), NullableSerializer(StringSerializer()), form.serializer]
    )
