"""The contract of metrics. Without metrics, functions get unwrapped handles. With metrics, each access is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.internal_states import MergingState, TtlState
from statebackend.state.key_context import NamespacedKeyContext
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.measured_states import MeasuredHandle
from statebackend.state.metrics import StateMetrics, StateMetricsConfig
from statebackend.state.priority_queue import PriorityQueueDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.testing.backends.evolving_records import IMMUTABLE_SUM, MUTABLE_SUM, SUM
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, ContractBase, contents, fill, filled
from typeserializers.scalars.fixed_width import ShortSerializer
from typeserializers.scalars.strings import StringSerializer

TEXT = StringSerializer()
QUEUE: PriorityQueueDescriptor[int] = PriorityQueueDescriptor("queue", ShortSerializer())
EVERY_ACCESS = StateMetricsConfig(latency_sample_interval=1)

FOLDING_READS: list[Callable[[Any], object]] = [lambda state: state.get()]
FOLDING_WRITES: list[Callable[[Any], object]] = [
    lambda state: state.add(1),
    lambda state: state.add(2),
    lambda state: state.clear(),
]

# The read accesses and the write accesses of each state.
ACCESSES: list[tuple[StateDescriptor, list[Callable[[Any], object]], list[Callable[[Any], object]]]] = [
    (
        VALUE,
        [lambda state: state.value()],
        [lambda state: state.update(1), lambda state: state.update(None), lambda state: state.clear()],
    ),
    (
        LIST,
        [lambda state: state.get()],
        [
            lambda state: state.add(1),
            lambda state: state.add_all([1, 2]),
            lambda state: state.update([3]),
            lambda state: state.clear(),
        ],
    ),
    (
        MAP,
        [
            lambda state: state.get("a"),
            lambda state: state.contains("a"),
            lambda state: state.is_empty(),
            lambda state: list(state.items()),
            lambda state: list(state.keys()),
            lambda state: list(state.values()),
        ],
        [
            lambda state: state.put("a", 1),
            lambda state: state.put_all({"b": 1, "c": 2}),
            lambda state: state.remove("a"),
            lambda state: state.clear(),
        ],
    ),
    (SUM, FOLDING_READS, FOLDING_WRITES),
    (IMMUTABLE_SUM, FOLDING_READS, FOLDING_WRITES),
    (MUTABLE_SUM, FOLDING_READS, FOLDING_WRITES),
]

EVERY_KIND = pytest.mark.parametrize(
    ("descriptor", "reads", "writes"), ACCESSES, ids=lambda given: getattr(given, "name", "")
)


class StateMetricsContract(ContractBase):
    """Metrics of keyed state on a backend."""

    def open_measured(
        self, harness: BackendHarness, *restore: KeyedStateHandle, config: StateMetricsConfig = EVERY_ACCESS
    ) -> KeyedStateBackend:
        """Return a backend with metrics, at key 1."""
        backend = harness.open(self.create_state_backend(), *restore, metrics=config)
        harness.at(backend, 1)
        return backend

    def test_metrics_are_off_by_default_and_handles_are_not_wrapped(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        for descriptor, _, _ in ACCESSES:
            assert not isinstance(backend.get_state(descriptor), MeasuredHandle)
        assert not isinstance(backend.get_priority_queue(QUEUE), MeasuredHandle)
        snapshot = harness.snapshot(backend)
        assert backend.parameters.metrics is None
        assert dict(backend.collect_metrics(snapshot).states) == {}

    @EVERY_KIND
    @pytest.mark.parametrize("rounds", [1, 3])
    def test_every_access_is_counted_and_timed_with_a_sample_interval_of_one(
        self,
        harness: BackendHarness,
        descriptor: StateDescriptor,
        reads: list[Callable[[Any], object]],
        writes: list[Callable[[Any], object]],
        rounds: int,
    ) -> None:
        backend = self.open_measured(harness)
        state = backend.get_state(descriptor)
        assert backend.get_state(descriptor) is state
        for _ in range(rounds):
            for write in writes:
                write(state)
                for read in reads:
                    read(state)
        metrics = backend.collect_metrics().states[descriptor.name]
        expected = len(writes) * len(reads) * rounds, len(writes) * rounds
        assert (metrics.reads, metrics.writes) == expected
        assert (metrics.read_latency.count, metrics.write_latency.count) == expected

    def test_accesses_to_a_priority_queue_are_counted_and_timed(self, harness: BackendHarness) -> None:
        backend = self.open_measured(harness)
        queue = backend.get_priority_queue(QUEUE)
        assert backend.get_priority_queue(QUEUE) is queue
        queue.add(3, 1)
        queue.add_all([(1, 1), (2, 2), (4, 3)])
        queue.remove(2, 2)
        assert queue.poll() == 1
        assert (queue.peek(), queue.peek_key_group(), queue.is_empty(), queue.size()) == (3, 1, False, 2)
        assert list(queue.entries()) == [(3, 1), (4, 3)]
        assert list(queue.subset_of_key_group(3)) == [4]
        metrics = backend.collect_metrics(harness.snapshot(backend)).states["queue"]
        assert (metrics.reads, metrics.writes) == (6, 4)
        assert (metrics.read_latency.count, metrics.write_latency.count) == (6, 4)
        assert metrics.entries == 2 or metrics.entries is None or not metrics.entries_are_exact
        assert list(queue.poll_while(lambda element: element < 4)) == [(3, 1)]
        assert backend.collect_metrics().states["queue"].writes == 5

    def test_all_accesses_are_counted_and_a_sample_is_timed(self, harness: BackendHarness) -> None:
        backend = self.open_measured(harness, config=StateMetricsConfig(latency_sample_interval=10))
        state = backend.get_state(VALUE)
        for number in range(5_000):
            state.update(number)
            assert state.value() == number
        metrics = backend.collect_metrics().states["value"]
        assert (metrics.reads, metrics.writes) == (5_000, 5_000)
        for latency in (metrics.read_latency, metrics.write_latency):
            assert 400 < latency.count < 600

    def test_metrics_wrap_state_with_time_to_live(self, harness: BackendHarness) -> None:
        backend = self.open_measured(harness)
        state: Any = backend.get_state(evolve(VALUE, ttl=StateTtlConfig(1_000_000)))
        assert isinstance(getattr(state, "wrapped", None), TtlState)
        state.update(1)
        assert state.value() == 1
        metrics = backend.collect_metrics(harness.snapshot(backend)).states["value"]
        assert (metrics.reads, metrics.writes) == (1, 1)

    def test_a_failed_access_is_counted_and_raises_the_same_error(self, harness: BackendHarness) -> None:
        backend = self.open_measured(harness)
        plain = harness.open(self.create_state_backend())
        harness.at(plain, 1)
        misfit: Any = "misfit"
        state = backend.get_state(VALUE)
        with pytest.raises(Exception, match="'value'") as expected:
            plain.get_state(VALUE).update(misfit)
        with pytest.raises(expected.type, match="'value'"):
            state.update(misfit)
        metrics = backend.collect_metrics().states["value"]
        assert (metrics.writes, metrics.write_latency.count) == (1, 1)

    def test_metrics_do_not_change_the_state(self, harness: BackendHarness) -> None:
        backend = self.open_measured(harness)
        fill(harness, backend, range(20))
        harness.snapshot(backend)
        fill(harness, backend, range(20), 1)
        handle = harness.snapshot(backend).handle
        assert contents(harness, self.reopen(harness, handle)) == filled(range(20), 0, 1)
        assert contents(harness, self.open_measured(harness, handle)) == filled(range(20), 0, 1)

    @EVERY_KIND
    def test_state_with_metrics_has_namespaces(
        self,
        harness: BackendHarness,
        descriptor: StateDescriptor,
        reads: list[Callable[[Any], object]],
        writes: list[Callable[[Any], object]],
    ) -> None:
        backend = self.open_measured(harness)
        state: Any = backend.get_partitioned_state("a", TEXT, descriptor)
        assert isinstance(state.key_context, NamespacedKeyContext)
        empty = reads[0](state)
        writes[0](state)
        written = reads[0](state)
        assert written != empty
        state.set_current_namespace("b")
        assert reads[0](state) == empty
        counted = backend.collect_metrics().states[descriptor.name]
        namespace = "a"
        if isinstance(state, MergingState):
            state.merge_namespaces("b", ["a"])
            assert reads[0](state) == written
            assert backend.collect_metrics().states[descriptor.name].writes == counted.writes + 1
            namespace = "b"
        walked: list[tuple[Any, Any]] = []
        backend.apply_to_all_keys(namespace, TEXT, descriptor, lambda key, given: walked.append((key, given)))
        assert walked == [(1, state)]

    def test_entries_and_bytes_are_those_of_the_last_snapshot(self, harness: BackendHarness) -> None:
        backend = self.open_measured(harness)
        fill(harness, backend, range(100))
        first_snapshot = harness.snapshot(backend)
        first = backend.collect_metrics(first_snapshot)
        assert set(first.states) == {"value", "list", "map"}
        sizes = {file.size_bytes for file in first_snapshot.handle.files}
        assert {state.size_bytes for state in first.states.values()} == sizes
        assert sum(state.bytes_written for state in first.states.values()) == first_snapshot.bytes_written
        assert (first.snapshot.snapshots, first.snapshot.bytes_written) == (1, first_snapshot.bytes_written)
        assert first.snapshot.entries_written == first_snapshot.entries_written
        assert first.snapshot.synchronous_s >= 0
        assert first.snapshot.asynchronous_s >= 0
        for name, entries in (("value", 100), ("map", 200)):
            _check_entries(first.states[name], entries)
        harness.at(backend, 5)
        backend.get_state(VALUE).update(-5)
        second_snapshot = harness.snapshot(backend)
        second = backend.collect_metrics(second_snapshot)
        value = second.states["value"]
        assert value.bytes_written == second_snapshot.bytes_written > 0
        assert value.size_bytes == first.states["value"].size_bytes + value.bytes_written
        assert second.states["map"].size_bytes == first.states["map"].size_bytes
        assert second.states["map"].bytes_written == 0
        _check_entries(value, 100)

    def test_cache_hits_count_the_accesses_that_read_no_database(self, harness: BackendHarness) -> None:
        backend = self.open_measured(harness)
        fill(harness, backend, range(50))
        restored = self.open_measured(harness, harness.snapshot(backend).handle)
        state = restored.get_state(VALUE)
        # The accesses of a key are consecutive, so a cache with one entry has the same hits.
        for key in range(50):
            for _ in range(4):
                harness.at(restored, key)
                state.value()
        metrics = restored.collect_metrics().states["value"]
        assert metrics.accesses == 200
        if metrics.cache_misses is None:
            assert metrics.cache_hits is None
        else:
            assert (metrics.cache_misses, metrics.cache_hits) == (50, 150)


def _check_entries(metrics: StateMetrics, entries: int) -> None:
    if metrics.entries is not None and metrics.entries_are_exact:
        assert metrics.entries == entries
