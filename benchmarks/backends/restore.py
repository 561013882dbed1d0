"""Restore of a backend from native handles and from a canonical savepoint, and migration of the restored state.

The time of a restore includes opening the backend, registering the state and one read. The time of a migration is the
time to register the new version of the record. All times are those of one core.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.backends.bare_rocksdb import bare_store, ingest, write_sorted_file
from benchmarks.backends.measuring import REQUIRED, compared
from benchmarks.backends.records import (
    check_sample,
    hand_migration,
    hand_packed,
    reading_of,
    reading_v1,
    reading_v2,
)
from benchmarks.backends.setting import Setting, all_records, key_group_of
from benchmarks.backends.subtask import Subtask
from benchmarks.result import Result
from statebackend import KeyedStateBackend, ValueStateDescriptor
from statebackend.checkpoint.state_handles import KeyedStateHandle

REQUIRED_ENTRIES_PER_S = 300_000.0

_COUNT: ValueStateDescriptor[int] = ValueStateDescriptor("count", int)

_SORTED_FILE = "bare rocksdict, a sorted file of packed bytes"
_SAME_FILES = "bare rocksdict, the same files copied"
_PACKED_DICT = "bare dict, from packed bytes"
_BY_HAND = "bare rocksdict, by hand into a sorted file"


def rocksdb_restore(setting: Setting) -> Iterator[Result]:
    """Yield the results for 1,000,000 keys from a native handle, and from a savepoint."""
    keys = setting.count(1_000_000)
    with Subtask(setting.new_directory("restore")) as subtask:
        with subtask.open("rocksdb") as backend:
            _fill_counts(backend, keys)
            native, savepoint = subtask.snapshot(backend), subtask.savepoint(backend)
        peers = {REQUIRED: _required, _SAME_FILES: _bare_copy(setting, subtask, native, keys)}
        yield from _restores(setting, "RocksDB", subtask, native, keys, peers)
        peers = {REQUIRED: _required, _SORTED_FILE: _bare_file(setting, keys)}
        yield from _restores(setting, "RocksDB", subtask, savepoint, keys, peers)


def heap_restore(setting: Setting) -> Iterator[Result]:
    """Yield the results for 1,000,000 keys from a native handle, and from a savepoint; no speed is required."""
    keys = setting.count(1_000_000)
    with Subtask(setting.new_directory("restore")) as subtask:
        with subtask.open("heap") as backend:
            _fill_counts(backend, keys)
            native, savepoint = subtask.snapshot(backend), subtask.savepoint(backend)
        peers = {_PACKED_DICT: _bare_dict(setting, keys)}
        for handle in (native, savepoint):
            yield from _restores(setting, "heap", subtask, handle, keys, peers)


def rocksdb_migration(setting: Setting) -> Iterator[Result]:
    """Yield the results for 1,000,000 records that are migrated from the first to the second version."""
    keys = setting.count(1_000_000)
    with Subtask(setting.new_directory("migration")) as subtask:
        with subtask.open("rocksdb") as backend:
            _fill_readings(backend, keys)
            handle = subtask.snapshot(backend)

        def ours() -> float:
            with subtask.open("rocksdb", handle) as backend:
                seconds = setting.one_core_seconds(lambda: backend.get_state(_reading_v2()))
                check_sample(setting, keys, lambda key: _read(backend, key))
            return keys / seconds

        name = f"RocksDB migration of {keys:,} records"
        peers = {REQUIRED: _required, _BY_HAND: _bare_migration(setting, keys)}
        for result in compared(setting, name, "entries/s", ours, peers):
            yield _with_aim(result)


def _restores(
    setting: Setting,
    title: str,
    subtask: Subtask,
    handle: KeyedStateHandle,
    keys: int,
    peers: dict[str, Callable[[], float]],
) -> Iterator[Result]:
    def ours() -> float:
        seconds = setting.one_core_seconds(open_and_read)
        subtask.close()
        return keys / seconds

    def open_and_read() -> None:
        backend = subtask.open(title.lower(), handle)
        state: Any = backend.get_state(_COUNT)
        backend.set_current_key(keys - 1, key_group_of(keys - 1))
        if state.value() != _count_of(keys - 1):
            raise AssertionError(f"the last key was restored as {state.value()}")

    source = "a savepoint" if handle.backend == "canonical" else "a native handle"
    for result in compared(setting, f"{title} restore of {keys:,} keys from {source}", "entries/s", ours, peers):
        yield _with_aim(result)


def _required() -> float:
    return REQUIRED_ENTRIES_PER_S


def _with_aim(result: Result) -> Result:
    """Set the aim of results that are compared with a required speed; other peers are for information."""
    if result.peer_name != REQUIRED:
        return result
    return Result(result.name, result.ours, result.peer, result.peer_name, result.unit, 1.0)


def _count_of(key: int) -> int:
    return key * 7919


def _fill_counts(backend: KeyedStateBackend, keys: int) -> None:
    state: Any = backend.get_state(_COUNT)
    for key, key_group in all_records(keys):
        backend.set_current_key(key, key_group)
        state.update(_count_of(key))


def _fill_readings(backend: KeyedStateBackend, keys: int) -> None:
    state: Any = backend.get_state(ValueStateDescriptor("reading", reading_v1()))
    for key, key_group in all_records(keys):
        backend.set_current_key(key, key_group)
        state.update(reading_of(key))


def _reading_v2() -> ValueStateDescriptor[Any]:
    return ValueStateDescriptor("reading", reading_v2())


def _read(backend: KeyedStateBackend, key: int) -> Any:
    backend.set_current_key(key, key_group_of(key))
    return backend.get_state(_reading_v2()).value()


def _bare_copy(setting: Setting, subtask: Subtask, handle: KeyedStateHandle, keys: int) -> Callable[[], float]:
    sources = subtask.local_paths(handle)

    def work() -> None:
        copies = [setting.new_directory("copy") for _ in sources]
        with bare_store(setting.new_directory("bare")) as database:
            for source, copy in zip(sources, copies, strict=True):
                shutil.copyfile(source, copy)
                ingest(database, [copy])
            database.get(b"")

    return lambda: keys / setting.one_core_seconds(work)


def _bare_file(setting: Setting, keys: int) -> Callable[[], float]:
    pack = struct.Struct(">q").pack
    entries = [(pack(key), pack(_count_of(key))) for key in range(keys)]

    def work() -> None:
        path = setting.new_directory("sorted")
        with bare_store(setting.new_directory("bare")) as database:
            write_sorted_file(path, entries)
            ingest(database, [path])
            database.get(entries[0][0])

    return lambda: keys / setting.one_core_seconds(work)


def _bare_dict(setting: Setting, keys: int) -> Callable[[], float]:
    pack, unpack = struct.Struct(">q").pack, struct.Struct(">q").unpack
    entries = [(pack(key), pack(_count_of(key))) for key in range(keys)]

    def work() -> None:
        table = {unpack(key)[0]: unpack(value)[0] for key, value in entries}
        if table[keys - 1] != _count_of(keys - 1):
            raise AssertionError("the last key has another value")

    return lambda: keys / setting.one_core_seconds(work)


def _bare_migration(setting: Setting, keys: int) -> Callable[[], float]:
    entries = hand_packed(keys)
    migrate = hand_migration()

    def contender() -> float:
        old = setting.new_directory("sorted")
        write_sorted_file(old, entries)
        with bare_store(setting.new_directory("bare")) as database, bare_store(setting.new_directory("bare")) as target:
            ingest(database, [old])

            def work() -> None:
                path = setting.new_directory("sorted")
                write_sorted_file(path, ((key, migrate(value)) for key, value in database.items()))
                ingest(target, [path])

            return keys / setting.one_core_seconds(work)

    return contender
