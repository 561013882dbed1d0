"""The committed flights data matches its description."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet
import pytest

from examples.data.flights_dataset import (
    CHECKSUMS_PATH,
    CONTENT_SHA256,
    PART_COUNT,
    PARTS_DIRECTORY,
    ROW_COUNT,
    SCHEMA,
    SORT_ORDER,
    content_sha256,
    part_name,
    part_path,
    part_row_ranges,
    read_flights,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return read_flights()


def test_all_flights_of_the_year_are_there_with_all_columns(flights: pa.Table) -> None:
    assert flights.num_rows == ROW_COUNT
    assert flights.schema.names == SCHEMA.names
    assert flights.schema.types == SCHEMA.types
    assert set(flights["year"].unique().to_pylist()) == {2013}


@pytest.mark.extended
def test_rows_are_in_time_order_and_the_order_is_total(flights: pa.Table) -> None:
    keys = list(zip(*(flights[name].to_pylist() for name in SORT_ORDER), strict=True))
    assert all(before < after for before, after in pairwise(keys))


def test_the_content_has_the_recorded_checksum(flights: pa.Table) -> None:
    assert content_sha256(flights) == CONTENT_SHA256


def test_the_content_checksum_sees_a_single_changed_value(flights: pa.Table) -> None:
    rows = flights.slice(0, 100)
    changed = rows.to_pylist()
    changed[99]["distance"] += 1
    assert content_sha256(pa.Table.from_pylist(changed, schema=rows.schema)) != content_sha256(rows)


def test_the_files_are_the_listed_ones_and_have_the_listed_checksums() -> None:
    listed = dict(reversed(line.split("  ")) for line in CHECKSUMS_PATH.read_text("ascii").splitlines())
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in PARTS_DIRECTORY.glob("*.parquet")}
    assert found == listed
    assert sorted(found) == [part_name(index) for index in range(PART_COUNT)]


def test_the_parts_are_equally_large() -> None:
    ranges = list(part_row_ranges())
    assert ranges[0][0] == 0
    assert ranges[-1][1] == ROW_COUNT
    sizes = [pyarrow.parquet.read_metadata(part_path(index)).num_rows for index in range(PART_COUNT)]
    assert sizes == [end - start for start, end in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_a_part_that_does_not_exist_is_named_in_the_error() -> None:
    with pytest.raises(IndexError, match="part 32 of the flights data"):
        part_name(PART_COUNT)
