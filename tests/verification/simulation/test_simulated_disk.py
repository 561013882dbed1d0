"""The simulated disk keeps synced data, and other data by chance; dead processes do nothing more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from statebackend.checkpoint.errors import MissingFileError, StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.testing.stores import StorageContract
from verification.simulation.host.disk import Process
from verification.simulation.host.faults import Fault, FaultKind, ProcessDied
from verification.simulation.host.machine import Machine


def machine(*faults: Fault, seed: int = 0) -> tuple[Machine, CheckpointFileSystem, Process]:
    made = Machine.of_seed(seed, faults, keeps_lines=True)
    process = Process("driver")
    return made, made.file_system("job", process), process


def test_durable_data_survives_a_power_loss() -> None:
    made, files, _ = machine()
    files.write_file("shared/a", b"first")
    files.write_file("shared/a", b"second")
    made.disk.lose_power()
    assert files.read_file("shared/a") == b"second"


def test_unsynced_data_is_kept_lost_or_torn() -> None:
    left = set()
    for seed in range(40):
        made, files, _ = machine(seed=seed)
        files.write_file("a", b"12345678", durable=False)
        made.disk.lose_power()
        try:
            left.add(files.read_file("a"))
        except MissingFileError:
            left.add(b"missing")
    assert {b"12345678", b"missing"} < left
    assert any(one not in (b"12345678", b"missing") for one in left)


def test_an_unsynced_removal_can_be_reverted() -> None:
    left = set()
    for seed in range(20):
        made, files, _ = machine(seed=seed)
        files.write_file("a", b"1")
        files.delete("a")
        made.disk.lose_power()
        left.add(files.exists("a"))
    assert left == {True, False}


@pytest.mark.parametrize("step", range(5))
def test_a_crash_between_two_steps_of_a_write_leaves_the_old_or_the_new_file(step: int) -> None:
    made, files, process = machine(Fault(FaultKind.KILL, 5 + step))
    files.write_file("a", b"old")
    with pytest.raises(ProcessDied):
        files.write_file("a", b"new")
    assert process.is_dead
    with pytest.raises(ProcessDied):
        files.delete("a")
    after = made.file_system("job", Process("next"))
    assert after.read_file("a") in (b"old", b"new")
    assert len(after.list_files(include_temporary=True)) - len(after.list_files()) == (1 if 1 <= step <= 3 else 0)


def test_the_storage_fails_before_or_after_an_operation() -> None:
    _, files, _ = machine(Fault(FaultKind.STORAGE_ERROR, 3), Fault(FaultKind.STORAGE_ERROR_AFTER, 7))
    with pytest.raises(StorageError):
        files.write_file("a", b"1")
    assert not files.exists("a")
    _, files, _ = machine(Fault(FaultKind.STORAGE_ERROR_AFTER, 3))
    with pytest.raises(StorageError):
        files.write_file("a", b"1")
    assert files.read_file("a") == b"1"


def test_a_directory_is_moved_completely() -> None:
    made, files, _ = machine()
    for name in ("b", "c"):
        files.write_file(f"a/{name}", random.Random(name).randbytes(4))
    files.move_directory("a", "z")
    made.disk.lose_power()
    assert files.list_files() == ("z/b", "z/c")
    assert files.list_directories() == ("z",)


class TestSimulatedDisk(StorageContract):
    """It passes the contract of a real one."""

    def make_files(self, directory: Path) -> CheckpointFileSystem:
        return Machine.of_seed(1, (), keeps_lines=False).file_system("root", Process("one"))
