from __future__ import annotations

import os
import pickle
import traceback
import tracemalloc
from pathlib import Path, PurePosixPath

import pyarrow.fs
import pytest
from object_store import Bucket

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CorruptFileError,
    MissingFileError,
    StorageError,
    UnsafePathError,
)
from statebackend.checkpoint.fs import arrow_storage, local_storage
from statebackend.checkpoint.fs.arrow_storage import ArrowStorage
from statebackend.checkpoint.fs.local_storage import TEMPORARY_PREFIX, LocalStorage
from statebackend.testing.stores import StorageContract

pytestmark = pytest.mark.slow


class TestLocalDisk(StorageContract):
    def make_files(self, directory: Path) -> CheckpointFileSystem:
        return CheckpointFileSystem.from_uri(str(directory))


class TestDiskByUri(StorageContract):
    def make_files(self, directory: Path) -> CheckpointFileSystem:
        return CheckpointFileSystem.from_uri(directory.as_uri())


class TestArrowFileSystem(StorageContract):
    def make_files(self, directory: Path) -> CheckpointFileSystem:
        return CheckpointFileSystem("arrow", ArrowStorage(pyarrow.fs.LocalFileSystem(), str(directory)))


class TestObjectStore(StorageContract):
    @pytest.fixture
    def files(self, bucket: Bucket) -> CheckpointFileSystem:
        return CheckpointFileSystem.from_uri(bucket.uri("a%20root"))


