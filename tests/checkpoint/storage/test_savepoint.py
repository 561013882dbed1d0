from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from checkpoint_builders import metadata_of

from statebackend.checkpoint import (
    CheckpointFileSystem,
    CheckpointKind,
    CorruptFileError,
    CorruptMetadataError,
    InvariantViolationError,
    MissingFileError,
    SavepointError,
    SavepointExistsError,
    StorageError,
    read_savepoint,
    write_savepoint,
)
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.checkpoint.store import savepoint_directory
from statebackend.checkpoint.store.checkpoint_directories import write_metadata
from statebackend.checkpoint.store.savepoint_directory import (
    abandon_savepoint_directory,
    check_savepoint_directory,
    create_savepoint_directory,
    reserved_directory,
)


def savepoint_of(*files):
    return metadata_of(4, tuple(files), kind=CheckpointKind.SAVEPOINT)


def test_a_savepoint_can_be_moved_with_its_directory(tmp_path) -> None:
    fs = create_savepoint_directory(tmp_path / "here")
    file = fs.write_file("data/part-0.parquet", b"rows")
    write_savepoint(fs, savepoint_of(file))
    assert fs.list_files() == ("_metadata", "data/part-0.parquet")
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved, metadata = read_savepoint(str(tmp_path / "there"))
    assert metadata == savepoint_of(file)
    assert [moved.read_file(one) for one in metadata.files] == [b"rows"]


def test_metadata_is_written_last_and_remains_of_failed_attempts_are_removed_before(tmp_path) -> None:
    fs = create_savepoint_directory(tmp_path)
    file = fs.write_file("data/part-0", b"rows")
    fs.write_file("data/attempt-1/part-0", b"ro")
    fs.write_file("data/.tmp-1", b"r")
    with pytest.raises(SavepointError, match="started there and not finished"):
        read_savepoint(tmp_path)
    write_savepoint(fs, savepoint_of(file))
    assert fs.list_files(include_temporary=True) == ("_metadata", "data/part-0")


def test_an_abandoned_directory_is_emptied_and_the_marker_removed_last(tmp_path, monkeypatch) -> None:
    fs = create_savepoint_directory(tmp_path)
    for path in ("data/part-0", "data/.tmp-1", "note"):
        fs.write_file(path, b"rows")
    deleted = []
    delete = LocalStorage.delete

    def noted(storage: LocalStorage, path: str, durable: bool) -> None:
        deleted.append(path)
        delete(storage, path, durable)

    monkeypatch.setattr(LocalStorage, "delete", noted)
    abandon_savepoint_directory(fs)
    assert (sorted(deleted), deleted[-1]) == (["_in_progress", "data/.tmp-1", "data/part-0", "note"], "_in_progress")
    assert list(tmp_path.iterdir()) == []
    complete = create_savepoint_directory(tmp_path)
    write_savepoint(complete, savepoint_of(complete.write_file("data/part-0", b"rows")))
    abandon_savepoint_directory(complete)
    assert read_savepoint(tmp_path)[1].files


def test_one_of_many_concurrent_reservations_gets_the_directory(tmp_path) -> None:
    writers = 8
    for turn in range(20):
        begin = threading.Barrier(writers)

        def reserve(place=tmp_path / str(turn), begin=begin) -> bool:
            begin.wait()
            try:
                create_savepoint_directory(place)
            except SavepointExistsError:
                return False
            return True

        with ThreadPoolExecutor(writers) as threads:
            reserved = [threads.submit(reserve) for _ in range(writers)]
        assert sum(one.result() for one in reserved) == 1
        assert [path.name for path in (tmp_path / str(turn)).iterdir()] == ["_in_progress"]


def test_a_directory_that_another_writer_has_completed_meanwhile_is_left_unchanged(tmp_path, monkeypatch) -> None:
    create = LocalStorage.create

    def overtaken(storage: LocalStorage, path: str, data: bytes) -> bool:
        monkeypatch.setattr(LocalStorage, "create", create)
        first = create_savepoint_directory(tmp_path)
        write_savepoint(first, savepoint_of(first.write_file("data/part-0", b"rows")))
        return create(storage, path, data)

    monkeypatch.setattr(LocalStorage, "create", overtaken)
    with pytest.raises(SavepointExistsError, match="already is a checkpoint or savepoint"):
        create_savepoint_directory(tmp_path)
    fs, metadata = read_savepoint(tmp_path)
    assert fs.list_files(include_temporary=True) == ("_metadata", "data/part-0")
    assert metadata.files


