from __future__ import annotations

import os
import pickle

import pyarrow.fs
import pyarrow.parquet
import pytest

from checkpointing import CheckpointFileSystem, CorruptFileError, FileHandle, MissingFileError, StorageError
from checkpointing.storage import arrow_storage, local_storage
from checkpointing.storage.arrow_storage import ArrowStorage
from checkpointing.storage.local_storage import TEMPORARY_PREFIX


@pytest.fixture(params=["local", "file_uri", "arrow", "s3"])
def fs(request, tmp_path) -> CheckpointFileSystem:
    root = tmp_path / "a root"
    if request.param == "s3":
        return CheckpointFileSystem.from_uri(request.getfixturevalue("bucket").uri("a%20root"))
    if request.param == "local":
        return CheckpointFileSystem.from_uri(str(root))
    if request.param == "file_uri":
        return CheckpointFileSystem.from_uri(root.as_uri())
    return CheckpointFileSystem("arrow", ArrowStorage(pyarrow.fs.LocalFileSystem(), str(root)))


def test_what_is_written_is_read_back(fs) -> None:
    handle = fs.write_file("a/b/c", b"content")
    assert fs.read_file(handle) == fs.read_file("a/b/c") == b"content"
    assert handle == FileHandle("a/b/c", 7, handle.checksum)
    assert fs.size("a/b/c") == 7
    assert fs.exists("a/b/c")
    assert not fs.exists("a/b")
    with fs.open_input("a/b/c") as source:
        source.seek(3)
        assert source.read() == b"tent"


def test_writing_again_replaces(fs) -> None:
    old = fs.write_file("a", b"old")
    new = fs.write_file("a", b"newer")
    assert fs.read_file(new) == b"newer"
    with pytest.raises(CorruptFileError, match="expected 3 bytes, found 5"):
        fs.read_file(old)


@pytest.mark.parametrize("may_link", [True, False])
def test_upload_and_download_carry_the_same_bytes(fs, tmp_path, may_link) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "source").write_bytes(content)
    handle = fs.upload(tmp_path / "source", "shared/x.sst", may_link=may_link)
    assert handle == FileHandle("shared/x.sst", len(content), fs.write_file("other", content).checksum)
    fs.download(handle, tmp_path / "deep" / "target", may_link=may_link)
    assert (tmp_path / "deep" / "target").read_bytes() == content
    assert fs.list_files() == ("other", "shared/x.sst")


