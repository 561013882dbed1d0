"""An operator in its order of calls, as a subtask drives it: a call out of turn is an error that changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from statebackend.streaming.errors import StreamJobError, UserFunctionError, one_line
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator
from statebackend.streaming.operators.subtask_context import SubtaskContext
from statebackend.streaming.time.internal_timer_service import DueTimers

__all__ = ["OperatorCallError", "OperatorRun"]


class OperatorCallError(StreamJobError):
    """An operator was called out of turn: an error of the runtime that drives it."""


class Phase(Enum):
    """Where an operator is in its life."""

    CREATED = "created"
    OPENED = "opened"
    PREPARED = "prepared for a snapshot"
    FAILED = "failed"
    CLOSED = "closed"


class Call(Enum):
    """What an operator is told."""

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
"""A call that raises leads to FAILED, in which only close is left, or for close itself to CLOSED."""


class OperatorRun:
    """One operator from open to close."""

    def __init__(self, operator: Operator, uid: str) -> None:
        self._operator = operator
        self._uid = uid
        self._phase = Phase.CREATED
        self.records_in = 0
        """The records that came to it so far."""

    @property
    def phase(self) -> Phase:
        """Where the operator is in its life."""
        return self._phase

    @property
    def holds_watermarks(self) -> bool:
        """See `Operator`."""
        return self._operator.holds_watermarks

    @property
    def fires_together(self) -> bool:
        """See `Operator`."""
        return self._operator.fires_together

    @property
    def late_records_dropped(self) -> int:
        """See `Operator`."""
        return self._operator.late_records_dropped

    @contextlib.contextmanager
    def opened(self, context: SubtaskContext, emitter: Emitter) -> Iterator[None]:
        """`open`, and `close` behind the block, also after a failure, which stays the one that is told."""
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
            # The task is given up: nobody asks why.
            self._phase = Phase.FAILED
            with contextlib.suppress(Exception):
                self._close()
            raise
        self._close()

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        """See `Operator`; raises `OperatorCallError` if it is not open."""
        with self._call(Call.PROCESS_BATCH):
            self._operator.process_batch(input_index, batch)
        columns = batch.columns
        self.records_in += len(batch.records) if columns is None else columns.num_rows

    def on_watermark(self, timestamp_ms: int) -> None:
        """See `Operator`; raises `OperatorCallError` if it is not open."""
        with self._call(Call.WATERMARK):
            self._operator.on_watermark(timestamp_ms)

    def let_watermarks_out(self) -> None:
        """See `Operator`; raises `OperatorCallError` if it is not open."""
        with self._call(Call.WATERMARK):
            self._operator.let_watermarks_out()

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        """See `Operator`; raises `OperatorCallError` if it is not open."""
        following = self._begun(Call.TIMER)
        self._operator.on_event_time_timer(timestamp_ms, key, key_group, namespace)
        self._phase = following

    def on_event_time_timers(self, due: DueTimers) -> None:
        """See `Operator`; raises `OperatorCallError` if it is not open."""
        with self._call(Call.TIMER):
            self._operator.on_event_time_timers(due)

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        """See `Operator`; raises `OperatorCallError` if it is not open."""
        following = self._begun(Call.TIMER)
        self._operator.on_processing_time_timer(timestamp_ms, key, key_group, namespace)
        self._phase = following

    def prepare_snapshot(self) -> None:
        """See `Operator`; raises `OperatorCallError` if it is not open."""
        with self._call(Call.PREPARE_SNAPSHOT):
            self._operator.prepare_snapshot()

    def begin_epoch(self, epoch_id: int) -> None:
        """See `Operator`."""
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
        """Begins a call; what raises leaves the operator where nothing but close is left. Returns what follows."""
        # There are many timers, and a look-up by two members of enumerations takes its time.
        is_timer = self._phase is Phase.OPENED and call is Call.TIMER
        following = Phase.OPENED if is_timer else self._following(call)
        self._phase = Phase.CLOSED if call is Call.CLOSE else Phase.FAILED
        return following

    def _following(self, call: Call) -> Phase:
        following = TRANSITIONS.get((self._phase, call))
        if following is None:
            raise OperatorCallError(f"operator {self._uid!r} is {self._phase.value}, and was told {call.value}")
        return following


def _both(error: Exception, closing: Exception) -> Exception:
    if not isinstance(error, UserFunctionError):
        return error
    return UserFunctionError(f"{error}; close() then failed too: {one_line(str(closing))}")
