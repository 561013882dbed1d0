"""A function that takes one record at a time, over batches: the hot path of every job.

The loop sets the key and calls the function; everything else (sorting out keys, converting rows, snapshots) happens per
batch or per epoch. There are two: without timestamps, side outputs come behind the output of a batch, and a record
costs nothing but its call; with timestamps, each row is emitted with that of its record, in order across outputs.

An epoch allocates many small objects that live to its end, and Python's cyclic garbage collector, which is driven by
allocations, would walk all of them over and over: a third of the loop's time, measured. So an epoch runs inside
`paused_garbage_collection`, and the youngest generation is collected before a batch if much has been left behind
since the last time: what is in cycles is freed then, while its number is bounded, and of what a batch made and nobody
holds any more nothing is looked at.
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
    of_key,
    of_record,
)
from statebackend.streaming.operators.operator import InputBatch, OrderedOutput
from statebackend.streaming.rows.row_writer import RowEncoder

__all__ = ["YOUNG_OBJECTS", "RecordFunctionAdapter", "paused_garbage_collection"]


YOUNG_OBJECTS: Final = 2_000
"""Objects left behind from which on the youngest generation is collected."""


@contextlib.contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Keeps the cyclic garbage collector from starting by itself; it is as it was afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _collect_young_garbage() -> None:
    """Frees what is held by nothing but its own cycles, if so many objects came since the last time."""
    if gc.get_count()[0] > YOUNG_OBJECTS:
        gc.collect(0)


class RecordFunctionAdapter:
    """Calls ``function(record, context)`` for every record of a batch, with the record's key current.

    ``method`` is what the function is called in errors, ``uid`` the operator. ``key_setter`` makes what makes a key
    current. ``encoder`` is that of the rows that are emitted.
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
        """Processes a batch without timestamps; returns what was emitted, in order.

        Raises `UserFunctionError`, naming key and record, for whatever the function raises.
        """
        _collect_young_garbage()
        emitted: list[Any] = []
        emit = emitted.append
        function, encode, unchanged = self._function, self._encoder.encode, self._encoder.unchanged
        records = zip(batch.records, batch.keys, batch.key_groups, strict=True)
        record: Any = None
        try:
            # Made for the states that are registered by now.
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
            raise self._failure(error, context, record) from error
        return emitted

    def run_with_timestamps(
        self, batch: InputBatch, timestamps: Sequence[int | None], context: ProcessContext[Any], output: OrderedOutput
    ) -> None:
        """Processes a batch with timestamps; ``output`` takes what is emitted, ``context`` has side outputs into it.

        Raises as `run`.
        """
        _collect_young_garbage()
        function, add = self._function, output.add
        records = zip(batch.records, batch.keys, batch.key_groups, timestamps, strict=True)
        record: Any = None
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
            raise self._failure(error, context, record) from error

    def _failure(self, error: Exception, context: ProcessContext[Any], record: Any) -> Exception:
        return call_failure(error, f"{of_key(self._uid, context.current_key)}, {of_record(record)}", self._method)
