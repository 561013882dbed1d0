"""Hostile, damaged and moved checkpoints of Spark, as the files are checked before Spark opens them."""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.savepoint.foreign.errors import ForeignFormatError
from statebackend.savepoint.foreign.spark_files import check_state_files, operators_without_metadata, readable_copy

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
    check_state_files(files)
    rewrite(archive_of(tmp_path), change)
    with pytest.raises(ForeignFormatError, match=message):
        check_state_files(files)


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
                check_state_files(files)
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
        check_state_files(files)


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
    # What is at its place needs no links.
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
