"""A rescale downloads each old file once per host, for all subtasks that read a range of it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statebackend import ValueStateDescriptor
from statebackend.checkpoint.errors import CorruptFileError, MissingFileError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.state.rocksdb.local_directory import DownloadedFiles
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import BackendHarness

TEXT = ValueStateDescriptor("text", str)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BackendHarness]:
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of bytes read of each file of the store."""
    counted: Counter[str] = Counter()
    download = CheckpointFileSystem.download

    def counting(self: CheckpointFileSystem, handle: FileHandle, *arguments: Any, **options: Any) -> None:
        counted[handle.path] += handle.size_bytes
        download(self, handle, *arguments, **options)

    monkeypatch.setattr(CheckpointFileSystem, "download", counting)
    return counted


def filled(harness: BackendHarness) -> Any:
    backend = harness.open(RocksDBStateBackend())
    for epoch in range(3):
        for key in range(100 * epoch, 100 * (epoch + 1)):
            harness.at(backend, key)
            backend.get_state(TEXT).update(f"{key}" * 50)
        if epoch < 2:
            harness.snapshot(backend)
    return backend


def check(harness: BackendHarness, subtasks: list[Any]) -> None:
    found = {}
    for subtask in subtasks:
        for key in list(subtask.get_keys("text")):
            harness.at(subtask, key)
            found[key] = subtask.get_state(TEXT).value()
    assert found == {key: f"{key}" * 50 for key in range(300)}


@pytest.mark.parametrize("is_canonical", [False, True], ids=["checkpoint", "savepoint"])
def test_four_subtasks_download_the_files_of_one_once(
    harness: BackendHarness, read: Counter[str], tmp_path: Path, is_canonical: bool
) -> None:
    backend = filled(harness)
    handle = harness.export(backend) if is_canonical else harness.snapshot(backend).handle
    read.clear()
    subtasks = [
        harness.open(RocksDBStateBackend(), handle, subtask=index, parallelism=4, local=f"4-{index}")
        for index in range(4)
    ]
    assert read == {file.path: file.size_bytes for file in handle.files}
    check(harness, subtasks)
    downloads = tmp_path / "local" / "downloads"
    assert stat.S_IMODE(downloads.stat().st_mode) == 0o700
    handles = [harness.snapshot(subtask).handle for subtask in subtasks]
    harness.close(subtasks)
    assert downloads.exists()
    # A subtask with a reusable local database does not need the downloads.
    again = harness.open(RocksDBStateBackend(), handles[0], subtask=0, parallelism=4, local="4-0")
    assert again.is_local
    assert not downloads.exists()


def test_two_merged_subtasks_download_nothing_for_others(
    harness: BackendHarness, read: Counter[str], tmp_path: Path
) -> None:
    handle = harness.snapshot(filled(harness)).handle
    subtasks = [harness.open(RocksDBStateBackend(), handle, subtask=index, parallelism=2) for index in range(2)]
    handles = [harness.snapshot(subtask).handle for subtask in subtasks]
    DownloadedFiles(str(tmp_path / "local"), "").discard()
    read.clear()
    check(harness, [harness.open(RocksDBStateBackend(), *handles)])
    assert read == {file.path: file.size_bytes for one in handles for file in one.files}
    assert not (tmp_path / "local" / "downloads").exists()


def test_files_that_are_removed_or_of_another_boot_are_downloaded_again(
    read: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path / "store")
    handle = store.write_file("file", b"content")
    downloads = DownloadedFiles(str(tmp_path), "boot")
    for number in range(2):
        downloads.download(store, handle, str(tmp_path / f"target-{number}"))
    assert read["file"] == len(b"content")
    downloads.discard()
    downloads.download(store, handle, str(tmp_path / "target-2"))
    assert read["file"] == 2 * len(b"content")
    DownloadedFiles(str(tmp_path), "later").download(store, handle, str(tmp_path / "target-3"))
    assert read["file"] == 3 * len(b"content")

    def rejected(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", rejected)
        downloads.download(store, handle, str(tmp_path / "target-4"))
    for number in range(5):
        assert (tmp_path / f"target-{number}").read_bytes() == b"content"


def test_files_removed_during_the_download_are_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path / "store")
    handle = store.write_file("file", b"content")
    downloads = DownloadedFiles(str(tmp_path), "boot")
    replace = os.replace

    def late(source: str, target: str, **directories: Any) -> None:
        # Another subtask of the operator reused its local database, and the downloads were discarded.
        downloads.discard()
        replace(source, target, **directories)

    monkeypatch.setattr(os, "replace", late)
    downloads.download(store, handle, str(tmp_path / "target"))
    assert (tmp_path / "target").read_bytes() == b"content"
    monkeypatch.undo()
    (tmp_path / "store" / "file").unlink()
    with pytest.raises(MissingFileError):
        downloads.download(store, handle, str(tmp_path / "another"))


def test_a_damaged_file_is_not_shared(tmp_path: Path) -> None:
    store = CheckpointFileSystem.from_uri(tmp_path / "store")
    handle = store.write_file("file", b"content")
    (tmp_path / "store" / "file").write_bytes(b"CONTENT")
    downloads = DownloadedFiles(str(tmp_path), "boot")
    for _ in range(2):
        with pytest.raises(CorruptFileError):
            downloads.download(store, handle, str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()
    assert not (tmp_path / "downloads" / f"boot-{handle.checksum}").exists()


def _bring(directory: str, number: int, begin: Any, counted: Any) -> None:
    store = CheckpointFileSystem.from_uri(os.path.join(directory, "store"))
    handle = FileHandle("file", 7, CONTENT)
    download = CheckpointFileSystem.download

    def counting(self: CheckpointFileSystem, *arguments: Any, **options: Any) -> None:
        with counted.get_lock():
            counted.value += 1
        download(self, *arguments, **options)

    CheckpointFileSystem.download = counting  # type: ignore[method-assign]
    begin.wait()
    DownloadedFiles(directory, "boot").download(store, handle, os.path.join(directory, f"target-{number}"))


CONTENT = "xxh3:" + "0" * 32


def test_processes_that_need_a_file_wait_for_the_downloading_one(tmp_path: Path) -> None:
    global CONTENT
    store = CheckpointFileSystem.from_uri(tmp_path / "store")
    CONTENT = store.write_file("file", b"content").checksum
    forking = multiprocessing.get_context("fork")
    begin, counted = forking.Barrier(4), forking.Value("i", 0)
    processes = [forking.Process(target=_bring, args=(str(tmp_path), number, begin, counted)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert counted.value == 1
    for number in range(4):
        assert (tmp_path / f"target-{number}").read_bytes() == b"content"
