"""Increments a `ValueState[int]`, compared with the same loop on a dict or on bare rocksdict.

A turn is one epoch. Ours sets the current key of each record with the backend's key setter, as a runtime does. The
epoch ends with the synchronous part of a snapshot, in which RocksDB writes the changes of the epoch; bare rocksdict
wrote them before. The upload is not measured. Ours uses key groups and serializers; the peers use fixed keys and
values.

Keys are inserted in order, and records come in random order. One line also shows records in the order of insertion,
which is the best case of a dict, because it then reads memory sequentially. Streams do not have that order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.backends.bare_rocksdb import FLUSHED, VOLATILE, WITH_LOG, bare_store
from benchmarks.backends.measuring import compared
from benchmarks.backends.setting import Record, Setting, all_records, key_group_of
from benchmarks.backends.subtask import Subtask, fill
from benchmarks.result import Result
from statebackend import StateMetricsConfig, ValueStateDescriptor

ROCKSDB_AIMS = {1: 0.5, 20: 3.0}
"""The least ratio, by how often an epoch accesses each key."""

HEAP_AIM = 0.3

_COUNT: ValueStateDescriptor[int] = ValueStateDescriptor("count", int)
_LONG = struct.Struct(">q")

Loop = Callable[[list[Record]], object]


def rocksdb_value(setting: Setting) -> Iterator[Result]:
    """Yield the results for existing keys, each once per epoch and each twenty times."""
    for passes, aim in ROCKSDB_AIMS.items():
        records = setting.shuffled_records(setting.count(100_000 if passes == 1 else 25_000), passes)
        with ExitStack() as stack:
            ours = stack.enter_context(ValueLoop(setting, "rocksdb", records))
            peers: dict[str, Callable[[], float]] = {}
            for name, has_log, flushes in ((WITH_LOG, True, False), (FLUSHED, False, True), (VOLATILE, False, False)):
                database = stack.enter_context(bare_store(setting.new_directory("bare"), has_log))
                peers[name] = _timed(setting, records, _bare_rocksdb_loop(database, flushes))
                _fill_bare(database, records)
            keys = f"{len(records) // passes:,} keys"
            often = "each once" if passes == 1 else f"each {passes} times"
            yield from compared(
                setting, f"RocksDB value read-modify-write, {keys} {often} per epoch", "entries/s", ours, peers, aim
            )
            ours.check()


def heap_value(setting: Setting) -> Iterator[Result]:
    """Yield the results for existing keys, each once per epoch and each ten times, and for new keys."""
    keys = setting.count(200_000)
    once, often = setting.shuffled_records(keys), setting.shuffled_records(keys // 4, 10)
    for records, title, aim in (
        (once, f"{keys:,} keys each once per epoch", HEAP_AIM),
        (often, f"{keys // 4:,} keys each 10 times per epoch", HEAP_AIM),
        (all_records(keys), f"{keys:,} keys each once per epoch in their order", HEAP_AIM),
    ):
        table = dict.fromkeys(range(max(records)[0] + 1), 0)
        with ValueLoop(setting, "heap", records) as ours:
            yield from compared(
                setting,
                f"heap value read-modify-write, {title}",
                "entries/s",
                ours,
                {"bare dict": _timed(setting, records, _dict_loop(table))},
                aim,
            )
            ours.check()
    yield from _heap_new_keys(setting, keys)


def _heap_new_keys(setting: Setting, keys: int) -> Iterator[Result]:
    existing = setting.shuffled_records(keys)
    table = dict.fromkeys(range(keys), 0)
    with ValueLoop(setting, "heap", existing) as loop:
        yield from compared(
            setting,
            f"heap value read-modify-write, {keys:,} new keys per epoch, as many or more exist",
            "entries/s",
            _with_new_keys(existing, lambda records: loop.run(records)),
            {"bare dict": _with_new_keys(existing, lambda records: _timed(setting, records, _dict_loop(table))())},
            HEAP_AIM,
        )


def _with_new_keys(existing: list[Record], run: Callable[[list[Record]], float]) -> Callable[[], float]:
    """Return a contender that uses new keys in each turn."""
    turn = 0

    def with_new_keys() -> float:
        nonlocal turn
        turn += 1
        first = turn * len(existing)
        return run([(first + key, key_group_of(first + key)) for key, _ in existing])

    return with_new_keys


class ValueLoop:
    """Ours: a backend in which all keys exist; a call runs one epoch and returns records per second."""

    def __init__(
        self,
        setting: Setting,
        backend: str,
        records: list[Record],
        metrics: StateMetricsConfig | None = None,
        descriptor: ValueStateDescriptor[int] = _COUNT,
    ) -> None:
        self._setting = setting
        self._records = records
        self._turns = 0
        self.subtask = Subtask(setting.new_directory(backend))
        self.backend = self.subtask.open(backend, metrics=metrics)
        self.state: Any = self.backend.get_state(descriptor)
        fill(self.backend, self.state, all_records(max(records)[0] + 1))
        self.subtask.snapshot(self.backend)

    def __enter__(self) -> ValueLoop:
        return self

    def __exit__(self, *exception: object) -> None:
        self.subtask.close()

    def __call__(self) -> float:
        self._turns += 1
        return self.run(self._records)

    def run(self, records: list[Record]) -> float:
        """Run one epoch of these records, and return records per second."""
        clock = self._setting.clock
        start = clock()
        set_key, value, update = self.backend.key_setter(), self.state.value, self.state.update
        for key, key_group in records:
            set_key(key, key_group)
            count = value()
            update(1 if count is None else count + 1)
        finish = self.subtask.prepare_snapshot(self.backend)
        elapsed = clock() - start
        finish()
        return len(records) / elapsed

    def check(self) -> None:
        """Raise `AssertionError` if the state does not hold the result of all turns."""
        key, key_group = self._records[0]
        expected = self._turns * sum(other == key for other, _ in self._records)
        self.backend.set_current_key(key, key_group)
        if self.state.value() != expected:
            raise AssertionError(f"key {key} was counted {self.state.value()} times instead of {expected}")


def _timed(setting: Setting, records: list[Record], loop: Loop) -> Callable[[], float]:
    def contender() -> float:
        start = setting.clock()
        loop(records)
        return len(records) / (setting.clock() - start)

    return contender


def _dict_loop(table: dict[int, int]) -> Loop:
    def loop(records: list[Record]) -> None:
        get = table.get
        for key, _ in records:
            count = get(key)
            table[key] = 1 if count is None else count + 1

    return loop


def _bare_rocksdb_loop(database: Any, flushes: bool) -> Loop:
    def loop(records: list[Record]) -> None:
        get, put, pack, unpack = database.get, database.put, _LONG.pack, _LONG.unpack
        for key, _ in records:
            raw_key = pack(key)
            encoded = get(raw_key)
            put(raw_key, pack(1 if encoded is None else unpack(encoded)[0] + 1))
        if flushes:
            database.flush()

    return loop


def _fill_bare(database: Any, records: list[Record]) -> None:
    for key, _ in records:
        database.put(_LONG.pack(key), _LONG.pack(0))
    database.flush()
