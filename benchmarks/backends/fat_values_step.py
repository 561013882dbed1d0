"""One step of `benchmarks.backends.fat_values` in a child process: ``BACKEND STEP DIRECTORY ENTRIES LARGEST``.

Prints JSON. The steps share the directory of a subtask: its files, and the pickled handle of the last step.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.backends.peak_memory import measured_peak
from benchmarks.backends.setting import MAX_PARALLELISM
from benchmarks.backends.subtask import Subtask
from statebackend import KeyedStateBackend, ValueStateDescriptor
from typeserializers.scalars.byte_arrays import BytesSerializer

VALUE_BYTES = 36 * 1024
PER_EPOCH = 5_000
"""Number of values that an epoch writes before its snapshot."""


def value_of(key: int, epoch: int) -> bytes:
    """Return the value of a key in an epoch; all values differ, and key -1 has the largest."""
    size = int(sys.argv[5]) if key < 0 else VALUE_BYTES
    return (b"%020d" % (key * 1000 + epoch)) * (size // 20 + 1)


def _values(backend: KeyedStateBackend) -> Any:
    return backend.get_state(ValueStateDescriptor("value", BytesSerializer()))


def _write(backend: KeyedStateBackend, keys: range, epoch: int) -> None:
    values, set_key = _values(backend), backend.key_setter()
    for key in keys:
        set_key(key, key % MAX_PARALLELISM)
        values.update(value_of(key, epoch))


def _check(backend: KeyedStateBackend, entries: int, renewed: int) -> None:
    values, set_key = _values(backend), backend.key_setter()
    for key in range(-1, entries):
        set_key(key, key % MAX_PARALLELISM)
        if values.value() != value_of(key, 1 if 0 <= key < renewed else 0):
            raise AssertionError(f"the value of key {key} was not restored")


def checkpoint(subtask: Subtask, name: str, entries: int) -> None:
    """Write all values, and take a snapshot after every `PER_EPOCH` of them."""
    backend = subtask.open(name)
    _write(backend, range(-1, 0), 0)
    for start in range(0, entries, PER_EPOCH):
        _write(backend, range(start, min(start + PER_EPOCH, entries)), 0)
        _leave(subtask, subtask.snapshot(backend))


def increment(subtask: Subtask, name: str, entries: int) -> None:
    """Restore the checkpoint, rewrite a tenth of the values, and store the handle of the next checkpoint."""
    backend = subtask.open(name, _handle(subtask))
    _write(backend, range(entries // 10), 1)
    _leave(subtask, subtask.snapshot(backend))


def restore(subtask: Subtask, name: str, entries: int) -> None:
    """Restore the state and read every value."""
    _check(subtask.open(name, _handle(subtask)), entries, entries // 10)


def savepoint(subtask: Subtask, name: str, entries: int) -> None:
    """Restore the state and store the handle of a canonical savepoint."""
    _leave(subtask, subtask.savepoint(subtask.open(name, _handle(subtask))))


STEPS: dict[str, Callable[[Subtask, str, int], None]] = {
    "checkpoint": checkpoint,
    "increment": increment,
    "restore": restore,
    "savepoint": savepoint,
    "restore_savepoint": restore,
}


def _leave(subtask: Subtask, handle: Any) -> None:
    _handle_path(subtask).write_bytes(pickle.dumps(handle))


def _handle(subtask: Subtask) -> Any:
    return pickle.loads(_handle_path(subtask).read_bytes())


def _handle_path(subtask: Subtask) -> Path:
    return Path(subtask.directory) / "handle"


def main() -> None:
    """Run the step, and print the peak memory and the speed."""
    name, step, directory, entries = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])

    def run() -> None:
        with Subtask(directory) as subtask:
            STEPS[step](subtask, name, entries)

    print(measured_peak(run, entries))


if __name__ == "__main__":
    main()
