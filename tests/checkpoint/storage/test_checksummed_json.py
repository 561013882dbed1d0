"""Checksummed JSON files are read completely or rejected. The error for a newer version says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statebackend.checkpoint.errors import CorruptJobIdentityError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, read_checksummed_json
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem


@pytest.fixture
def files(tmp_path: Path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path)


def test_a_file_has_at_most_the_size_limit_of_its_reader(files: CheckpointFileSystem) -> None:
    content = checksummed_json({"a": "x" * 100}, 1)
    for size, limits in ((len(content), {"max_bytes": len(content)}), (64 << 10, {})):
        files.write_file("file", content.ljust(size))
        assert read_checksummed_json(files, "file", 1, **limits) == {"a": "x" * 100}
        files.write_file("file", content.ljust(size + 1))
        with pytest.raises(CorruptJobIdentityError, match="file is too large"):
            read_checksummed_json(files, "file", 1, **limits)


def test_key_order_and_white_space_do_not_matter(files: CheckpointFileSystem) -> None:
    content = json.loads(checksummed_json({"b": 1, "a": {"y": 2, "x": "é"}}, 1))
    files.write_file("file", json.dumps(dict(reversed(content.items())), ensure_ascii=False).encode())
    assert read_checksummed_json(files, "file", 1) == {"b": 1, "a": {"y": 2, "x": "é"}}


def test_a_damaged_newer_file_is_reported_as_damaged_and_an_intact_one_as_newer(files: CheckpointFileSystem) -> None:
    content = checksummed_json({"a": 1}, 5)
    files.write_file("file", content)
    with pytest.raises(
        CorruptJobIdentityError, match="file was written by a newer version of statebackend: its format has version 5"
    ):
        read_checksummed_json(files, "file", 2)
    assert read_checksummed_json(files, "file", 6) == {"a": 1}
    files.write_file("file", content.replace(b'"a": 1', b'"a": 2'))
    with pytest.raises(CorruptJobIdentityError, match="is altered"):
        read_checksummed_json(files, "file", 2)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"5", b"{}", b'{"version": 1}', b'{"format_version": 1}', b"\xff", b"[" * 60_000]
)
def test_other_content_is_reported_as_such(files: CheckpointFileSystem, content: bytes) -> None:
    files.write_file("file", content)
    with pytest.raises(CorruptJobIdentityError, match="file cannot be read"):
        read_checksummed_json(files, "file", 1)
