"""Enforces the order of calls to an operator. A call out of order is an error and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from snapshots.errors import one_line
from statebackend.streaming.errors import StreamJobError, UserFunctionError
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator
from statebackend.streaming.operators.subtask_context import SubtaskContext
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.time.internal_timer_service import DueTimers

__all__ = ["OperatorCallError", "OperatorRun"]


class OperatorCallError(StreamJobError):
    """The runtime called an operator out of order; a bug in the runtime."""


class Phase(Enum):
    """The phase of an operator's life."""

    CREATED = "created"
    OPENED = "opened"
    PREPARED = "prepared for a snapshot"
    FAILED = "failed"
    CLOSED = "closed"


class Call(Enum):
    """A call to an operator."""

    OPEN = "open"
    PROCESS_BATCH = "process_batch"
    WATERMARK = "on_watermark"
    TIMER = "a timer"
    PREPARE_SNAPSHOT = "prepare_snapshot"
    CLOSE = "close"


_OPEN_CALLS: Final = (Call.PROCESS_BATCH, Call.WATERMARK, Call.TIMER)

TRANSITIONS: Final[Mapping[tuple[Phase, Call], Phase]] = {
    (Phase.CREATED, Call.OPEN): Phase.OPENED,
    **{(phase, call): Phase.OPENED for phase in (Phase.OPENED, Phase.PREPARED) for call in _OPEN_CALLS},
    (Phase.OPENED, Call.PREPARE_SNAPSHOT): Phase.PREPARED,
    (Phase.PREPARED, Call.PREPARE_SNAPSHOT): Phase.PREPARED,
    (Phase.OPENED, Call.CLOSE): Phase.CLOSED,
    (Phase.PREPARED, Call.CLOSE): Phase.CLOSED,
    (Phase.FAILED, Call.CLOSE): Phase.CLOSED,
}
"""The phase after each call. If a call raises, the phase is FAILED, which only allows close. A failing close leads to
CLOSED."""


class OperatorRun:
    """Drives one operator from open to close. Calls out of order raise `OperatorCallError`."""

    def __init__(self, operator: Operator, uid: str) -> None:
        self._operator = operator
        self._uid = uid
        self._phase = Phase.CREATED
        self.records_in = 0
        """The number of records received."""

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def holds_watermarks(self) -> bool:
        return self._operator.holds_watermarks

    @property
    def holds_output(self) -> bool:
        return self._operator.holds_output

    @property
    def fires_together(self) -> bool:
        return self._operator.fires_together

    @property
    def in_flight_timeout_ms(self) -> int | None:
        return self._operator.in_flight_timeout_ms

    @property
    def late_records(self) -> Mapping[OutputTag[Any] | None, int]:
        return self._operator.late_records

    @contextlib.contextmanager
    def opened(self, context: SubtaskContext, emitter: Emitter) -> Iterator[None]:
        """Open the operator, and close it after the block. A failure of the block hides a failure of `close`."""
        self._following(Call.OPEN)
        try:
            with self._call(Call.OPEN):
                self._operator.open(context, emitter)
            yield
        except Exception as error:
            self._phase = Phase.FAILED
            try:
                self._close()
            except Exception as closing:
                raise _both(error, closing) from error
            raise
        except BaseException:
            # The task is cancelled, so its error is not needed.
            self._phase = Phase.FAILED
            with contextlib.suppress(Exception):
                self._close()
            raise
        self._close()

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        with self._call(Call.PROCESS_BATCH):
            self._operator.process_batch(input_index, batch)
        columns = batch.columns
        self.records_in += len(batch.records) if columns is None else columns.num_rows

    def on_watermark(self, timestamp_ms: int) -> None:
        with self._call(Call.WATERMARK):
            self._operator.on_watermark(timestamp_ms)

    def let_watermarks_out(self) -> None:
        with self._call(Call.WATERMARK):
            self._operator.let_watermarks_out()

    def await_in_flight(self) -> None:
        with self._call(Call.WATERMARK):
            self._operator.await_in_flight()

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        following = self._begun(Call.TIMER)
        self._operator.on_event_time_timer(timestamp_ms, key, key_group, namespace)
        self._phase = following

    def on_event_time_timers(self, due: DueTimers) -> None:
        with self._call(Call.TIMER):
            self._operator.on_event_time_timers(due)

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        following = self._begun(Call.TIMER)
        self._operator.on_processing_time_timer(timestamp_ms, key, key_group, namespace)
        self._phase = following

    def on_processing_time(self) -> None:
        with self._call(Call.TIMER):
            self._operator.on_processing_time()

    def prepare_snapshot(self) -> None:
        with self._call(Call.PREPARE_SNAPSHOT):
            self._operator.prepare_snapshot()

    def begin_epoch(self, epoch_id: int) -> None:
        self._operator.begin_epoch(epoch_id)

    def _close(self) -> None:
        with self._call(Call.CLOSE):
            self._operator.close()

    @contextlib.contextmanager
    def _call(self, call: Call) -> Iterator[None]:
        following = self._begun(call)
        yield
        self._phase = following

    def _begun(self, call: Call) -> Phase:
        """Enter FAILED until the call returns. Returns the phase that follows then."""
        # Timers are frequent, and a look-up by two enum members is slow.
        is_timer = self._phase is Phase.OPENED and call is Call.TIMER
        following = Phase.OPENED if is_timer else self._following(call)
        self._phase = Phase.CLOSED if call is Call.CLOSE else Phase.FAILED
        return following

    def _following(self, call: Call) -> Phase:
        following = TRANSITIONS.get((self._phase, call))
        if following is None:
            raise OperatorCallError(f"operator {self._uid!r} is {self._phase.value}, which does not allow {call.value}")
        return following


def _both(error: Exception, closing: Exception) -> Exception:
    if not isinstance(error, UserFunctionError):
        return error
    return UserFunctionError(f"{error}; close() then failed too: {one_line(str(closing))}")
