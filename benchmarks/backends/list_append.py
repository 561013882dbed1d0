"""Appends a million elements to one list over many epochs, and checks that the last ones do not cost more.

Each epoch ends with a snapshot. The first line measures the appends and the synchronous part of the snapshot. The
second line adds the asynchronous part, which sometimes compacts files. The median epoch of the last tenth is compared
with the median epoch of the first tenth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.alternating import Measurement
from benchmarks.backends.measuring import report
from benchmarks.backends.setting import Setting, key_group_of
from benchmarks.backends.subtask import Subtask
from benchmarks.result import Result
from statebackend import ListStateDescriptor

AIM = 0.8
"""The same speed, less the noise between two tenths that are measured at different times."""

EPOCHS = 100

_KEY = 17
_FIRST, _LAST = slice(EPOCHS // 10), slice(-EPOCHS // 10, None)


def list_append(setting: Setting) -> Iterator[Result]:
    """Yield the results of both backends."""
    for backend, title in (("rocksdb", "RocksDB"), ("heap", "heap")):
        yield from _appended(setting, backend, title)


def _appended(setting: Setting, backend_name: str, title: str) -> Iterator[Result]:
    per_epoch = setting.count(1_000_000) // EPOCHS or 1
    clock = setting.clock
    blocking_ns: list[float] = []
    whole_ns: list[float] = []
    with Subtask(setting.new_directory("list")) as subtask:
        backend = subtask.open(backend_name)
        state: Any = backend.get_state(ListStateDescriptor("list", int))
        key_group, size = key_group_of(_KEY), 0
        for _ in range(EPOCHS):
            start = clock()
            set_key, add = backend.key_setter(), state.add
            for element in range(size, size + per_epoch):
                set_key(_KEY, key_group)
                add(element)
            size += per_epoch
            finish = subtask.prepare_snapshot(backend)
            blocking_ns.append((clock() - start) * 1e9 / per_epoch)
            finish()
            whole_ns.append((clock() - start) * 1e9 / per_epoch)
        if state.get() != list(range(size)):
            raise AssertionError(f"the list does not hold the {size} elements that were appended")
    name = f"{title} list of {size:,} appended one by one, an append in the last tenth"
    for epochs, what, aim in ((blocking_ns, "", AIM), (whole_ns, ", with the writing of snapshots", None)):
        first, last = Measurement(tuple(epochs[_FIRST])), Measurement(tuple(epochs[_LAST]))
        report(f"{title} first tenth{what}", first)
        report(f"{title} last tenth{what}", last)
        yield Result(name + what, last.median, first.median, "in the first tenth", "ns", aim)
