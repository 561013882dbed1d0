"""State handles that count and time the accesses to the handles they wrap.

A measured handle is the outermost one: its latencies include time-to-live and folding. It implements the internal
interface of the handle that it wraps.

The methods of a handle are closures, generated for each method of a kind. A method counts down to the next access that
is timed. The number of accesses follows from the drawn distances and the remaining count, so no second counter is
needed. The distances are random around the interval, because a fixed interval could match a period of the user's
function. They come from a generator with a fixed seed per handle, so a replay repeats them and no other random sequence
changes.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from statebackend.state.internal_states import HandleContext, InternalState
from statebackend.state.metrics import LatencyHistogram, StateMetricsConfig
from statebackend.state.priority_queue import KeyGroupedPriorityQueue
from statebackend.state.state_kind import StateKind
from typeserializers.kernel.code_generation import GeneratedFunction


class MeasuredHandle:
    """The counts and times of a handle's methods. `_measured_class` creates the subclasses."""

    __slots__ = ("_read_counts", "_write_counts", "read_latency", "wrapped", "write_latency")

    read_methods: Mapping[str, Callable[..., Any]] = {}
    write_methods: Mapping[str, Callable[..., Any]] = {}

    def __init__(self, wrapped: Any, config: StateMetricsConfig) -> None:
        self.wrapped = wrapped
        self.read_latency = LatencyHistogram()
        self.write_latency = LatencyHistogram()
        interval = config.latency_sample_interval
        draw = random.Random(interval).randrange

        def distance() -> int:
            return 1 + draw(2 * interval - 1)

        self._read_counts = self._measure(self.read_methods, self.read_latency, distance)
        self._write_counts = self._measure(self.write_methods, self.write_latency, distance)

    def _measure(
        self, methods: Mapping[str, Callable[..., Any]], latency: LatencyHistogram, distance: Callable[[], int]
    ) -> list[Callable[[], int]]:
        counts = []
        for name, measure in methods.items():
            method, count = measure(getattr(self.wrapped, name), latency.record, distance)
            setattr(self, name, method)
            counts.append(count)
        return counts

    @property
    def reads(self) -> int:
        """The number of reads."""
        return sum(count() for count in self._read_counts)

    @property
    def writes(self) -> int:
        """The number of writes."""
        return sum(count() for count in self._write_counts)


class MeasuredState(MeasuredHandle, InternalState):
    """A measured handle of keyed state."""

    __slots__ = ()

    @property
    def key_context(self) -> HandleContext:
        context: HandleContext = self.wrapped.key_context
        return context

    def set_current_namespace(self, namespace: Any) -> None:
        self.wrapped.set_current_namespace(namespace)

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        self.wrapped.read_ahead(keys, key_groups)


class MeasuredQueue(MeasuredHandle, KeyGroupedPriorityQueue[Any]):
    """A measured priority queue."""

    __slots__ = ("_polled",)

    def __init__(self, wrapped: Any, config: StateMetricsConfig) -> None:
        super().__init__(wrapped, config)
        self._polled = 0
        self._write_counts.append(lambda: self._polled)

    def poll_while(self, is_due: Callable[[Any], bool]) -> Iterator[tuple[Any, int]]:
        # One write per element, as when polling one by one; the time of `is_due` is not counted.
        for entry in self.wrapped.poll_while(is_due):
            self._polled += 1
            yield entry


def _measurement(name: str, parameters: str) -> Callable[..., Any]:
    """``measure(call, record, distance)`` returns a method that measures ``call``, and a function with its count.

    A method may be called again while it is being timed: ``left`` then falls below 0, and the count stays exact.
    """
    function = GeneratedFunction("measure", "call, record, distance")
    clock = function.bind("clock", time.perf_counter_ns)
    return function.compile(
        [
            "left = drawn = distance()",
            f"def {name}({parameters}):",
            "    nonlocal left, drawn",
            "    left -= 1",
            f"    if left > 0: return call({parameters})",
            f"    started = {clock}()",
            f"    try: return call({parameters})",
            "    finally:",
            f"        record({clock}() - started)",
            "        more = distance()",
            "        left += more",
            "        drawn += more",
            f"return {name}, lambda: drawn - left",
        ]
    )


def _measured_class(
    name: str, bases: tuple[type, ...], reads: Mapping[str, str], writes: Mapping[str, str]
) -> type[MeasuredHandle]:
    """Create a class with a slot for each method, which replaces the method of the bases; values are parameters."""
    return type(
        name,
        bases,
        {
            "__slots__": (*reads, *writes),
            "__module__": __name__,
            "read_methods": {method: _measurement(method, parameters) for method, parameters in reads.items()},
            "write_methods": {method: _measurement(method, parameters) for method, parameters in writes.items()},
        },
    )


_QUEUE_READS: Final[Mapping[str, str]] = {
    "peek": "",
    "peek_key_group": "",
    "is_empty": "",
    "size": "",
    "entries": "",
    "subset_of_key_group": "key_group",
}

_QUEUE_WRITES: Final[Mapping[str, str]] = {
    "add": "element, key_group",
    "add_all": "entries",
    "remove": "element, key_group",
    "poll": "",
}


@functools.cache
def _class_of_kind(kind: StateKind) -> type[MeasuredHandle]:
    return _measured_class(
        f"Measured{kind.name.capitalize()}State", (MeasuredState, kind.handle_class), kind.reads, kind.writes
    )


@functools.cache
def _class_of_queues() -> type[MeasuredHandle]:
    return _measured_class("MeasuredPriorityQueue", (MeasuredQueue,), _QUEUE_READS, _QUEUE_WRITES)


def measured_state(handle: InternalState, kind: StateKind, config: StateMetricsConfig) -> InternalState:
    """Wrap a handle of that kind in a measured one."""
    measured: Any = _class_of_kind(kind)(handle, config)
    state: InternalState = measured
    return state


def measured_queue(queue: KeyGroupedPriorityQueue[Any], config: StateMetricsConfig) -> KeyGroupedPriorityQueue[Any]:
    """Wrap a priority queue in a measured handle."""
    measured: Any = _class_of_queues()(queue, config)
    handle: KeyGroupedPriorityQueue[Any] = measured
    return handle
