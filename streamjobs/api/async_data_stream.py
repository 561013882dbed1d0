"""How a stream goes through a function that asks other systems: `AsyncDataStream`, as in Flink."""

from __future__ import annotations

from typing import Any

from streamjobs.api.async_definition import AsyncWaitDefinition, EmissionOrder
from streamjobs.api.async_functions import DEFAULT_CAPACITY, AsyncFunction, AsyncRetryStrategy
from streamjobs.api.data_stream import DataStream, KeyedStream, ProcessedStream
from streamjobs.api.stream_graph import KeyedInput, SpreadInput
from streamjobs.errors import JobDefinitionError
from streamjobs.time.durations import Duration, duration_ms
from streamjobs.user_errors import cited, shown_instance

__all__ = ["AsyncDataStream"]


class AsyncDataStream:
    """The two ways through an `AsyncFunction`.

    ``timeout`` is how long a record may take, all attempts together, as a `Duration`. ``capacity`` is the most records
    and watermarks of a subtask that are under way at a time; when they are as many, the operator takes no more.
    ``retry`` says when a request is made again. ``uid`` names what is in flight in checkpoints for ever, and ``schema``
    is that of what is emitted, as in `KeyedStream.process`.

    At a checkpoint the operator waits for what is in flight, which on Spark is the end of every epoch. With
    ``carry_in_flight`` it puts the records into the checkpoint instead, and asks for them again, first of all, in the
    next epoch or after a restore: a request may then be made twice.

    Of a keyed stream all records of a key go to the same subtask, in order. Those of a stream without keys are dealt
    out evenly, and the order is that within a subtask. Both methods raise `JobDefinitionError` for what makes no
    operator.
    """

    @staticmethod
    def ordered_wait(
        stream: DataStream | KeyedStream,
        function: AsyncFunction[Any, Any],
        timeout: Duration,
        capacity: int = DEFAULT_CAPACITY,
        *,
        retry: AsyncRetryStrategy | None = None,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        carry_in_flight: bool = False,
    ) -> ProcessedStream:
        """The results in the order of the records: a slow one holds up those behind it."""
        definition = _definition(function, EmissionOrder.ORDERED, timeout, capacity, retry, carry_in_flight, stream)
        return _through(stream, definition, uid, name, schema)

    @staticmethod
    def unordered_wait(
        stream: DataStream | KeyedStream,
        function: AsyncFunction[Any, Any],
        timeout: Duration,
        capacity: int = DEFAULT_CAPACITY,
        *,
        retry: AsyncRetryStrategy | None = None,
        uid: str = "",
        schema: Any = None,
        name: str = "",
        carry_in_flight: bool = False,
    ) -> ProcessedStream:
        """The results as they come, except that none passes a watermark."""
        definition = _definition(function, EmissionOrder.UNORDERED, timeout, capacity, retry, carry_in_flight, stream)
        return _through(stream, definition, uid, name, schema)


def _definition(
    function: AsyncFunction[Any, Any],
    order: EmissionOrder,
    timeout: Duration,
    capacity: int,
    retry: AsyncRetryStrategy | None,
    carries_in_flight: bool,
    stream: DataStream | KeyedStream,
) -> AsyncWaitDefinition:
    method = f"{order.value}_wait()"
    if not isinstance(stream, (DataStream, KeyedStream)):
        raise JobDefinitionError(f"{method} takes a stream first, not {cited(stream, 80)}")
    if not isinstance(function, AsyncFunction):
        raise JobDefinitionError(f"{method} takes an instance of an AsyncFunction, not {shown_instance(function)}")
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise JobDefinitionError(f"capacity of {method} is {cited(capacity, 40)}; it is a whole number of 1 or more")
    if retry is not None and not isinstance(retry, AsyncRetryStrategy):
        raise JobDefinitionError(
            f"retry of {method} is {cited(retry, 80)}; it is None, AsyncRetryStrategy.fixed_delay(...) or "
            f"AsyncRetryStrategy.exponential_backoff(...)"
        )
    return AsyncWaitDefinition(
        function=function,
        order=order,
        timeout_ms=duration_ms(timeout, f"timeout of {method}", at_least_ms=1),
        capacity=capacity,
        retry=retry,
        carries_in_flight=carries_in_flight,
        is_keyed=isinstance(stream, KeyedStream),
    )


def _through(
    stream: DataStream | KeyedStream, definition: AsyncWaitDefinition, uid: str, name: str, schema: Any
) -> ProcessedStream:
    name = name or type(definition.function).__name__
    read = KeyedInput(stream.edge, stream.keys) if isinstance(stream, KeyedStream) else SpreadInput(stream.edge)
    return ProcessedStream.of(stream.graph, (read,), definition, uid=uid, name=name, schema=schema)
