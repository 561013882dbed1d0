"""The operator of async I/O: starts a request for each record and emits the results in order.

- A record waits for capacity in the queue (back-pressure), then starts its request.
- A watermark enters the queue and is emitted after everything before it.
- Results are taken at each call of the operator and while it waits; only the operator's thread emits.
- A timeout counts from the start of the request, over all attempts. It cancels the request, and ``timeout()`` supplies
  the results. It uses the clock of the operator's thread, so a coroutine that blocks the loop cannot delay it.
- A failure is raised after everything that may still be emitted; no more requests start.

At a barrier the operator waits until nothing is in flight. If it may carry requests over, it only waits for the
watermarks in its queue and for restored records. The remaining records become operator state (`snapshot_of_records`),
and their requests continue. An epoch without records waits for them. Restored records are requested again first, in
order, as capacity allows; so a request may be made twice. On Spark each epoch restores the operator: if it did not wait
for restored records, a request that takes longer than an epoch would never complete. A snapshot never contains a
watermark. The function is opened before the first request, so neither the driver nor a subtask without records connects
to anything.

The state is a split list of ``tuple(optional i64 event time in ms, optional text of the key, record)``. The text of
the key is for errors only.

`StreamElementQueue` (as in Flink) is a state machine without clock or coroutines. An element is a record or a
watermark:

    in flight   completed          -> done           its results wait for their turn
                failed             -> done           without results
                timed out          -> timed out      timeout() is called for results
    timed out   timeout completed  -> done
                timeout failed     -> done           without results
                completed, failed  ignored           the request ended too late
    done        completed, failed, timed out         ignored: the first outcome counts
    emitted     as done

Elements form *segments*. Only the first segment emits, in the order in which its elements are done. A watermark is its
own segment, so no result overtakes it. In ordered mode every record is its own segment.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import repeat, takewhile
from typing import Any, ClassVar, Final, Protocol

from attrs import define, field, frozen

from snapshots.errors import format_value
from statebackend.state.descriptors import descriptors_on_class
from statebackend.state.operator_state_descriptors import SplitListStateDescriptor
from statebackend.state.states import ListState
from statebackend.streaming.async_functions import AsyncFunction, AsyncWaitDefinition, EmissionOrder
from statebackend.streaming.errors import (
    AsyncTimeoutError,
    JobDefinitionError,
    StreamJobError,
    UserFunctionError,
    describe_exception,
)
from statebackend.streaming.functions import RuntimeContext
from statebackend.streaming.operators.async_requests import (
    LoopRequests,
    RecordRequest,
    RequestOutcome,
    Requests,
    StatelessContext,
)
from statebackend.streaming.operators.function_calls import call_user, check_results
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator
from statebackend.streaming.rows.declared_schema import DeclaredSchema, place_of_output
from statebackend.streaming.rows.record_copies import copied
from statebackend.streaming.rows.record_serializer import StoredRecords, stored_form
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.strings import StringSerializer

__all__ = [
    "STATE_NAME",
    "TRANSITIONS",
    "AsyncWaitOperator",
    "ElementEvent",
    "ElementState",
    "InFlightRecord",
    "QueuedElement",
    "RecordsSnapshot",
    "StreamElementQueue",
    "StreamElementQueueError",
    "record_serializer",
    "snapshot_of_records",
]


STATE_NAME: Final = "records-in-flight"
"""The name of the operator state; written to disk and frozen."""


@frozen
class InFlightRecord:
    """A record, its event time in milliseconds since 1970, and its key as formatted for errors."""

    value: Any
    timestamp: int | None
    key: str | None


class RecordsSnapshot(Protocol):
    """The operator state of records in flight."""

    def restored(self) -> list[InFlightRecord]:
        """The restored records in order of arrival."""

    def update(self, records: Iterable[InFlightRecord]) -> None:
        """Set the records that a snapshot will contain."""


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
    """For records without a known schema: a snapshot cannot contain them."""

    def restored(self) -> list[InFlightRecord]:
        return []

    def update(self, records: Iterable[InFlightRecord]) -> None:
        pass


def snapshot_of_records(context: RuntimeContext, schema: DeclaredSchema | None, *, needed: bool) -> RecordsSnapshot:
    """Register the state of records in flight.

    Raises `JobDefinitionError` if the state is required but the schema is unknown or has an unsupported column.
    """
    place = place_of_output(context.operator_uid)
    try:
        form = None if schema is None else stored_form(schema, place)
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
    """The serializer of the elements of the state."""
    return TupleSerializer(
        [NullableSerializer(LongSerializer()), NullableSerializer(StringSerializer()), form.serializer]
    )


class StreamElementQueueError(StreamJobError):
    """An impossible event: a bug in the operator. The queue is unchanged."""


class ElementState(Enum):
    """The state of an element."""

    IN_FLIGHT = "in flight"
    TIMED_OUT = "timed out"
    DONE = "done"
    EMITTED = "emitted"


class ElementEvent(Enum):
    """An event of an element."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    TIMEOUT_COMPLETED = "timeout completed"
    TIMEOUT_FAILED = "timeout failed"


