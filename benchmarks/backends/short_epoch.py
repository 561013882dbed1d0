"""Cost of an epoch with few records, from opening the state to closing it, compared with bare rocksdict.

Both open a database of 100,000 keys, read some keys, write them, persist the changes, and close. Ours takes a snapshot;
bare rocksdict uses its write-ahead log without sync. Ours keeps a few changes next to the local database, and opens the
database for writing only if there are more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import rocksdict

from benchmarks.backends.bare_rocksdb import WITH_LOG
from benchmarks.backends.measuring import compared
from benchmarks.backends.setting import Setting, all_records, key_group_of
from benchmarks.backends.subtask import Subtask, fill
from benchmarks.result import Result
from statebackend import ValueStateDescriptor
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend

COUNT: ValueStateDescriptor[int] = ValueStateDescriptor("count", int)
EPOCHS_OF_A_TURN = 20

# Looking the backend up by name would search the entry points of all installed packages each time.
ROCKSDB = RocksDBStateBackend()


def rocksdb_epoch(setting: Setting) -> Iterator[Result]:
    """Yield the cost of epochs of 1 record, and of 300 records, for which the database is opened for writing."""
    keys = setting.count(100_000, least=1_000)
    for records in (1, 300):
        with Subtask(setting.new_directory("ours")) as subtask:
            name = f"RocksDB epoch of {records} of {keys:,} keys, from opening to closing"
            peers = {WITH_LOG: _bare_epochs(setting, keys, records)}
            yield from compared(setting, name, "ms", _epochs(setting, subtask, keys, records), peers)


def _epochs(setting: Setting, subtask: Subtask, keys: int, records: int) -> Callable[[], float]:
    source = setting.random()
    backend = subtask.open(ROCKSDB, local="local")
    fill(backend, backend.get_state(COUNT), all_records(keys))
    handle = subtask.snapshot(backend)
    backend.close()

    def epoch(changed: list[int], handle: KeyedStateHandle) -> KeyedStateHandle:
        backend = subtask.open(ROCKSDB, handle, local="local")
        state, set_key = backend.get_state(COUNT), backend.key_setter()
        for key in changed:
            set_key(key, key_group_of(key))
            state.update((state.value() or 0) + 1)
        handle = subtask.snapshot(backend)
        backend.close()
        return handle

    def contender() -> float:
        nonlocal handle
        chosen = [source.sample(range(keys), records) for _ in range(EPOCHS_OF_A_TURN)]
        start = setting.clock()
        for changed in chosen:
            handle = epoch(changed, handle)
        return (setting.clock() - start) * 1e3 / EPOCHS_OF_A_TURN

    return contender


def _bare_epochs(setting: Setting, keys: int, records: int) -> Callable[[], float]:
    packed, source = struct.Struct(">q"), setting.random()
    directory = setting.new_directory("bare")
    database = rocksdict.Rdict(directory, rocksdict.Options(raw_mode=True))
    for key in range(keys):
        database[packed.pack(key)] = packed.pack(0)
    database.close()

    def epoch(changed: list[int]) -> None:
        database = rocksdict.Rdict(directory, rocksdict.Options(raw_mode=True))
        for key in changed:
            stored: Any = database[packed.pack(key)]
            (value,) = packed.unpack(stored)
            database[packed.pack(key)] = packed.pack(value + 1)
        database.close()

    def contender() -> float:
        chosen = [source.sample(range(keys), records) for _ in range(EPOCHS_OF_A_TURN)]
        start = setting.clock()
        for changed in chosen:
            epoch(changed)
        return (setting.clock() - start) * 1e3 / EPOCHS_OF_A_TURN

    return contender