def test_upload_on_one_device_is_a_hard_link_unless_refused(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    (tmp_path / "source").write_bytes(b"x")
    linked = fs.upload(tmp_path / "source", "linked")
    copied = fs.upload(tmp_path / "source", "copied", may_link=False)
    assert os.path.samefile(tmp_path / "source", fs.local_path("linked"))
    assert not os.path.samefile(tmp_path / "source", fs.local_path("copied"))
    assert linked.checksum == copied.checksum


def test_upload_copies_where_links_are_impossible(tmp_path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(local_storage.os, "link", refuse)
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    (tmp_path / "source").write_bytes(b"x")
    fs.read_file(fs.upload(tmp_path / "source", "copied"))
    assert not os.path.samefile(tmp_path / "source", fs.local_path("copied"))


def test_uploading_the_same_link_twice_leaves_one_file(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "root")
    (tmp_path / "source").write_bytes(b"x")
    assert fs.upload(tmp_path / "source", "a") == fs.upload(tmp_path / "source", "a")
    assert fs.list_files(include_temporary=True) == ("a",)


def test_a_missing_file_is_named(fs, tmp_path) -> None:
    handle = fs.write_file("a/b", b"x")
    fs.delete("a/b")
    for read in (
        lambda: fs.read_file(handle),
        lambda: fs.read_file("a/b"),
        lambda: fs.download(handle, tmp_path / "t"),
        lambda: fs.open_input("a/b"),
        lambda: fs.size("a/b"),
        lambda: fs.verify_present([handle]),
    ):
        with pytest.raises(MissingFileError, match="a/b"):
            read()
    assert not (tmp_path / "t").exists()
    with pytest.raises(MissingFileError, match="no-such"):
        fs.upload(tmp_path / "no-such", "x")


def test_every_truncation_and_every_flipped_bit_is_found(fs, tmp_path) -> None:
    content = b"state"
    handle = fs.write_file("a", content)
    damaged = [content[:length] for length in range(len(content))] + [content + b"x"]
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for data in damaged:
        fs.write_file("a", data)
        with pytest.raises(CorruptFileError, match="expected"):
            fs.read_file(handle)
        with pytest.raises(CorruptFileError, match="expected"):
            fs.download(handle, tmp_path / "target")
    assert {path.name for path in tmp_path.iterdir()} <= {"a root"}


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

    def fail(*_: object) -> None:
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

    def note_rename(source: str, target: str) -> None:
        events.append("rename")
        replace(source, target)

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


def test_listing_and_deleting(fs) -> None:
    for path in ("a/1", "a/b/2", "c/3"):
        fs.write_file(path, b"x")
    assert fs.list_files() == ("a/1", "a/b/2", "c/3")
    assert fs.list_files("a") == ("a/1", "a/b/2")
    assert fs.list_files("a/b") == ("a/b/2",)
    assert fs.list_files("none") == fs.list_directories("none") == ()
    assert fs.list_directories() == ("a", "c")
    fs.move_directory("a/b", "d/e")
    assert fs.list_files() == ("a/1", "c/3", "d/e/2")
    fs.delete("c/3", durable=True)
    fs.delete("c/3", durable=True)
    fs.delete("none/at/all")
    fs.delete_directory("a")
    fs.delete_directory("a")
    assert fs.list_files() == ("d/e/2",)


def test_reading_makes_no_directory(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path / "absent")
    assert not fs.exists("a")
    assert fs.list_files() == ()
    assert not (tmp_path / "absent").exists()


def test_it_travels_by_pickle(tmp_path, monkeypatch) -> None:
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


def test_an_unknown_uri_is_an_error_that_says_what_to_give() -> None:
    with pytest.raises(StorageError, match=r"bogus://x.*Give a local path"):
        CheckpointFileSystem.from_uri("bogus://x")
    with pytest.raises(ValueError, match="neither"):
        CheckpointFileSystem.from_uri("")


def test_pyarrow_can_read_in_place(fs) -> None:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table({"key_group": [1, 2]})
    pyarrow.parquet.write_table(table, sink)
    fs.write_file("x.parquet", sink.getvalue().to_pybytes())
    with fs.open_input("x.parquet") as source:
        assert pyarrow.parquet.read_table(source).equals(table)


def test_a_write_that_fails_in_a_store_leaves_no_part_of_the_file(tmp_path, monkeypatch) -> None:
    fs = CheckpointFileSystem("arrow", ArrowStorage(pyarrow.fs.LocalFileSystem(), str(tmp_path / "root")))
    (tmp_path / "source").write_bytes(b"x" * 100)

    def fails_half_way(source: object):
        yield b"half"
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(arrow_storage, "chunks_of", fails_half_way)
    with pytest.raises(StorageError, match=r"a/b.*Input/output error"):
        fs.upload(tmp_path / "source", "a/b")
    assert not (tmp_path / "root" / "a" / "b").exists()


def test_a_store_without_a_root_of_its_own_has_paths_like_any_other() -> None:
    fs = CheckpointFileSystem("memory", ArrowStorage(pyarrow.fs._MockFileSystem(), ""))
    handle = fs.write_file("a/b", b"x")
    assert fs.read_file(handle) == b"x"
    assert fs.list_files() == fs.list_files("a") == ("a/b",)
    assert fs.list_directories() == ("a",)
    fs.verify_present([])
    fs.verify_present([handle])


def test_only_files_that_are_there_with_their_size_are_present(fs) -> None:
    handles = [fs.write_file(name, b"xx") for name in ("a", "b")]
    fs.verify_present(handles)
    for content in (b"x", b"xxx"):
        fs.write_file("b", content)
        with pytest.raises(CorruptFileError, match=f"b is corrupt: expected 2 bytes, found {len(content)}"):
            fs.verify_present(handles)
    fs.write_file("c/below", b"x")
    assert not fs.exists("c")
    with pytest.raises(MissingFileError):
        fs.size("c")


def test_a_local_disk_is_one_whichever_way_it_is_named(tmp_path) -> None:
    for name in (str(tmp_path / "a root"), (tmp_path / "a root").as_uri(), f"{(tmp_path / 'a root').as_uri()}/"):
        fs = CheckpointFileSystem.from_uri(name)
        assert fs.uri == str(tmp_path / "a root")
        assert fs.local_path("a") == str(tmp_path / "a root" / "a")