_OUTCOMES: Final = (ElementEvent.COMPLETED, ElementEvent.FAILED, ElementEvent.TIMED_OUT)

TRANSITIONS: Final[Mapping[tuple[ElementState, ElementEvent], ElementState]] = {
    (ElementState.IN_FLIGHT, ElementEvent.COMPLETED): ElementState.DONE,
    (ElementState.IN_FLIGHT, ElementEvent.FAILED): ElementState.DONE,
    (ElementState.IN_FLIGHT, ElementEvent.TIMED_OUT): ElementState.TIMED_OUT,
    (ElementState.TIMED_OUT, ElementEvent.COMPLETED): ElementState.TIMED_OUT,
    (ElementState.TIMED_OUT, ElementEvent.FAILED): ElementState.TIMED_OUT,
    (ElementState.TIMED_OUT, ElementEvent.TIMEOUT_COMPLETED): ElementState.DONE,
    (ElementState.TIMED_OUT, ElementEvent.TIMEOUT_FAILED): ElementState.DONE,
    **{(ElementState.DONE, event): ElementState.DONE for event in _OUTCOMES},
    **{(ElementState.EMITTED, event): ElementState.EMITTED for event in _OUTCOMES},
}
"""An event that keeps the state is ignored. A missing event is an error."""


@define(eq=False)
class QueuedElement:
    """An element of the queue, with its results once it is done.

    ``watermark_ms`` is None for a record.
    """

    number: int
    content: Any
    watermark_ms: int | None = None
    results: Sequence[Any] = ()
    state: ElementState = ElementState.IN_FLIGHT


@define(eq=False)
class _Segment:
    takes_more: bool
    waiting: int = 0
    done: list[QueuedElement] = field(factory=list)


class StreamElementQueue:
    """The queue. `put` returns increasing numbers that identify elements."""

    def __init__(self, order: EmissionOrder, capacity: int) -> None:
        self._order = order
        self._capacity = capacity
        self._elements: dict[int, QueuedElement] = {}
        self._segments: deque[_Segment] = deque()
        self._segment_of: dict[int, _Segment] = {}
        self._next_number = 0
        self._watermarks = 0

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[QueuedElement]:
        """The elements that are not emitted yet, in order of arrival, including watermarks."""
        return iter(self._elements.values())

    @property
    def has_room(self) -> bool:
        return len(self._elements) < self._capacity

    @property
    def holds_watermarks(self) -> bool:
        """Whether a watermark is in the queue."""
        return self._watermarks > 0

    def put(self, content: Any) -> int:
        """Add a record in flight; returns its number."""
        element = self._new_element(content, None)
        if self._order is EmissionOrder.ORDERED or not self._segments or not self._segments[-1].takes_more:
            self._segments.append(_Segment(takes_more=self._order is EmissionOrder.UNORDERED))
        segment = self._segments[-1]
        segment.waiting += 1
        self._segment_of[element.number] = segment
        return element.number

    def put_watermark(self, timestamp_ms: int) -> None:
        """Add a watermark, in milliseconds since 1970."""
        element = self._new_element(None, timestamp_ms)
        element.state = ElementState.DONE
        self._segments.append(_Segment(takes_more=False, done=[element]))
        self._watermarks += 1

    def handle(self, number: int, event: ElementEvent, results: Sequence[Any] = ()) -> bool:
        """Apply an event to a record, with its results if any; returns whether the event changed anything.

        Raises `StreamElementQueueError`, and changes nothing, for an impossible event.
        """
        state = self._state_of(number)
        following = TRANSITIONS.get((state, event))
        if following is None:
            raise StreamElementQueueError(f"element {number} is {state.value} and received event {event.value!r}")
        if following is state:
            return False
        element = self._elements[number]
        element.state = following
        if following is ElementState.DONE:
            element.results = results
            segment = self._segment_of.pop(number)
            segment.waiting -= 1
            segment.done.append(element)
        return True

    def take(self) -> list[QueuedElement]:
        """Remove and return what may be emitted now, in order."""
        taken: list[QueuedElement] = []
        while self._segments:
            segment = self._segments[0]
            taken.extend(segment.done)
            segment.done.clear()
            if segment.waiting:
                break
            self._segments.popleft()
        for element in taken:
            del self._elements[element.number]
            element.state = ElementState.EMITTED
            self._watermarks -= element.watermark_ms is not None
        return taken

    def _new_element(self, content: Any, watermark_ms: int | None) -> QueuedElement:
        if not self.has_room:
            raise StreamElementQueueError(f"the queue is full: it takes {self._capacity} elements")
        element = QueuedElement(self._next_number, content, watermark_ms)
        self._elements[element.number] = element
        self._next_number += 1
        return element

    def _state_of(self, number: int) -> ElementState:
        element = self._elements.get(number)
        if element is not None:
            return element.state
        if 0 <= number < self._next_number:
            return ElementState.EMITTED
        raise StreamElementQueueError(f"there is no element {number}: {self._next_number} were put in")


