"""Stateless steps: ``map``, ``filter`` and ``flat_map``, called with each record of a batch.

Both runtimes call the user's function here. A result has the timestamp of its record. A step with a schema emits rows
of this schema. It encodes them when the function returns, because the function may change them in its next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from statebackend.streaming.operators.function_calls import (
    PLAIN_RESULTS,
    call_failure,
    check_results,
    explain_tuple,
    of_record,
)
from statebackend.streaming.rows.row_writer import ENCODER_WITHOUT_SCHEMA, RowEncoder
from statebackend.streaming.stream_graph import FILTER, FLAT_MAP, MAP

__all__ = ["StepResults", "results_of_step"]

StepResults = tuple[list[Any], Sequence[int]]
"""The results of a batch, and for each result the position of its record."""


def results_of_step(
    method: str, function: Callable[[Any], Any], records: Sequence[Any], encoder: RowEncoder = ENCODER_WITHOUT_SCHEMA
) -> StepResults:
    """Call a step with each record of a batch.

    Raises `UserFunctionError`, with the record, if the function fails.
    """
    results: list[Any] = []
    positions: list[int] = []
    record: Any = None
    found: Iterable[Any] = ()
    call, encode, unchanged = _CALLS[method], encoder.encode, encoder.unchanged
    passes_on = method == FILTER or encoder is ENCODER_WITHOUT_SCHEMA
    try:
        for position, record in enumerate(records):
            is_free = passes_on
            found = call(function, record)
            for result in found:
                positions.append(position)
                # A returned record needs no copy. If it is emitted twice, the second one is copied.
                is_encoded = result.__class__ in unchanged or (is_free and result is record)
                is_free = is_free and result is not record
                results.append(result if is_encoded else encode(result))
    except Exception as error:
        if method == FLAT_MAP:
            error = explain_tuple(error, found, "the function")
        raise call_failure(error, f"{method}(), {of_record(record)}", "the function") from error
    return results, positions


def _mapped(function: Callable[[Any], Any], record: Any) -> tuple[Any, ...]:
    return (function(record),)


def _filtered(function: Callable[[Any], Any], record: Any) -> tuple[Any, ...]:
    return (record,) if function(record) else ()


def _flat_mapped(function: Callable[[Any], Any], record: Any) -> Iterable[Any]:
    results = function(record)
    if results is None:
        return ()
    if results.__class__ not in PLAIN_RESULTS:
        check_results(results, "the function")
    found: Iterable[Any] = results
    return found


_CALLS: Final = {MAP: _mapped, FILTER: _filtered, FLAT_MAP: _flat_mapped}
