"""The operator of interval joins: each record waits, on its side, until none of its partners can come any more.

    left record at l     partners: right records from l + lower to l + upper     given up at l + max(upper, 0)
    right record at r    partners: left records from r - upper to r - lower      given up at r + max(-lower, 0)

A record is put into the buffer of its side, and paired with those in the other one that are near enough. When the
watermark has reached the time at which it is given up, a timer removes it, so that nothing is left behind. What the
timer removes, its namespace says, so that other bounds may be given to a restored job: what waits then is given up when
its old timer says so.

A record behind the watermark is late: it goes to the side output for it, or is dropped. A record without a timestamp is
an error.

What it costs: a record writes one entry and, for the first of its key and time, one timer, whatever waits under the
key. To find its partners it reads those alone. The first record of a key and side in an epoch has the times of what
waits on the other side read, in one pass (`join_buffer`). Flink reads all that waits on the other side for every
record, and writes all records of one time for each of them.
"""

from __future__ import annotations

import gc
from types import GeneratorType
from typing import Any, Final

from attrs import frozen

from streamjobs.api.interval_join import IntervalJoinDefinition
from streamjobs.api.join_functions import JoinContext
from streamjobs.api.output_tag import OutputTag
from streamjobs.operators.element_form import element_form
from streamjobs.operators.function_calls import call_failure, call_user, missing_timestamp, of_key, of_record
from streamjobs.operators.function_results import check_results
from streamjobs.operators.join_buffer import JoinBuffer
from streamjobs.operators.operator import Emitter, InputBatch, Operator
from streamjobs.operators.ordered_output import OrderedOutput
from streamjobs.operators.subtask_context import SubtaskContext
from streamjobs.time.internal_timer_service import InternalTimerService
from streamjobs.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.scalars.fixed_width import BooleanSerializer, LongSerializer

__all__ = ["IntervalJoinOperator"]

TIMERS_NAME: Final = "interval-join-timers"
"""The name of the timer service; a namespace is whether the record is a left one, and its timestamp."""

BUFFER_NAME: Final = "interval-join"
"""The names of the buffers are this, and the side behind it."""

_SIDES: Final = ("left", "right")


@frozen
class _Side:
    """One input of the join."""

    name: str
    is_left: bool
    buffer: JoinBuffer
    partners: JoinBuffer
    lowest_ms: int
    highest_ms: int
    """From when to when its partners are, seen from a record."""
    late_tag: OutputTag[Any] | None

    @property
    def kept_ms(self) -> int:
        """How long a record waits."""
        return max(self.highest_ms, 0)


class IntervalJoinOperator(Operator):
    """See the module."""

    def __init__(self, definition: IntervalJoinDefinition, uid: str) -> None:
        self._definition = definition
        self._function = definition.function
        self._uid = uid

    def open(self, context: SubtaskContext, emitter: Emitter) -> None:
        definition = self._definition
        where = f"operator {self._uid!r}"
        forms = [
            element_form(given, schema, where, f"the join keeps {side}", f"{side}_type")
            for side, given, schema in zip(_SIDES, definition.serializers, context.input_schemas, strict=True)
        ]
        left, right = (
            JoinBuffer(f"{BUFFER_NAME}-{side}", form, context.register)
            for side, form in zip(_SIDES, forms, strict=True)
        )
        lower = definition.lower_ms + (not definition.is_lower_inclusive)
        upper = definition.upper_ms - (not definition.is_upper_inclusive)
        tags = (definition.late_left_tag, definition.late_right_tag)
        left_tag, right_tag = (tag if tag in emitter.side_outputs else None for tag in tags)
        self._sides = (
            _Side("left", True, left, right, lower, upper, left_tag),
            _Side("right", False, right, left, -upper, -lower, right_tag),
        )
        namespaces: TupleSerializer = TupleSerializer([BooleanSerializer(), LongSerializer()])
        self._timers: InternalTimerService[Any] = context.internal_timer_service(TIMERS_NAME, namespaces)
        self._output = output = OrderedOutput(emitter)
        call_user(self._uid, "open", lambda: self._function.open(context))
        self._context: JoinContext[Any] = JoinContext(
            context.epoch_id, output.side_outputs_at(lambda: self._context.timestamp)
        )
        self._set_key = context.key_setter()

    def process_batch(self, input_index: int, batch: InputBatch) -> None:
        side, context = self._sides[input_index], self._context
        timestamps = batch.timestamps if batch.timestamps is not None else [None] * len(batch.keys)
        record: Any = None
        try:
            for record, context.current_key, key_group, time in zip(
                batch.records, batch.keys, batch.key_groups, timestamps, strict=True
            ):
                self._set_key(context.current_key, key_group)
                self._process(side, record, time)
        except Exception as error:
            # What was emitted before stays emitted.
            self._output.flush()
            where = f"{of_key(self._uid, context.current_key)}, {side.name} {of_record(record)}"
            raise call_failure(error, where, "the join") from error
        self._output.flush()
        # As behind every batch: see `record_function`.
        gc.collect(0)

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        is_left, time = namespace
        self._sides[0 if is_left else 1].buffer.remove(key, time)

    def begin_epoch(self, epoch_id: int) -> None:
        self._context.epoch_id = epoch_id

    def close(self) -> None:
        call_user(self._uid, "close", self._function.close)

    def _process(self, side: _Side, record: Any, time: int | None) -> None:
        if time is None:
            where = f"{of_key(self._uid, self._context.current_key)}, {side.name} {of_record(record)}"
            raise missing_timestamp(where, "an interval join needs one of both", "connect the streams")
        watermark = self._timers.current_watermark()
        if time < watermark != MIN_TIMESTAMP:
            if side.late_tag is None:
                self.late_records_dropped += 1
            else:
                self._output.add(side.late_tag, record, time)
            return
        key, context, join = self._context.current_key, self._context, self._join
        side.buffer.add(key, record, time)
        for other_time, other in side.partners.between(key, time + side.lowest_ms, time + side.highest_ms):
            if side.is_left:
                context.left_timestamp, context.right_timestamp = time, other_time
                join(record, other)
            else:
                context.left_timestamp, context.right_timestamp = other_time, time
                join(other, record)
        self._timers.register_event_time_timer((side.is_left, time), min(time + side.kept_ms, MAX_TIMESTAMP))

    def _join(self, left: Any, right: Any) -> None:
        context, add = self._context, self._output.add
        try:
            result = self._function.process_element(left, right, context)
            if result is None:
                return
            if result.__class__ is not GeneratorType:
                check_results(result, "process_element")
            for row in result:
                add(None, row, context.timestamp)
        except Exception as error:
            where = f"{of_key(self._uid, context.current_key)}, left {of_record(left)}, right {of_record(right)}"
            raise call_failure(error, where, "process_element") from error
