"""Calls a function for each record of a batch: the hot path of every job.

The loop sets the key and calls the function. All other work (key types, row conversion, snapshots) is done per batch or
per epoch. There are two loops. Without timestamps, side outputs follow the output of a batch. With timestamps, each row
has the timestamp of its record, and rows are in order across outputs.

An epoch allocates many small objects that live until its end. Python's cyclic garbage collector runs after a number of
allocations and would scan them repeatedly, which took a third of the loop's time. So an epoch runs inside
`paused_garbage_collection`, and a batch first collects the youngest generation if many objects were allocated. This
limits the garbage in cycles.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from statebackend.state.key_context import KeySetter
from statebackend.streaming.functions import ProcessContext
from statebackend.streaming.operators.function_calls import (
    PLAIN_RESULTS,
    call_failure,
    check_results,
    explain_tuple,
    of_key,
    of_record,
)
from statebackend.streaming.operators.operator import InputBatch, OrderedOutput
from statebackend.streaming.rows.row_writer import RowEncoder

__all__ = ["YOUNG_OBJECTS", "RecordFunctionAdapter", "paused_garbage_collection"]


YOUNG_OBJECTS: Final = 2_000
"""The number of new objects that triggers a collection of the youngest generation."""


@contextlib.contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector within the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _collect_young_garbage() -> None:
    """Collect the youngest generation if it has grown enough."""
    if gc.get_count()[0] > YOUNG_OBJECTS:
        gc.collect(0)


class RecordFunctionAdapter:
    """Calls ``function(record, context)`` for every record of a batch, with the record's key current.

    ``method`` names the function in errors, ``uid`` the operator. ``key_setter`` returns the function that sets the
    key. ``encoder`` encodes emitted rows.
    """

    def __init__(
        self,
        function: Callable[[Any, ProcessContext[Any]], Iterable[Any] | None],
        method: str,
        uid: str,
        key_setter: Callable[[], KeySetter],
        encoder: RowEncoder,
    ) -> None:
        self._function = function
        self._method = method
        self._uid = uid
        self._key_setter = key_setter
        self._encoder = encoder

    def run(self, batch: InputBatch, context: ProcessContext[Any]) -> list[Any]:
        """Process a batch without timestamps; returns the emitted rows in order.

        Raises `UserFunctionError` with key and record if the function fails.
        """
        _collect_young_garbage()
        emitted: list[Any] = []
        emit = emitted.append
        function, encode, unchanged = self._function, self._encoder.encode, self._encoder.unchanged
        records = zip(batch.records, batch.keys, batch.key_groups, strict=True)
        record: Any = None
        result: Any = None
        try:
            # The setter covers the states that are registered by now.
            set_key = self._key_setter()
            for record, key, key_group in records:
                context.current_key = key
                set_key(key, key_group)
                result = function(record, context)
                if result is not None:
                    if result.__class__ not in PLAIN_RESULTS:
                        check_results(result, self._method)
                    for row in result:
                        emit(row if row.__class__ in unchanged else encode(row))
        except Exception as error:
            raise self._failure(error, context, record, result) from error
        return emitted

    def run_with_timestamps(
        self, batch: InputBatch, timestamps: Sequence[int | None], context: ProcessContext[Any], output: OrderedOutput
    ) -> None:
        """Process a batch with timestamps. ``output`` receives emitted rows, also those of side outputs.

        Raises as `run`.
        """
        _collect_young_garbage()
        function, add = self._function, output.add
        records = zip(batch.records, batch.keys, batch.key_groups, timestamps, strict=True)
        record: Any = None
        result: Any = None
        try:
            set_key = self._key_setter()
            for record, key, key_group, timestamp in records:
                context.current_key = key
                context.timestamp = timestamp
                set_key(key, key_group)
                result = function(record, context)
                if result is not None:
                    if result.__class__ not in PLAIN_RESULTS:
                        check_results(result, self._method)
                    for row in result:
                        add(None, row, timestamp)
        except Exception as error:
            raise self._failure(error, context, record, result) from error

    def _failure(self, error: Exception, context: ProcessContext[Any], record: Any, result: Any) -> Exception:
        error = explain_tuple(error, result, self._method)
        return call_failure(error, f"{of_key(self._uid, context.current_key)}, {of_record(record)}", self._method)
