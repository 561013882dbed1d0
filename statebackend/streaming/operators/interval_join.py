"""The operator of interval joins. Each record waits on its side until no more partners can arrive.

    left record at l     partners: right records from l + lower to l + upper     removed at l + max(upper, 0)
    right record at r    partners: left records from r - upper to r - lower      removed at r + max(-lower, 0)

A record is added to the buffer of its side and joined with matching records of the other side. A timer removes it when
the watermark reaches its removal time. The namespace of the timer identifies the record. So a restored job may use
other bounds; the old timers then remove the restored records. Late records go to a side output or are dropped. A record
without a timestamp is an error.

The buffer of a side is a map state ``(timestamp in ms, number from 0) -> record``. Adding a record writes one entry.
Numbers of one timestamp have no gaps, so a few look-ups find their count. The buffer caches the ordered timestamps of
the keys in use: a look-up costs a binary search and reads only matching records. The timestamps of a key are read from
state at its first look-up, in one pass. If the cache exceeds `MOST_TIMES` timestamps, it is emptied, and timestamps are
read again when needed. (Flink reads all waiting records of the other side for every record.)
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import GeneratorType
from typing import Any, Final

from attrs import frozen

from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.states import MapState
from statebackend.streaming.connected_streams import IntervalJoinDefinition
from statebackend.streaming.functions import JoinContext, open_function
from statebackend.streaming.operators.element_form import ElementForm, element_form
from statebackend.streaming.operators.function_calls import (
    call_failure,
    call_user,
    check_results,
    missing_timestamp,
    of_key,
    of_record,
)
from statebackend.streaming.operators.operator import Emitter, InputBatch, Operator, OrderedOutput
from statebackend.streaming.operators.subtask_context import SubtaskContext
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.time.internal_timer_service import InternalTimerService
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.scalars.fixed_width import BooleanSerializer, IntSerializer, LongSerializer

__all__ = ["IntervalJoinOperator", "JoinBuffer"]


MOST_TIMES: Final = 200_000
"""The maximum number of cached timestamps per side: about 30 MB."""

_WORTH_A_COMPACTION: Final = 64


class _Times:
    """The ordered timestamps of one key, with the number of waiting records of each.

    Removed timestamps stay in the order until there are many, because deleting from the front moves all others.
    """

    __slots__ = ("counts", "order")

    def __init__(self, times: Iterable[int]) -> None:
        self.counts: dict[int, int] = Counter(times)
        self.order: list[int] = sorted(self.counts)

    def add(self, time: int) -> int:
        """Add a record and return the previous number of records of its time."""
        counts = self.counts
        count = counts.get(time, 0)
        counts[time] = count + 1
        if not count:
            order = self.order
            at = bisect_left(order, time)
            if at == len(order) or order[at] != time:
                order.insert(at, time)
        return count

    def remove(self, time: int) -> int:
        """Remove a time and return its number of records."""
        count = self.counts.pop(time, 0)
        removed = len(self.order) - len(self.counts)
        if removed > _WORTH_A_COMPACTION and removed > len(self.counts):
            self.order = [one for one in self.order if one in self.counts]
        return count


class JoinBuffer:
    """The waiting records of one side. The key of each call must be current."""

    def __init__(self, name: str, form: ElementForm, register: Callable[[MapStateDescriptor[Any, Any]], Any]) -> None:
        place: TupleSerializer = TupleSerializer([LongSerializer(), IntSerializer()])
        self._state: MapState[tuple[int, int], Any] = register(MapStateDescriptor(name, place, form.serializer))
        self._form = form
        self._known: dict[Any, _Times] = {}
        self._held = 0

    def add(self, key: Any, record: Any, time: int) -> None:
        """Add a record."""
        times = self._known.get(key)
        if times is None:
            number = self._count_at(time)
        else:
            number = times.add(time)
            self._held += 1
        self._state.put((time, number), self._form.stored(record))

    def between(self, key: Any, lowest: int, highest: int) -> Iterator[tuple[int, Any]]:
        """Yield the records between two times, both inclusive, with their times, by time and arrival."""
        times = self._times(key)
        order, counts, get, given = times.order, times.counts, self._state.get, self._form.given
        for index in range(bisect_left(order, lowest), len(order)):
            time = order[index]
            if time > highest:
                break
            for number in range(counts.get(time, 0)):
                yield time, given(get((time, number)))

    def remove(self, key: Any, time: int) -> None:
        """Remove the records of a time."""
        times = self._known.get(key)
        for number in range(self._count_at(time) if times is None else times.remove(time)):
            self._state.remove((time, number))

    def _count_at(self, time: int) -> int:
        """Return the number of records of a time, by exponential and binary search."""
        contains = self._state.contains
        above = 1
        while contains((time, above - 1)):
            above *= 2
        # Number `above` - 1 does not exist. All numbers below half of it exist.
        return bisect_left(range(above - 1), True, lo=above // 2, key=lambda number: not contains((time, number)))

    def _times(self, key: Any) -> _Times:
        times = self._known.get(key)
        if times is None:
            if self._held > MOST_TIMES:
                self._known.clear()
                self._held = 0
            times = self._known[key] = _Times(time for (time, _), _ in self._state.items())
            # Count the key itself, even without waiting records.
            self._held += 1 + len(times.order)
        return times


TIMERS_NAME: Final = "interval-join-timers"
"""The name of the timer service. A namespace is a pair: whether the record is on the left side, and its timestamp."""

BUFFER_NAME: Final = "interval-join"
"""The prefix of the names of the buffers; the side follows."""

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
    """The bounds of partners, relative to the timestamp of a record."""
    late_tag: OutputTag[Any] | None

    @property
    def kept_ms(self) -> int:
        """The time that a record waits, in milliseconds."""
        return max(self.highest_ms, 0)


class IntervalJoinOperator(Operator):
    """Joins two keyed inputs by distance in event time."""

    def __init__(self, definition: IntervalJoinDefinition, uid: str) -> None:
        self._definition = definition
        self._function = definition.function
        self._uid = uid
        self.late_records: Counter[OutputTag[Any] | None] = Counter()

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
        call_user(self._uid, "open", lambda: open_function(self._function, context))
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
            # Rows emitted before the failure stay emitted.
            self._output.flush()
            where = f"{of_key(self._uid, context.current_key)}, {side.name} {of_record(record)}"
            raise call_failure(error, where, "the join") from error
        self._output.flush()
        # As after every batch, see `record_function`.
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
            self.late_records[side.late_tag] += 1
            if side.late_tag is not None:
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
