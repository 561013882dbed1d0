"""Iteration over all entries of a `MapState`, compared with a decoding scan of bare rocksdict.

The first pass of an epoch reads the entries from RocksDB. A later pass finds them in the write-back cache, or reads
them again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from attrs import frozen

from benchmarks.backends.bare_rocksdb import bare_store
from benchmarks.backends.measuring import compared
from benchmarks.backends.setting import Setting, key_group_of
from benchmarks.backends.subtask import Subtask
from benchmarks.result import Result
from statebackend import MapStateDescriptor

AIM = 0.4

_LONG = struct.Struct(">q")
_PEER = "bare rocksdict with decoding"
_KEY = 17
_PREFIX = _LONG.pack(_KEY)


@frozen
class _UserKeys:
    """A type of user keys: how to make one from a number, and how to pack it by hand."""

    title: str
    type: type
    of_number: Callable[[int], Any]
    pack: Callable[[Any], bytes]
    unpack: Callable[[bytes], Any]


_USER_KEYS = (
    _UserKeys("ints", int, int, _LONG.pack, lambda data: _LONG.unpack(data)[0]),
    _UserKeys("texts", str, lambda number: f"user-{number:07d}", str.encode, bytes.decode),
)


def rocksdb_map(setting: Setting) -> Iterator[Result]:
    """Yield the results for a map of 100,000 entries under one key; user keys are ints, then strings."""
    size = setting.count(100_000)
    for user_keys in _USER_KEYS:
        entries = {user_keys.of_number(number): number for number in range(size)}
        with (
            Subtask(setting.new_directory("map")) as subtask,
            bare_store(setting.new_directory("bare")) as database,
        ):
            backend = subtask.open("rocksdb")
            state: Any = backend.get_state(MapStateDescriptor("map", user_keys.type, int))
            backend.set_current_key(_KEY, key_group_of(_KEY))
            state.put_all(entries)
            for user_key, number in entries.items():
                database[_PREFIX + user_keys.pack(user_key)] = _LONG.pack(number)
            database.flush()
            bare = _pass_over(setting, size, _bare_entries(database, user_keys))
            again = _pass_over(setting, size, state.items)
            first = _after(partial(subtask.snapshot, backend), again)
            for name, ours in {"first pass of an epoch": first, "a later pass": again}.items():
                title = f"RocksDB map iteration over {size:,} {user_keys.title}, {name}"
                yield from compared(setting, title, "entries/s", ours, {_PEER: bare}, AIM)


def _pass_over(setting: Setting, size: int, items: Callable[[], Iterable[tuple[Any, int]]]) -> Callable[[], float]:
    """Return a contender that reads every entry."""

    def contender() -> float:
        start = setting.clock()
        total, last = 0, None
        for user_key, number in items():
            last, total = user_key, total + number
        elapsed = setting.clock() - start
        if total != size * (size - 1) // 2 or last is None:
            raise AssertionError(f"the entries of the map add up to {total}, the last of them at {last!r}")
        return size / elapsed

    return contender


def _after(prepare: Callable[[], object], contender: Callable[[], float]) -> Callable[[], float]:
    def prepared() -> float:
        prepare()
        return contender()

    return prepared


def _bare_entries(database: Any, user_keys: _UserKeys) -> Callable[[], Iterator[tuple[Any, int]]]:
    def entries() -> Iterator[tuple[Any, int]]:
        unpack_key, unpack = user_keys.unpack, _LONG.unpack
        for raw_key, encoded in database.items(from_key=_PREFIX):
            if not raw_key.startswith(_PREFIX):
                return
            yield unpack_key(raw_key[8:]), unpack(encoded)[0]

    return entries
