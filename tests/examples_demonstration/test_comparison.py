"""The comparison of the demonstration finds every kind of difference."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from examples.demonstration.comparison import (
    DifferenceError,
    require_equal_rows,
    require_equal_states,
    written_rows,
)
from examples.demonstration.text_table import text_table

ROWS = pa.table({"tailnum": ["N1", "N1", "N2"], "flight": [1, 2, 1], "flights": [1, 2, 1]})
IDENTITY = ("tailnum", "flight")


def test_rows_in_another_order_are_equal() -> None:
    require_equal_rows("the rows", ROWS, ROWS.take([2, 0, 1]), IDENTITY)


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        (ROWS.take([0, 1]), r"3 rows are expected, 2 are there\n.*'N2', 1\) is missing"),
        (ROWS.take([0, 1, 2, 2]), r"3 rows are expected, 4 are there\n.*'N2', 1\) is \[.*, .*\]; it should be"),
        (
            pa.table({"tailnum": ["N1", "N1", "N2"], "flight": [1, 2, 1], "flights": [1, 3, 1]}),
            r"'N1', 2\) is \[\{'flights': 3\}\]; it should be \[\{'flights': 2\}\]",
        ),
        (
            pa.table({"tailnum": ["N1", "N1", "N2", "N3"], "flight": [1, 2, 1, 1], "flights": [1, 2, 1, 1]}),
            r"'N3', 1\) should not be there",
        ),
    ],
    ids=["lost", "twice", "changed", "surplus"],
)
def test_a_difference_between_rows_is_named(actual: pa.Table, message: str) -> None:
    with pytest.raises(DifferenceError, match=message):
        require_equal_rows("the rows", ROWS, actual, IDENTITY)


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        ({"N1": 1}, "N2 is missing; it should be 2"),
        ({"N1": 1, "N2": 3}, "N2 is 3; it should be 2"),
        ({"N1": 1, "N2": 2, "N3": 0}, "N3 should not be there; it is 0"),
    ],
)
def test_a_difference_between_states_is_named(actual: dict[str, int], message: str) -> None:
    expected = {"aircraft": {"N1": 1, "N2": 2}}
    require_equal_states("the job", expected, expected)
    with pytest.raises(DifferenceError, match=f"the job, state 'aircraft'(.|\n)*{message}"):
        require_equal_states("the job", expected, {"aircraft": actual})


def test_only_rows_of_completed_epochs_count(tmp_path: Path) -> None:
    for name in ("epoch=000000000000", "_staging/000000000001-attempt"):
        (tmp_path / name).mkdir(parents=True)
        pyarrow.parquet.write_table(ROWS, tmp_path / name / "part-0.parquet")
    assert written_rows(tmp_path, ROWS.schema).equals(ROWS)


def test_a_table_aligns_cells_of_several_lines() -> None:
    assert text_table(("state", "n"), [("a\nb", "7"), ("c", "10")], right=(1,)) == [
        "state |  n",
        "------+---",
        "a     |  7",
        "b     |",
        "------+---",
        "c     | 10",
    ]
