"""The contract of the incremental clean-up: it removes expired entries that are not read."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.ttl_config import IncrementalCleanup, StateTtlConfig
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.harness import BackendHarness, ManualClock
from statebackend.testing.backends.ttl_cases import ON_WRITE, TTL_MS, TtlCase, TtlContractBase, every_case, is_stored
from typeserializers.scalars.strings import StringSerializer

KEYS = range(2, 42)
"""The keys of the entries to clean up. The tests access key 1."""

TEXT = StringSerializer()

VALUE: ValueStateDescriptor[int] = ValueStateDescriptor("value", int)


def cleaning(entries: int, *, for_every_record: bool = False) -> StateTtlConfig:
    """Return a configuration that checks this number of entries at each access."""
    return evolve(
        ON_WRITE,
        cleanup_full_snapshot=False,
        incremental_cleanup=IncrementalCleanup(entries, for_every_record=for_every_record),
    )


class TtlCleanupContract(TtlContractBase):
    """The incremental clean-up on a backend."""

    def filled(self, harness: BackendHarness, case: TtlCase, ttl: StateTtlConfig) -> KeyedStateBackend:
        """Return a backend with restored entries for `KEYS`, at key 1, with the registered state."""
        backend, descriptor = self.fresh(harness), case.with_ttl(ttl)
        state: Any = backend.get_state(descriptor)
        for key in KEYS:
            harness.at(backend, key)
            case.write(state, key)
        backend = self.restored(harness, backend)
        backend.get_state(descriptor)
        return backend

    def stored_keys(self, backend: KeyedStateBackend, name: str) -> list[int]:
        """Return the keys of all stored entries, expired or not."""
        return sorted(backend.get_keys(name))

    @every_case
    def test_accesses_to_one_key_clean_up_all_others_a_few_at_a_time(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.filled(harness, case, cleaning(5)), case.with_ttl(cleaning(5))
        state: Any = backend.get_state(descriptor)
        clock.now_ms = TTL_MS - 1
        for _ in range(2 * len(KEYS)):
            case.read(state)
        assert self.stored_keys(backend, descriptor.name) == list(KEYS)
        accesses = 0
        left = len(KEYS)
        # A backend may count the rows of a map, and a pass may have started already.
        while left and accesses < 10 * len(KEYS):
            accesses += 1
            clock.now_ms = TTL_MS + accesses
            state.clear()
            before, left = left, len(self.stored_keys(backend, descriptor.name))
            assert before - left <= 5
        assert left == 0
        backend = self.restored(harness, backend)
        assert not is_stored(backend, descriptor)

    @every_case
    def test_one_access_can_clean_up_everything(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend = self.filled(harness, case, cleaning(1000))
        state: Any = backend.get_state(case.with_ttl(cleaning(1000)))
        harness.at(backend, KEYS[7])
        clock.now_ms = 50
        case.write(state, KEYS[7])
        harness.at(backend, 1)
        clock.now_ms = TTL_MS
        assert case.read(state) == case.nothing
        assert self.stored_keys(backend, case.descriptor.name) == [KEYS[7]]
        harness.at(backend, KEYS[7])
        assert case.read(state) == case.content(KEYS[7])

    @every_case
    def test_cleaning_up_leaves_key_and_namespace_alone(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(cleaning(3))
        for key in KEYS:
            harness.at(backend, key)
            for namespace in ("first", "second"):
                case.write(backend.get_partitioned_state(namespace, TEXT, descriptor), key)
        backend = self.restored(harness, backend)
        for step in range(100):
            clock.now_ms = TTL_MS + step
            key = 1 + step % 3
            harness.at(backend, key)
            state: Any = backend.get_partitioned_state("third", TEXT, descriptor)
            case.write(state, step)
            assert case.read(state) == case.content(step)
        assert set(backend.get_keys_and_namespaces(descriptor.name)) == {(key, "third") for key in (1, 2, 3)}

    @every_case
    def test_cleaning_up_goes_on_while_a_snapshot_is_written(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.filled(harness, case, cleaning(1000)), case.with_ttl(cleaning(1000))
        state: Any = backend.get_state(descriptor)
        harness.at(backend, KEYS[0])
        clock.now_ms = 50
        case.write(state, KEYS[0])
        task = backend.prepare_snapshot(100, "state-100")
        clock.now_ms = TTL_MS
        harness.at(backend, 1)
        case.read(state)
        assert self.stored_keys(backend, descriptor.name) == [KEYS[0]]
        handle: KeyedStateHandle = task.run().handle
        clock.now_ms = 60
        restored = self.reopen(harness, handle)
        state = restored.get_state(descriptor)
        for key in KEYS:
            harness.at(restored, key)
            assert case.read(state) == case.content(key)
        clock.now_ms = TTL_MS
        again = self.restored(harness, backend)
        assert self.stored_keys(again, descriptor.name) == [KEYS[0]]

    def test_clean_up_can_run_for_every_record(self, harness: BackendHarness, clock: ManualClock) -> None:
        backend, descriptor = self.fresh(harness), evolve(VALUE, ttl=cleaning(2, for_every_record=True))
        state = backend.get_state(descriptor)
        for key in KEYS:
            harness.at(backend, key)
            state.update(key)
        backend = self.restored(harness, backend)
        backend.get_state(descriptor)
        for step in range(100):
            clock.now_ms = TTL_MS + step
            harness.at(backend, 1)
        assert not is_stored(backend, descriptor)

    def test_without_clean_up_only_accesses_remove_entries(self, harness: BackendHarness, clock: ManualClock) -> None:
        descriptor = evolve(VALUE, ttl=evolve(ON_WRITE, incremental_cleanup=None))
        backend = self.fresh(harness)
        state = backend.get_state(descriptor)
        for key in KEYS:
            harness.at(backend, key)
            state.update(key)
        harness.snapshot(backend)
        for step in range(100):
            clock.now_ms = TTL_MS + step
            assert state.value() is None
        assert self.stored_keys(backend, "value") == [key for key in KEYS if key != KEYS[-1]]

    @pytest.mark.parametrize("hot_keys", [range(40), range(30, 70), range(60, 100)])
    def test_clean_up_reaches_every_entry_with_a_new_backend_per_epoch(
        self, harness: BackendHarness, clock: ManualClock, hot_keys: range
    ) -> None:
        """Clean up everything over many epochs, also if each epoch covers few entries."""
        descriptor = evolve(VALUE, ttl=evolve(cleaning(3), ttl_ms=2 * TTL_MS))
        backend = self.fresh(harness)
        state = backend.get_state(descriptor)
        for key in range(100):
            harness.at(backend, key)
            state.update(key)
        handle = harness.snapshot(backend).handle
        for epoch in range(400):
            backend.close()
            backend = self.reopen(harness, handle, local="kept")
            state = backend.get_state(descriptor)
            clock.now_ms += 17
            for number in range(8):
                harness.at(backend, hot_keys[(epoch * 7 + number * 11) % len(hot_keys)])
                state.update(epoch)
            handle = harness.snapshot(backend).handle
            if epoch % 20 == 0 and set(backend.get_keys("value")) <= set(hot_keys):
                return
        raise AssertionError(f"{len(list(backend.get_keys('value')))} expired keys were not removed")
