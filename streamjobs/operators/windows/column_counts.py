"""A batch that comes in columns, counted by key and tumbling window without making objects of its records.

Arrow groups the columns of the keys and the starts of the windows. That is what Python does with the objects where two
values are one key exactly if their bytes are the same: whole numbers, texts, days and the like. Of others (two zeros of
a binary64, NaN) nothing is promised here, and times near the ends of their range are left to Python's numbers too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamjobs.api.windows.window_assigners import AlignedWindows
from streamjobs.operators.input_batch import BatchPlaces
from streamjobs.rows.row_reader import column_values, keys_of_columns

__all__ = ["WindowCounts", "can_be_counted", "counts_by_start", "starts_of"]

WindowCounts = tuple[int, Sequence[Any], Sequence[int], Sequence[int]]
"""The start of a window; keys, their key groups, and how many records each has in it."""

_GROUPED_ALIKE: Final[Sequence[Callable[[pa.DataType], bool]]] = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
)

_FAR: Final = 1 << 62
"""Milliseconds beyond which the arithmetic of 64 bits might overflow."""


def can_be_counted(places: BatchPlaces) -> bool:
    """Whether Arrow would find the same keys and windows as Python, and all of the records have a timestamp."""
    if not all(any(is_type(column.type) for is_type in _GROUPED_ALIKE) for column in places.keys):
        return False
    if places.timestamps.null_count:
        return False
    bounds: Mapping[str, int] = pc.min_max(places.timestamps).as_py()
    return bounds["min"] > -_FAR and bounds["max"] < _FAR


def starts_of(windows: AlignedWindows, timestamps: pa.Array) -> pa.Array:
    """The start of the tumbling window of each timestamp, none of which is far from 1970."""
    from_offset = pc.subtract(timestamps, windows.offset_ms)
    # The division of whole numbers is towards zero; windows before the offset begin further back.
    starts = pc.multiply(pc.divide(from_offset, windows.size_ms), windows.size_ms)
    starts = pc.if_else(pc.greater(starts, from_offset), pc.subtract(starts, windows.size_ms), starts)
    return pc.add(starts, windows.offset_ms)


def counts_by_start(places: BatchPlaces, starts: pa.Array) -> Iterator[WindowCounts]:
    """The counts of a batch, window after window."""
    names = [f"key{index}" for index in range(len(places.keys))]
    columns = [starts, *places.keys, places.key_groups]
    table = pa.Table.from_arrays(columns, names=["start", *names, "key_group"])
    for start in pc.unique(starts).to_pylist():
        of_window = table.filter(pc.equal(table["start"], start)).drop_columns(["start"])
        counts = of_window.group_by([*names, "key_group"], use_threads=False).aggregate([([], "count_all")])
        counts = counts.combine_chunks()
        keys = keys_of_columns([counts.column(name).chunk(0) for name in names])
        yield (
            start,
            keys,
            column_values(counts.column("key_group").chunk(0)),
            column_values(counts["count_all"].chunk(0)),
        )
