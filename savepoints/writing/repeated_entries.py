"""What becomes of two entries that have got one address: one value by a function, one timer, or a refusal."""

from __future__ import annotations

from functools import reduce
from itertools import chain
from typing import Any

import pyarrow as pa
from attrs import frozen

from savepoints.writing.access_times import times_behind
from savepoints.writing.distinct_rows import MergingRepeated, RefusingRepeated, Repeated
from savepoints.writing.drafts import Merge, StateDraft
from savepoints.writing.entry_decoding import decoded, key_of
from savepoints.writing.entry_encoding import encoded
from savepoints.writing.entry_schema import EntrySchema
from savepoints.writing.errors import PlanError, RepeatedKeyError, failed_function
from savepoints.writing.session_windows import are_sessions, overlap_of_sessions
from snapshots.value_text import shown

__all__ = ["repeated_in"]


def repeated_in(operator_uid: str, state: StateDraft) -> Repeated | None:
    """What is to be done with the sorted rows of a state, of which some may have one address; None if none may."""
    if not state.may_collide:
        return None
    if state.schema.is_queue:
        return MergingRepeated(_first)
    if state.merge is not None:
        return MergingRepeated(_Merging(state.schema, state.merge))
    return RefusingRepeated(_Refusal(operator_uid, state.schema))


def _first(rows: pa.RecordBatch) -> bytes:
    """What becomes of one timer that is there twice: it has no value."""
    return b""


@frozen
class _Merging:
    """From the rows of one address to the value that the function makes of theirs, two at a time, in their order."""

    schema: EntrySchema
    function: Merge

    def __call__(self, rows: pa.RecordBatch) -> bytes:
        schema = self.schema
        values = decoded(schema, rows, "value")
        # The function may change the very lists that it is given.
        elements = list(chain.from_iterable(values)) if schema.is_list else []
        try:
            merged = reduce(self.function, values)
        except Exception as error:
            # It is the user's function: whatever it raises, the place is told.
            raise failed_function(schema.name, key_of(schema, rows), error) from error
        overlap = overlap_of_sessions(merged) if are_sessions(schema.serializers) else None
        if overlap is not None:
            raise PlanError(f"state {schema.name!r}, key {shown(key_of(schema, rows))}: {overlap}. Nothing was written")
        columns: dict[str, list[Any]] = {"value": [merged]}
        if schema.is_timed:
            times = decoded(schema, rows, "last_access_ms")
            columns["last_access_ms"] = [
                times_behind(elements, merged, sum(times, ())) if schema.is_list else max(times)
            ]
        value: bytes = encoded(schema, columns, lambda: [key_of(schema, rows)])["value"][0].as_py()
        return value


@frozen
class _Refusal:
    """What is raised for two entries of one address."""

    uid: str
    schema: EntrySchema

    def __call__(self, rows: pa.RecordBatch) -> RepeatedKeyError:
        schema = self.schema
        place = [f"key {shown(key_of(schema, rows))}"]
        place += [
            f"{column.replace('_', ' ')} {shown(decoded(schema, rows.slice(0, 1), column)[0])}"
            for column in ("namespace", "user_key")
            if column in rows.schema.names
        ]
        return RepeatedKeyError(
            f"operator {self.uid!r}, state {schema.name!r}: two entries have the same {', '.join(place)}. Nothing was "
            f"written. Leave one of them out, or pass a function of two values that makes one of them (merge)"
        )
