"""Timers: adding and polling them, compared with a binary heap and a set, and the first polls of a large queue.

The peer keeps tuples in memory and persists nothing. Ours writes each timer as bytes, keeps what a snapshot needs, and
returns timers with their key groups. The queue on RocksDB is opened for every turn from the local database of the
previous one, as each epoch of a job does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.backends.measuring import REQUIRED, compared, medians
from benchmarks.backends.setting import Setting, key_group_of
from benchmarks.backends.subtask import Subtask
from benchmarks.result import Result
from statebackend import PriorityQueueDescriptor
from typeserializers import LongSerializer, StringSerializer, Timer, TimerSerializer

AIM = 0.3

FIRST_POLLS_MS = 30.0
"""Bound for opening a backend with a large queue and polling a few of its timers."""

TIMERS: PriorityQueueDescriptor[Timer[int, str | None]] = PriorityQueueDescriptor(
    "timers", TimerSerializer(LongSerializer(), StringSerializer())
)

_POLLED = 10

Entries = list[tuple[Timer[int, str | None], int]]


def timers(setting: Setting) -> Iterator[Result]:
    """Yield the results of both backends, and of opening RocksDB."""
    count = setting.count(200_000)
    for backend, title in (("heap", "heap"), ("rocksdb", "RocksDB")):
        yield from compared(
            setting,
            f"{title} {count:,} timers added and polled",
            "entries/s",
            _ours(setting, backend, _entries(setting, count)),
            {"heapq and a set": _bare(setting, _entries(setting, count))},
            AIM,
        )
    yield from _first_polls(setting)


def _entries(setting: Setting, count: int) -> Entries:
    source = setting.random()
    return [(Timer(source.randrange(1 << 40), key, ""), key_group_of(key)) for key in range(count)]


def _ours(setting: Setting, backend_name: str, entries: Entries) -> Callable[[], float]:
    def run() -> float:
        with Subtask(setting.new_directory("timers")) as subtask:
            queue = subtask.open(backend_name).get_priority_queue(TIMERS)
            start = setting.clock()
            add = queue.add
            for timer, key_group in entries:
                add(timer, key_group)
            polled = sum(1 for _ in queue.poll_while(lambda timer: True))
            taken = setting.clock() - start
        _check(polled, len(entries))
        return polled / taken

    return run


def _bare(setting: Setting, entries: Entries) -> Callable[[], float]:
    def run() -> float:
        heap: list[tuple[Any, ...]] = []
        known: set[tuple[Any, ...]] = set()
        polled = 0
        start = setting.clock()
        for timer, key_group in entries:
            entry = (timer.timestamp, timer.key, timer.namespace, key_group)
            if entry not in known:
                known.add(entry)
                heapq.heappush(heap, entry)
        while heap:
            known.remove(heapq.heappop(heap))
            polled += 1
        taken = setting.clock() - start
        _check(polled, len(entries))
        return polled / taken

    return run


def _first_polls(setting: Setting) -> Iterator[Result]:
    count = setting.count(1_000_000)
    with Subtask(setting.new_directory("large-queue")) as subtask:
        backend = subtask.open("rocksdb", local="kept")
        backend.get_priority_queue(TIMERS).add_all(_entries(setting, count))
        handles = [subtask.snapshot(backend)]
        backend.close()

        def run() -> float:
            start = setting.clock()
            backend = subtask.open("rocksdb", handles[-1], local="kept")
            queue = backend.get_priority_queue(TIMERS)
            polled = sum(queue.poll() is not None for _ in range(_POLLED))
            taken = setting.clock() - start
            handles.append(subtask.snapshot(backend))
            backend.close()
            _check(polled, _POLLED)
            return taken * 1000

        name = f"RocksDB queue of {count:,} timers opened, {_POLLED} polled"
        yield Result(name, medians(setting, {"ours": run})["ours"], FIRST_POLLS_MS, REQUIRED, "ms", 1.0)


def _check(polled: int, expected: int) -> None:
    if polled != expected:
        raise AssertionError(f"{polled} timers were polled, not {expected}")
