"""Hostile, damaged and moved Spark checkpoints. The files are checked before Spark opens them."""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.savepoint.errors import ForeignFormatError
from statebackend.savepoint.foreign.spark_files import check_state_files, operators_without_metadata, readable_copy
from statebackend.savepoint.foreign.spark_records import RECORD_FILE, check_records

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "spark_checkpoints"


def checkpoint(place: Path, version: str, name: str) -> CheckpointFileSystem:
    with tarfile.open(GOLDEN / f"{version}.tar.gz") as archive:
        members = [one for one in archive.getmembers() if one.name.split("/")[0] == name]
        archive.extractall(place, members, filter="data")
    return CheckpointFileSystem.from_uri(place / name)


def archive_of(place: Path) -> Path:
    return place / "windows-rocksdb" / "state" / "0" / "0" / "3.zip"


def rewrite(archive: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(archive) as before:
        entries = {name: before.read(name) for name in before.namelist()}
    change(entries)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as after:
        for name, content in entries.items():
            after.writestr(name, content)


def with_list(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, bytes]], None]:
    def make(entries: dict[str, bytes]) -> None:
        version, _, text = entries["metadata"].decode().partition("\n")
        listed = json.loads(text)
        change(listed)
        entries["metadata"] = f"{version}\n{json.dumps(listed)}".encode()

    return make


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_list(lambda one: one["sstFiles"][0].update(localFileName="../../../x")), "'../../../x' is not the name"),
        (with_list(lambda one: one["sstFiles"][0].update(dfsSstFileName="/etc/passwd")), "'/etc/passwd' is not the"),
        (with_list(lambda one: one["sstFiles"][0].update(localFileName=1)), "1 is not the name of a file"),
        (with_list(lambda one: one.update(sstFiles=3)), "3.zip is damaged"),
        (with_list(lambda one: one.update(logFiles=[{"localFileName": "../x"}])), "'../x' is not the name of a file"),
        (lambda entries: entries.update({"../outside": b""}), "'../outside' is not the name of a file"),
        (lambda entries: entries.update(metadata=b"v1\n{"), "3.zip is damaged"),
        (lambda entries: entries.update(metadata=b"v1\n[1]"), "3.zip is damaged"),
        (lambda entries: entries.update(metadata=b"v1\n" + b"[" * 100_000), "3.zip is damaged"),
        (lambda entries: entries.update(metadata=bytes(1 << 27)), "its entry metadata is larger than 64 MiB"),
    ],
)
def test_an_archive_that_would_write_elsewhere_is_an_error(
    tmp_path: Path, change: Callable[[dict[str, bytes]], None], message: str
) -> None:
    files = checkpoint(tmp_path, "4.1", "windows-rocksdb")
    check_state_files(files, 2)
    rewrite(archive_of(tmp_path), change)
    with pytest.raises(ForeignFormatError, match=message):
        check_state_files(files, 2)


def test_a_truncated_or_flipped_archive_is_read_or_an_error(tmp_path: Path) -> None:
    files = checkpoint(tmp_path, "4.1", "windows-rocksdb")
    archive = archive_of(tmp_path)
    content = archive.read_bytes()
    for other in list((tmp_path / "windows-rocksdb" / "state").rglob("*.zip")):
        if other != archive:
            other.unlink()
    rejected = 0
    tried = range(0, len(content), 1 if os.environ.get("STATEBACKEND_FUZZ") == "all" else 7)
    for position in tried:
        for damaged in (
            content[:position],
            content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :],
        ):
            archive.write_bytes(damaged)
            try:
                check_state_files(files, 2)
            except ForeignFormatError:
                rejected += 1
    assert rejected > len(tried)


@pytest.mark.parametrize("place", ["state/0/0/3.zip", "state/0/0/SSTs", "offsets/2"])
def test_a_link_is_an_error(tmp_path: Path, place: str) -> None:
    files = checkpoint(tmp_path, "4.1", "windows-rocksdb")
    path = tmp_path / "windows-rocksdb" / place
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="is a symbolic link, and no link is followed here"):
        check_state_files(files, 2)


