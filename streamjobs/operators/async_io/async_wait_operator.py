"""The operator of async I/O: it starts a request for each record, and emits the results in their order.

    a record        waits until the queue has room, which is the back-pressure, and begins its request
    a watermark     takes a place in the queue, and is emitted when everything before it is out
    an outcome      is taken whenever the operator is called, and while it waits; emitted is in this thread only
    the time is up  counted from the begin of the request, all attempts together: the request is cancelled, and the
                    function's timeout() gives the results. That goes by the clock of the operator's thread, so that it
                    comes even if a coroutine blocks the loop; a result that came after its time is none

A failure is told when what may be emitted then is out; nothing more is begun.

At a barrier the operator waits until nothing is in flight, so that a checkpoint holds no request. If it may carry
requests over, it waits only for the watermarks in its queue; the records behind the last one are put into the snapshot,
as a list of their own that any parallelism can deal out, and their requests go on. What a snapshot holds is asked for
again, first of all and in order, when it is restored or, on Spark, in the next epoch: a request may be made twice.
So no watermark is ever in a snapshot, and one that was told before a barrier is out before it.

The function is opened before the first request, so that neither the driver of a job nor a subtask without records
connects to anything. Restored records are begun as far as there is room, and the others as it comes free: a full
queue, or one that has become smaller, blocks nobody.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat, takewhile
from typing import Any, ClassVar, Final

from attrs import define

from streamjobs.api.async_definition import AsyncWaitDefinition
from streamjobs.api.async_functions import AsyncFunction
from streamjobs.errors import AsyncTimeoutError, StreamJobError, UserFunctionError
from streamjobs.operators.async_io.in_flight_records import InFlightRecord, snapshot_of_records
from streamjobs.operators.async_io.record_request import RecordRequest
from streamjobs.operators.async_io.requests import LoopRequests, RequestOutcome, Requests
from streamjobs.operators.async_io.stateless_context import StatelessContext
from streamjobs.operators.async_io.stream_element_queue import ElementEvent, StreamElementQueue
from streamjobs.operators.function_calls import call_user
from streamjobs.operators.function_results import check_results
from streamjobs.operators.operator import Emitter, InputBatch, Operator
from streamjobs.rows.record_copies import copied
from streamjobs.time.timestamps import MAX_TIMESTAMP
from streamjobs.user_errors import cited, told

__all__ = ["AsyncWaitOperator"]

_KEY_CHARACTERS: Final = 80
_RECORD_CHARACTERS: Final = 200


@define(eq=False)
class _InFlight:
    """A request that has not been settled: its record, and until when it may take."""

    number: int
    record: InFlightRecord
    request: RecordRequest
    deadline_s: float


class AsyncWaitOperator(Operator):
    """See the module; ``make_requests`` makes what runs the coroutines."""

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
        """By number, in the order of their deadlines."""
        self._not_begun: deque[InFlightRecord] = deque()
        """What was restored and waits for room."""
        self._requests: Requests | None = None
        self._failure: Exception | None = None

    def open(self, context: Any, emitter: Emitter) -> None:
        self._emitter = emitter
        self._snapshot = snapshot_of_records(
            context, context.input_schemas[0], needed=self._definition.carries_in_flight
        )
        self._context = StatelessContext(context)
        self._not_begun.extend(self._snapshot.restored())

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        self._wait_until(lambda: not self._not_begun)
        keys = batch.keys if self._definition.is_keyed else repeat(None)
        timestamps = getattr(batch, "timestamps", None) or repeat(None)
        for value, timestamp, key in zip(batch.records, timestamps, keys, strict=False):
            self._wait_until(lambda: self._queue.has_room)
            self._begin(
                InFlightRecord(value, timestamp, cited(key, _KEY_CHARACTERS) if self._definition.is_keyed else None)
            )
        self._advance(0)

    def on_watermark(self, timestamp_ms: int) -> None:
        self._wait_until(lambda: not self._not_begun and self._queue.has_room)
        self._queue.put_watermark(timestamp_ms)
        if timestamp_ms == MAX_TIMESTAMP:
            # The end of time: nothing comes that would ask for results again.
            self._wait_until(lambda: not self._queue)
        self._advance(0)

    def let_watermarks_out(self) -> None:
        self._wait_until(lambda: not self._not_begun and not self._queue.holds_watermarks)

    def prepare_snapshot(self) -> None:
        if self._definition.carries_in_flight:
            self.let_watermarks_out()
        else:
            self._wait_until(lambda: not self._not_begun and not self._queue)
        self._snapshot.update([element.content for element in self._queue])

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

    def _begin_restored(self) -> None:
        while self._not_begun and self._queue.has_room:
            self._begin(self._not_begun.popleft())

    def _wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Takes outcomes until that is so, without a wait if it is."""
        while not is_reached():
            self._advance(self._time_left_s())

    def _advance(self, wait_s: float) -> None:
        """Takes the outcomes that are there, after a wait if there are none; emits; raises the first failure."""
        if self._requests is not None:
            for outcome in self._requests.outcomes(wait_s):
                self._settle(outcome)
            self._time_out()
        self._emit()
        if self._failure is not None:
            raise self._failure
        self._begin_restored()

    def _time_left_s(self) -> float:
        """Until the next request is out of time; one whose time is over is left to `_time_out`."""
        for one in self._in_flight.values():
            return max(one.deadline_s - self._running.now_s(), 0.0)
        return 0.0

    def _settle(self, outcome: RequestOutcome) -> None:
        one = self._in_flight.get(outcome.number)
        if one is None or outcome.finished_at_s > one.deadline_s:
            return
        del self._in_flight[outcome.number]
        if outcome.error is None:
            self._queue.tell(one.number, ElementEvent.COMPLETED, outcome.results)
        else:
            self._queue.tell(one.number, ElementEvent.FAILED)
            self._fail(self._invoke_failure(one, outcome.error))

    def _time_out(self) -> None:
        now_s = self._running.now_s()
        over = takewhile(lambda one: one.deadline_s <= now_s, self._in_flight.values())
        for one in list(over):
            del self._in_flight[one.number]
            one.request.is_over = True
            self._running.cancel(one.number)
            self._queue.tell(one.number, ElementEvent.TIMED_OUT)
            try:
                results = self._function.timeout(one.record.value, one.request.context)
                if results is not None:
                    check_results(results, "timeout")
                self._queue.tell(one.number, ElementEvent.TIMEOUT_COMPLETED, list(map(copied, results or ())))
            except Exception as error:
                self._queue.tell(one.number, ElementEvent.TIMEOUT_FAILED)
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
        return f"operator {self._uid!r}{key}, record {cited(record.value, _RECORD_CHARACTERS)}"

    def _invoke_failure(self, one: _InFlight, error: BaseException) -> Exception:
        if isinstance(error, StreamJobError):
            return error
        attempts = f" in attempt {one.request.attempt}" if one.request.attempt > 1 else ""
        failure = UserFunctionError(f"{self._place(one.record)}: async_invoke raised {told(error)}{attempts}")
        failure.__cause__ = error
        return failure

    def _timeout_failure(self, one: _InFlight, error: Exception) -> Exception:
        if isinstance(error, StreamJobError):
            return error
        what = f"no results within {self._definition.timeout_ms} ms"
        if one.request.failures:
            what += f"; attempt {one.request.attempt} was under way or to come, before it {one.request.failures}"
        if type(self._function).timeout is not AsyncFunction.timeout:
            what += f"; timeout raised {told(error)}"
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
