"""Time in an epoch of one subtask: it stands where the epoch begins, and what is due by then fires before any record.

First the timers of event time up to the watermark, each with its key current, then the operator is told the
watermark: what is emitted until then goes out before it. Then the timers that are due by the clock, which stands still
in an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statebackend.keyed.key_context import KeySetter
from streamjobs.operators.operator_run import OperatorRun
from streamjobs.operators.subtask_context import SubtaskContext
from streamjobs.time.internal_timer_service import Fire
from streamjobs.time.timestamps import MIN_TIMESTAMP

__all__ = ["advance_processing_time", "advance_watermark"]


def advance_watermark(operator: OperatorRun, context: SubtaskContext, watermark_ms: int) -> None:
    """Moves the event time of an operator that was opened with this context; raises what the operator raises."""
    if watermark_ms == MIN_TIMESTAMP:
        return
    set_key = context.key_setter()
    for service in context.timer_services:
        if operator.fires_together:
            service.advance_watermark_together(watermark_ms, operator.on_event_time_timers)
        else:
            service.advance_watermark(watermark_ms, _with_key(set_key, operator.on_event_time_timer))
    operator.on_watermark(watermark_ms)


def advance_processing_time(operator: OperatorRun, context: SubtaskContext) -> None:
    """Fires what is due by the clock; raises what the operator raises."""
    set_key = context.key_setter()
    for service in context.timer_services:
        service.advance_processing_time(_with_key(set_key, operator.on_processing_time_timer))


def _with_key(set_key: KeySetter, call: Callable[[int, Any, int, Any], None]) -> Fire:
    def fire(timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        set_key(key, key_group)
        call(timestamp_ms, key, key_group, namespace)

    return fire
