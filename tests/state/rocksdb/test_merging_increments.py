"""Many small epochs: files are merged at the cost of the changes, and nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    KeyedStateBackend,
    KeyedStateBackendParameters,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    RestoredHandle,
    ValueStateDescriptor,
)
from statebackend.checkpoint import CheckpointFileSystem, KeyedStateHandle
from statebackend.state.state_backend import state_backend
from statebackend.state.state_files import MAX_FILES, MERGED_AT_ONCE
from typeserializers import LongSerializer

KEYS = 4000
EPOCHS = 90
GROUPS = 8


class Job:
    """A subtask opened for each epoch, with a model dict."""

    def __init__(self, backend: str, directory: Path) -> None:
        self._backend = state_backend(backend)
        self._directory = directory
        self._file_system = CheckpointFileSystem.from_uri(directory / "store")
        self.handle: KeyedStateHandle | None = None
        self.model: dict[int, tuple[int | None, dict[int, int], list[int]]] = {}

    def open(self, local: str) -> KeyedStateBackend:
        restore = () if self.handle is None else (RestoredHandle(self.handle, self._file_system),)
        return self._backend.create_keyed_state_backend(
            KeyedStateBackendParameters(
                operator_uid="operator",
                key_serializer=LongSerializer(),
                max_parallelism=GROUPS,
                key_group_range=KeyGroupRange(0, GROUPS - 1),
                file_system=self._file_system,
                file_prefix="shared/operator/0",
                local_directory=str(self._directory / local),
                restore=restore,
            )
        )

    def epoch(self, number: int, keys: list[int], draw: random.Random) -> int:
        """Change the keys at random; returns the uploaded bytes."""
        with self.open("local") as backend:
            value, table, numbers = states_of(backend)
            for key in keys:
                backend.set_current_key(key, key % GROUPS)
                _, known_map, known_list = self.model.get(key, (None, {}, []))
                new_value = draw.choice([None, number, number * 1000])
                value.update(new_value)
                known_map = dict(known_map)
                user_key = draw.randrange(3)
                if draw.random() < 0.4:
                    table.remove(user_key)
                    known_map.pop(user_key, None)
                else:
                    table.put(user_key, number)
                    known_map[user_key] = number
                if draw.random() < 0.3:
                    numbers.update([number])
                    known_list = [number]
                else:
                    numbers.add(number)
                    known_list = [*known_list, number]
                self.model[key] = new_value, known_map, known_list
            snapshot = backend.snapshot(number, f"state-{number}")
        self.handle = snapshot.handle
        return snapshot.bytes_written

    def check(self, local: str) -> None:
        with self.open(local) as backend:
            value, table, numbers = states_of(backend)
            for key, (known_value, known_map, known_list) in self.model.items():
                backend.set_current_key(key, key % GROUPS)
                assert (value.value(), dict(table.items()), numbers.get()) == (known_value, known_map, known_list)
            assert sorted(backend.get_keys("value")) == sorted(
                key for key, (known_value, _, _) in self.model.items() if known_value is not None
            )


def states_of(backend: KeyedStateBackend) -> tuple[Any, Any, Any]:
    return (
        backend.get_state(ValueStateDescriptor("value", int)),
        backend.get_state(MapStateDescriptor("map", int, int)),
        backend.get_state(ListStateDescriptor("list", int)),
    )


@pytest.mark.parametrize("backend", ["rocksdb", pytest.param("heap", marks=pytest.mark.extended)])
@pytest.mark.extended
def test_many_small_epochs_never_upload_the_complete_state_and_lose_nothing(tmp_path: Path, backend: str) -> None:
    job = Job(backend, tmp_path)
    draw = random.Random(20131)
    whole = job.epoch(0, list(range(KEYS)), draw)
    uploaded = [job.epoch(number, draw.sample(range(KEYS), 5), draw) for number in range(1, EPOCHS)]
    assert job.handle is not None
    # Every state was merged more than once, because there were enough epochs.
    assert len(job.handle.files) <= 3 * (MAX_FILES + 1)
    assert EPOCHS > MAX_FILES + 2 * MERGED_AT_ONCE
    # A merge rewrites the increments of some epochs. With five keys each, that is much less than all keys.
    assert max(uploaded) < whole
    assert sorted(uploaded)[len(uploaded) // 2] * 5 < whole
    job.check("local")
    job.check("another-local")
