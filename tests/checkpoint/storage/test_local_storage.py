"""The store on a local disk: what it makes durable, in which order, and what counts as a file."""

from __future__ import annotations

import errno
import os

import pytest
from open_descriptors import descriptors_below

from statebackend.checkpoint import CheckpointError, CheckpointFileSystem, MissingFileError, StorageError
from statebackend.checkpoint.fs import local_storage
from statebackend.checkpoint.fs.local_storage import TEMPORARY_PREFIX


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """Records in order what becomes durable or visible: a synced file by its size, a directory by its name."""
    seen: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink")}

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        name = "temporary" if TEMPORARY_PREFIX in path else os.path.basename(path)
        seen.append(f"sync {name}" if os.path.isdir(path) else f"sync {name} of {os.fstat(descriptor).st_size}")
        real["fsync"](descriptor)

    def noted(name: str):
        def call(*arguments: object, **directories: object) -> None:
            real[name](*arguments, **directories)
            if TEMPORARY_PREFIX not in str(arguments[-1]):
                seen.append(f"{name} to {os.path.basename(str(arguments[-1]))}")

        return call

    monkeypatch.setattr(local_storage.os, "fsync", fsync)
    for name in ("replace", "rename", "unlink"):
        monkeypatch.setattr(local_storage.os, name, noted(name))
    return seen


# Less than one buffer, and more.
SIZES = pytest.mark.parametrize("size_bytes", [1, 5000])


@SIZES
@pytest.mark.parametrize("may_link", [True, False])
def test_an_uploaded_file_is_synced_before_it_gets_its_name(tmp_path, events, may_link, size_bytes) -> None:
    (tmp_path / "source").write_bytes(b"x" * size_bytes)
    (tmp_path / "root").mkdir()
    CheckpointFileSystem.from_uri(tmp_path / "root").upload(tmp_path / "source", "file", may_link=may_link)
    synced = f"sync {'source' if may_link else 'temporary'} of {size_bytes}"
    assert events == [synced, "replace to file", "sync root"]


@SIZES
def test_a_written_file_is_synced_before_it_gets_its_name(tmp_path, events, size_bytes) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    fs.write_file("file", b"x" * size_bytes)
    assert events == [f"sync temporary of {size_bytes}", "replace to file", f"sync {tmp_path.name}"]
    events.clear()
    fs.write_file("other", b"x", durable=False)
    assert events == ["replace to other"]


def test_a_download_is_not_synced(tmp_path, events) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    handle = fs.write_file("file", b"x")
    events.clear()
    fs.download(handle, tmp_path / "linked")
    fs.download(handle, tmp_path / "copied", may_link=False)
    assert events == ["replace to linked", "replace to copied"]
    assert os.path.samefile(tmp_path / "file", tmp_path / "linked")
    assert not os.path.samefile(tmp_path / "file", tmp_path / "copied")


def test_only_a_durable_deletion_syncs_the_directory(tmp_path, events) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    for name in ("a", "b"):
        fs.write_file(f"directory/{name}", b"x")
    events.clear()
    fs.delete("directory/a", durable=True)
    assert events == ["unlink to a", "sync directory"]
    events.clear()
    fs.delete("directory/b")
    assert events == ["unlink to b"]


def test_a_moved_directory_is_durable_in_both_places_after_the_move(tmp_path, events) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    fs.write_file("from/one/file", b"x")
    events.clear()
    fs.move_directory("from/one", "to/other")
    assert events == [f"sync {tmp_path.name}", "rename to other", "sync from", "sync to"]


def test_a_created_file_is_durable_with_its_name(tmp_path, events) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    assert fs.create_file("mark", b"12345")
    assert events == ["sync temporary of 5", f"sync {tmp_path.name}"]
    events.clear()
    assert not fs.create_file("mark", b"67890")
    assert fs.read_file("mark") == b"12345"


def test_a_root_is_durable_with_all_parent_directories(tmp_path, events) -> None:
    CheckpointFileSystem.from_uri(tmp_path / "a" / "b").make_root()
    assert (tmp_path / "a" / "b").is_dir()
    assert events == [f"sync {tmp_path.name}", "sync a"]


