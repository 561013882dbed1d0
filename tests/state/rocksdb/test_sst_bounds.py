"""SST files are checked before RocksDB reads them: all that this backend writes pass, others are errors."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import rocksdict

from statebackend.state.errors import StateRestoreError
from statebackend.state.rocksdb.engine import SstWriter
from statebackend.state.rocksdb.sst_bounds import check_sst_file

Rows = Iterable[tuple[bytes, bytes | None]]


def written(path: Path, rows: Rows) -> Path:
    writer = SstWriter(str(path))
    writer.write(rows)
    writer.finish()
    return path


def random_rows(count: int, size: int) -> Rows:
    source = random.Random(1)
    return ((b"%08d" % number, source.randbytes(size)) for number in range(count))


@pytest.mark.parametrize(
    "rows",
    [
        [(b"", b"")],
        [(b"a", None), (b"b", None)],
        [(b"a", bytes(50_000_000))],
        [(bytes(1000) + b"%05d" % number, bytes(number % 50)) for number in range(3000)],
        list(random_rows(60_000, 100)),
        list(random_rows(3, 3_000_000)),
    ],
    ids=["empty", "deletions", "one value of zeros", "long keys", "many blocks", "large random values"],
)
def test_files_of_the_backend_pass(tmp_path: Path, rows: Rows) -> None:
    check_sst_file(str(written(tmp_path / "file.sst", rows)))


@pytest.mark.parametrize("cut", [0, 10, 53, 200])
def test_a_file_without_its_end_is_rejected(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "file.sst", random_rows(100, 10))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(StateRestoreError, match=f"the SST file {path} is not one that this backend writes: "):
        check_sst_file(str(path))


def test_changed_bytes_never_raise_another_error(tmp_path: Path) -> None:
    path = written(tmp_path / "file.sst", random_rows(3, 10))
    content = path.read_bytes()
    rejected = 0
    for place, change in itertools.product(range(len(content)), (0x01, 0x80, 0xFF)):
        path.write_bytes(content[:place] + bytes([content[place] ^ change]) + content[place + 1 :])
        try:
            check_sst_file(str(path))
        except StateRestoreError:
            rejected += 1
    assert rejected > 300


def test_a_file_with_another_index_or_compression_is_rejected(tmp_path: Path) -> None:
    table = rocksdict.BlockBasedOptions()
    options = rocksdict.Options(raw_mode=True)
    for number, reason in enumerate(["index.type is", "has the compression 7"]):
        options.set_compression_type(rocksdict.DBCompressionType.zstd())
        options.set_block_based_table_factory(table)
        path = tmp_path / f"{number}.sst"
        writer = rocksdict.SstFileWriter(options)
        writer.open(str(path))
        writer[b"a"] = bytes(1000)
        writer.finish()
        with pytest.raises(StateRestoreError, match=reason):
            check_sst_file(str(path))
        table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())


def test_a_block_that_claims_too_many_bytes_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path / "file.sst", [(b"a", bytes(100_000))])
    content = path.read_bytes()
    # The first block begins with its decompressed size, a number of three bytes.
    assert content[2] < 0x80 <= min(content[:2])
    path.write_bytes(b"\xff\xff\x7f" + content[3:])
    with pytest.raises(StateRestoreError, match=r"the block of \d+ bytes at 0 claims to hold 2097151 bytes"):
        check_sst_file(str(path))


def test_a_file_whose_index_names_overlapping_blocks_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path / "file.sst", random_rows(3, 10_000))
    content = path.read_bytes()
    reasons = []
    # The index follows the data.
    for place in range(30_000, len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x01]) + content[place + 1 :])
        try:
            check_sst_file(str(path))
        except StateRestoreError as error:
            reasons.append(str(error))
    assert any("overlaps the one before it" in reason for reason in reasons)
