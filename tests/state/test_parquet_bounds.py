"""Columns that are read without summing the lengths of their values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebackend.state.parquet_bounds import BoundedParquetFile

_ROWS = 30_000
_UNIQUE = [index.to_bytes(4, "big") for index in range(_ROWS)]


@pytest.mark.parametrize(
    ("values", "is_checked_further"),
    [
        (_UNIQUE, False),
        ([*_UNIQUE[:-1], _UNIQUE[0]], True),
        ([_UNIQUE[0], *_UNIQUE[:-1]], True),
        ([*_UNIQUE[:10_000], *_UNIQUE[:20_000]], True),
        ([None, *_UNIQUE[1:]], True),
    ],
    ids=["unique", "last repeats", "first repeats", "many repeat", "null"],
)
@pytest.mark.parametrize("is_nullable", [False, True])
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_only_columns_of_unique_values_are_read_without_further_checks(
    monkeypatch: pytest.MonkeyPatch,
    values: list[bytes | None],
    is_checked_further: bool,
    is_nullable: bool,
    compression: str,
) -> None:
    if None in values and not is_nullable:
        pytest.skip("the column has no nulls")
    schema = pa.schema([pa.field("value", pa.binary(), nullable=is_nullable)])
    target = pa.BufferOutputStream()
    pq.write_table(pa.table([values], schema=schema), target, compression=compression)
    checked = []
    longest_row = BoundedParquetFile._longest_row
    monkeypatch.setattr(
        BoundedParquetFile, "_longest_row", lambda *arguments: checked.append(True) or longest_row(*arguments)
    )
    with BoundedParquetFile(pa.BufferReader(target.getvalue())) as file:
        read = [value for batch in file.batches(0, ["value"], _ROWS, 1 << 20) for value in batch.column(0).to_pylist()]
    assert read == values
    assert bool(checked) == (is_checked_further or compression == "none")
