"""Writes the golden job directories and savepoints. `README.md` describes them.

    scripts/environment/run.sh python -m tests.golden.durable.write_them v1

It rejects an existing folder, because released files are never rewritten. A new version of a format gets a new folder,
written by the code of that time. At the end it prints the commit and the versions of `_metadata` in the folder, for the
table in `README.md`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fastavro
from attrs import evolve

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "golden_durable"))

import golden_durable_keys as keys  # noqa: E402
import golden_durable_timers as timers  # noqa: E402
from golden_durable_programs import CLEAR, TAKE_AWAY, Write  # noqa: E402

from statebackend.checkpoint import (  # noqa: E402
    Acknowledgement,
    ChannelWatermark,
    CheckpointCoordinator,
    CheckpointFileSystem,
    CheckpointKind,
    CheckpointMetadata,
    DirectoryCheckpointStore,
    JobDirectory,
    SourcePositions,
    SubtaskState,
    TimersDue,
    WatermarkState,
)
from statebackend.checkpoint.store.job_directory import read_origin, write_origin  # noqa: E402
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory  # noqa: E402
from statebackend.local import LocalStreamEnvironment  # noqa: E402
from statebackend.savepoint.export import export_tasks, finish_savepoint  # noqa: E402

BACKENDS = ("heap", "rocksdb")
START_MS = 1_000_000
EPOCH_MS = 4_000

# Three epochs of six records: new keys, repeated and new keys, and then mainly removals.
RECORDS = [
    *[("ada", 1), ("bob", 2), ("cyd", 3), ("dan", 4), ("eve", 5), ("fay", 6)],
    *[("ada", 7), ("bob", 8), ("cyd", 9), ("gus", 10), ("hal", 11), ("ada", 2)],
    *[("ada", TAKE_AWAY), ("dan", CLEAR), ("hal", TAKE_AWAY), ("eve", 12), ("ivy", 13), ("cyd", CLEAR)],
]
EPOCH_SIZE = 6
MORE_RECORDS = [("ada", 20), ("fay", CLEAR), ("lou", 21)]


def clock_from(start_ms: int) -> Callable[[], int]:
    """A clock that advances by a step at each call."""
    times = iter(range(start_ms, start_ms + 1000 * EPOCH_MS, EPOCH_MS))
    return lambda: next(times)


def write_job(
    records: Iterable[tuple[str, int]], start_ms: int, job_dir: str, backend: str, parallelism: int, **execute: Any
) -> Any:
    """Run the job of `golden_durable_programs` over records."""
    environment = LocalStreamEnvironment(
        job_dir=job_dir,
        backend=backend,
        parallelism=parallelism,
        max_parallelism=16,
        epoch_size=EPOCH_SIZE,
        clock=clock_from(start_ms),
    )
    elements = [{"key": key, "number": number} for key, number in records]
    stream = environment.from_elements(elements).key_by("key")
    stream.process(Write(), uid="visits", name="visits", schema="key string").sink_to([])
    return environment.execute("golden", **execute)


def write_jobs() -> None:
    """Write jobs without a savepoint, their savepoints, and jobs that start from one."""
    for backend in BACKENDS:
        write_job(RECORDS, START_MS, f"job-{backend}", backend, 3).savepoint(f"savepoint-{backend}")
    # The backend and the parallelism differ from those of the savepoint.
    start_ms, savepoint = START_MS + 3 * EPOCH_MS, "savepoint-heap"
    write_job(MORE_RECORDS, start_ms, "begun-rocksdb", "rocksdb", 1, from_savepoint=savepoint)
    _relocate_origin("begun-rocksdb", savepoint)
    # The state after a driver died before its first checkpoint.
    Path("begun-only").mkdir()
    for name in ("job.json", "origin.json"):
        shutil.copy(f"begun-rocksdb/{name}", f"begun-only/{name}")


def _relocate_origin(job_dir: str, savepoint: str) -> None:
    """Store the savepoint's path as a relative one, so that it contains no machine path. Tests run in the folder."""
    file_system = CheckpointFileSystem.from_uri(job_dir)
    origin = read_origin(file_system)
    assert origin is not None
    write_origin(file_system, evolve(origin, savepoint_uri=savepoint))


def write_keys() -> None:
    """Write a job whose key has columns of all types, and its savepoint."""
    keys.run("keys-heap", "heap", 3, writes=True)[0].savepoint("keys-savepoint")


