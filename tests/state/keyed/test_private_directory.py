"""Local directories: their owner, their permissions and their locks."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from open_descriptors import descriptors_below

from statebackend.state import private_directory
from statebackend.state.private_directory import (
    PrivateDirectoryError,
    lock_directory,
    make_given_directory,
    make_private_directory,
    scratch_directory,
    temporary_directory,
)
from statebackend.state.rocksdb.local_directory import LocalStateDirectory

MAKERS = [make_private_directory, make_given_directory, lock_directory, LocalStateDirectory]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("make", MAKERS)
def test_new_directories_are_private_including_created_parents(tmp_path: Path, make: Callable[[str], Any]) -> None:
    make(str(tmp_path / "above" / "directory"))
    assert mode(tmp_path / "above") == mode(tmp_path / "above" / "directory") == 0o700


@pytest.mark.parametrize("make", MAKERS)
def test_an_own_directory_is_used(tmp_path: Path, make: Callable[[str], Any]) -> None:
    (tmp_path / "directory").mkdir(mode=0o700)
    make(str(tmp_path / "directory"))


def test_a_directory_readable_by_others_is_closed_unless_named_by_the_user(tmp_path: Path) -> None:
    for name in ("private", "given"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    make_private_directory(str(tmp_path / "private"))
    make_given_directory(str(tmp_path / "given"))
    assert mode(tmp_path / "private") == 0o700
    assert mode(tmp_path / "given") == 0o755


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("others", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_can_write_to_is_rejected(
    tmp_path: Path, make: Callable[[str], Any], others: int
) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()
    directory.chmod(others)
    with pytest.raises(PrivateDirectoryError, match=r"directory: it can be written to by others \(mode .*name another"):
        make(str(directory))
    assert list(directory.iterdir()) == []
    assert mode(directory) == others


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("target", ["there", "nowhere"])
def test_a_link_is_not_followed(tmp_path: Path, make: Callable[[str], Any], target: str) -> None:
    (tmp_path / "there").mkdir(mode=0o700)
    (tmp_path / "directory").symlink_to(tmp_path / target)
    with pytest.raises(PrivateDirectoryError, match="directory: it is a link"):
        make(str(tmp_path / "directory"))
    assert list((tmp_path / "there").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("make", MAKERS)
def test_a_directory_of_another_user_is_rejected(
    tmp_path: Path, make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "directory"
    directory.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    with pytest.raises(PrivateDirectoryError, match=r"directory: it belongs to the user \d+"):
        make(str(directory))
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("make", MAKERS)
def test_a_file_is_not_a_directory(tmp_path: Path, make: Callable[[str], Any]) -> None:
    (tmp_path / "directory").touch()
    with pytest.raises(PrivateDirectoryError, match="directory: it is not a directory"):
        make(str(tmp_path / "directory"))


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    make_private_directory(str(tmp_path / "directory"))
    (tmp_path / "directory" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="lock"):
        lock_directory(str(tmp_path / "directory"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    path = str(tmp_path / "directory")
    lock = lock_directory(path)
    assert lock is not None
    assert lock_directory(path) is None
    lock.release()
    shared = [lock_directory(path, is_shared=True) for _ in range(2)]
    assert None not in shared
    assert lock_directory(path) is None
    for lock in shared:
        assert lock is not None
        lock.release()
    again = lock_directory(path)
    assert again is not None
    again.release()


@pytest.mark.parametrize("moment", ["before the lock file is made", "before the lock", "replaced before the lock"])
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_directory_removed_before_its_lock_is_created_again(
    tmp_path: Path, moment: str, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleanup may remove a directory as abandoned before it is locked. Such a lock is void."""
    path = tmp_path / "directory"
    module, name = (os, "open") if moment == "before the lock file is made" else (fcntl, "flock")
    function = getattr(module, name)
    removals = iter(["once"])

    def removing(*arguments: Any, **options: Any) -> Any:
        if next(removals, None):
            shutil.rmtree(path)
            if moment.startswith("replaced"):
                path.mkdir(mode=0o700)
                (path / "lock").touch()
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, removing)
    lock = lock_directory(str(path), is_shared=is_shared)
    assert lock is not None
    assert os.path.samestat(os.fstat(lock.descriptor), (path / "lock").stat())
    assert next(removals, None) is None
    assert lock_directory(str(path)) is None
    lock.release()


