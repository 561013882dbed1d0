"""A queue file whose elements have values belongs to another state; every backend rejects it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve

from statebackend import PriorityQueueDescriptor
from statebackend.state.canonical import encoded_canonical, read_canonical
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.harness import BackendHarness

NUMBERS: PriorityQueueDescriptor[int] = PriorityQueueDescriptor("numbers", int)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BackendHarness]:
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


@pytest.mark.parametrize("name", ["heap", "rocksdb"])
@pytest.mark.parametrize("value", [b"", b"a value"])
def test_an_element_with_a_value_is_rejected_and_one_without_restored(
    harness: BackendHarness, name: str, value: bytes
) -> None:
    with harness.open(state_backend("heap")) as backend:
        backend.get_priority_queue(NUMBERS).add_all([(5, 1), (7, 1)])
        handle = harness.export(backend)
    [file] = handle.files
    every_key_group = KeyGroupRange(0, harness.max_parallelism - 1)
    batches = list(read_canonical(harness.store_path(file.path), every_key_group))
    batches[-1].values[-1] = value
    changed = harness.file_system.write_file("changed", encoded_canonical(batches)[0])
    handle = evolve(handle, files=(changed,))

    def restored() -> list[int]:
        with harness.open(state_backend(name), handle) as backend:
            return list(backend.get_priority_queue(NUMBERS))

    if value:
        with pytest.raises(StateRestoreError, match=r"numbers.*has a value"):
            restored()
    else:
        assert restored() == [5, 7]