def test_a_directory_that_is_created_concurrently_is_used(tmp_path, monkeypatch) -> None:
    mkdir = os.mkdir

    def somebody_was_faster(path: str, mode: int, **directory: object) -> None:
        mkdir(path, **directory)
        mkdir(path, **directory)

    monkeypatch.setattr(local_storage.os, "mkdir", somebody_was_faster)
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    assert fs.read_file(fs.write_file("a/b", b"x")) == b"x"


def test_only_regular_files_count_as_files(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    fs.write_file("directory/file", b"x")
    handle = fs.write_file("gone", b"x")
    fs.delete("gone")
    (tmp_path / "outside").write_bytes(b"x")
    os.symlink(tmp_path / "outside", tmp_path / "root" / "gone")
    os.symlink(tmp_path / "root" / "directory", tmp_path / "root" / "linked directory")
    assert not fs.exists("gone")
    assert not fs.exists("directory")
    assert not fs.exists("directory/file/below")
    for read in (
        lambda: fs.read_file("gone"),
        lambda: fs.read_file(handle),
        lambda: fs.open_input("gone"),
        lambda: fs.download(handle, tmp_path / "target"),
    ):
        with pytest.raises(CheckpointError, match="gone"):
            read()
    for read in (lambda: fs.read_file("gone"), lambda: fs.read_file(handle), lambda: fs.verify_present([handle])):
        with pytest.raises(CheckpointError, match=r"/gone.* is a symbolic link, and no link is followed here; put"):
            read()
    assert not (tmp_path / "target").exists()
    with pytest.raises(MissingFileError, match="not a regular file"):
        fs.read_file("directory")
    assert fs.list_directories() == ("directory",)
    assert fs.list_files() == ("directory/file", "gone")


def test_a_named_pipe_in_place_of_a_file_is_rejected_without_waiting(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    handle = fs.write_file("pipe", b"x")
    os.unlink(tmp_path / "root" / "pipe")
    os.mkfifo(tmp_path / "root" / "pipe")
    for read in (
        lambda: fs.read_file("pipe"),
        lambda: fs.read_file(handle),
        lambda: fs.open_input("pipe"),
        lambda: fs.download(handle, tmp_path / "target"),
        lambda: fs.upload(tmp_path / "root" / "pipe", "copy"),
    ):
        with pytest.raises(MissingFileError):
            read()


def test_an_upload_through_a_link_copies_the_file(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    (tmp_path / "source").write_bytes(b"content")
    os.symlink(tmp_path / "source", tmp_path / "link")
    assert fs.read_file(fs.upload(tmp_path / "link", "a")) == b"content"
    assert not os.path.islink(tmp_path / "root" / "a")


def test_a_full_disk_during_linking_is_an_error_and_not_a_copy(tmp_path, monkeypatch) -> None:
    def reject(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_storage.os, "link", reject)
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    (tmp_path / "source").write_bytes(b"x")
    with pytest.raises(StorageError, match="No space left"):
        fs.upload(tmp_path / "source", "a")
    assert fs.list_files(include_temporary=True) == ()


def test_a_directory_that_cannot_be_listed_is_an_error_and_not_empty(tmp_path, monkeypatch) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    fs.write_file("a/b", b"x")
    scandir = os.scandir

    def reject(descriptor: int):
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/a"):
            raise PermissionError(errno.EACCES, "Permission denied", "a")
        return scandir(descriptor)

    monkeypatch.setattr(local_storage.os, "scandir", reject)
    for listed in (fs.list_files, lambda: fs.list_files("a"), lambda: fs.list_directories("a")):
        with pytest.raises(StorageError, match="Permission denied"):
            listed()


def test_no_operation_leaks_a_descriptor(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    fs.make_root()
    (tmp_path / "source").write_bytes(b"x")
    handle = fs.write_file("a/b", b"x")
    fs.upload(tmp_path / "source", "c", may_link=False)
    fs.upload(tmp_path / "source", "d")
    fs.download(handle, tmp_path / "target")
    fs.read_file(handle)
    fs.open_input("a/b").close()
    with pytest.raises(MissingFileError):
        fs.read_file("a")
    fs.delete("c", durable=True)
    fs.move_directory("a", "e")
    assert not descriptors_below(tmp_path)
