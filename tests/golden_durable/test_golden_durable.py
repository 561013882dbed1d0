"""Restores golden job directories and savepoints, which every later release must read.

The files are in `tests/golden/durable`, and the README there lists the code that wrote them. They are never rewritten.
Each test restores a copy as a user would, and compares all state with `golden_durable_expected`. Smaller golden files
next to the tests of each package pin the single formats.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import golden_durable_expected as expected
import golden_durable_keys as keys
import golden_durable_timers as timers
import pytest
from attrs import evolve
from golden_durable_expected import CHECKPOINTS, KEYS, NOTHING, Held, Lasting
from golden_durable_programs import Read

from statebackend.checkpoint import (
    ChannelWatermark,
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    CompletedCheckpointStore,
    DirectoryCheckpointStore,
    JobDirectory,
    TimersDue,
    WatermarkState,
    read_savepoint,
)
from statebackend.checkpoint.store.job_directory import read_origin
from statebackend.local import LocalStreamEnvironment
from tests.emitted_objects import OBJECT, collecting, emitting_objects

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent.parent / "golden" / "durable"
BACKENDS = ("heap", "rocksdb")
# Parallelism (3 in the files) and version of the program. Version 2 migrates the states that it registers.
RUNS = [(1, 2), (3, 1), (3, 2), (5, 2)]
SOME_RUNS = [(1, 1), (3, 2), (5, 1)]

ALIVE_MS = 1_009_000
EPOCH_0_EXPIRED_MS = 1_012_000
EPOCH_1_EXPIRED_MS = 1_015_000


def copied(tmp_path: Path, name: str, written_as: str = "v1") -> Path:
    """A writable copy of a golden directory."""
    return Path(shutil.copytree(GOLDEN / written_as / name, tmp_path / name))


class Job:
    """The job of `golden_durable_programs` that reads its restored state."""

    def __init__(self, job_dir: Path, backend: str, parallelism: int, version: int, now_ms: int, **execute: Any):
        function = Read(version)
        self.environment = LocalStreamEnvironment(
            job_dir=job_dir, backend=backend, parallelism=parallelism, max_parallelism=16, clock=lambda: now_ms
        )
        found: list[Any] = []
        records = self.environment.from_elements([{"key": key} for key in KEYS]).key_by("key")
        records.process(emitting_objects(function), uid="visits", name="visits", schema=OBJECT).sink_to(
            collecting(found)
        )
        self.job = self.environment.execute("golden", **execute)
        self.found: dict[str, Any] = dict(found)
        self.version = version
        self.operator_state = function.collected.operator_state
        self.parallelism = parallelism

    def check(self, held: dict[str, Held], epochs: int) -> None:
        """Compare all state with the expected content. Operator state is expected after this number of epochs."""
        self.check_keyed(held)
        assert sorted(self.operator_state) == list(range(self.parallelism))
        added = [one for epoch in expected.ADDED[:epochs] for one in epoch]
        broadcast = {name: epoch for name, epoch in expected.BROADCAST.items() if epoch is None or epoch < epochs}
        split = []
        for content in self.operator_state.values():
            assert content["broadcast"] == broadcast
            assert sorted(content["union list"]) == sorted(f"{key} {number}" for key, number in added)
            split += content["split"]
        assert _sorted(split) == _sorted([expected.visit(*one, self.version) for one in added])

    def check_keyed(self, held: dict[str, Held]) -> None:
        assert self.found == {key: expected.content(key, held.get(key, NOTHING), self.version) for key in KEYS}

    def check_lasting(self, lasting: dict[str, Lasting]) -> None:
        wanted = {key: expected.lasting_content(key, lasting.get(key, Lasting()), self.version) for key in KEYS}
        assert {key: {name: self.found[key][name] for name in wanted[key]} for key in KEYS} == wanted


def _sorted(values: list[Any]) -> list[Any]:
    return sorted(values, key=repr)


def saved(lasting: dict[str, Lasting]) -> dict[str, Held]:
    """The newest checkpoint, with other content in the state that can expire."""
    return {key: evolve(held, ttl=lasting.get(key, Lasting())) for key, held in CHECKPOINTS[2].items()}


def test_no_golden_file_has_changed() -> None:
    sums = dict(reversed(line.split("  ")) for line in (GOLDEN / "SHA256SUMS").read_text().splitlines())
    files = [path for path in GOLDEN.glob("v*/**/*") if path.is_file()]
    assert sums == {
        path.relative_to(GOLDEN).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


@pytest.mark.extended_after(2)
@pytest.mark.parametrize(("parallelism", "version"), RUNS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_continues_from_its_newest_checkpoint(
    tmp_path: Path, backend: str, parallelism: int, version: int
) -> None:
    job_dir = copied(tmp_path, f"job-{backend}")
    job = Job(job_dir, backend, parallelism, version, ALIVE_MS)
    job.check(CHECKPOINTS[2], 3)
    # Restore again, now from the checkpoint that this run wrote.
    Job(job_dir, backend, parallelism, version, ALIVE_MS).check_keyed(CHECKPOINTS[2])


@pytest.mark.extended_after(3)
@pytest.mark.parametrize("checkpoint_id", [0, 1])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_rolls_back_to_each_retained_checkpoint(tmp_path: Path, backend: str, checkpoint_id: int) -> None:
    job_dir = copied(tmp_path, f"job-{backend}")
    job = Job(job_dir, backend, 3, 1, ALIVE_MS, roll_back_to=checkpoint_id)
    job.check(CHECKPOINTS[checkpoint_id], checkpoint_id + 1)


@pytest.mark.extended_after(3)
@pytest.mark.parametrize(("parallelism", "version"), SOME_RUNS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("written_by", BACKENDS)
def test_a_job_starts_from_a_savepoint_of_either_backend(
    tmp_path: Path, written_by: str, backend: str, parallelism: int, version: int
) -> None:
    savepoint = copied(tmp_path, f"savepoint-{written_by}")
    job = Job(tmp_path / "job", backend, parallelism, version, EPOCH_0_EXPIRED_MS, from_savepoint=savepoint)
    job.check(saved(expected.WITHOUT_EPOCH_0), 3)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("name", ["job-heap", "job-rocksdb"])
@pytest.mark.parametrize(
    ("now_ms", "lasting"),
    [(EPOCH_0_EXPIRED_MS, expected.WITHOUT_EPOCH_0), (EPOCH_1_EXPIRED_MS, expected.WITHOUT_EPOCH_1)],
)
def test_state_with_a_time_to_live_expires_by_its_stored_time(
    tmp_path: Path, name: str, now_ms: int, lasting: dict[str, Lasting]
) -> None:
    job = Job(copied(tmp_path, name), name.removeprefix("job-"), 3, 1, now_ms)
    job.check_lasting(lasting)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize(("parallelism", "version"), SOME_RUNS)
def test_a_job_that_started_from_a_savepoint_continues(tmp_path: Path, parallelism: int, version: int) -> None:
    job_dir = copied(tmp_path, "begun-rocksdb")
    origin = read_origin(CheckpointFileSystem.from_uri(str(job_dir)))
    assert origin is not None
    _, metadata = read_savepoint(GOLDEN / "v1" / "savepoint-heap")
    assert str(origin.savepoint_identity) == f"{metadata.job_id}/{metadata.checkpoint_id}/{metadata.timestamp_ms}"
    Job(job_dir, "rocksdb", parallelism, version, EPOCH_0_EXPIRED_MS + 1000).check(expected.BEGUN, 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_without_a_checkpoint_starts_from_its_recorded_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    job_dir = copied(tmp_path, "begun-only")
    copied(tmp_path, "savepoint-heap")
    monkeypatch.chdir(tmp_path)  # The job directory stores a relative path of the savepoint.
    Job(job_dir, backend, 3, 1, EPOCH_0_EXPIRED_MS).check(saved(expected.WITHOUT_EPOCH_0), 3)


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_keys_of_every_type_are_found_in_a_job(tmp_path: Path, parallelism: int) -> None:
    _, found = keys.run(copied(tmp_path, "keys-heap"), "heap", parallelism)
    assert found == {number: number for number in range(len(keys.ROWS))}


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_every_type_are_found_in_a_savepoint(tmp_path: Path, backend: str) -> None:
    savepoint = copied(tmp_path, "keys-savepoint")
    _, found = keys.run(tmp_path / "job", backend, 2, from_savepoint=savepoint)
    assert found == {number: number for number in range(len(keys.ROWS))}


def test_the_metadata_of_a_job_directory_is_as_expected(tmp_path: Path) -> None:
    with opened_store(copied(tmp_path, "timers-heap")) as (store, directory):
        assert (directory.identity.job_name, directory.identity.max_parallelism) == ("golden timers", 16)
        retained = store.all()
        assert [one.checkpoint_id for one in retained] == [0, 1, 2]
        for number, one in enumerate(retained):
            assert (one.kind, one.job_name, one.max_parallelism) == (CheckpointKind.CHECKPOINT, "golden timers", 16)
            assert (one.job_id, one.timestamp_ms) == (directory.identity.job_id, 1_000_000 + 4000 * number)
            assert one.parent_checkpoint_id == (number - 1 if number else None)
            assert one.parent_digest == (store.digest(number - 1) if number else None)
            assert one.source_offsets == f"offset {number}".encode()
            assert one.sink_committables == {"sink": f"rows of {number}".encode()}
            channels = (ChannelWatermark(source="ships", watermark_ms=1000 * number),)
            assert one.watermarks == WatermarkState(1000 * number, channels)
            assert one.timers_due == (TimersDue("harbours", event_time_ms=1000 * number + 500),)
            [harbours] = one.operators
            assert (harbours.uid, harbours.name, harbours.parallelism) == ("harbours", "harbours of the world", 3)


def test_the_metadata_of_a_savepoint_is_as_expected() -> None:
    _, one = read_savepoint(GOLDEN / "v1" / "timers-savepoint-rocksdb")
    assert (one.kind, one.checkpoint_id, one.job_name) == (CheckpointKind.SAVEPOINT, 2, "golden timers")
    assert (one.max_parallelism, one.parent_checkpoint_id, one.parent_digest) == (16, None, None)
    assert (one.source_offsets, one.sink_committables) == (b"offset 2", {})
    assert one.watermarks == WatermarkState(2000, (ChannelWatermark(source="ships", watermark_ms=2000),))


@contextmanager
def opened_store(job_dir: Path) -> Iterator[tuple[CompletedCheckpointStore, JobDirectory]]:
    with JobDirectory.open(str(job_dir), "golden timers", timers.MAX_PARALLELISM) as directory:
        store = DirectoryCheckpointStore(directory.file_system)
        store.recover()
        yield store, directory


def check_timers(
    tmp_path: Path, file_system: Any, metadata: CheckpointMetadata, backend: str, parallelism: int, version: int
) -> None:
    """Compare all state of the operator `harbours` with the expected state at this checkpoint."""
    local = tmp_path / "local"
    with timers.opened(backend, file_system, metadata, parallelism, local, lambda: ALIVE_MS) as backends:
        assert timers.everything_in(backends, version) == harbours(metadata.checkpoint_id, version)


@pytest.mark.extended_after(2)
@pytest.mark.parametrize(("parallelism", "version"), RUNS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_namespaces_and_queues_of_the_newest_checkpoint_are_restored(
    tmp_path: Path, backend: str, parallelism: int, version: int
) -> None:
    with opened_store(copied(tmp_path, f"timers-{backend}")) as (store, directory):
        check_timers(tmp_path, directory.file_system, store.get(2), backend, parallelism, version)


@pytest.mark.parametrize("checkpoint_id", [0, 1])
@pytest.mark.parametrize("backend", BACKENDS)
def test_namespaces_and_queues_of_each_retained_checkpoint_are_restored(
    tmp_path: Path, backend: str, checkpoint_id: int
) -> None:
    with opened_store(copied(tmp_path, f"timers-{backend}")) as (store, directory):
        check_timers(tmp_path, directory.file_system, store.get(checkpoint_id), backend, 3, 1)


@pytest.mark.extended_after(3)
@pytest.mark.parametrize(("parallelism", "version"), SOME_RUNS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("written_by", BACKENDS)
def test_namespaces_and_queues_of_savepoints_are_restored_by_either_backend(
    tmp_path: Path, written_by: str, backend: str, parallelism: int, version: int
) -> None:
    file_system, metadata = read_savepoint(copied(tmp_path, f"timers-savepoint-{written_by}"))
    check_timers(tmp_path, file_system, metadata, backend, parallelism, version)


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_with_namespaces_and_a_time_to_live_expires(tmp_path: Path, backend: str) -> None:
    with opened_store(copied(tmp_path, f"timers-{backend}")) as (store, directory):
        opened = timers.opened(
            backend, directory.file_system, store.get(2), 3, tmp_path / "local", lambda: EPOCH_0_EXPIRED_MS
        )
        with opened as backends:
            found = timers.everything_in(backends)
    even = [key for key in timers.KEYS if key % 2 == 0]
    assert found["value by pane with ttl"] == {
        (key, pane): key + 100 + 10 * place
        for key in even
        for place, pane in enumerate(["", "pane"])
        if (key, pane) != (2, "")
    }
    assert {address: len(content) for address, content in found["list by window with ttl"].items()} == {
        (key, window): 1 for key in even for window in [(0, 1000), (1000, 2000)] if (key, window) != (2, (0, 1000))
    }
    assert found["map by pane with ttl"] == {
        (key, pane): {str(key + 100 + 10 * place): (key + 100 + 10 * place) / 4 if key % 5 else None}
        for key in even
        for place, pane in enumerate(["", "pane"])
        if (key, pane) != (2, "")
    }


def harbours(checkpoint_id: int, version: int) -> dict[str, Any]:
    """The content of the operator `harbours` at a checkpoint.

    Each key stored its number in the first of two namespaces, and its number plus 10 in the second. In epoch 1, even
    keys stored 100 more. In epoch 2, the first namespace of keys 2 and 3 was cleared, and timers up to 0 were polled.
    """
    panes, windows = ("", "pane"), ((0, 1000), (1000, 2000))
    stored = {
        (key, place): [key + 10 * place, key + 100 + 10 * place][: 2 if checkpoint_id and key % 2 == 0 else 1]
        for key in range(12)
        for place in (0, 1)
        if checkpoint_id < 2 or place or key not in (2, 3)
    }
    by_pane = {(key, panes[place]): numbers for (key, place), numbers in stored.items()}
    by_window = {(key, windows[place]): numbers for (key, place), numbers in stored.items()}
    epochs = range(min(checkpoint_id, 1) + 1)
    writes = [(key, epoch) for key in range(12) for epoch in epochs if epoch == 0 or key % 2 == 0]
    events = [(1000 * key - 3000 + epoch, key, panes[key % 2]) for key, epoch in writes]
    gone = {(4998, 2, (0, 1000)), (4997, 3, (0, 1000))} if checkpoint_id == 2 else set()
    return {
        "event timers": sorted(one for one in events if checkpoint_id < 2 or one[0] > 0),
        "processing timers": sorted({(5000 - key, key, windows[epoch]) for key, epoch in writes} - gone),
        "value by pane": {at: _harbour_visit(f"pier {at[0]}", numbers[-1], version) for at, numbers in by_pane.items()},
        "list by window": by_window,
        "map by pane": {
            at: {str(number): _harbour_visit("map", number, version) if at[0] % 5 else None for number in numbers}
            for at, numbers in by_pane.items()
        },
        "reducing by window": {at: sum(numbers) for at, numbers in by_window.items()},
        "aggregating by pane": {at: sum(numbers) / len(numbers) for at, numbers in by_pane.items()},
        "value by pane with ttl": {at: numbers[-1] for at, numbers in by_pane.items()},
        "list by window with ttl": {
            at: [_harbour_visit("list", number, version) for number in numbers] for at, numbers in by_window.items()
        },
        "map by pane with ttl": {
            at: {str(number): number / 4 if at[0] % 5 else None for number in numbers}
            for at, numbers in by_pane.items()
        },
    }


def _harbour_visit(key: str, number: int, version: int) -> tuple[Any, ...]:
    colour, tags, port = ("RED", "BLUE")[number % 2], [key] * (number % 3), f"port of {key}"
    if version == 1:
        note = None if number % 2 else f"note {number}"
        return "VisitV1", port, number, colour, ("BerthV1", f"quay {number}", number + 3), tags, note
    return "VisitV2", port, colour, float(number), ("BerthV2", number + 3.0), tags, "nobody"