def test_a_moved_checkpoint_is_read_through_links(tmp_path: Path) -> None:
    files = checkpoint(tmp_path, "4.1", "processor-rocksdb")
    before = {path: files.read_file(path) for path in files.list_files()}
    copy = Path(readable_copy(files, 2))
    assert copy != tmp_path / "processor-rocksdb"
    metadata = json.loads((copy / "state/0/_metadata/v2/0").read_text().partition("\n")[2])
    [schema] = metadata["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert Path(schema).is_relative_to(tmp_path)
    assert Path(schema).is_file()
    assert (copy / "offsets" / "2").read_bytes() == before["offsets/2"]
    assert os.path.realpath(copy / "state" / "0" / "0") == str(tmp_path / "processor-rocksdb" / "state" / "0" / "0")
    assert {path: files.read_file(path) for path in files.list_files()} == before
    # A checkpoint that was not moved needs no links.
    text = (tmp_path / "processor-rocksdb/state/0/_metadata/v2/0").read_text()
    old = json.loads(text.partition("\n")[2])["stateStoreInfo"][0]["stateSchemaFilePaths"][0]
    (tmp_path / "processor-rocksdb/state/0/_metadata/v2/0").write_text(text.replace(old, f"file:{schema}"))
    assert readable_copy(files, 2) == files.uri


@pytest.mark.parametrize("path", ["/etc/passwd", "file:/a/_stateSchema/default/..", "_stateSchema/../x", "", 7, None])
def test_a_schema_outside_of_the_checkpoint_is_an_error(tmp_path: Path, path: Any) -> None:
    files = checkpoint(tmp_path, "4.1", "processor-rocksdb")
    metadata = tmp_path / "processor-rocksdb/state/0/_metadata/v2/0"
    version, _, text = metadata.read_text().partition("\n")
    stored = json.loads(text)
    stored["stateStoreInfo"][0]["stateSchemaFilePaths"] = [path]
    metadata.write_text(f"{version}\n{json.dumps(stored)}")
    with pytest.raises(ForeignFormatError, match=r"is not the path of a schema of a state|is not the metadata of an"):
        readable_copy(files, 2)


@pytest.mark.parametrize("name", ["sessions-rocksdb", "sessions-changelog"])
def test_session_windows_of_spark_3_5_get_metadata(tmp_path: Path, name: str) -> None:
    files = checkpoint(tmp_path, "3.5", name)
    assert operators_without_metadata(files) == [0]
    copy = readable_copy(files, 2)
    later = checkpoint(tmp_path / "later", "4.1", "sessions-rocksdb")
    assert operators_without_metadata(later) == []

    def metadata(text: bytes) -> Any:
        return json.loads(text.decode().partition("\n")[2])

    made = metadata(Path(copy, "state/0/_metadata/metadata").read_bytes())
    assert made == metadata(later.read_file("state/0/_metadata/metadata"))
    schema = tmp_path / name / "state/0/0/_metadata/schema"
    content = schema.read_bytes()
    for end in range(content.index(b"]}") + 2):
        schema.write_bytes(content[:end])
        with pytest.raises(ForeignFormatError, match="schema is damaged"):
            readable_copy(files, 2)


@pytest.mark.parametrize("name", ["windows-rocksdb", "processor-ttl-changelog", "windows-format-2-rocksdb"])
def test_damaged_sorted_files_without_checksums_of_hadoop_are_an_error(name: str, tmp_path: Path) -> None:
    files = checkpoint(tmp_path, "4.1", name)
    for checksums in (tmp_path / name / "state").rglob(".*.sst.crc"):
        checksums.unlink()
    check_state_files(files, 2)
    for file in (tmp_path / name / "state").rglob("*.sst"):
        content = file.read_bytes()
        # This is in the first block, with the keys.
        file.write_bytes(content[:10] + bytes([content[10] ^ 1]) + content[11:])
    with pytest.raises(ForeignFormatError, match=r"\.zip: RocksDB cannot .*/SSTs/\d+-\S+\.sst .*from a backup$"):
        check_state_files(files, 2)


def test_the_version_of_state_after_the_last_batch_is_checked_and_later_ones_are_not(tmp_path: Path) -> None:
    files = checkpoint(tmp_path, "4.1", "windows-rocksdb")
    state = tmp_path / "windows-rocksdb" / "state"
    for checksums in state.rglob(".*.sst.crc"):
        checksums.unlink()
    partition = archive_of(tmp_path).parent

    def sorted_files(version: int) -> set[str]:
        with zipfile.ZipFile(partition / f"{version}.zip") as archive:
            listed = json.loads(archive.read("metadata").decode().partition("\n")[2])
        return {one["dfsSstFileName"] for one in listed["sstFiles"]}

    new = sorted_files(3) - sorted_files(2)
    assert new
    for name in new:
        (partition / "SSTs" / name).write_bytes(b"")
    check_state_files(files, 1)
    with pytest.raises(ForeignFormatError, match=r"3\.zip"):
        check_state_files(files, 2)


def test_entries_of_an_archive_that_overlap_are_an_error(tmp_path: Path) -> None:
    files = checkpoint(tmp_path, "4.1", "windows-rocksdb")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("inner", b"content")
    inner = other.getinfo("inner")
    content = (tmp_path / "other.zip").read_bytes()[: other.start_dir]
    with zipfile.ZipFile(archive_of(tmp_path), "a") as archive:
        archive.writestr("outer", content)
        inner.header_offset = archive.getinfo("outer").header_offset + 30 + len("outer")
        archive.filelist.append(inner)
        archive.NameToInfo["inner"] = inner
    with pytest.raises(ForeignFormatError, match=r"3\.zip is damaged: its directory does not list what is at byte"):
        check_state_files(files, 2)


def test_an_entry_that_only_the_archive_s_stream_has_is_an_error(tmp_path: Path) -> None:
    files = checkpoint(tmp_path, "4.1", "windows-rocksdb")
    archive = archive_of(tmp_path)
    hidden = b"PK\3\4" + bytes(22) + (13).to_bytes(2, "little") + bytes(2) + b"../../outside"
    # The archive's directory and its offset stay valid, because zipfile accepts data before an archive.
    archive.write_bytes(hidden + archive.read_bytes())
    with pytest.raises(ForeignFormatError, match=r"3.zip is damaged: its directory does not list what is at byte 0"):
        check_state_files(files, 2)


def test_an_entry_with_more_data_than_its_directory_says_is_an_error(tmp_path: Path) -> None:
    files = checkpoint(tmp_path, "4.1", "windows-rocksdb")
    archive = archive_of(tmp_path)
    rewrite(archive, lambda entries: entries.update(padding=bytes(1 << 20)))
    data = bytearray(archive.read_bytes())
    place = data.rindex(b"padding") - 46
    data[place + 16 : place + 20] = zlib.crc32(bytes(10)).to_bytes(4, "little")
    data[place + 24 : place + 28] = (10).to_bytes(4, "little")
    archive.write_bytes(data)
    with pytest.raises(ForeignFormatError, match="'padding' does not have the size in its directory"):
        check_state_files(files, 2)


def lz4(content: bytes) -> bytes:
    """The content as the blocks that Spark writes."""
    stream = b""
    for start in range(0, len(content), 1 << 15):
        part = content[start : start + (1 << 15)]
        block = pa.Codec("lz4_raw").compress(part, asbytes=True)
        sizes = len(block).to_bytes(4, "little") + len(part).to_bytes(4, "little")
        checksum = xxhash.xxh32_intdigest(part, 0x9747B28C) & 0x0FFFFFFF
        stream += b"LZ4Block\x25" + sizes + checksum.to_bytes(4, "little") + block
    return stream + b"LZ4Block\x15" + bytes(12)


def zstandard(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


def snappy(content: bytes) -> bytes:
    block = pa.Codec("snappy").compress(content, asbytes=True)
    return b"\x82SNAPPY\0" + bytes(8) + len(block).to_bytes(4, "big") + block


END = b"\xff\xff\xff\xff"
RECORD = b"\0\0\0\1k\0\0\0\2vv"
REMOVAL = b"\0\0\0\1k" + END
LINEAGE = b"\0\2[]"


@pytest.mark.parametrize("compressed", [lz4, zstandard, snappy])
def test_records_of_every_form_are_accepted(compressed: Callable[[bytes], bytes]) -> None:
    long = b"\0\1\0\0" + bytes(range(256)) * 256 + b"\0\0\0\0"
    for kind, content in {
        "delta": RECORD + REMOVAL + long + END,
        "snapshot": RECORD + long + END,
        "changelog": long + RECORD + REMOVAL + END,
    }.items():
        check_records(compressed(content), "file", kind)
    for version, lineage in ((b"v2", b""), (b"v4", LINEAGE)):
        typed = b"\1" + RECORD + b"\x11" + RECORD + b"\x10" + REMOVAL + b"\0"
        check_records(compressed(b"\0\2" + version + lineage + typed), "file", "changelog")
    check_records(compressed(b"\0\2v3" + LINEAGE + RECORD + END), "file", "changelog")


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("delta", lz4(RECORD + b"\x7f\xff\xff\xff"), "byte 15 of its content: 2147483647 bytes are announced"),
        ("delta", lz4(b"\xff\xff\xff\xfe"), "byte 4 of its content: a key has -2 bytes"),
        ("delta", lz4(b"\0\0\0\1k\x80\0\0\0"), "a value has -2147483648 bytes"),
        ("delta", lz4(b"\0\0\0\1k\x7f\0\0\0v"), "2130706432 bytes are announced, which the content does not"),
        ("delta", lz4(RECORD), "byte 11 of its content: the content is truncated"),
        ("delta", b"", "not compressed by LZ4, Zstandard or Snappy"),
        ("delta", b"ZV\1\0\0", "not compressed by LZ4, Zstandard or Snappy"),
        ("delta", lz4(RECORD + END)[:30], "a block of LZ4 has"),
        (
            "delta",
            lz4(RECORD + END).replace(b"vv", b"vw"),
            "checksum of the block of LZ4 at byte 21 of the file is wrong",
        ),
        ("delta", lz4(RECORD + END)[:12], "no block of LZ4 at byte 0 of the file"),
        ("delta", b"LZ4Block\x25" + b"\1\0\0\0\xff\xff\xff\xff" + bytes(5), "and 4294967295 when decompressed"),
        ("delta", lz4(RECORD + END).replace(b"\x25", b"\x05", 1), "at byte 21 of the file has the unknown method 0"),
        ("delta", lz4(RECORD + END).replace(b"\x25", b"\x15", 1), "has 17 bytes, and 15 when decompressed"),
        ("delta", lz4(bytes(2000)).replace(b"\x25", b"\x20", 1), "bytes, and 2000 when decompressed"),
        ("delta", zstandard(RECORD + END)[:-3], "Truncated compressed stream"),
        ("delta", snappy(RECORD + END)[:-3], "the data is truncated"),
        (
            "delta",
            b"\x82SNAPPY\0" + bytes(8) + b"\0\0\0\5\xff\xff\xff\xff\x0f",
            "a block of Snappy has 4294967295 bytes",
        ),
        ("snapshot", lz4(REMOVAL + END), "a value has -1 bytes"),
        ("delta", zstandard(RECORD + END + RECORD + END), "byte 15 of its content: bytes follow the last record"),
        ("delta", b"\x82SNAPPY\0" + bytes(8) + b"\0\0\0\2\5\xfc", r"Corrupt snappy compressed data\. Restore it"),
        ("changelog", lz4(b"\0\2v2\7"), "a record of the unknown type 7"),
        ("changelog", lz4(b"\0\2v4\xff\xff[]"), "65535 bytes are announced"),
    ],
)
def test_wrong_lengths_are_errors_with_file_and_position(kind: str, data: bytes, message: str) -> None:
    with pytest.raises(ForeignFormatError, match=rf"/checkpoint/1.{kind} is damaged: .*{message}"):
        check_records(data, f"/checkpoint/1.{kind}", kind)