def test_a_crash_at_any_step_leaves_an_incomplete_or_a_complete_savepoint(tmp_path, monkeypatch) -> None:
    fs = create_savepoint_directory(tmp_path)
    file = fs.write_file("data/part-0", b"rows")
    fs.write_file("data/attempt-1/part-0", b"ro")
    remains = ("_in_progress", "data/part-0")
    with monkeypatch.context() as patched:
        patched.setattr(savepoint_directory, "write_metadata", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_savepoint(fs, savepoint_of(file))
    # The directory stays reserved, and the savepoint that completes has no files of a failed attempt.
    assert fs.list_files(include_temporary=True) == remains
    with pytest.raises(SavepointError, match="started there and not finished"):
        read_savepoint(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(fs, "delete", lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_savepoint(fs, savepoint_of(file))
    with pytest.raises(SavepointExistsError, match="already is a checkpoint or savepoint"):
        write_savepoint(fs, savepoint_of(file))
    assert read_savepoint(tmp_path)[1] == savepoint_of(file)


@pytest.mark.parametrize("name", ["notes.txt", "_metadata", "_in_progress", ".tmp-1", "deep/er"])
def test_a_directory_with_content_is_rejected_and_left_unchanged(tmp_path, name) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    fs.write_file(name, b"precious")
    with pytest.raises(SavepointExistsError, match="Nothing was changed"):
        create_savepoint_directory(tmp_path)
    assert fs.list_files(include_temporary=True) == (name,)
    assert fs.read_file(name) == b"precious"


@pytest.mark.parametrize("place", ["shared/mine", "checkpoints/mine", "shared/operator/mine"])
def test_a_place_among_the_files_of_a_job_is_rejected_because_the_job_would_delete_it(tmp_path, place) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").write_bytes(b"{}")
    (tmp_path / "link").symlink_to(tmp_path / "job")
    for target in (tmp_path / "job" / place, tmp_path / "link" / place, f"file://{tmp_path}/job/{place}"):
        with pytest.raises(SavepointError, match=r"inside the directory of the job in .*outside"):
            create_savepoint_directory(target)
    assert sorted(one.name for one in (tmp_path / "job").iterdir()) == ["job.json"]
    create_savepoint_directory(tmp_path / "job" / "mine")
    create_savepoint_directory(tmp_path / place)


def test_an_unreserved_directory_may_contain_only_the_files_of_the_savepoint(tmp_path) -> None:
    fs = CheckpointFileSystem.from_uri(tmp_path)
    file = fs.write_file("data/part-0", b"rows")
    fs.write_file("notes.txt", b"precious")
    with pytest.raises(SavepointExistsError, match=r"holds 'notes.txt'"):
        write_savepoint(fs, savepoint_of(file))
    assert fs.list_files() == ("data/part-0", "notes.txt")
    fs.delete("notes.txt")
    write_savepoint(fs, savepoint_of(file))
    with pytest.raises(SavepointExistsError, match="already is a checkpoint or savepoint"):
        write_savepoint(fs, savepoint_of(file))
    assert read_savepoint(tmp_path)[1] == savepoint_of(file)


def test_a_savepoint_without_all_its_files_is_not_written(tmp_path) -> None:
    fs = create_savepoint_directory(tmp_path)
    file = fs.write_file("data/part-0", b"rows")
    fs.write_file("data/part-0", b"row")
    with pytest.raises(CorruptFileError, match="expected 4 bytes, found 3"):
        write_savepoint(fs, savepoint_of(file))
    fs.delete("data/part-0")
    with pytest.raises(MissingFileError, match="data/part-0"):
        write_savepoint(fs, savepoint_of(file))
    assert fs.list_files() == ("_in_progress",)


def test_a_checkpoint_is_not_a_savepoint(tmp_path) -> None:
    fs = create_savepoint_directory(tmp_path / "a")
    with pytest.raises(InvariantViolationError, match="not a savepoint"):
        write_savepoint(fs, metadata_of(4))
    other = CheckpointFileSystem.from_uri(tmp_path / "b")
    write_metadata(other, "", metadata_of(4))
    with pytest.raises(SavepointError, match=r"is checkpoint 4 of job 'flights', not .* 'statebackend migrate'"):
        read_savepoint(tmp_path / "b")


def test_opening_finds_missing_and_truncated_files_and_reading_finds_altered_ones(tmp_path) -> None:
    fs = create_savepoint_directory(tmp_path)
    file = fs.write_file("data/part-0", b"rows")
    write_savepoint(fs, savepoint_of(file))
    fs.write_file("data/part-0", b"rowz")
    again, metadata = read_savepoint(tmp_path)
    with pytest.raises(CorruptFileError, match="expected checksum"):
        again.read_file(metadata.files[0])
    fs.write_file("data/part-0", b"row")
    with pytest.raises(CorruptFileError, match="expected 4 bytes, found 3"):
        read_savepoint(tmp_path)
    fs.delete("data/part-0")
    with pytest.raises(MissingFileError, match="part-0"):
        read_savepoint(tmp_path)
    fs.write_file("_metadata", fs.read_file("_metadata")[:-1])
    with pytest.raises(CorruptMetadataError, match="_metadata"):
        read_savepoint(tmp_path)


def test_a_directory_without_savepoint_is_reported_and_not_created(tmp_path) -> None:
    with pytest.raises(SavepointError, match="none does not exist"):
        read_savepoint(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "photos").mkdir()
    with pytest.raises(SavepointError, match="photos is not a savepoint: it has no file _metadata"):
        read_savepoint(tmp_path / "photos")


def test_metadata_that_is_a_symbolic_link_is_not_reported_as_missing(tmp_path) -> None:
    write_savepoint(create_savepoint_directory(tmp_path / "whole"), savepoint_of())
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "_metadata").symlink_to(tmp_path / "whole" / "_metadata")
    with pytest.raises(StorageError, match=r"links/_metadata.* is a symbolic link, and no link is followed here; put"):
        read_savepoint(tmp_path / "links")


def test_a_savepoint_inside_of_an_unfinished_one_is_rejected(tmp_path) -> None:
    outer = create_savepoint_directory(tmp_path / "outer")
    for inside in (tmp_path / "outer" / "inner", tmp_path / "outer" / "data" / "inner"):
        with pytest.raises(SavepointError, match=r"inside the directory of the unfinished savepoint in .*outer"):
            create_savepoint_directory(inside)
    assert outer.list_files() == ("_in_progress",)
    (tmp_path / "outer" / "_in_progress").unlink()
    # Savepoints are usually kept as subdirectories of one directory.
    create_savepoint_directory(tmp_path / "outer" / "inner")
    create_savepoint_directory(tmp_path / "outer" / "other")


def test_a_savepoint_needs_no_read_permission_above_its_directory(tmp_path, monkeypatch) -> None:
    exists = CheckpointFileSystem.exists

    def reject(fs: CheckpointFileSystem, path: str) -> bool:
        if fs.uri != str(tmp_path / "mine"):
            raise StorageError("403 forbidden")
        return exists(fs, path)

    monkeypatch.setattr(CheckpointFileSystem, "exists", reject)
    assert create_savepoint_directory(tmp_path / "mine").list_files() == ("_in_progress",)


class TestKilledWriters:
    """Directories that a killed writer has left. A copy of the directory of a writer is what a kill leaves."""

    FILES = ("operators/a/part-0", "operators/a/part-1", "flink-*", "source-progress/offsets/1")
    LEFT = ("operators/a/part-0", "operators/a/.tmp-" + "0" * 32, "flink-" + "a" * 32, ".tmp-" + "b" * 32)

    @pytest.fixture
    def left(self, tmp_path):
        with reserved_directory(tmp_path / "first", self.FILES) as fs:
            for path in self.LEFT:
                fs.write_file(path, b"rows")
            shutil.copytree(tmp_path / "first", tmp_path / "left")
            write_savepoint(fs, savepoint_of())
        return tmp_path / "left"

    def test_the_next_writer_deletes_the_files_and_completes(self, left) -> None:
        check_savepoint_directory(left, may_clear=True)
        with reserved_directory(left, ["data/part-0"]) as fs:
            assert fs.list_files(include_temporary=True) == ("_in_progress",)
            file = fs.write_file("data/part-0", b"rows")
            # It is killed, too, and the third writer finds its file.
            shutil.copytree(left, left.parent / "again")
            write_savepoint(fs, savepoint_of(file))
        assert read_savepoint(left)[1] == savepoint_of(file)
        with reserved_directory(left.parent / "again", ["other"]) as fs:
            assert fs.list_files(include_temporary=True) == ("_in_progress",)

    @pytest.mark.parametrize("path", ["notes.txt", "operators/a/part-2", "operators/b/part-0", ".tmp-1", "flink-1"])
    def test_a_file_of_others_is_named_and_nothing_is_changed(self, left, path) -> None:
        (left / path).parent.mkdir(exist_ok=True)
        (left / path).write_bytes(b"precious")
        before = sorted(left.rglob("*"))
        for attempt in (check_savepoint_directory, lambda uri, may_clear: reserved_directory(uri, []).__enter__()):
            with pytest.raises(SavepointExistsError, match=f"'{path}', which it did not write. Nothing was changed"):
                attempt(left, may_clear=True)
        assert sorted(left.rglob("*")) == before
        assert (left / path).read_bytes() == b"precious"

    @pytest.mark.parametrize("replaced", ["operators", "operators/a", "operators/a/part-0"])
    def test_no_link_is_followed_or_removed(self, left, replaced) -> None:
        shutil.move(left / replaced, left.parent / "theirs")
        (left / replaced).symlink_to(left.parent / "theirs")
        with (
            pytest.raises((SavepointExistsError, StorageError), match=r"which it did not write|symbolic link"),
            reserved_directory(left, self.FILES),
        ):
            pass
        assert (left / replaced).is_symlink()
        assert (left.parent / "theirs").exists()
        assert (left / "operators" / "a" / "part-0").read_bytes() == b"rows"

    @pytest.mark.parametrize("path", ["../precious", "{outside}", "operators/../../precious"])
    def test_a_marker_that_lists_files_outside_deletes_none(self, left, path) -> None:
        outside = left.parent / "precious"
        outside.write_bytes(b"precious")
        with (left / "_in_progress").open("a") as marker:
            marker.write(path.format(outside=outside) + "\n")
        with pytest.raises(SavepointExistsError, match="remove it, or give"):
            check_savepoint_directory(left, may_clear=True)
        assert outside.read_bytes() == b"precious"
        assert (left / "operators" / "a" / "part-0").exists()

    def test_a_marker_that_is_a_link_is_not_followed(self, left) -> None:
        shutil.move(left / "_in_progress", left.parent / "theirs")
        (left / "_in_progress").symlink_to(left.parent / "theirs")
        with pytest.raises(StorageError, match="symbolic link"), reserved_directory(left, self.FILES):
            pass
        assert (left / "operators" / "a" / "part-0").exists()

    def test_an_incomplete_last_line_is_ignored(self, left) -> None:
        with (left / "_in_progress").open("a") as marker:
            marker.write("notes.t")
        (left / "notes.t").write_bytes(b"precious")
        with pytest.raises(SavepointExistsError, match=r"'notes\.t', which it did not write"):
            check_savepoint_directory(left, may_clear=True)
        (left / "notes.t").unlink()
        with reserved_directory(left, ["data"]) as fs:
            assert (left / "_in_progress").read_text().endswith("source-progress/offsets/1\ndata\n")
            assert fs.list_files() == ("_in_progress",)

    def test_the_files_of_a_writer_with_several_processes_are_left(self, tmp_path) -> None:
        fs = create_savepoint_directory(tmp_path)
        fs.write_file("operators/a/part-0", b"rows")
        with pytest.raises(SavepointExistsError, match="being written or was not finished"):
            check_savepoint_directory(tmp_path, may_clear=True)
        assert fs.list_files() == ("_in_progress", "operators/a/part-0")

    def test_other_writers_do_not_clear(self, left) -> None:
        with pytest.raises(SavepointExistsError, match="being written or was not finished"):
            create_savepoint_directory(left)
        assert (left / "operators" / "a" / "part-0").exists()

    def test_a_second_writer_is_rejected_while_the_first_one_writes(self, tmp_path) -> None:
        with reserved_directory(tmp_path, ["data"]) as fs:
            file = fs.write_file("data", b"rows")
            for _ in range(2):
                with pytest.raises(SavepointExistsError, match=r"another process is writing\. Nothing was changed"):
                    reserved_directory(tmp_path, ["data"]).__enter__()
            write_savepoint(fs, savepoint_of(file))
        assert read_savepoint(tmp_path)[1] == savepoint_of(file)

    def test_a_marker_that_is_replaced_before_its_lock_is_taken_gives_no_directory(self, left, monkeypatch) -> None:
        """Another process has written the directory meanwhile, and a third one holds the new marker."""
        flock = fcntl.flock

        def late(descriptor: int, operation: int) -> None:
            shutil.copy(left / "_in_progress", left.parent / "new")
            os.replace(left.parent / "new", left / "_in_progress")
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", late)
        with pytest.raises(SavepointExistsError, match="another process is writing"):
            reserved_directory(left, ["data"]).__enter__()
        assert (left / "operators" / "a" / "part-0").exists()

    def test_a_check_neither_takes_the_lock_nor_needs_it(self, left, monkeypatch) -> None:
        """Otherwise a check could make the only writer fail."""
        monkeypatch.setattr("fcntl.flock", lambda *_: pytest.fail("the check takes the lock"))
        check_savepoint_directory(left, may_clear=True)
        monkeypatch.undo()
        with reserved_directory(left, ["data"]):
            check_savepoint_directory(left, may_clear=True)

    def test_one_of_many_concurrent_writers_clears_the_directory(self, left) -> None:
        writers, turns = 6, 10
        for turn in range(turns):
            place = left.parent / f"place-{turn}"
            if turn % 2:
                shutil.copytree(left, place)
            begin, end = threading.Barrier(writers), threading.Barrier(writers)

            def write(number, place=place, begin=begin, end=end) -> bool:
                begin.wait()
                try:
                    with reserved_directory(place, [f"data-{number}"]) as fs:
                        end.wait()
                        write_savepoint(fs, savepoint_of(fs.write_file(f"data-{number}", b"rows")))
                except SavepointExistsError:
                    end.wait()
                    return False
                return True

            with ThreadPoolExecutor(writers) as threads:
                written = list(threads.map(write, range(writers)))
            assert sum(written) == 1
            fs, _ = read_savepoint(place)
            assert fs.list_files(include_temporary=True) == ("_metadata", f"data-{written.index(True)}")

    def test_a_failed_writer_empties_the_directory(self, left) -> None:
        def fail() -> None:
            with reserved_directory(left, ["data"]) as fs:
                fs.write_file("data", b"rows")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert list(left.iterdir()) == []

    def test_a_file_that_appears_during_the_reservation_is_left(self, tmp_path, monkeypatch) -> None:
        create = LocalStorage.create

        def late(storage: LocalStorage, path: str, data: bytes) -> bool:
            storage.put("notes.txt", b"precious")
            return create(storage, path, data)

        monkeypatch.setattr(LocalStorage, "create", late)
        with pytest.raises(SavepointExistsError, match=r"'notes.txt', which"), reserved_directory(tmp_path, ["data"]):
            pass
        assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]

    def test_a_disk_without_locks_is_written_and_not_cleared(self, left, monkeypatch) -> None:
        def unsupported(descriptor: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", unsupported)
        with reserved_directory(left.parent / "new", ["data"]) as fs:
            write_savepoint(fs, savepoint_of(fs.write_file("data", b"rows")))
        assert read_savepoint(left.parent / "new")[1].files
        with pytest.raises(SavepointExistsError, match="remove it, or give"), reserved_directory(left, ["data"]):
            pass
        assert (left / "operators" / "a" / "part-0").exists()
