"""A key-grouped priority queue, as timers are kept in one, beside ``heapq``.

A turn is one epoch over a queue that has elements: it adds as many as it polls, and ends with the synchronous part of a
snapshot. The peer keeps pairs of moment and key group in a list, does not find out whether an element is there already,
and cannot remove one that is not the smallest.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

from benchmarks.backends.measuring import OURS, compared
from benchmarks.backends.setting import Setting, key_group_of
from benchmarks.backends.subtask import Subtask
from benchmarks.result import Result
from statebackend import PriorityQueueDescriptor
from typeserializers.fixed_width import LongSerializer
from typeserializers.timers import Timer, TimerSerializer
from typeserializers.void import VOID_NAMESPACE, VoidNamespaceSerializer

_PEER = "heapq"


def priority_queue(setting: Setting) -> Iterator[Result]:
    """100,000 timers, and 20,000 added and polled in an epoch, on both backends."""
    size, changed = setting.count(100_000), setting.count(20_000)
    for backend_name, title in (("heap", "heap"), ("rocksdb", "RocksDB")):
        with Subtask(setting.new_directory("queue")) as subtask:
            yield from _compared(setting, subtask, backend_name, title, size, changed)


def _compared(
    setting: Setting, subtask: Subtask, backend_name: str, title: str, size: int, changed: int
) -> Iterator[Result]:
    backend = subtask.open(backend_name)
    serializer = TimerSerializer(LongSerializer(), VoidNamespaceSerializer())
    queue = backend.get_priority_queue(PriorityQueueDescriptor("timers", serializer))
    our_moments, peers_moments = _moments(setting), _moments(setting)
    queue.add_all(_timers(our_moments, size))
    subtask.snapshot(backend)
    heap = list(itertools.islice(peers_moments, size))
    heapq.heapify(heap)
    last_polled: dict[str, int] = {}

    def ours() -> float:
        added = _timers(our_moments, changed)
        add, poll, timer = queue.add, queue.poll, None
        start = setting.clock()
        for element, key_group in added:
            add(element, key_group)
        for _ in range(changed):
            timer = poll()
        finish = subtask.prepare_snapshot(backend)
        elapsed = setting.clock() - start
        finish()
        last_polled[OURS] = -1 if timer is None else timer.timestamp
        return changed / elapsed

    def peer() -> float:
        added = list(itertools.islice(peers_moments, changed))
        add, poll, moment = heapq.heappush, heapq.heappop, (-1, -1)
        start = setting.clock()
        for entry in added:
            add(heap, entry)
        for _ in range(changed):
            moment = poll(heap)
        elapsed = setting.clock() - start
        last_polled[_PEER] = moment[0]
        return changed / elapsed

    name = f"{title} priority queue of {size:,}, {changed:,} added and polled an epoch"
    yield from compared(setting, name, "entries/s", ours, {_PEER: peer})
    if last_polled[OURS] != last_polled[_PEER]:
        raise AssertionError(f"the moments polled last differ: {last_polled}")


def _moments(setting: Setting) -> Iterator[tuple[int, int]]:
    """Moments with their key groups, the same for both sides."""
    source = setting.random()
    while True:
        moment = source.randrange(1 << 40)
        yield moment, key_group_of(moment)


def _timers(moments: Iterator[tuple[int, int]], count: int) -> list[tuple[Timer[int, Any], int]]:
    return [(Timer(moment, moment, VOID_NAMESPACE), group) for moment, group in itertools.islice(moments, count)]