_KEY_CHARACTERS: Final = 80
_RECORD_CHARACTERS: Final = 200


@define(eq=False)
class _InFlight:
    """An open request: its record and its deadline."""

    number: int
    record: InFlightRecord
    request: RecordRequest
    deadline_s: float


class AsyncWaitOperator(Operator):
    """The operator. ``make_requests`` creates the executor of coroutines."""

    holds_watermarks: ClassVar = True

    def __init__(
        self, definition: AsyncWaitDefinition, uid: str, make_requests: Callable[[], Requests] = LoopRequests
    ) -> None:
        self._function: AsyncFunction[Any, Any] = definition.function
        self._definition = definition
        self._uid = uid
        self._make_requests = make_requests
        self._queue = StreamElementQueue(definition.order, definition.capacity)
        self._in_flight: dict[int, _InFlight] = {}
        """Open requests by number, in the order of their deadlines."""
        self._waiting: deque[InFlightRecord] = deque()
        """Restored records that wait for capacity."""
        self._restored = 0
        """The number of restored records. They have the first numbers of the queue."""
        self._requests: Requests | None = None
        self._failure: Exception | None = None

    @property
    def holds_output(self) -> bool:
        return bool(self._waiting or self._queue)

    def open(self, context: Any, emitter: Emitter) -> None:
        self._emitter = emitter
        self._snapshot = snapshot_of_records(
            context, context.input_schemas[0], needed=self._definition.carries_in_flight
        )
        self._context = StatelessContext(context)
        for descriptor in descriptors_on_class(type(self._function)).values():
            self._context.register(descriptor)
        self._waiting.extend(self._snapshot.restored())
        self._restored = len(self._waiting)

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        self._wait_until(lambda: not self._waiting)
        keys = batch.keys if self._definition.is_keyed else repeat(None)
        timestamps = getattr(batch, "timestamps", None) or repeat(None)
        for value, timestamp, key in zip(batch.records, timestamps, keys, strict=False):
            self._wait_until(lambda: self._queue.has_room)
            self._begin(
                InFlightRecord(
                    value, timestamp, format_value(key, _KEY_CHARACTERS) if self._definition.is_keyed else None
                )
            )
        self._advance(0)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._wait_until(lambda: not self._waiting and self._queue.has_room)
        self._queue.put_watermark(timestamp_ms)
        if timestamp_ms == MAX_TIMESTAMP:
            # At the end of time no later call emits the results.
            self.await_in_flight()
        self._advance(0)

    def let_watermarks_out(self) -> None:
        self._wait_until(lambda: not self._waiting and not self._queue.holds_watermarks)

    def await_in_flight(self) -> None:
        self._wait_until(lambda: not self._waiting and not self._queue)

    def prepare_snapshot(self) -> None:
        if self._definition.carries_in_flight:
            self.let_watermarks_out()
            self._wait_until(lambda: next(iter(self._in_flight), self._restored) >= self._restored)
        else:
            self.await_in_flight()
        self._snapshot.update([element.content for element in self._queue])
        self.in_flight_timeout_ms = self._definition.timeout_ms if self._queue else None

    def close(self) -> None:
        for one in self._in_flight.values():
            one.request.is_over = True
        if self._requests is not None:
            self._requests.close()
            call_user(self._uid, "close", lambda: self._await(self._function.close()))

    def _open_function(self) -> None:
        self._requests = self._make_requests()
        call_user(self._uid, "open", lambda: self._await(self._function.open(self._context)))

    def _begin(self, record: InFlightRecord) -> None:
        if self._requests is None:
            self._open_function()
        number = self._queue.put(record)
        request = RecordRequest(self._function.async_invoke, self._definition.retry, record.value, record.timestamp)
        deadline_s = self._running.now_s() + self._definition.timeout_ms / 1000
        self._in_flight[number] = _InFlight(number, record, request, deadline_s)
        self._running.start(number, request.run)

    def _start_restored(self) -> None:
        while self._waiting and self._queue.has_room:
            self._begin(self._waiting.popleft())

    def _wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Process outcomes until the condition holds."""
        while not is_reached():
            self._advance(self._time_left_s())

    def _advance(self, wait_s: float) -> None:
        """Process outcomes, wait for them if there are none, emit results, and raise the first failure."""
        if self._requests is not None:
            for outcome in self._requests.outcomes(wait_s):
                self._settle(outcome)
            self._time_out()
        self._emit()
        if self._failure is not None:
            raise self._failure
        self._start_restored()

    def _time_left_s(self) -> float:
        """Seconds until the next deadline; `_time_out` handles those that have passed."""
        for one in self._in_flight.values():
            return max(one.deadline_s - self._running.now_s(), 0.0)
        return 0.0

    def _settle(self, outcome: RequestOutcome) -> None:
        one = self._in_flight.get(outcome.number)
        if one is None or outcome.finished_at_s > one.deadline_s:
            return
        del self._in_flight[outcome.number]
        if outcome.error is None:
            self._queue.handle(one.number, ElementEvent.COMPLETED, outcome.results)
        else:
            self._queue.handle(one.number, ElementEvent.FAILED)
            self._fail(self._invoke_failure(one, outcome.error))

    def _time_out(self) -> None:
        now_s = self._running.now_s()
        over = takewhile(lambda one: one.deadline_s <= now_s, self._in_flight.values())
        for one in list(over):
            del self._in_flight[one.number]
            one.request.is_over = True
            self._running.cancel(one.number)
            self._queue.handle(one.number, ElementEvent.TIMED_OUT)
            try:
                results = self._function.timeout(one.record.value, one.request.context)
                if results is not None:
                    check_results(results, "timeout")
                self._queue.handle(one.number, ElementEvent.TIMEOUT_COMPLETED, list(map(copied, results or ())))
            except Exception as error:
                self._queue.handle(one.number, ElementEvent.TIMEOUT_FAILED)
                self._fail(self._timeout_failure(one, error))

    def _emit(self) -> None:
        rows: list[Any] = []
        timestamps: list[int | None] = []
        for element in self._queue.take():
            if element.watermark_ms is None:
                rows.extend(element.results)
                timestamps.extend([element.content.timestamp] * len(element.results))
            else:
                self._emit_rows(rows, timestamps)
                rows, timestamps = [], []
                self._emitter.emit_watermark(element.watermark_ms)
        self._emit_rows(rows, timestamps)

    def _emit_rows(self, rows: Sequence[Any], timestamps: Sequence[int | None]) -> None:
        if any(timestamp is not None for timestamp in timestamps):
            self._emitter.emit(None, rows, timestamps)
        elif rows:
            self._emitter.emit(None, rows)

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure

    def _place(self, record: InFlightRecord) -> str:
        key = "" if record.key is None else f", key {record.key}"
        return f"operator {self._uid!r}{key}, record {format_value(record.value, _RECORD_CHARACTERS)}"

    def _invoke_failure(self, one: _InFlight, error: BaseException) -> Exception:
        if isinstance(error, StreamJobError):
            return error
        attempts = f" in attempt {one.request.attempt}" if one.request.attempt > 1 else ""
        failure = UserFunctionError(
            f"{self._place(one.record)}: async_invoke raised {describe_exception(error)}{attempts}"
        )
        failure.__cause__ = error
        return failure

    def _timeout_failure(self, one: _InFlight, error: Exception) -> Exception:
        if isinstance(error, StreamJobError):
            return error
        what = f"no results within {self._definition.timeout_ms} ms"
        if one.request.failures:
            what += f"; attempt {one.request.attempt} was under way or to come, before it {one.request.failures}"
        if type(self._function).timeout is not AsyncFunction.timeout:
            what += f"; timeout raised {describe_exception(error)}"
        kind = AsyncTimeoutError if isinstance(error, TimeoutError) else UserFunctionError
        failure = kind(f"{self._place(one.record)}: {what}")
        failure.__cause__ = error
        return failure

    @property
    def _running(self) -> Requests:
        if self._requests is None:
            raise StreamJobError(f"operator {self._uid!r} is not open")
        return self._requests

    def _await(self, result: Any) -> None:
        if inspect.isawaitable(result):
            self._running.run(result)
