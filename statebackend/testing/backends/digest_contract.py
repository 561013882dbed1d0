"""The contract of digests: two attempts at an epoch have equal digests if they have the same content.

Spark may recompute a task with its records in another order. The digest must not depend on the order of keys, on the
number of cache flushes, or on the division of the state into files. It must differ if the content differs.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, ContractBase, ManualClock

TEXTS: ListStateDescriptor[str] = ListStateDescriptor("texts", str)

KEYS = range(12)

Step = Callable[[BackendHarness, KeyedStateBackend, int], None]


def _value(harness: BackendHarness, backend: KeyedStateBackend, key: int) -> None:
    state = backend.get_state(VALUE)
    state.update((state.value() or 0) + key)
    if key % 4 == 3:
        state.clear()


def _lists(harness: BackendHarness, backend: KeyedStateBackend, key: int) -> None:
    elements, texts = backend.get_state(LIST), backend.get_state(TEXTS)
    elements.add(key)
    texts.add_all(["a", "b" * key])
    if key % 3 == 1:
        elements.update([*elements.get(), 7])
    elif key % 3 == 2:
        texts.clear()


def _map(harness: BackendHarness, backend: KeyedStateBackend, key: int) -> None:
    state = backend.get_state(MAP)
    state.put("seen", key)
    state.put(f"{key}", key)
    if key % 4 == 2:
        state.clear()
        state.put("seen", 1)
    elif key % 4 == 1:
        state.remove(f"{key}")


STEPS: tuple[Step, ...] = (_value, _lists, _map)


class DigestContract(ContractBase):
    """Digests of snapshots."""

    @pytest.mark.parametrize("seed", range(4))
    def test_the_digest_does_not_depend_on_the_order_of_keys(self, harness: BackendHarness, seed: int) -> None:
        base = _base_of(self, harness)
        digests = set()
        for attempt in range(3):
            backend = _opened(self, harness, base)
            # The steps of each key are in order. Steps of other keys may be between them.
            shuffled = random.Random(10 * seed + attempt)
            left = {key: list(STEPS) for key in KEYS}
            while left:
                key = shuffled.choice(sorted(left))
                harness.at(backend, key)
                left[key].pop(0)(harness, backend, key)
                if not left[key]:
                    del left[key]
            digests.add(harness.snapshot(backend).digest)
            backend.close()
        assert len(digests) == 1

    def test_an_entry_added_and_removed_in_one_epoch_does_not_change_the_digest(self, harness: BackendHarness) -> None:
        base = _base_of(self, harness)
        digests = []
        for detour in (False, True):
            backend = _opened(self, harness, base)
            if detour:
                harness.at(backend, 100)
                for descriptor in (LIST, TEXTS):
                    state: Any = backend.get_state(descriptor)
                    state.clear()
                entries = backend.get_state(MAP)
                entries.put("a", 1)
                entries.remove("a")
                backend.get_state(VALUE).update(1)
                backend.get_state(VALUE).clear()
            harness.at(backend, 1)
            backend.get_state(VALUE).update(-1)
            digests.append(harness.snapshot(backend).digest)
            backend.close()
        assert digests[0] == digests[1]

    @pytest.mark.parametrize("snapshot_fails", [False, True])
    def test_an_unchanged_rewrite_does_not_change_the_digest(
        self, harness: BackendHarness, snapshot_fails: bool
    ) -> None:
        base = _base_of(self, harness)
        digests = []
        for is_rewritten in (False, True):
            backend = _opened(self, harness, base)
            value, elements, entries = backend.get_state(VALUE), backend.get_state(LIST), backend.get_state(MAP)
            texts = backend.get_state(TEXTS)
            if is_rewritten:
                for key in KEYS:
                    harness.at(backend, key)
                    value.update(value.value())
                    elements.update(elements.get())
                    texts.update(texts.get())
                    held = dict(entries.items())
                    if key % 2:
                        entries.clear()
                    entries.put_all(held)
                if snapshot_fails:
                    harness.prepare(backend).cancel()
                for key in KEYS[::3]:
                    # A value that is changed and changed back is not a change.
                    harness.at(backend, key)
                    before = value.value()
                    value.update(-1)
                    value.update(before)
                    before = entries.get("0")
                    entries.remove("0")
                    entries.put("0", before)
                    entries.put("away", 1)
                    entries.remove("away")
            harness.at(backend, 1)
            value.update(-1)
            elements.add(5)
            entries.put("b", 1)
            entries.remove("1")
            digests.append(harness.snapshot(backend).digest)
            backend.close()
        assert digests[0] == digests[1]

    @pytest.mark.parametrize("keys_read", [(), (1,), (1, 2, 3)], ids=["nothing", "one", "all"])
    def test_the_digest_does_not_depend_on_clean_up(self, harness: BackendHarness, keys_read: tuple[int, ...]) -> None:
        clock = ManualClock(1_000)
        harness.clock = clock
        ttl = StateTtlConfig(1_000)
        descriptors: list[Any] = [evolve(descriptor, ttl=ttl) for descriptor in (VALUE, LIST, MAP)]
        backend = harness.open(self.create_state_backend())
        for key in (1, 2, 3, 4):
            harness.at(backend, key)
            value, elements, entries = (backend.get_state(descriptor) for descriptor in descriptors)
            value.update(key)
            elements.add_all([key, 1])
            entries.put_all({"a": key, "b": None})
            if key == 3:
                clock.now_ms += 500
                elements.add(7)
                entries.put("c", 7)
        handle = harness.snapshot(backend).handle
        backend.close()
        clock.now_ms = 2_200
        digests = []
        for keys in ((), keys_read):
            backend = self.reopen(harness, handle)
            value, elements, entries = (backend.get_state(descriptor) for descriptor in descriptors)
            for key in keys:
                # Reading removes expired entries.
                harness.at(backend, key)
                value.value(), elements.get(), entries.get("a"), entries.get("b")
            harness.at(backend, 3)
            elements.add(8)
            entries.put("a", 8)
            digests.append(harness.snapshot(backend).digest)
            backend.close()
        assert digests[0] == digests[1]

    def test_a_digest_does_not_depend_on_how_the_base_was_stored(self, harness: BackendHarness) -> None:
        increments = _base_of(self, harness)
        backend = _opened(self, harness, increments)
        exported = harness.export(backend)
        backend.close()
        digests = set()
        for base in (increments, exported):
            backend = _opened(self, harness, base)
            for key, step in itertools.product(KEYS, STEPS):
                harness.at(backend, key)
                step(harness, backend, key)
            digests.add(harness.snapshot(backend).digest)
            backend.close()
        assert len(digests) == 1

    @pytest.mark.parametrize(
        "difference", ["another value", "another order in a list", "a value less", "an entry more"]
    )
    def test_different_content_has_a_different_digest(self, harness: BackendHarness, difference: str) -> None:
        base = _base_of(self, harness)
        digests = []
        for is_other in (False, True):
            backend = _opened(self, harness, base)
            harness.at(backend, 1)
            value, elements, entries = backend.get_state(VALUE), backend.get_state(LIST), backend.get_state(MAP)
            value.update(-2 if is_other and difference == "another value" else -1)
            elements.add_all([2, 1] if is_other and difference == "another order in a list" else [1, 2])
            entries.put("b", 1)
            if is_other and difference == "an entry more":
                entries.put("c", 1)
            if is_other and difference == "a value less":
                harness.at(backend, 2)
                value.clear()
            digests.append(harness.snapshot(backend).digest)
            backend.close()
        assert digests[0] != digests[1]


def _base_of(contract: ContractBase, harness: BackendHarness) -> KeyedStateHandle:
    backend = harness.open(contract.create_state_backend())
    for epoch in range(3):
        for key in KEYS:
            harness.at(backend, key)
            backend.get_state(VALUE).update(key)
            backend.get_state(LIST).add_all([epoch, key])
            backend.get_state(TEXTS).add("text")
            backend.get_state(MAP).put(f"{epoch}", key)
        handle = harness.snapshot(backend).handle
    backend.close()
    return handle


def _opened(contract: ContractBase, harness: BackendHarness, handle: KeyedStateHandle) -> KeyedStateBackend:
    backend = contract.reopen(harness, handle)
    for descriptor in (VALUE, LIST, TEXTS, MAP):
        backend.get_state(descriptor)
    return backend