def test_upload_on_one_device_is_a_hard_link_unless_rejected(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    (tmp_path / "source").write_bytes(b"x")
    linked = fs.upload(tmp_path / "source", "linked")
    copied = fs.upload(tmp_path / "source", "copied", may_link=False)
    assert os.path.samefile(tmp_path / "source", fs.local_path("linked"))
    assert not os.path.samefile(tmp_path / "source", fs.local_path("copied"))
    assert linked.checksum == copied.checksum


def test_upload_copies_where_links_are_impossible(tmp_path, monkeypatch) -> None:
    def reject(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(local_storage.os, "link", reject)
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    (tmp_path / "source").write_bytes(b"x")
    fs.read_file(fs.upload(tmp_path / "source", "copied"))
    assert not os.path.samefile(tmp_path / "source", fs.local_path("copied"))


def test_uploading_the_same_link_twice_leaves_one_file(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    (tmp_path / "source").write_bytes(b"x")
    assert fs.upload(tmp_path / "source", "a") == fs.upload(tmp_path / "source", "a")
    assert fs.list_files(include_temporary=True) == ("a",)


def test_a_failed_download_keeps_what_was_there(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    handle = fs.write_file("a", b"good")
    fs.write_file("a", b"evil")
    (tmp_path / "target").write_bytes(b"precious")
    with pytest.raises(CorruptFileError):
        fs.download(handle, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failure_before_the_rename_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    fs.write_file("a/b", b"old")
    (tmp_path / "source").write_bytes(b"new")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(local_storage.os, failing, fail)
        for write in (lambda: fs.write_file("a/b", b"new"), lambda: fs.upload(tmp_path / "source", "a/b")):
            with pytest.raises(StorageError, match=r"a/b.*No space left") as caught:
                write()
            assert isinstance(caught.value.__cause__, OSError)
    assert fs.read_file("a/b") == b"old"
    assert fs.list_files(include_temporary=True) == ("a/b",)


def test_a_file_is_synced_before_it_is_renamed_and_its_directories_after(tmp_path, monkeypatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(descriptor: int) -> None:
        events.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))[:5])
        fsync(descriptor)

    def note_rename(source: str, target: str, **directories: object) -> None:
        events.append("rename")
        replace(source, target, **directories)

    monkeypatch.setattr(local_storage.os, "fsync", note_sync)
    monkeypatch.setattr(local_storage.os, "replace", note_rename)
    CheckpointFileSystem.from_uri(tmp_path / "root").write_file("a/b/c", b"x")
    made = [f"sync {name[:5]}" for name in (tmp_path.name, "root", "a")]
    assert events == [*made, f"sync {TEMPORARY_PREFIX}", "rename", "sync b"]


def test_remains_of_a_crashed_write_are_not_listed_as_files(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    fs.write_file("a/b", b"x")
    remains = tmp_path / "a" / (TEMPORARY_PREFIX + "0123")
    remains.write_bytes(b"half a fi")
    assert fs.list_files() == ("a/b",)
    assert fs.list_files(include_temporary=True) == (f"a/{remains.name}", "a/b")


def test_reading_creates_no_directory(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "absent")
    assert not fs.exists("a")
    assert fs.list_files() == ()
    assert not (tmp_path / "absent").exists()


def test_file_systems_can_be_pickled(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fs = CheckpointFileSystem.from_uri("relative root")
    handle = fs.write_file("a", b"x")
    monkeypatch.chdir("/")
    copy = pickle.loads(pickle.dumps(fs))
    assert copy.uri == fs.uri == str(tmp_path / "relative root")
    assert copy.read_file(pickle.loads(pickle.dumps(handle))) == b"x"
    remote = CheckpointFileSystem.from_uri("mock:///some/root")
    assert pickle.loads(pickle.dumps(remote)).uri == "mock:///some/root"


def test_a_store_that_is_not_local_has_no_local_paths() -> None:
    fs = CheckpointFileSystem.from_uri("mock:///root")
    handle = fs.write_file("a/b", b"x")
    assert fs.local_path() is None
    assert fs.local_path("a/b") is None
    assert fs.read_file(handle) == b"x"


def test_an_unknown_uri_is_an_error_with_advice() -> None:
    with pytest.raises(StorageError, match=r"bogus://x.*Give a local path"):
        CheckpointFileSystem.from_uri("bogus://x")
    for no_place in ("", "a\0b", "file:///a\0b"):
        with pytest.raises(ValueError, match="neither"):
            CheckpointFileSystem.from_uri(no_place)


@pytest.mark.parametrize(
    "given",
    [PurePosixPath("s3://KEY:SECRET@bucket/job"), " s3://KEY:SECRET@bucket/job", "'s3:///KEY:SECRET@bucket/job"],
)
def test_a_path_that_was_meant_to_be_a_uri_is_rejected_without_its_credentials(given) -> None:
    with pytest.raises(StorageError, match=r"cannot open 's3://bucket/job': the argument is a path") as raised:
        CheckpointFileSystem.from_uri(given)
    assert "SECRET" not in str(raised.value)
    with pytest.raises(StorageError, match=r"cannot open 'file:///job'"):
        CheckpointFileSystem.from_uri("file:/job")


@pytest.mark.parametrize("path", ["./s3:/job", "a:/job", "run 5:/job", "jobs/s3:/job"])
def test_a_path_may_have_a_colon(path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CheckpointFileSystem.from_uri(path).uri == str(tmp_path / path)


def test_a_displayed_path_has_the_local_root_but_no_uri_parameters(tmp_path) -> None:
    assert CheckpointFileSystem.from_uri(tmp_path / "why?").location("a/b") == f"{tmp_path}/why?/a/b"
    assert CheckpointFileSystem("mock:///root?region=x", ArrowStorage(pyarrow.fs._MockFileSystem(), "root")).location(
        "a/b"
    ) == ("mock:///root/a/b")


def test_a_failed_write_leaves_no_part_of_the_file(tmp_path, monkeypatch) -> None:
    fs = CheckpointFileSystem("arrow", ArrowStorage(pyarrow.fs.LocalFileSystem(), str(tmp_path / "root")))
    (tmp_path / "source").write_bytes(b"x" * 100)

    def fails_half_way(source: object):
        yield b"half"
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(arrow_storage, "chunks_of", fails_half_way)
    with pytest.raises(StorageError, match=r"a/b.*Input/output error"):
        fs.upload(tmp_path / "source", "a/b")
    assert not (tmp_path / "root" / "a" / "b").exists()


def test_a_store_without_a_root_has_ordinary_paths() -> None:
    fs = CheckpointFileSystem("memory", ArrowStorage(pyarrow.fs._MockFileSystem(), ""))
    handle = fs.write_file("a/b", b"x")
    assert fs.read_file(handle) == b"x"
    assert fs.list_files() == fs.list_files("a") == ("a/b",)
    assert fs.list_directories() == ("a",)
    fs.verify_present([])
    fs.verify_present([handle])


def test_all_names_of_a_local_disk_are_the_same_store(tmp_path) -> None:
    for name in (str(tmp_path / "a root"), (tmp_path / "a root").as_uri(), f"{(tmp_path / 'a root').as_uri()}/"):
        fs = CheckpointFileSystem.from_uri(name)
        assert fs.uri == str(tmp_path / "a root")
        assert fs.local_path("a") == str(tmp_path / "a root" / "a")


def test_a_path_may_start_with_the_home_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CheckpointFileSystem.from_uri("~/job").uri == str(tmp_path / "job")
    assert CheckpointFileSystem.from_uri(Path("~")).uri == str(tmp_path)
    assert CheckpointFileSystem.from_uri("./~/job").uri == str(Path("~/job").absolute())


def test_a_place_without_read_permission_is_not_reported_as_absent(tmp_path, monkeypatch) -> None:
    def reject(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    monkeypatch.setattr(local_storage.os, "stat", reject)
    with pytest.raises(StorageError, match="Permission denied"):
        fs.why_absent()


def test_a_root_that_was_never_written_is_reported_as_absent(tmp_path, bucket: Bucket) -> None:
    arrow = CheckpointFileSystem("arrow", ArrowStorage(pyarrow.fs.LocalFileSystem(), str(tmp_path / "arrow")))
    local = CheckpointFileSystem.from_uri(tmp_path / "local")
    for files in (local, arrow, CheckpointFileSystem.from_uri(bucket.uri("root"))):
        assert (files.why_absent() or "").startswith("does not exist")
        files.write_file("a/b", b"1")
        assert files.why_absent() is None
    assert (CheckpointFileSystem.from_uri(tmp_path / "local" / "a" / "b").why_absent() or "").startswith("is a file")


def test_a_checksum_is_computed_in_bounded_memory(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    with open(tmp_path / "source", "wb") as file:
        file.truncate(64 << 20)
    handle = fs.upload(tmp_path / "source", "large")
    tracemalloc.start()
    try:
        fs.verify_content(handle)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 32 << 20


@pytest.mark.parametrize(("content", "error"), [(b"evil", CorruptFileError), (None, MissingFileError)])
def test_a_replaced_file_is_detected_by_its_content(tmp_path, content, error) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    handle = fs.write_file("a", b"good")
    fs.verify_content(handle)
    fs.delete("a")
    if content is not None:
        fs.write_file("a", content)
    with pytest.raises(error):
        fs.verify_content(handle)


def test_a_directory_cannot_be_moved_outside(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    fs.write_file("a/file", b"x")
    with pytest.raises(UnsafePathError):
        fs.move_directory("a", "../b")
    assert fs.list_files() == ("a/file",)


class Rejecting(LocalStorage):
    """A store whose errors contain the access key."""

    def read(self, path: str) -> bytes:
        raise OSError("the key whisper may not read")


def test_another_process_gets_the_credentials_and_no_error_shows_them(tmp_path) -> None:
    whole = "s3://name:whisper@bucket/root"
    fs = CheckpointFileSystem(whole, Rejecting(str(tmp_path)))
    assert fs.__reduce__() == (CheckpointFileSystem.from_uri, (whole,))
    with pytest.raises(StorageError) as caught:
        fs.read_file("file")
    assert "whisper" not in str(caught.value)
    assert "whisper" not in "".join(traceback.format_exception(caught.value))


class Raced(ArrowStorage):
    """A store on which another driver writes concurrently, and last."""

    def read(self, path: str) -> bytes:
        return b"of somebody else"


def test_without_conditional_writes_only_the_last_writer_has_created_the_file(tmp_path) -> None:
    files = pyarrow.fs.LocalFileSystem()
    assert not Raced(files, str(tmp_path)).create("mark", b"mine")
    assert ArrowStorage(files, str(tmp_path)).create("other", b"mine")
