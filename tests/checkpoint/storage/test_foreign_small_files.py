"""Small durable files that are intact but have unexpected content are rejected, and the error names their path."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any

import pytest

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CorruptMetadataError,
    JobDirectoryError,
    SavepointError,
    StorageError,
)
from statebackend.checkpoint.errors import CorruptJobIdentityError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json
from statebackend.checkpoint.ha.object_store import ObjectPointers
from statebackend.checkpoint.ha.zookeeper import JobNode, decode_text, encode_text
from statebackend.checkpoint.store import checkpoint_directories as metadata_file
from statebackend.checkpoint.store.checkpoint_directories import read_metadata, write_metadata
from statebackend.checkpoint.store.driver_lock import DriverLock
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.checkpoint.store.job_files import HIGH_AVAILABILITY_FILE_NAME, read_stored_in, write_stored_in
from statebackend.checkpoint.store.savepoint_directory import not_a_savepoint
from statebackend.testing.stores import checkpoint


@pytest.fixture
def store(tmp_path: Path) -> CheckpointFileSystem:
    return CheckpointFileSystem.from_uri(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"stored_in": ""},
        {"stored_in": 5},
        {"stored_in": None},
        {"stored_in": "here", "besides": 1},
        {"kept_at": "here"},
    ],
    ids=str,
)
def test_a_checksummed_file_without_checkpoint_location_is_rejected(
    store: CheckpointFileSystem, content: dict[str, Any]
) -> None:
    store.write_file(HIGH_AVAILABILITY_FILE_NAME, checksummed_json(content, 1))
    with pytest.raises(CorruptJobIdentityError, match=f"{HIGH_AVAILABILITY_FILE_NAME}.*does not name the place"):
        read_stored_in(store)


def test_a_checkpoint_location_round_trips(store: CheckpointFileSystem) -> None:
    assert read_stored_in(store) is None
    write_stored_in(store, "zookeeper:/jobs/one")
    assert read_stored_in(store) == "zookeeper:/jobs/one"


def test_a_job_node_is_read_completely_or_rejected() -> None:
    node = JobNode("job-1", "/jobs/one")
    assert JobNode.decode(node.encode(), "there") == node
    for content in ({"job_id": "job-1"}, {"job_id": "", "job_directory": "/"}, {"job_id": "job-1", "more": 1}):
        with pytest.raises(CorruptJobIdentityError, match="there is not valid: "):
            JobNode.decode(checksummed_json(content, 1), "there")


@pytest.mark.parametrize(("value", "kind"), [("text", str), (7, int)])
def test_a_node_of_one_value_has_no_other_content(value: Any, kind: type) -> None:
    assert decode_text(encode_text(value), "there", kind) == value
    for content in ({}, {"value": value, "more": 1}, {"value": None}, {"value": True}, {"value": [value]}):
        with pytest.raises(CorruptJobIdentityError, match=f"there does not hold one value of type {kind.__name__}"):
            decode_text(checksummed_json(content, 1), "there", kind)


def test_metadata_beyond_the_limit_is_rejected_unread(
    store: CheckpointFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_metadata(store, "here", checkpoint(1))
    size_bytes = store.size("here/_metadata")
    monkeypatch.setattr(metadata_file, "MAX_METADATA_BYTES", size_bytes)
    assert read_metadata(store, "here").checkpoint_id == 1
    monkeypatch.setattr(metadata_file, "MAX_METADATA_BYTES", size_bytes - 1)
    monkeypatch.setattr(CheckpointFileSystem, "read_file", None)
    with pytest.raises(CorruptMetadataError, match=f"{size_bytes} bytes is more than the limit of {size_bytes - 1}"):
        read_metadata(store, "here")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EIO])
def test_a_file_system_without_locks_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, "no locks here")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", flock)
        with pytest.raises(JobDirectoryError, match=r"cannot lock .*needs a file system with flock"):
            DriverLock(str(tmp_path / "lock"))
    DriverLock(str(tmp_path / "lock")).close()


def test_other_places_are_named_instead_of_savepoint(store: CheckpointFileSystem, tmp_path: Path) -> None:
    def reported(path: Path) -> str:
        failure = not_a_savepoint(CheckpointFileSystem.from_uri(path))
        assert isinstance(failure, SavepointError)
        return str(failure)

    assert "does not exist" in reported(tmp_path / "nowhere")
    assert "it has no file _metadata; give the savepoint's own directory" in reported(tmp_path)
    JobDirectory.open(tmp_path / "job", "one", 8).close()
    assert "a job; take a savepoint of the job, or write one from its checkpoint with" in reported(tmp_path / "job")


class Stubborn:
    """A store in which another driver always writes first."""

    writes = 0

    def read(self, path: str) -> None:
        return None

    def write(self, path: str, content: bytes, version: str | None) -> None:
        self.writes += 1


def test_a_record_that_another_driver_keeps_writing_is_left_unchanged(store: CheckpointFileSystem) -> None:
    objects: Any = Stubborn()
    with pytest.raises(StorageError, match=r"another driver writes .* all the time; stop it, and start again"):
        ObjectPointers(store, objects, "job").take_over("me", lambda record: record)
    assert objects.writes > 1
