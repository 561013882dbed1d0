"""Names of columns as attributes, and as they are displayed."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from typeserializers.records.column_names import attribute_of_column, attribute_of_row, displayed_names


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True))
@example(
    ["count", "column_count", "column_column_count", "index", "asDict", "a b", "class", "column_61", "a", "__len__"]
)
def test_columns_of_rows_are_displayed_by_their_own_names(columns: list[str]) -> None:
    attributes = [attribute_of_row(column, tuple) for column in columns]
    assert displayed_names(attributes) == tuple(columns)


def test_names_that_no_column_has_are_displayed_as_they_are_stored() -> None:
    # The name of a plain column, no UTF-8, a lone surrogate, nothing.
    names = ["column_61", "column_ff", attribute_of_column("\ud800"), "column_", "column_6", "column_n"]
    assert displayed_names(names) == tuple(names)


def test_two_names_are_never_displayed_alike() -> None:
    stored = attribute_of_column("column_count")
    assert displayed_names([stored]) == ("count",)
    assert displayed_names(["count", stored]) == ("count", stored)
    assert displayed_names([stored, attribute_of_column("a b"), "count"]) == (stored, "a b", "count")
