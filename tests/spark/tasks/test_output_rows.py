"""Main output and side outputs of a task are rows of one schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from statebackend import OutputTag
from statebackend.spark.tasks.arrow_rows import OutputSchema, OutputWriter
from statebackend.streaming.rows.row_writer import RowMismatchError

OUTPUT = pa.schema([("word", pa.string()), ("times", pa.int64())])
LATE, BAD = OutputTag[Any]("late"), OutputTag[Any]("bad")
SIDE_OUTPUTS = {
    BAD: pa.schema([("why", pa.string())]),
    LATE: pa.schema([("at", pa.timestamp("us", "UTC")), ("numbers", pa.list_(pa.int32()))]),
}
NUMBER = "__statebackend_output"


def test_without_side_outputs_there_is_no_additional_column() -> None:
    writer = OutputWriter(OutputSchema(OUTPUT, {}), "words")
    [batch] = writer.batches(None, [("a", 1), ("b", 2)])
    assert batch.schema == OUTPUT
    assert batch.to_pylist() == [{"word": "a", "times": 1}, {"word": "b", "times": 2}]


def test_each_row_is_only_in_the_columns_of_its_output() -> None:
    writer = OutputWriter(OutputSchema(OUTPUT, SIDE_OUTPUTS), "words")
    batches = [
        *writer.batches(None, [{"times": 1, "word": "a"}]),
        *writer.batches(LATE, [(None, [1, 2]), (None, None)]),
        *writer.batches(BAD, ["no word"]),
    ]
    sides = [pa.struct(list(schema)) for schema in SIDE_OUTPUTS.values()]
    schema = pa.schema(
        [
            *OUTPUT,
            ("__statebackend_side_0", sides[0]),
            ("__statebackend_side_1", sides[1]),
            (NUMBER, pa.int32()),
        ]
    )
    assert [batch.schema for batch in batches] == [schema] * 3
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert rows == [
        ("a", 1, None, None, 0),
        (None, None, None, {"at": None, "numbers": [1, 2]}, 2),
        (None, None, None, {"at": None, "numbers": None}, 2),
        (None, None, {"why": "no word"}, None, 1),
    ]


def test_an_invalid_row_names_the_side_output() -> None:
    writer = OutputWriter(OutputSchema(OUTPUT, SIDE_OUTPUTS), "words")
    with pytest.raises(RowMismatchError, match=r"^operator 'words', side output 'late': column 'numbers'"):
        list(writer.batches(LATE, [(None, ["x"])]))
