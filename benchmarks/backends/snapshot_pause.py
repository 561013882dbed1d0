"""How long a snapshot blocks the records: its synchronous part, and the slowest access of the epoch after it.

Two backends with different numbers of keys run in alternation. A turn has these steps:

1. Change a fixed number of keys.
2. Prepare the snapshot (the synchronous part).
3. Change the same keys again before the snapshot is written.
4. Write the snapshot, and change the keys once more.

The slowest access of steps 3 and 4 shows work that the snapshot left to later accesses.

A whole snapshot is compared with a flush and a checkpoint of rocksdict, or with a dict that is pickled into a file.
"""

from __future__ import annotations

import os
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import rocksdict

from benchmarks.alternating import Measurement
from benchmarks.backends.bare_rocksdb import bare_store
from benchmarks.backends.measuring import REQUIRED, compared, medians, report
from benchmarks.backends.setting import Record, Setting, all_records, key_group_of
from benchmarks.backends.subtask import Subtask, fill
from benchmarks.result import Result
from statebackend import ValueStateDescriptor

HEAP_BOUND_MS = 20.0
ROCKSDB_BOUND_MS = 100.0

GROWTH_AIM = 0.5
"""Least ratio of the time with few keys to the time with many; without growth it is 1, less noise."""


def heap_snapshot(setting: Setting) -> Iterator[Result]:
    """Yield the results for 1,000,000 and for 100,000 keys with 10,000 changed, and for 1,000,000 with all changed."""
    dirty = setting.count(10_000)
    with ExitStack() as stack:
        many = stack.enter_context(PauseLoop(setting, "heap", setting.count(1_000_000), dirty))
        few = stack.enter_context(PauseLoop(setting, "heap", setting.count(100_000), dirty))
        name = f"heap snapshot, synchronous part, {many.keys:,} keys, all changed"
        yield Result(name, many.first_ms, HEAP_BOUND_MS, REQUIRED, "ms", 1.0)
        yield from _lines(setting, "heap", many, few, HEAP_BOUND_MS)
        peer = _pickled_dict(setting, many.keys)
        yield from _whole_snapshot(setting, "heap", many, {"a dict pickled into a file": peer})


def rocksdb_snapshot(setting: Setting) -> Iterator[Result]:
    """Yield the results for 10,000 changed keys of 2,000,000 and of 100,000."""
    dirty = setting.count(10_000)
    with ExitStack() as stack:
        many = stack.enter_context(PauseLoop(setting, "rocksdb", setting.count(2_000_000), dirty))
        few = stack.enter_context(PauseLoop(setting, "rocksdb", setting.count(100_000), dirty))
        yield from _lines(setting, "RocksDB", many, few, ROCKSDB_BOUND_MS)
        database = stack.enter_context(bare_store(setting.new_directory("bare"), has_log=False))
        peer = _bare_checkpoint(setting, database, many.keys, many.dirty)
        yield from _whole_snapshot(setting, "RocksDB", many, {"bare rocksdict, flush and checkpoint": peer})


def _lines(setting: Setting, title: str, many: PauseLoop, few: PauseLoop, bound_ms: float) -> Iterator[Result]:
    names = {loop: f"{loop.keys:,} keys" for loop in (many, few)}
    reached = medians(setting, {names[many]: many, names[few]: few})
    for loop, keys in names.items():
        name = f"{title} snapshot, synchronous part, {keys}, {loop.dirty:,} changed"
        yield Result(name, reached[keys], bound_ms, REQUIRED, "ms", 1.0)
    name = f"{title} snapshot, synchronous part, {names[many]} vs {names[few]}"
    yield Result(name, reached[names[many]], reached[names[few]], f"with {names[few]}", "ms", GROWTH_AIM)
    for loop, keys in names.items():
        for moment, slowest_ms in loop.slowest_ms.items():
            # The first turn is the warm-up.
            measurement = Measurement(tuple(slowest_ms[1:]))
            name = f"{title} slowest access {moment}, {keys}"
            report(name, measurement)
            yield Result(name, measurement.median, bound_ms, REQUIRED, "ms", 1.0)


