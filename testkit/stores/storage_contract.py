"""The contract of a storage of checkpoints; see the package for how to use it."""

from __future__ import annotations

import os
import pathlib

import pyarrow
import pyarrow.parquet
import pytest

from checkpointing import CheckpointFileSystem, CorruptFileError, FileHandle, MissingFileError, UnsafePathError

__all__ = ["StorageContract"]


class StorageContract:
    """Subclass it and implement `make_files`; pytest collects the subclass if its name begins with Test.

    A storage whose place is not a directory of this machine overrides the fixture `files` instead.
    """

    def make_files(self, directory: pathlib.Path) -> CheckpointFileSystem:
        """The files of the storage below a directory, which does not exist yet."""
        raise NotImplementedError(f"{type(self).__name__} must implement make_files")

    @pytest.fixture
    def files(self, tmp_path: pathlib.Path) -> CheckpointFileSystem:
        """The files of an empty storage."""
        return self.make_files(tmp_path / "a root")

    def test_what_is_written_is_read_back(self, files: CheckpointFileSystem) -> None:
        handle = files.write_file("a/b/c", b"content")
        assert files.read_file(handle) == files.read_file("a/b/c") == b"content"
        assert handle == FileHandle("a/b/c", 7, handle.checksum)
        assert files.size("a/b/c") == 7
        assert files.exists("a/b/c")
        assert not files.exists("a/b")
        with files.open_input("a/b/c") as source:
            source.seek(3)
            assert source.read() == b"tent"

    def test_writing_again_replaces(self, files: CheckpointFileSystem) -> None:
        old = files.write_file("a", b"old")
        new = files.write_file("a", b"newer")
        assert files.read_file(new) == b"newer"
        with pytest.raises(CorruptFileError, match="expected 3 bytes, found 5"):
            files.read_file(old)

    def test_a_file_is_created_once_and_stays_as_it_was_for_who_comes_later(self, files: CheckpointFileSystem) -> None:
        assert files.create_file("a/mark", b"of the first")
        assert not files.create_file("a/mark", b"of the second")
        assert files.read_file("a/mark") == b"of the first"
        assert files.list_files("", include_temporary=True) == ("a/mark",)
        files.delete("a/mark")
        assert files.create_file("a/mark", b"of the third")
        with pytest.raises(UnsafePathError):
            files.create_file("../x", b"")

    @pytest.mark.parametrize("may_link", [True, False])
    def test_upload_and_download_carry_the_same_bytes(
        self, files: CheckpointFileSystem, tmp_path: pathlib.Path, may_link: bool
    ) -> None:
        content = os.urandom(3_000_000)
        (tmp_path / "source").write_bytes(content)
        handle = files.upload(tmp_path / "source", "shared/x.sst", may_link=may_link)
        assert handle == FileHandle("shared/x.sst", len(content), files.write_file("other", content).checksum)
        files.download(handle, tmp_path / "deep" / "target", may_link=may_link)
        assert (tmp_path / "deep" / "target").read_bytes() == content
        assert files.list_files() == ("other", "shared/x.sst")

    def test_a_missing_file_is_named(self, files: CheckpointFileSystem, tmp_path: pathlib.Path) -> None:
        handle = files.write_file("a/b", b"x")
        files.delete("a/b")
        for read in (
            lambda: files.read_file(handle),
            lambda: files.read_file("a/b"),
            lambda: files.download(handle, tmp_path / "t"),
            lambda: files.open_input("a/b"),
            lambda: files.size("a/b"),
            lambda: files.verify_present([handle]),
        ):
            with pytest.raises(MissingFileError, match="a/b"):
                read()
        assert not (tmp_path / "t").exists()
        with pytest.raises(MissingFileError, match="no-such"):
            files.upload(tmp_path / "no-such", "x")

    def test_every_truncation_and_every_flipped_bit_is_found(
        self, files: CheckpointFileSystem, tmp_path: pathlib.Path
    ) -> None:
        content = b"state"
        handle = files.write_file("a", content)
        damaged = [content[:length] for length in range(len(content))] + [content + b"x"]
        for bit in range(8 * len(content)):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            damaged.append(bytes(flipped))
        for data in damaged:
            files.write_file("a", data)
            with pytest.raises(CorruptFileError, match="expected"):
                files.read_file(handle)
            with pytest.raises(CorruptFileError, match="expected"):
                files.download(handle, tmp_path / "target")
        assert {path.name for path in tmp_path.iterdir()} <= {"a root"}

    def test_listing_and_deleting(self, files: CheckpointFileSystem) -> None:
        for path in ("a/1", "a/b/2", "c/3"):
            files.write_file(path, b"x")
        assert files.list_files() == ("a/1", "a/b/2", "c/3")
        assert files.list_files("a") == ("a/1", "a/b/2")
        assert files.list_files("a/b") == ("a/b/2",)
        assert files.list_files("none") == files.list_directories("none") == ()
        assert files.list_directories() == ("a", "c")
        files.move_directory("a/b", "d/e")
        assert files.list_files() == ("a/1", "c/3", "d/e/2")
        files.delete("c/3", durable=True)
        files.delete("c/3", durable=True)
        files.delete("none/at/all")
        files.delete_directory("a")
        files.delete_directory("a")
        assert files.list_files() == ("d/e/2",)

    def test_a_copy_has_the_bytes_and_stays_when_the_file_goes(self, files: CheckpointFileSystem) -> None:
        files.write_file("a/1", b"bytes")
        files.write_file("b/2", b"before")
        files.copy_file("a/1", "b/2")
        files.delete("a/1")
        assert files.list_files() == ("b/2",)
        assert files.read_file("b/2") == b"bytes"
        with pytest.raises(MissingFileError, match="a/1"):
            files.copy_file("a/1", "c/3")
        for path, target in (("../x", "c/3"), ("b/2", "../x")):
            with pytest.raises(UnsafePathError):
                files.copy_file(path, target)
        assert files.list_files() == ("b/2",)

    def test_pyarrow_can_read_in_place(self, files: CheckpointFileSystem) -> None:
        sink = pyarrow.BufferOutputStream()
        table = pyarrow.table({"key_group": [1, 2]})
        pyarrow.parquet.write_table(table, sink)
        files.write_file("x.parquet", sink.getvalue().to_pybytes())
        with files.open_input("x.parquet") as source:
            assert pyarrow.parquet.read_table(source).equals(table)

    def test_only_files_that_are_there_with_their_size_are_present(self, files: CheckpointFileSystem) -> None:
        handles = [files.write_file(name, b"xx") for name in ("a", "b")]
        files.verify_present(handles)
        for content in (b"x", b"xxx"):
            files.write_file("b", content)
            with pytest.raises(CorruptFileError, match=f"b is corrupt: expected 2 bytes, found {len(content)}"):
                files.verify_present(handles)
        files.write_file("c/below", b"x")
        assert not files.exists("c")
        with pytest.raises(MissingFileError):
            files.size("c")
