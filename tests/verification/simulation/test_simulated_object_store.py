"""The simulated object store has conditional writes, durable content, and late listings."""

from __future__ import annotations

import pytest

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.conditional_objects import ConditionalObjects
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from verification.simulation.host.disk import Process
from verification.simulation.host.faults import Fault, FaultKind
from verification.simulation.host.machine import Machine


def store(*faults: Fault, seed: int = 0) -> tuple[Machine, CheckpointFileSystem, ConditionalObjects]:
    machine = Machine.of_seed(seed, faults, keeps_lines=True)
    files = machine.file_system("job", Process("driver"), are_objects=True)
    objects = files.conditional
    assert objects is not None
    return machine, files, objects


def test_one_of_two_concurrent_writes_on_one_version_succeeds() -> None:
    _, _, objects = store()
    first = objects.write("a", b"1", None)
    assert first is not None
    assert objects.write("a", b"2", None) is None
    second = objects.write("a", b"2", first)
    assert second is not None
    assert objects.write("a", b"3", first) is None
    found = objects.read("a")
    assert found is not None
    assert (found.content, found.version) == (b"2", second)


def test_a_write_that_fails_afterwards_has_happened() -> None:
    _, _, objects = store(Fault(FaultKind.STORAGE_ERROR_AFTER, 0))
    with pytest.raises(StorageError):
        objects.write("a", b"1", None)
    found = objects.read("a")
    assert found is not None
    assert found.content == b"1"


def test_a_listing_lags_and_a_read_does_not() -> None:
    listed = set()
    for seed in range(20):
        _, files, _ = store(seed=seed)
        files.write_file("shared/a", b"1")
        listed.add(files.list_files())
        assert files.read_file("shared/a") == b"1"
    assert listed == {(), ("shared/a",)}


def test_an_object_survives_a_power_loss() -> None:
    machine, files, _ = store()
    files.write_file("a", b"1", durable=False)
    machine.disk.lose_power()
    assert files.read_file("a") == b"1"
