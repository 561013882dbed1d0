"""Channel state for tests: two inputs with declared schemas, elements of every kind, and event time of a subtask."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from typing import Final

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.local.channel_state import RecordForms, forms_of_operators
from statebackend.local.graph import rows_of
from statebackend.local.network.channel import InFlight, RecordBatch
from statebackend.local.network.channel_barriers import BarrierMetrics, SubtaskCapture, SubtaskTime
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkStatus

COUNTS: Final = parsed_schema("word string, count bigint", "test")
EVERYTHING: Final = parsed_schema(
    "a boolean, b tinyint, c double, d decimal(10,2), e timestamp, f timestamp_ntz, g date, h binary, "
    "i array<int>, j map<string, bigint>, k struct<x: int, y: string>, `odd name` float",
    "test",
)
FORMS: Final[RecordForms] = forms_of_operators({"join": [COUNTS, EVERYTHING]})

_UTC = datetime.timezone.utc
FULL: Final = (
    True, -3, 2.5, decimal.Decimal("12.30"), datetime.datetime(2026, 1, 2, 3, 4, 5, 678, _UTC),
    datetime.datetime(1969, 12, 31, 23), datetime.date(1970, 1, 1), b"\0\xff", [1, None], {"k": 7}, (1, "y"), 0.5,
)  # fmt: skip


def counts(*words: str, times: Sequence[int | None] | None = None) -> RecordBatch:
    """Rows for the first input."""
    rows = rows_of([(word, len(word)) for word in words], COUNTS)
    return RecordBatch(0, rows, times, sender_watermark_ms=3)


def everything() -> RecordBatch:
    """A row with a value of every type, and one of nulls, for the second input."""
    return RecordBatch(1, rows_of([FULL, (None,) * len(FULL)], EVERYTHING), [5, None])


def in_flight() -> dict[TaskId, Sequence[InFlight]]:
    """Elements of every kind."""
    return {
        TaskId("words", 0): [
            counts("a", "b"), Watermark(5), WatermarkStatus.IDLE, WatermarkStatus.ACTIVE, counts("late", times=[4]),
        ],
        TaskId("rates", 3): [everything()],
    }  # fmt: skip


def time() -> SubtaskTime:
    """The event time of a subtask with two inputs."""
    valves = (
        ValveState(3, (ValveChannel(TaskId("words", 0), 3, False),)),
        ValveState(MIN_TIMESTAMP, (ValveChannel(TaskId("rates", 3), MIN_TIMESTAMP, True),)),
    )
    return SubtaskTime(OperatorWatermarkState(3, valves), 2, WatermarkStatus.IDLE)


def capture(
    inputs: Mapping[TaskId, Sequence[InFlight]] | None = None,
    outputs: Mapping[TaskId, Sequence[InFlight]] | None = None,
) -> SubtaskCapture:
    """The captured records of a subtask for checkpoint 7."""
    return SubtaskCapture(
        checkpoint_id=7,
        is_unaligned=True,
        time=time(),
        metrics=BarrierMetrics(),
        inputs=in_flight() if inputs is None else inputs,
        outputs=outputs or {},
    )
