"""Handles that count and time the accesses to the handles they are put around.

A measured handle is outermost: what it times is what the user's function waits for, time to live and folding included.
It is an internal handle like the one that it wraps, so whatever knows kinds of state takes it for one.

Each method is generated: it adds one to a counter and calls the wrapped method, unless this access is one to be timed.
The distances between timed accesses are random around the interval: with a fixed one, a function that calls the same
methods for each record would have the same one timed every time. They come from a generator of this handle's own with
a fixed seed, so that they repeat in a replay and draw nothing from anybody else's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from statebackend.descriptors import StateDescriptor, StateKind
from statebackend.internal_states import (
    InternalAggregatingState,
    InternalListState,
    InternalMapState,
    InternalReducingState,
    InternalState,
    InternalValueState,
)
from statebackend.key_context import AnyKeyContext
from statebackend.metrics.latency_histogram import LatencyHistogram
from statebackend.metrics.state_metrics import StateMetricsConfig
from statebackend.priority_queue import KeyGroupedPriorityQueue
from typeserializers.code_generation import GeneratedFunction

_READ: Final = "read"
_WRITE: Final = "write"


class MeasuredHandle:
    """The counters of a handle. Its subclasses are made by `_measured_class`."""

    __slots__ = (
        "_distance",
        "next_timed_read",
        "next_timed_write",
        "read_latency",
        "reads",
        "wrapped",
        "write_latency",
        "writes",
    )

    measured_methods: Sequence[str] = ()

    def __init__(self, wrapped: Any, config: StateMetricsConfig) -> None:
        self.wrapped = wrapped
        for name in self.measured_methods:
            setattr(self, f"_{name}", getattr(wrapped, name))
        interval = config.latency_sample_interval
        draw = random.Random(interval).randrange
        self._distance: Callable[[], int] = lambda: 1 + draw(2 * interval - 1)
        self.reads = 0
        self.writes = 0
        self.read_latency = LatencyHistogram()
        self.write_latency = LatencyHistogram()
        self.next_timed_read = self._distance()
        self.next_timed_write = self._distance()

    def record_read(self, latency_ns: int) -> None:
        """Notes a timed read."""
        self.read_latency.record(latency_ns)
        self.next_timed_read = self.reads + self._distance()

    def record_write(self, latency_ns: int) -> None:
        """Notes a timed write."""
        self.write_latency.record(latency_ns)
        self.next_timed_write = self.writes + self._distance()


class MeasuredState(MeasuredHandle, InternalState):
    """A measured handle of state by key and namespace."""

    __slots__ = ()

    @property
    def key_context(self) -> AnyKeyContext:
        context: AnyKeyContext = self.wrapped.key_context
        return context

    def set_current_namespace(self, namespace: Any) -> None:
        self.wrapped.set_current_namespace(namespace)


class MeasuredQueue(MeasuredHandle, KeyGroupedPriorityQueue[Any]):
    """A measured priority queue."""

    __slots__ = ()

    def poll_while(self, is_due: Callable[[Any], bool]) -> Iterator[tuple[Any, int]]:
        # One write per element, like polling them one by one; what is_due does is not the queue's time.
        for entry in self.wrapped.poll_while(is_due):
            self.writes += 1
            yield entry


def _method(name: str, parameters: str, access: str) -> Callable[..., Any]:
    function = GeneratedFunction(name, f"self, {parameters}" if parameters else "self")
    clock = function.bind("clock", time.perf_counter_ns)
    call = f"self._{name}({parameters})"
    return function.compile(
        [
            f"self.{access}s = count = self.{access}s + 1",
            f"if count < self.next_timed_{access}: return {call}",
            f"started = {clock}()",
            f"try: return {call}",
            f"finally: self.record_{access}({clock}() - started)",
        ]
    )


def _measured_class(
    name: str, bases: tuple[type, ...], reads: dict[str, str], writes: dict[str, str]
) -> type[MeasuredHandle]:
    """A class with a counting method for each name, whose parameters are given; the wrapped ones are in its slots."""
    methods = {method: _method(method, parameters, _READ) for method, parameters in reads.items()}
    methods |= {method: _method(method, parameters, _WRITE) for method, parameters in writes.items()}
    slots = tuple(f"_{method}" for method in methods)
    return type(
        name, bases, {"__slots__": slots, "__module__": __name__, "measured_methods": tuple(methods), **methods}
    )


_CLASSES: Final[dict[StateKind, type[MeasuredHandle]]] = {
    StateKind.VALUE: _measured_class(
        "MeasuredValueState",
        (MeasuredState, InternalValueState),
        {"value": ""},
        {"update": "value", "clear": ""},
    ),
    StateKind.LIST: _measured_class(
        "MeasuredListState",
        (MeasuredState, InternalListState),
        {"get": ""},
        {
            "add": "element",
            "add_all": "elements",
            "update": "elements",
            "clear": "",
            "merge_namespaces": "target, sources",
        },
    ),
    StateKind.MAP: _measured_class(
        "MeasuredMapState",
        (MeasuredState, InternalMapState),
        {"get": "key", "contains": "key", "items": "", "keys": "", "values": "", "is_empty": ""},
        {"put": "key, value", "put_all": "entries", "remove": "key", "clear": ""},
    ),
    StateKind.REDUCING: _measured_class(
        "MeasuredReducingState",
        (MeasuredState, InternalReducingState),
        {"get": ""},
        {"add": "value", "clear": "", "merge_namespaces": "target, sources"},
    ),
    StateKind.AGGREGATING: _measured_class(
        "MeasuredAggregatingState",
        (MeasuredState, InternalAggregatingState),
        {"get": ""},
        {"add": "value", "clear": "", "merge_namespaces": "target, sources"},
    ),
    StateKind.PRIORITY_QUEUE: _measured_class(
        "MeasuredPriorityQueue",
        (MeasuredQueue,),
        {
            "peek": "",
            "peek_key_group": "",
            "is_empty": "",
            "size": "",
            "entries": "",
            "subset_of_key_group": "key_group",
        },
        {"add": "element, key_group", "add_all": "entries", "remove": "element, key_group", "poll": ""},
    ),
}


def measured(handle: Any, descriptor: StateDescriptor, config: StateMetricsConfig) -> Any:
    """A measured handle around one of that descriptor's kind."""
    return _CLASSES[descriptor.kind](handle, config)
