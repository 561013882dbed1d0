"""How tasks read and write the event-time column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from statebackend import OutputTag
from statebackend.checkpoint.metadata import ChannelTimestamp
from statebackend.spark.tasks.arrow_rows import (
    TIME_COLUMN,
    BatchTime,
    OutputSchema,
    OutputWriter,
    split_by_time,
    time_of_emitted,
)

LATE = OutputTag[Any]("late")
OUTPUT, SIDE = pa.schema([("word", pa.string())]), pa.schema([("why", pa.string())])


def rows(*times: tuple[int | None, str | None, str | None, bool | None] | None) -> pa.RecordBatch:
    fields = time_of_emitted(None, 0, False).type
    values = [time and dict(zip(("timestamp", "source", "channel", "early"), time, strict=True)) for time in times]
    return pa.RecordBatch.from_arrays([pa.array(range(len(times))), pa.array(values, fields)], ["n", TIME_COLUMN])


def split(batch: pa.RecordBatch) -> list[tuple[list[int], BatchTime]]:
    return [(part.column("n").to_pylist(), time) for part, time in split_by_time(batch)]


def test_a_batch_is_split_after_its_early_rows() -> None:
    early, on_time, no_time = (5, None, None, True), (7, None, None, False), None
    parts = split(rows(early, early, on_time, no_time))
    assert parts == [([0, 1], BatchTime([5, 5], (), True)), ([2, 3], BatchTime([7, None]))]
    assert split(rows(early).slice(0)) == [([0], BatchTime([5], (), True))]
    # A slice of a batch has the times of its own rows.
    assert split(rows(early, on_time, no_time).slice(1)) == [([1, 2], BatchTime([7, None]))]
    assert split(rows(no_time)) == [([0], BatchTime())]


def test_the_largest_timestamps_belong_to_source_channels() -> None:
    [(_, time)] = split(
        rows(
            (5, "source-0", "p", False),
            (9, "source-0", "p", False),
            (7, "source-0", "q", False),
            (3, "source-1", "", False),
            (None, "source-1", "r", False),
            (99, None, None, False),
            None,
        )
    )
    assert time.timestamps == [5, 9, 7, 3, None, 99, None]
    assert set(time.channel_timestamps) == {
        ChannelTimestamp("source-0", "p", 9),
        ChannelTimestamp("source-0", "q", 7),
        ChannelTimestamp("source-1", "", 3),
    }


def test_emitted_rows_keep_their_times_for_any_batch_size() -> None:
    writer = OutputWriter(OutputSchema(OUTPUT, {LATE: SIDE}, has_time=True), "words")
    count = 5000
    batches = [
        *writer.batches(None, [("a",)] * count, list(range(count)), is_early=True),
        *writer.batches(None, [("b",)]),
        *writer.batches(LATE, ["why"], [None]),
    ]
    assert len({batch.schema for batch in batches}) == 1
    times = [row[TIME_COLUMN] for batch in batches for row in batch.to_pylist()]
    none = {"timestamp": None, "source": None, "channel": None, "early": False}
    assert times == [*({**none, "timestamp": number, "early": True} for number in range(count)), none, none]
