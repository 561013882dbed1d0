"""Operator state in random jobs, with damaged files and failing stores: nothing is lost or doubled."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from emitted_objects import OBJECT, emitting_objects
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import (
    BroadcastStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessContext,
    RuntimeContext,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.checkpoint import CheckpointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.local import LocalJob, LocalStreamEnvironment
from statebackend.state.operator_state_handles import decode_operator_state

pytestmark = pytest.mark.slow

_NUMBERS = ListStateDescriptor("numbers", int)


class Account(KeyedProcessFunction[int, Any, Any]):
    """State of all modes over its numbers, which must agree in every epoch.

    ``opened`` notes what each subtask found in the first epoch of a run; it is shared by all copies.
    """

    def __init__(self, generation: int = 0) -> None:
        self.generation = generation
        self.opened: dict[int, tuple[list[int], list[tuple[int, int]], dict[int, str]]] = {}

    def __deepcopy__(self, memo: Any) -> Account:
        copied = Account(self.generation)
        copied.opened = self.opened
        return copied

    def open(self, context: RuntimeContext) -> None:
        store = context.operator_state
        self.index = context.subtask_index
        self.seen = store.get_list_state(SplitListStateDescriptor("seen", int))
        self.counts = store.get_union_list_state(UnionListStateDescriptor("counts", tuple[int, int]))
        self.generations = store.get_broadcast_state(BroadcastStateDescriptor("generations", int, str))
        if context.epoch_id >= 0 and self.index not in self.opened:
            self.opened[self.index] = self.seen.get(), self.counts.get(), dict(self.generations.items())
        if context.is_restored:
            # One subtask keeps each count, whatever the previous parallelism was.
            self.counts.update([count for count in self.counts.get() if count[0] % context.parallelism == self.index])
        self.generations.put(self.generation, f"generation {self.generation}")

    def process_element(self, value: Any, context: ProcessContext[int]) -> Iterator[Any]:
        self.seen.add(value["number"])
        self.counts.add((self.index, 1))
        yield value["number"]


def run(
    directory: Path, function: Account, numbers: list[int], execute: dict[str, Any] | None = None, **options: Any
) -> LocalJob:
    environment = LocalStreamEnvironment(job_dir=directory, max_parallelism=8, **options)
    elements = [{"number": number, "key": number} for number in numbers]
    environment.from_elements(elements).key_by("key").process(
        emitting_objects(function), uid="account", schema=OBJECT
    ).sink_to([])
    return environment.execute("job", **(execute or {}))


runs = st.tuples(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(4, 12),
    st.sampled_from([None, "heap", "rocksdb"]),
)


@settings(max_examples=examples(12))
@given(lives=st.lists(runs, min_size=2, max_size=4))
def test_all_modes_agree_with_a_model_in_random_jobs(
    lives: list[tuple[list[int], int, int, str | None]],
) -> None:
    """Each run continues the job directory, or, with a backend, starts a new one from a savepoint."""
    expected: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        directory, backend, job, before = Path(name) / "job-0", "heap", None, 0
        for generation, (numbers, parallelism, epoch_size, new_backend) in enumerate(lives):
            execute: dict[str, Any] = {}
            if new_backend is not None and job is not None:
                savepoint = job.savepoint(Path(name) / f"savepoint-{generation}").path
                execute, backend = {"from_savepoint": savepoint}, new_backend
                directory = Path(name) / f"job-{generation}"
            function = Account(generation)
            job = run(
                directory, function, numbers, execute, parallelism=parallelism, epoch_size=epoch_size, backend=backend
            )
            seen, counts, generations = zip(*(function.opened[index] for index in range(parallelism)), strict=True)
            assert Counter(number for part in seen for number in part) == Counter(expected)
            if generation and parallelism != before:
                assert max(map(len, seen)) - min(map(len, seen)) <= 1
            # At the start every subtask got all counts, one for each number.
            assert all(part == counts[0] for part in counts)
            assert len(counts[0]) == len(expected)
            assert all(part == {old: f"generation {old}" for old in range(generation)} for part in generations)
            expected += numbers
            before = parallelism


def operator_state_files(job: LocalJob) -> list[str]:
    latest = job._store.latest()
    assert latest is not None
    return [file.path for one in latest.operators[0].subtasks for file in decode_operator_state(one.operator).files]


def missing(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [missing, truncated, flipped])
@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_damaged_file_is_named_and_nothing_is_changed(tmp_path: Path, damage: Any, parallelism: int) -> None:
    job = run(tmp_path / "job", Account(), list(range(10)), parallelism=2)
    [path, *_] = operator_state_files(job)
    shutil.copy(tmp_path / "job" / path, tmp_path / "copy")
    damage(tmp_path / "job" / path)
    with pytest.raises(CheckpointError, match=Path(path).name):
        run(tmp_path / "job", Account(1), [1], parallelism=parallelism)
    shutil.copy(tmp_path / "copy", tmp_path / "job" / path)
    healed = Account(1)
    run(tmp_path / "job", healed, [1], parallelism=parallelism)
    assert Counter(number for seen, _, _ in healed.opened.values() for number in seen) == Counter(range(10))


@pytest.mark.parametrize("failing", ["operator", "keyed"])
def test_an_epoch_whose_state_cannot_be_written_is_replayed_from_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    class AlsoKeyed(Account):
        def open(self, context: RuntimeContext) -> None:
            super().open(context)
            self.keyed = context.get_list_state(_NUMBERS)

        def __deepcopy__(self, memo: Any) -> AlsoKeyed:
            copied = AlsoKeyed(self.generation)
            copied.opened = self.opened
            return copied

        def process_element(self, value: Any, context: ProcessContext[int]) -> Iterator[Any]:
            self.keyed.add(value["number"])
            yield from super().process_element(value, context)

    run(tmp_path / "job", AlsoKeyed(), [1, 2, 3], parallelism=2)
    write_file = CheckpointFileSystem.write_file

    def full(self: CheckpointFileSystem, path: str, data: bytes) -> Any:
        if ("-operator-" in path) == (failing == "operator") and path.startswith("shared/"):
            raise OSError(28, "No space left on device")
        return write_file(self, path, data)

    monkeypatch.setattr(CheckpointFileSystem, "write_file", full)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path / "job", AlsoKeyed(1), [4, 5], parallelism=2)
    monkeypatch.undo()
    replayed = AlsoKeyed(1)
    run(tmp_path / "job", replayed, [4, 5], parallelism=2)
    assert Counter(number for seen, _, _ in replayed.opened.values() for number in seen) == Counter([1, 2, 3])
    # The broadcast entries of the failed attempt are rolled back.
    assert all(generations == {0: "generation 0"} for _, _, generations in replayed.opened.values())
