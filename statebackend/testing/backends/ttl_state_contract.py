"""The contract of time-to-live at each access: the cases of Flink's ``TtlStateTestBase``, with restores in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from snapshots.errors import SerializationError
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.ttl_config import LONGEST_TTL_MS
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import IMMUTABLE_SUM, MUTABLE_SUM, SUM, LegV1, leg_v1
from statebackend.testing.backends.harness import BackendHarness, ManualClock
from statebackend.testing.backends.ttl_cases import (
    ON_READ,
    ON_WRITE,
    RELAXED_ON_READ,
    RELAXED_ON_WRITE,
    TTL_MS,
    TtlCase,
    TtlContractBase,
    every_case,
    is_stored,
)
from typeserializers.scalars.strings import StringSerializer

VALUE: ValueStateDescriptor[int] = ValueStateDescriptor("value", int, ttl=ON_WRITE)
LIST: ListStateDescriptor[int] = ListStateDescriptor("list", int, ttl=ON_WRITE)
MAP: MapStateDescriptor[str, int] = MapStateDescriptor("map", str, int, ttl=ON_WRITE)
TEXT = StringSerializer()


class TtlStateContract(TtlContractBase):
    """Expiry at each access, for every kind of state."""

    @every_case
    def test_unset_state_is_empty(self, harness: BackendHarness, clock: ManualClock, case: TtlCase) -> None:
        backend = self.fresh(harness)
        assert case.read(backend.get_state(case.with_ttl(ON_WRITE))) == case.nothing
        assert case.read(self.restored(harness, backend).get_state(case.with_ttl(ON_WRITE))) == case.nothing

    @every_case
    def test_an_entry_expires_after_its_last_write_and_an_access_removes_it(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(ON_WRITE)
        for written, now, read in ((1, 0, 20), (2, 50, 120), (3, 170, 220)):
            clock.now_ms = now
            case.write(backend.get_state(descriptor), written)
            backend = self.restored(harness, backend)
            clock.now_ms = read
            assert case.read(backend.get_state(descriptor)) == case.content(written)
            backend = self.restored(harness, backend)
        clock.now_ms = 269
        assert case.read(backend.get_state(descriptor)) == case.content(3)
        clock.now_ms = 270
        assert is_stored(backend, descriptor)
        assert case.read(backend.get_state(descriptor)) == case.nothing
        assert not is_stored(backend, descriptor)
        backend = self.restored(harness, backend)
        assert not is_stored(backend, descriptor)
        clock.now_ms = 170
        assert case.read(backend.get_state(descriptor)) == case.nothing

    @every_case
    @pytest.mark.parametrize("ttl", [RELAXED_ON_WRITE, RELAXED_ON_READ], ids=["on write", "on read"])
    def test_an_expired_entry_may_be_returned_once_if_configured(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase, ttl: Any
    ) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(ttl)
        case.write(backend.get_state(descriptor), 1)
        backend = self.restored(harness, backend)
        clock.now_ms = 120
        state: Any = backend.get_state(descriptor)
        if case.nothing is False:
            # contains() is the one access that returns the expired entry.
            assert state.contains("null")
        else:
            assert case.read(state) == case.content(1)
        assert not is_stored(backend, descriptor)
        assert case.read(state) == case.nothing
        assert case.read(self.restored(harness, backend).get_state(descriptor)) == case.nothing

    @every_case
    def test_reading_renews_the_time_if_configured(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(ON_READ)
        case.write(backend.get_state(descriptor), 1)
        for now in (50, 149, 248):
            backend = self.restored(harness, backend)
            clock.now_ms = now
            assert case.read(backend.get_state(descriptor)) == case.content(1)
        backend = self.restored(harness, backend)
        clock.now_ms = 348
        assert case.read(backend.get_state(descriptor)) == case.nothing
        assert not is_stored(backend, descriptor)

    @every_case
    def test_reading_renews_the_time_of_state_that_returns_expired_entries_once(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(RELAXED_ON_READ)
        case.write(backend.get_state(descriptor), 1)
        for now in (50, 120):
            backend = self.restored(harness, backend)
            clock.now_ms = now
            assert case.read(backend.get_state(descriptor)) == case.content(1)
            assert is_stored(backend, descriptor)
        backend = self.restored(harness, backend)
        clock.now_ms = 220
        state: Any = backend.get_state(descriptor)
        if case.nothing is False:
            assert state.contains("null")
        else:
            assert case.read(state) == case.content(1)
        backend = self.restored(harness, backend)
        assert not is_stored(backend, descriptor)
        assert case.read(backend.get_state(descriptor)) == case.nothing

    @every_case
    def test_the_longest_time_to_live_never_ends(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        clock.now_ms = 10
        backend, descriptor = self.fresh(harness), case.with_ttl(evolve(ON_WRITE, ttl_ms=LONGEST_TTL_MS))
        case.write(backend.get_state(descriptor), 1)
        backend = self.restored(harness, backend, as_savepoint=True)
        clock.now_ms = LONGEST_TTL_MS
        assert case.read(backend.get_state(descriptor)) == case.content(1)

    @every_case
    def test_a_clock_that_goes_backwards_expires_nothing(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        clock.now_ms = 1000
        backend, descriptor = self.fresh(harness), case.with_ttl(ON_READ)
        state: Any = backend.get_state(descriptor)
        case.write(state, 1)
        clock.now_ms = -500
        assert case.read(state) == case.content(1)
        clock.now_ms = 1099
        assert case.read(state) == case.content(1)
        clock.now_ms = 500
        case.write(state, 2)
        clock.now_ms = 599
        assert case.read(state) == case.content(2)

    @every_case
    def test_keys_and_namespaces_expire_independently(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(ON_WRITE)
        places = [(key, namespace) for key in (1, 2, 13) for namespace in ("first", "second")]
        for number, (key, namespace) in enumerate(places):
            clock.now_ms = number * 10
            harness.at(backend, key)
            case.write(backend.get_partitioned_state(namespace, TEXT, descriptor), number)
        backend = self.restored(harness, backend)
        for now in range(TTL_MS, TTL_MS + 60, 10):
            clock.now_ms = now
            for number, (key, namespace) in enumerate(places):
                harness.at(backend, key)
                state = backend.get_partitioned_state(namespace, TEXT, descriptor)
                is_alive = number * 10 + TTL_MS > now
                assert case.read(state) == (case.content(number) if is_alive else case.nothing)
        assert not is_stored(backend, descriptor)

    @every_case
    def test_a_snapshot_has_no_later_writes(self, harness: BackendHarness, clock: ManualClock, case: TtlCase) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(ON_WRITE)
        case.write(backend.get_state(descriptor), 1)
        handle = harness.snapshot(backend).handle
        clock.now_ms = 50
        case.write(backend.get_state(descriptor), 2)
        restored = self.reopen(harness, handle)
        assert case.read(restored.get_state(descriptor)) == case.content(1)
        clock.now_ms = 110
        assert case.read(restored.get_state(descriptor)) == case.nothing
        assert case.read(backend.get_state(descriptor)) == case.content(2)

    @every_case
    def test_keys_of_expired_entries_are_listed_until_removed(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(ON_WRITE)
        state: Any = backend.get_state(descriptor)
        for key in (1, 2, 3):
            harness.at(backend, key)
            case.write(state, key)
        clock.now_ms = TTL_MS
        harness.at(backend, 2)
        case.read(state)
        assert sorted(backend.get_keys(descriptor.name)) == [1, 3]

    @every_case
    def test_clearing_is_the_same_as_without_time_to_live(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(RELAXED_ON_WRITE)
        state: Any = backend.get_state(descriptor)
        case.write(state, 1)
        backend = self.restored(harness, backend)
        state = backend.get_state(descriptor)
        state.clear()
        assert case.read(state) == case.nothing
        assert not is_stored(backend, descriptor)

    @pytest.mark.parametrize("ttl", [ON_WRITE, RELAXED_ON_WRITE, RELAXED_ON_READ])
    def test_an_update_with_none_clears_for_every_visibility(
        self, harness: BackendHarness, clock: ManualClock, ttl: Any
    ) -> None:
        backend, descriptor = self.fresh(harness), evolve(VALUE, ttl=ttl)
        backend.get_state(descriptor).update(1)
        clock.now_ms = 2 * TTL_MS
        backend.get_state(descriptor).update(None)
        assert backend.get_state(descriptor).value() is None
        assert self.restored(harness, backend).get_state(descriptor).value() is None

    @pytest.mark.parametrize("ttl", [ON_WRITE, ON_READ, RELAXED_ON_READ])
    def test_returned_values_and_defaults_belong_to_the_caller(
        self, harness: BackendHarness, clock: ManualClock, ttl: Any
    ) -> None:
        backend = self.fresh(harness)
        state = backend.get_state(ValueStateDescriptor("leg", leg_v1(), default=LegV1("none", 0), ttl=ttl))

        def own() -> LegV1:
            leg = state.value()
            assert leg is not None
            return leg

        own().minutes = 5
        assert own() == LegV1("none", 0)
        given = LegV1("EWR", 1)
        state.update(given)
        given.minutes = 2
        clock.now_ms = 50
        own().minutes = 3
        assert own() == LegV1("EWR", 1)
        clock.now_ms = 10 * TTL_MS
        if ttl is RELAXED_ON_READ:
            own().minutes = 4
        assert own() == LegV1("none", 0)

    def test_each_element_of_a_list_has_its_own_time(self, harness: BackendHarness, clock: ManualClock) -> None:
        backend = self.fresh(harness)
        for now in range(0, 100, 10):
            clock.now_ms = now
            backend.get_state(LIST).add_all([now, now + 1])
            if now == 40:
                backend = self.restored(harness, backend)
        clock.now_ms = 145
        backend = self.restored(harness, backend)
        expected = [now + more for now in range(50, 100, 10) for more in (0, 1)]
        assert backend.get_state(LIST).get() == expected
        clock.now_ms = 0
        backend = self.restored(harness, backend)
        assert backend.get_state(LIST).get() == expected

    def test_each_entry_of_a_map_has_its_own_time(self, harness: BackendHarness, clock: ManualClock) -> None:
        backend = self.fresh(harness)
        for now in range(0, 100, 10):
            clock.now_ms = now
            backend.get_state(MAP).put(str(now), now if now % 20 else None)
        backend = self.restored(harness, backend)
        clock.now_ms = 145
        entries = backend.get_state(MAP)
        assert not entries.is_empty()
        expected = {str(now): now if now % 20 else None for now in range(50, 100, 10)}
        assert (entries.contains("40"), entries.contains("50")) == (False, True)
        assert set(entries.keys()) == set(expected)
        assert dict(entries.items()) == expected
        clock.now_ms = 0
        assert dict(self.restored(harness, backend).get_state(MAP).items()) == expected

    def test_a_map_of_expired_entries_is_empty(self, harness: BackendHarness, clock: ManualClock) -> None:
        backend = self.fresh(harness)
        backend.get_state(MAP).put_all({"a": 1, "b": 2})
        clock.now_ms = TTL_MS
        assert backend.get_state(MAP).is_empty()
        assert not is_stored(backend, MAP)

    def test_entries_may_change_and_expire_while_a_map_is_iterated(
        self, harness: BackendHarness, clock: ManualClock
    ) -> None:
        backend = self.fresh(harness)
        entries = backend.get_state(MAP)
        entries.put_all({str(number): number for number in range(10)})
        clock.now_ms = 50
        entries.put_all({str(number): number for number in range(5)})
        seen: set[str] = set()
        keys = entries.keys()
        for key in keys:
            if not seen:
                clock.now_ms = TTL_MS
                entries.remove("4")
            seen.add(key)
        # Only the first entry was read before the time advanced.
        assert {"0", "1", "2", "3"} <= seen
        assert len(seen - {"0", "1", "2", "3"}) <= 1
        assert dict(entries.items()) == {str(number): number for number in range(4)}

    def test_iterating_a_map_reads_the_map_of_one_key(self, harness: BackendHarness, clock: ManualClock) -> None:
        backend = self.fresh(harness)
        entries = backend.get_state(evolve(MAP, ttl=ON_READ))
        entries.put_all({"a": 1, "b": 2, "c": 3})
        clock.now_ms = TTL_MS
        items = entries.items()
        harness.at(backend, 2)
        entries.put_all({"a": 10, "b": 20, "c": 30})
        assert list(items) == []
        assert dict(entries.items()) == {"a": 10, "b": 20, "c": 30}

    def test_expired_values_are_not_folded(self, harness: BackendHarness, clock: ManualClock) -> None:
        descriptors = [evolve(descriptor, ttl=ON_WRITE) for descriptor in (SUM, IMMUTABLE_SUM, MUTABLE_SUM)]
        backend = self.fresh(harness)
        for now, added, expected in ((0, 1, 1), (50, 2, 3), (149, 4, 7), (249, 8, 8)):
            clock.now_ms = now
            for descriptor in descriptors:
                state: Any = backend.get_state(descriptor)
                state.add(added)
                assert int(state.get()) == expected
            backend = self.restored(harness, backend)

    @pytest.mark.parametrize("descriptor", [SUM, IMMUTABLE_SUM, MUTABLE_SUM, LIST], ids=lambda one: one.name)
    def test_merging_namespaces_drops_expired_values(
        self, harness: BackendHarness, clock: ManualClock, descriptor: Any
    ) -> None:
        backend, descriptor = self.fresh(harness), evolve(descriptor, ttl=ON_WRITE)
        merged: dict[int, list[int]] = {}
        for key in range(8):
            # The bits of the key: the target and both sources are written early (and have expired) or late.
            for position, (namespace, added) in enumerate((("target", 1), ("source", 2), ("other", 4))):
                is_late = bool(key >> position & 1)
                clock.now_ms = 60 if is_late else 0
                harness.at(backend, key)
                backend.get_partitioned_state(namespace, TEXT, descriptor).add(added)
                if is_late:
                    merged.setdefault(key, []).append(added)
        backend = self.restored(harness, backend)
        clock.now_ms = TTL_MS
        for key in range(8):
            harness.at(backend, key)
            state: Any = backend.get_partitioned_state("target", TEXT, descriptor)
            state.merge_namespaces("target", ["source", "other", "none"])
            found = state.get()
            expected = merged.get(key, [])
            assert (found if descriptor.name == "list" else int(found or 0)) == (
                expected if descriptor.name == "list" else sum(expected)
            )
        assert list(backend.get_keys(descriptor.name, "source")) == []
        assert list(backend.get_keys(descriptor.name, "other")) == []

    def test_a_value_that_does_not_fit_changes_nothing(self, harness: BackendHarness, clock: ManualClock) -> None:
        backend = self.fresh(harness)
        value: Any = backend.get_state(VALUE)
        elements: Any = backend.get_state(LIST)
        entries: Any = backend.get_state(MAP)
        total: Any = backend.get_state(evolve(SUM, ttl=ON_WRITE))
        text: Any = backend.get_state(evolve(IMMUTABLE_SUM, ttl=ON_WRITE))
        value.update(1)
        elements.add(1)
        entries.put("a", 1)
        total.add(1)
        text.add(1)
        rejections: list[Callable[[], object]] = [
            lambda: value.update("text"),
            lambda: elements.add(None),
            lambda: elements.add_all([2, "text"]),
            lambda: elements.update([2, None]),
            lambda: entries.put("b", "text"),
            lambda: entries.put(None, 1),
            lambda: entries.put_all({"b": 2, "c": "text"}),
            lambda: total.add(None),
            lambda: text.add(None),
        ]
        for rejected in rejections:
            with pytest.raises(SerializationError, match="state '"):
                rejected()
        assert (value.value(), elements.get(), dict(entries.items())) == (1, [1], {"a": 1})
        assert (total.get(), text.get()) == (1, "1")
