"""Arrow batches with several inputs are split into runs of one input, without losing rows or nulls."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from statebackend.spark.tasks.arrow_rows import (
    INPUT_COLUMN,
    KEY_GROUP_COLUMN,
    SUBTASK_COLUMN,
    InputColumns,
    InputReader,
    row_column_of_input,
    runs_of_inputs,
)
from statebackend.streaming.operators.operator import place_of_input

FIRST = pa.struct([("k", pa.string()), ("tags", pa.list_(pa.int64())), (KEY_GROUP_COLUMN, pa.int32())])
SECOND = pa.struct([("n", pa.int32())])
READERS = [
    InputReader(InputColumns(("k", "tags"), ("k",)), place_of_input("both", 0, 2)),
    InputReader(InputColumns(("n",), ()), place_of_input("both", 1, 2)),
]

FIRST_ROWS = st.fixed_dictionaries(
    {"k": st.sampled_from("ab"), "tags": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=2)}
).map(lambda row: {**row, KEY_GROUP_COLUMN: ord(row["k"])})
SECOND_ROWS = st.fixed_dictionaries({"n": st.none() | st.integers(0, 9)})
ROWS = st.lists(st.tuples(st.just(0), FIRST_ROWS) | st.tuples(st.just(1), SECOND_ROWS), max_size=12)


@given(ROWS, st.integers(0, 12), st.integers(0, 12))
def test_every_row_is_in_its_place_with_its_input(rows: list[tuple[int, Any]], start: int, count: int) -> None:
    columns = {
        INPUT_COLUMN: pa.array([index for index, _ in rows], pa.int32()),
        SUBTASK_COLUMN: pa.array([0] * len(rows), pa.int32()),
        row_column_of_input(0): pa.array([row if index == 0 else None for index, row in rows], FIRST),
        row_column_of_input(1): pa.array([row if index == 1 else None for index, row in rows], SECOND),
    }
    batch = pa.RecordBatch.from_pydict(columns).slice(start, count)
    seen = []
    runs = list(runs_of_inputs(batch))
    for index, run in runs:
        [part] = READERS[index].batches(run)
        records = [row.asDict() for row in part.records]
        if index == 0:
            assert list(part.keys) == [record["k"] for record in records]
            assert list(part.key_groups) == [ord(record["k"]) for record in records]
            records = [{**row, KEY_GROUP_COLUMN: ord(row["k"])} for row in records]
        else:
            assert not part.keys
            assert not part.key_groups
        seen += [(index, record) for record in records]
    assert seen == rows[start : start + count]
    # Each run is as long as possible.
    assert all(before[0] != behind[0] for before, behind in itertools.pairwise(runs))
