"""The external sort, adjacent rows with one address, and the key groups of many keys, compared with plain Python."""

from __future__ import annotations

import itertools
import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statebackend.savepoint.column_codecs import write_column
from statebackend.savepoint.rewrite import sorted_rows
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.savepoint.rewrite.sorted_rows import (
    MergingRepeated,
    RejectingRepeated,
    RowSorter,
    bounded_batches,
    fewer_runs,
    merged_runs,
)
from statebackend.savepoint.tables import ColumnForms
from statebackend.state.key_groups import KeyGroupRange, key_group_hasher
from typeserializers.scalars.fixed_width import DoubleSerializer, IntSerializer, LongSerializer
from typeserializers.scalars.strings import StringSerializer

_NAMES = ("key_group", "key", "namespace", "user_key", "value")
_TYPES = (pa.int32(), *[pa.binary()] * 4)

Row = tuple[int, bytes, bytes, bytes, bytes]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(_NAMES))


def rows_of(batches: Any) -> list[Row]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def rows() -> list[Row]:
    chance = random.Random(7)
    return [
        (
            chance.randrange(5),
            bytes([chance.randrange(20)] * chance.randrange(1, 3)),
            chance.choice([b"\0", b"\1"]),
            chance.choice([b"", b"a", b"bb"]),
            str(number).encode(),
        )
        for number in range(2000)
    ]


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("most", [1, 7, 256])
def test_few_of_many_inputs_are_open_at_once(rows: list[Row], most: int, tmp_path: Path) -> None:
    runs = []
    for start in range(0, len(rows), 5):
        sorter = RowSorter(str(tmp_path))
        sorter.add(batch_of(rows[start : start + 5]))
        runs += sorter.finish()
    fewer = fewer_runs(runs, str(tmp_path), most)
    assert len(runs) == 400
    assert 1 <= len(fewer) <= most
    assert {run.path for run in fewer} == {str(path) for path in tmp_path.iterdir()}
    # Python's sort is stable, like the external sort.
    assert rows_of(merged_runs(fewer)) == sorted(rows, key=lambda row: row[:4])


@pytest.mark.parametrize("memory_bytes", [1000, 30_000, 1 << 30])
@pytest.mark.parametrize("fan_in", [2, 64])
def test_rows_are_sorted_stably(
    rows: list[Row], memory_bytes: int, fan_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_rows, "FAN_IN", fan_in)
    expected = sorted(rows, key=lambda row: row[:4])
    with tempfile.TemporaryDirectory() as directory:
        sorter = RowSorter(directory, memory_bytes)
        for start in range(0, len(rows), 100):
            sorter.add(batch_of(rows[start : start + 100]))
        runs = sorter.finish()
        assert len(runs) <= fan_in
        assert rows_of(merged_runs(runs)) == expected
        within = KeyGroupRange(1, 3)
        assert rows_of(merged_runs(runs, within)) == [row for row in expected if row[0] in within]
        merged = MergingRepeated(lambda one: b"+".join(one.column("value").to_pylist()))
        assert rows_of(merged(merged_runs(runs))) == [
            (*address, b"+".join(row[4] for row in own))
            for address, own in itertools.groupby(expected, key=lambda row: row[:4])
        ]


def test_rows_of_one_address_keep_their_order_across_batches_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_rows, "BATCH_ROWS", 2)
    values = [str(number).encode() for number in range(15)]
    sorter = RowSorter(str(tmp_path), memory_bytes=1)
    for start in range(0, len(values), 5):
        sorter.add(batch_of([(1, b"a", b"", b"", value) for value in values[start : start + 5]]))
    assert [row[4] for row in rows_of(merged_runs(sorter.finish()))] == values


def test_the_first_duplicate_address_is_rejected_across_batches_too() -> None:
    one, other = (1, b"a", b"", b"", b"1"), (1, b"a", b"", b"", b"2")
    rejected = RejectingRepeated(lambda pair: ValueError(pair.column("value").to_pylist()))
    for batches in ([[one, other]], [[one], [other]], [[(0, *one[1:]), one], [other]]):
        with pytest.raises(ValueError, match=r"1.*2"):
            rows_of(rejected(iter([batch_of(batch) for batch in batches])))
    distinct = [[one], [(1, b"b", b"", b"", b"1")], [(2, b"a", b"", b"", b"1")]]
    assert rows_of(rejected(iter([batch_of(batch) for batch in distinct]))) == [row for [row] in distinct]


def test_batches_are_bounded_in_bytes_except_for_a_larger_row() -> None:
    rows = [(0, bytes([number]), b"", b"", b"x" * 1000) for number in range(50)]
    rows[20] = (0, bytes([20]), b"", b"", b"x" * 50_000)
    pieces = list(bounded_batches(batch_of(rows), 10_000))
    assert rows_of(pieces) == rows
    assert all(piece.nbytes <= 10_000 or piece.num_rows == 1 for piece in pieces)


@pytest.mark.parametrize("max_parallelism", [1, 3, 128, 1000, 32768])
@pytest.mark.parametrize(("column", "layout", "bits"), [("bigint", ">q", 63), ("int", ">i", 31)])
def test_key_groups_of_columns_equal_those_of_single_keys(
    column: str, layout: str, bits: int, max_parallelism: int
) -> None:
    chance = random.Random(3)
    keys = [chance.randrange(-(1 << bits), 1 << bits) for _ in range(300)]
    keys += [0, -1, 1, -(1 << bits), (1 << bits) - 1]
    stored = pa.array([struct.pack(layout, key) for key in keys], pa.binary())
    placement, one_by_one = KeyPlacement([column], max_parallelism), key_group_hasher([column], max_parallelism)
    assert placement.of_stored(stored).to_pylist() == [one_by_one(key) for key in keys]
    assert placement.of_stored(stored.slice(7, 5)).to_pylist() == [one_by_one(key) for key in keys[7:12]]


@pytest.mark.parametrize("keys", [["", "a", "x" * 126], ["a", "x" * 127], ["a", "ä"], ["\0", "😀" * 70]])
def test_texts_are_stored_and_hashed_like_single_keys(keys: list[str]) -> None:
    stored = [StringSerializer().to_bytes(key) for key in keys]
    assert write_column(StringSerializer(), pa.array(keys)).to_pylist() == stored
    one_by_one = key_group_hasher(["string"], 1000)
    assert KeyPlacement(["string"], 1000).of_stored(pa.array(stored)).to_pylist() == [one_by_one(key) for key in keys]


def test_numbers_are_stored_like_single_keys() -> None:
    for serializer, values in (
        (LongSerializer(), [0, -1, (1 << 63) - 1]),
        (IntSerializer(), [0, -1, -(1 << 31)]),
        (DoubleSerializer(), [0.0, -0.0, 1.5, float("inf"), -float("nan")]),
    ):
        column = ColumnForms().of(serializer).array(values)
        assert write_column(serializer, column).to_pylist() == [serializer.to_bytes(value) for value in values]