def test_a_failed_lock_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rejecting(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", rejecting)
    with pytest.raises(OSError, match="No locks"):
        lock_directory(str(tmp_path / "directory"))
    assert not descriptors_below(tmp_path)


def test_a_scratch_directory_is_removed_with_its_context_and_others_are_kept(tmp_path: Path) -> None:
    parent = tmp_path / "above" / "parent"
    with scratch_directory(str(parent)) as first, scratch_directory(str(parent)) as second:
        assert Path(first).parent == Path(second).parent == parent
        assert mode(parent) == mode(Path(first)) == 0o700
        (Path(first) / "file").touch()
        (parent / "database").mkdir()
    assert [path.name for path in parent.iterdir()] == ["database"]
    assert not descriptors_below(tmp_path)


def test_a_temporary_directory_leaves_its_parent_unchanged(tmp_path: Path) -> None:
    with temporary_directory(str(tmp_path)) as first:
        with temporary_directory(str(tmp_path)) as second:
            assert Path(first).parent == Path(second).parent
        assert list(tmp_path.iterdir()) == [Path(first).parent]
        assert mode(Path(first)) == mode(Path(first).parent) == 0o700
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError), temporary_directory(str(tmp_path / "misspelt")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_leaves_the_scratch_directory_to_its_parent(tmp_path: Path) -> None:
    with scratch_directory(str(tmp_path)) as path:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert Path(path).is_dir()
    if not child:
        os._exit(0)
    assert list(tmp_path.iterdir()) == []


def test_remains_of_a_killed_process_are_removed_with_the_next_scratch_directory(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with scratch_directory(str(tmp_path)) as path:
            Path(path, "file").touch()
            os._exit(0)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    (tmp_path / "scratch-of-another-kind").symlink_to(tmp_path)
    with scratch_directory(str(tmp_path)) as path:
        assert not left.exists()
        assert {entry.name for entry in tmp_path.iterdir()} == {Path(path).name, "scratch-of-another-kind"}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("step", ["lstat", "chmod"])
def test_a_directory_that_vanishes_during_the_check_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Any], step: str
) -> None:
    path = tmp_path / "directory"
    path.mkdir(0o755)
    real = getattr(os, step)

    def late(of: str, *arguments: Any, **options: Any) -> Any:
        if os.fspath(of) == str(path):
            # The process that held the lock has removed the directory.
            monkeypatch.undo()
            path.rmdir()
        return real(of, *arguments, **options)

    monkeypatch.setattr(os, step, late)
    make(str(path))
    monkeypatch.undo()
    assert path.is_dir()


def test_processes_that_clean_up_concurrently_all_get_a_directory(tmp_path: Path) -> None:
    def work(number: int) -> int:
        for turn in range(50):
            with scratch_directory(str(tmp_path / "parent")) as scratch:
                Path(scratch, "file").write_text(f"{number} {turn}")
                assert Path(scratch, "file").read_text() == f"{number} {turn}"
        return number

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(work, range(4))) == [0, 1, 2, 3]
    assert os.listdir(tmp_path / "parent") == []


def test_a_parent_that_vanishes_during_the_check_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / "parent"
    real = os.listdir

    def late(of: Any = ".") -> list[str]:
        monkeypatch.undo()
        parent.rmdir()
        return real(of)

    monkeypatch.setattr(os, "listdir", late)
    with scratch_directory(str(parent)) as scratch:
        assert Path(scratch).is_dir()


def test_a_lock_on_a_replaced_file_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> bool:
        raise PermissionError("no")

    with monkeypatch.context() as patched:
        patched.setattr(private_directory, "_is_same_file", failing)
        with pytest.raises(PermissionError):
            lock_directory(str(tmp_path / "directory"))
    assert not descriptors_below(tmp_path)
    lock = lock_directory(str(tmp_path / "directory"))
    assert lock is not None
    lock.release()