def _whole_snapshot(
    setting: Setting, title: str, loop: PauseLoop, peers: dict[str, Callable[[], float]]
) -> Iterator[Result]:
    name = f"{title} whole snapshot, {loop.keys:,} keys, {loop.dirty:,} changed"
    yield from compared(setting, name, "ms", loop.whole_snapshot_ms, peers)


def _pickled_dict(setting: Setting, keys: int) -> Callable[[], float]:
    table = dict.fromkeys(range(keys), 1)
    path = setting.new_directory("pickled")

    def contender() -> float:
        start = setting.clock()
        with open(path, "wb") as file:
            pickle.dump(table, file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            os.fsync(file.fileno())
        return (setting.clock() - start) * 1e3

    return contender


def _bare_checkpoint(setting: Setting, database: Any, keys: int, dirty: int) -> Callable[[], float]:
    pack, source = struct.Struct(">q").pack, setting.random()
    for key in range(keys):
        database[pack(key)] = pack(0)
    database.flush()

    def contender() -> float:
        for key in source.sample(range(keys), dirty):
            database[pack(key)] = pack(1)
        path = setting.new_directory("checkpoint")
        start = setting.clock()
        database.flush()
        rocksdict.Checkpoint(database).create_checkpoint(path)
        elapsed = setting.clock() - start
        shutil.rmtree(path)
        return elapsed * 1e3

    return contender


class PauseLoop:
    """A backend with `keys` keys; a call runs one turn and returns milliseconds of the synchronous part."""

    def __init__(self, setting: Setting, backend: str, keys: int, dirty: int) -> None:
        self._setting = setting
        self.keys = keys
        self.dirty = min(dirty, keys)
        self._random = setting.random()
        self.slowest_ms: dict[str, list[float]] = {"before it is written": [], "after it is written": []}
        self._subtask = Subtask(setting.new_directory(backend))
        self._backend = self._subtask.open(backend)
        self._state: Any = self._backend.get_state(ValueStateDescriptor("count", int))
        fill(self._backend, self._state, all_records(keys))
        start = setting.clock()
        finish = self._subtask.prepare_snapshot(self._backend)
        self.first_ms = (setting.clock() - start) * 1e3
        """Milliseconds of the synchronous part of a snapshot in which every key is new."""
        finish()

    def __enter__(self) -> PauseLoop:
        return self

    def __exit__(self, *exception: object) -> None:
        self._subtask.close()

    def __call__(self) -> float:
        clock = self._setting.clock
        records = [(key, key_group_of(key)) for key in self._random.sample(range(self.keys), self.dirty)]
        fill(self._backend, self._state, records)
        start = clock()
        finish = self._subtask.prepare_snapshot(self._backend)
        elapsed = clock() - start
        self._random.shuffle(records)
        slowest = self.slowest_ms.values()
        for finishing, reached in zip((False, True), slowest, strict=True):
            if finishing:
                finish()
            reached.append(self._slowest_access_ms(records))
        return elapsed * 1e3

    def whole_snapshot_ms(self) -> float:
        """Change as many keys, and return the time of both parts of a snapshot."""
        keys = self._random.sample(range(self.keys), self.dirty)
        fill(self._backend, self._state, [(key, key_group_of(key)) for key in keys])
        start = self._setting.clock()
        self._subtask.snapshot(self._backend)
        return (self._setting.clock() - start) * 1e3

    def _slowest_access_ms(self, records: list[Record]) -> float:
        clock, slowest = self._setting.clock, 0.0
        set_key, value, update = self._backend.key_setter(), self._state.value, self._state.update
        for key, key_group in records:
            start = clock()
            set_key(key, key_group)
            update(value() + 1)
            slowest = max(slowest, clock() - start)
        return slowest * 1e3
