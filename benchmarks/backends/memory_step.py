"""One step of `benchmarks.backends.bulk_memory` in a child process: ``STEP DIRECTORY ENTRIES``; prints JSON.

The steps share the directory of a subtask: the store with its files, and the pickled handle of the last step.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.backends.peak_memory import measured_peak
from benchmarks.backends.records import ReadingV1, migrated, reading_v1, reading_v2
from benchmarks.backends.setting import MAX_PARALLELISM
from benchmarks.backends.subtask import Subtask
from statebackend import KeyedStateBackend, ValueStateDescriptor
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.canonical import BATCH_ROWS, CanonicalBatch, write_canonical
from statebackend.state.state_meta import KeyedStateMeta, StateFile, StateMeta, encode_meta
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer

_NAME = "reading"


def reading_of(key: int) -> ReadingV1:
    """Return a small entry of about twenty bytes."""
    return ReadingV1(key, key % 50, "in")


def write_savepoint(subtask: Subtask, entries: int) -> None:
    """Write a savepoint of `entries` readings batch by batch; neighbouring keys share a key group."""
    subtask.file_system.make_root()
    path = str(Path(subtask.directory) / "savepoint.parquet")
    write_canonical(path, _batches(entries))
    file = subtask.file_system.upload(path, "savepoint/part.parquet")
    state = StateMeta.of_one_schema(
        _NAME,
        ValueStateDescriptor.kind,
        VoidNamespaceSerializer().snapshot_configuration(),
        {"value": reading_v1().snapshot_configuration()},
        files=(StateFile(0, "savepoint"),),
    )
    meta = encode_meta(KeyedStateMeta(LongSerializer().snapshot_configuration(), 0, (state,)))
    _leave(subtask, KeyedStateHandle("savepoint", "canonical", 0, MAX_PARALLELISM - 1, meta, (file,)))


def _batches(entries: int) -> Iterator[CanonicalBatch]:
    write_key, write, void = LongSerializer().to_bytes, reading_v1().to_bytes, VoidNamespaceSerializer()
    namespace = void.to_bytes(VOID_NAMESPACE)
    for start in range(0, entries, BATCH_ROWS):
        keys = range(start, min(start + BATCH_ROWS, entries))
        yield CanonicalBatch(
            [_key_group(key, entries) for key in keys],
            [write_key(key) for key in keys],
            [namespace] * len(keys),
            [None] * len(keys),
            [write(reading_of(key)) for key in keys],
        )


def _key_group(key: int, entries: int) -> int:
    return key * MAX_PARALLELISM // entries


def restore(subtask: Subtask, entries: int) -> None:
    """Open a backend that restores the handle."""
    _check(_opened(subtask), _descriptor(1), entries, lambda reading: reading)


def snapshot(subtask: Subtask, entries: int) -> None:
    """Open a backend that restores the handle, and store the handle of its first snapshot."""
    _leave(subtask, subtask.snapshot(_opened(subtask)))


def migrate(subtask: Subtask, entries: int) -> None:
    """Open a backend that restores the handle, and register the second version of the record."""
    _check(_opened(subtask), _descriptor(2), entries, migrated)


STEPS: dict[str, Callable[[Subtask, int], None]] = {
    "savepoint": write_savepoint,
    "restore_savepoint": restore,
    "snapshot": snapshot,
    "restore_native": restore,
    "migrate": migrate,
}


def _descriptor(version: int) -> ValueStateDescriptor[Any]:
    serializer: Any = reading_v1() if version == 1 else reading_v2()
    return ValueStateDescriptor(_NAME, serializer)


def _opened(subtask: Subtask) -> KeyedStateBackend:
    return subtask.open("rocksdb", pickle.loads(_handle_path(subtask).read_bytes()))


def _check(
    backend: KeyedStateBackend, descriptor: ValueStateDescriptor[Any], entries: int, expected: Callable[[Any], Any]
) -> None:
    state = backend.get_state(descriptor)
    for key in (0, entries // 2, entries - 1):
        backend.set_current_key(key, _key_group(key, entries))
        if state.value() != expected(reading_of(key)):
            raise AssertionError(f"the reading of key {key} was restored as {state.value()}")


def _leave(subtask: Subtask, handle: KeyedStateHandle) -> None:
    _handle_path(subtask).write_bytes(pickle.dumps(handle))


def _handle_path(subtask: Subtask) -> Path:
    return Path(subtask.directory) / "handle"


def main() -> None:
    """Run the step, and print the peak memory and the speed."""
    step, directory, entries = sys.argv[1], sys.argv[2], int(sys.argv[3])

    def run() -> None:
        with Subtask(directory) as subtask:
            STEPS[step](subtask, entries)

    print(measured_peak(run, entries))


if __name__ == "__main__":
    main()
