"""Compares two results row by row or entry by entry, and reports the first differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset

DIFFERENCES_SHOWN = 5


class DifferenceError(Exception):
    """A result differs from the expected one. The message says what, where, and what was expected."""


def written_rows(directory: Path, schema: pa.Schema) -> pa.Table:
    """Return all rows of a job's completed epochs, with the columns and types of ``schema``."""
    dataset = pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive")
    return dataset.to_table(columns=schema.names).cast(schema)


def require_equal_rows(what: str, expected: pa.Table, actual: pa.Table, identity: tuple[str, ...]) -> None:
    """Raise `DifferenceError` unless both tables have the same rows, each as often; ``identity`` names a row."""
    order = [(name, "ascending") for name in identity]
    expected, actual = expected.combine_chunks().sort_by(order), actual.combine_chunks().sort_by(order)
    if actual.equals(expected):
        return
    wanted, found = (_rows_by_identity(table, identity) for table in (expected, actual))
    differences = [
        f"{what}: {len(expected):,} rows are expected, {len(actual):,} are there",
        *_differences(wanted, found),
    ]
    raise DifferenceError("\n  ".join(differences[: DIFFERENCES_SHOWN + 1]))


def require_equal_states(
    what: str, expected: Mapping[str, Mapping[Any, Any]], actual: Mapping[str, Mapping[Any, Any]]
) -> None:
    """Raise `DifferenceError` unless the states have the same entries with the same values."""
    for name, entries in expected.items():
        if actual[name] != entries:
            differences = [
                f"{what}, state {name!r}: {len(entries):,} entries are expected, {len(actual[name]):,} are there",
                *_differences(entries, actual[name]),
            ]
            raise DifferenceError("\n  ".join(differences[: DIFFERENCES_SHOWN + 1]))


def _rows_by_identity(table: pa.Table, identity: tuple[str, ...]) -> dict[Any, Any]:
    rows: dict[Any, Any] = {}
    for row in table.to_pylist():
        rows.setdefault(tuple(row.pop(name) for name in identity), []).append(row)
    return rows


def _differences(expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in expected.items():
        if key not in actual:
            yield f"{key} is missing; it should be {value}"
        elif actual[key] != value:
            yield f"{key} is {actual[key]}; it should be {value}"
    for key, value in actual.items():
        if key not in expected:
            yield f"{key} should not be there; it is {value}"
