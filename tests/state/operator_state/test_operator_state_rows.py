"""Rows of operator state are written and read in batches bounded by number and by bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebackend.checkpoint import CheckpointFileSystem
from statebackend.state import operator_state_handles as operator_state_rows
from statebackend.state.operator_state_handles import FileSlice, OperatorStateRow, batches, encoded_rows, read_slice

ROWS: list[OperatorStateRow] = [(None, bytes(size)) for size in (5, 5, 1, 40, 0, 0, 10, 10)] + [(b"key", None)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_state_rows, "BATCH_BYTES", 10)
    monkeypatch.setattr(operator_state_rows, "BATCH_ROWS", 3)


def test_a_batch_is_bounded_in_rows_and_bytes() -> None:
    sizes = [[len(row[1] or b"") + len(row[0] or b"") for row in batch] for batch in batches(ROWS)]
    assert sizes == [[5, 5], [1], [40], [0, 0, 10], [10], [3]]
    assert [len(batch) for batch in batches([(None, b"")] * 7)] == [3, 3, 1]
    assert list(batches([])) == []


def test_row_groups_have_the_same_bounds_and_the_rows_round_trip(tmp_path: Path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    data = encoded_rows(iter(ROWS))
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [2, 1, 1, 3, 1, 1]
    file = fs.write_file("rows", data)
    assert list(read_slice(fs, FileSlice(file, 0, len(ROWS)))) == ROWS
    assert list(read_slice(fs, FileSlice(file, 2, 7))) == ROWS[2:7]


def test_a_file_with_one_large_row_group_is_read_in_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(operator_state_rows, "BATCH_BYTES", 1 << 20)
        patched.setattr(operator_state_rows, "BATCH_ROWS", 1 << 16)
        file = fs.write_file("rows", encoded_rows((None, b"%09d" % number) for number in range(1000)))
    read: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def noted(self: pq.ParquetFile, batch_size: int = 0, **others: object) -> object:
        read.append(batch_size)
        return iter_batches(self, batch_size=batch_size or 65536, **others)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    assert len(list(read_slice(fs, FileSlice(file, 0, 1000)))) == 1000
    assert read[-1] == 1