def write_timers(backend: str) -> None:
    """Write a job whose operator has namespaces and priority queues, with three checkpoints and a savepoint."""
    with JobDirectory.open(f"timers-{backend}", "golden timers", timers.MAX_PARALLELISM) as directory:
        store = DirectoryCheckpointStore(directory.file_system)
        store.recover()
        now_ms = START_MS
        with (
            tempfile.TemporaryDirectory() as local,
            timers.opened(backend, directory.file_system, None, 3, local, lambda: now_ms) as backends,
        ):
            coordinator = CheckpointCoordinator(
                directory.identity.job_id,
                directory.run_id,
                timeout_ms=None,
                max_parallelism=timers.MAX_PARALLELISM,
                operator_names={timers.UID: "harbours of the world"},
            )
            for epoch in range(3):
                now_ms = START_MS + epoch * EPOCH_MS
                timers.write_epoch(backends, epoch)
                _complete(directory, store, coordinator, backends, epoch)
        latest = store.latest()
        assert latest is not None
        savepoint = f"timers-savepoint-{backend}"
        target = create_savepoint_directory(savepoint)
        ttl = {timers.UID: [descriptor for _, _, descriptor in timers.namespaced()]}
        tasks = export_tasks(latest, directory.file_system, target, ttl, now_ms)
        finish_savepoint(latest, [task.run() for task in tasks], target, (), 0.0)


def _complete(directory: Any, store: Any, coordinator: Any, backends: Any, epoch: int) -> None:
    acknowledgements = [
        Acknowledgement(
            job_id=directory.identity.job_id,
            run_id=directory.run_id,
            checkpoint_id=epoch,
            operator_uid=timers.UID,
            subtask_index=index,
            attempt_id="0",
            digest=snapshot.digest,
            state=SubtaskState(snapshot.handle),
        )
        for index, snapshot in enumerate(backend.snapshot(epoch, uuid.uuid4().hex) for backend in backends)
    ]
    coordinator.trigger(epoch, [one.task for one in acknowledgements], 0)
    for one in acknowledgements:
        coordinator.acknowledge(one)
    parent = store.latest()
    store.add(
        CheckpointMetadata(
            checkpoint_id=epoch,
            kind=CheckpointKind.CHECKPOINT,
            job_id=directory.identity.job_id,
            job_name=directory.identity.job_name,
            timestamp_ms=START_MS + epoch * EPOCH_MS,
            max_parallelism=timers.MAX_PARALLELISM,
            operators=coordinator.complete(epoch).operators,
            parent_checkpoint_id=parent.checkpoint_id if parent else None,
            parent_digest=store.digest(parent.checkpoint_id) if parent else None,
            # No test reads these fields, but they make the metadata complete.
            source_positions=SourcePositions(batch_id=epoch, offsets=f"offset {epoch}".encode()),
            sink_committables={"sink": f"rows of {epoch}".encode()},
            watermarks=WatermarkState(1000 * epoch, (ChannelWatermark(source="ships", watermark_ms=1000 * epoch),)),
            timers_due=(TimersDue(timers.UID, event_time_ms=1000 * epoch + 500),),
        )
    )


def write_checksums(folder: Path) -> None:
    """Add the files of a folder to SHA256SUMS."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(HERE).as_posix()}\n"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    with (HERE / "SHA256SUMS").open("a") as sums:
        sums.writelines(lines)


def what_was_written(folder: Path) -> str:
    """The commit that wrote the folder, and the versions of its `_metadata` files."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, check=True)
    versions = set()
    for path in folder.rglob("_metadata"):
        with path.open("rb") as file:
            versions.add(fastavro.reader(file).metadata["statebackend.metadata_version"])
    return f"{folder.name}: commit {commit.stdout.decode().strip()}, _metadata {', '.join(sorted(versions))}\n"


def main(version: str) -> None:
    """Write the folder of a version. It must not exist."""
    folder = HERE / version
    folder.mkdir()
    os.chdir(folder)
    write_jobs()
    for backend in BACKENDS:
        write_timers(backend)
    write_keys()
    for lock in folder.rglob("driver.lock"):
        # The lock names the host and the process, and is not durable.
        lock.unlink()
    write_checksums(folder)
    sys.stdout.write(what_was_written(folder))


if __name__ == "__main__":
    main(sys.argv[1])