@pytest.mark.parametrize("compressed", [lz4, zstandard])
def test_content_that_is_much_larger_than_its_file_is_an_error(compressed: Callable[[bytes], bytes]) -> None:
    size = 80 << 20
    data = compressed(b"\0\0\0\1k" + size.to_bytes(4, "big") + bytes(size) + END)
    assert len(data) < size // 100
    with pytest.raises(ForeignFormatError, match="more than 100 times larger than the file"):
        check_records(data, "1.delta", "delta")


@pytest.mark.parametrize("name", ["types-hdfs", "processor-ttl-format-2"])
def test_a_flipped_log_of_state_is_read_or_an_error(name: str, tmp_path: Path) -> None:
    files = checkpoint(tmp_path, "4.3", name)
    check_state_files(files, 2)
    logs = [path for path in (tmp_path / name / "state").rglob("*") if RECORD_FILE.fullmatch(path.name)]
    log = max(logs, key=lambda path: path.stat().st_size)
    content, kind = log.read_bytes(), log.suffix[1:]
    errors = []
    for position in range(len(content)):
        damaged = content[:position] + bytes([content[position] ^ 1 << position % 8]) + content[position + 1 :]
        try:
            check_records(damaged, str(log), kind)
        except ForeignFormatError as error:
            errors.append(str(error))
    assert len(errors) > len(content) // 2
    assert all(str(log) in error for error in errors)
