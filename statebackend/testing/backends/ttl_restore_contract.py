"""The contract of restores with an added, removed or changed time-to-live, with other schemas, and with a filter."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from snapshots.compatibility import CompatibilityKind
from statebackend.state.errors import StateMigrationException
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import (
    flight_v1,
    flight_v2,
    flight_v3,
    leg_v1,
    leg_v2,
    migrated_flight,
    migrated_leg,
)
from statebackend.testing.backends.harness import BackendHarness, ManualClock, content
from statebackend.testing.backends.migration_contract import FLIGHTS, LAST, LEGS, last
from statebackend.testing.backends.reconfiguration_contract import NEW_WORDS, OLD_WORDS
from statebackend.testing.backends.ttl_cases import ON_WRITE, TTL_MS, TtlCase, TtlContractBase, every_case, is_stored
from typeserializers.scalars.strings import StringSerializer

TEXT = StringSerializer()
LIST: ListStateDescriptor[int] = ListStateDescriptor("list", int, ttl=ON_WRITE)


def _of_every_kind(serializer: Any) -> dict[str, StateDescriptor]:
    return {
        "value": ValueStateDescriptor("value", serializer),
        "list": ListStateDescriptor("list", serializer),
        "map": MapStateDescriptor("map", str, serializer),
        "reducing": ReducingStateDescriptor("reducing", last, serializer),
        "aggregating": AggregatingStateDescriptor("aggregating", LAST, serializer),
    }


# Old and new serializer, values, and the expected migration: for an immutable and a mutable record.
RECORDS: dict[str, Any] = {
    "immutable record": (flight_v1, flight_v2, FLIGHTS, migrated_flight),
    "mutable record": (leg_v1, leg_v2, LEGS, migrated_leg),
}

KINDS = list(_of_every_kind(leg_v1()))

# Old and new time-to-live, and the compatibility issue that is reported.
TOGGLES = {
    "turned on": (None, ON_WRITE, "ttl-enabled"),
    "turned off": (ON_WRITE, None, "ttl-disabled"),
    "changed": (ON_WRITE, evolve(ON_WRITE, ttl_ms=2 * TTL_MS), None),
}


def _write(kind: str, state: Any, values: list[Any]) -> None:
    if kind == "value":
        state.update(values[0])
    elif kind == "list":
        state.add_all(values)
    elif kind == "map":
        state.put_all({"none": None, **{str(number): value for number, value in enumerate(values)}})
    else:
        state.add(values[0])


def _written(kind: str, values: list[Any]) -> Any:
    if kind == "list":
        return values
    if kind == "map":
        return {"none": None, **{str(number): value for number, value in enumerate(values)}}
    return values[0]


class TtlRestoreContract(TtlContractBase):
    """Restores of state with another time-to-live, another schema, or both."""

    @pytest.mark.parametrize("as_savepoint", [False, True], ids=["checkpoint", "savepoint"])
    @pytest.mark.parametrize("toggle", list(TOGGLES))
    @pytest.mark.parametrize("record", list(RECORDS))
    @pytest.mark.parametrize("kind", KINDS)
    def test_time_to_live_is_added_removed_or_changed_together_with_the_schema(
        self,
        harness: BackendHarness,
        clock: ManualClock,
        kind: str,
        record: str,
        toggle: str,
        as_savepoint: bool,
    ) -> None:
        old_serializer, new_serializer, values, migrated = RECORDS[record]
        old_ttl, new_ttl, issue = TOGGLES[toggle]
        old = evolve(_of_every_kind(old_serializer())[kind], ttl=old_ttl)
        new = evolve(_of_every_kind(new_serializer())[kind], ttl=new_ttl)
        backend = self.fresh(harness)
        for key in range(12):
            harness.at(backend, key)
            _write(kind, backend.get_state(old), values)
        backend = self.restored(harness, backend, as_savepoint=as_savepoint)
        clock.now_ms = 50
        expected = {key: _written(kind, [migrated(value) for value in values]) for key in range(12)}
        assert content(harness, backend, new) == expected
        report = backend.restore_reports[0]
        assert report.compatibility.kind is CompatibilityKind.AFTER_MIGRATION
        found = [one.rule for one in report.compatibility.issues if one.rule.startswith("ttl-")]
        assert found == ([] if issue is None else [issue])
        assert any(one.path == ".minutes" for one in report.compatibility.issues) or record == "immutable record"
        assert report.entries_migrated >= 12
        # Entries that get a time-to-live are accessed at the migration. Entries that had one keep their time.
        expires_at = {"turned on": 150, "turned off": None, "changed": 200}[toggle]
        for _ in range(2):
            backend = self.restored(harness, backend)
            clock.now_ms = 10**9 if expires_at is None else expires_at - 1
            assert content(harness, backend, new) == expected
            assert backend.restore_reports[0].compatibility.kind is CompatibilityKind.AS_IS
        if expires_at is not None:
            clock.now_ms = expires_at
            nothing: Any = {"list": [], "map": {}}.get(kind)
            assert content(harness, backend, new) == dict.fromkeys(range(12), nothing)
            assert not is_stored(backend, new)

    @every_case
    @pytest.mark.parametrize("ttl_ms", [TTL_MS // 2, 2 * TTL_MS])
    def test_another_duration_needs_no_migration(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase, ttl_ms: int
    ) -> None:
        backend = self.fresh(harness)
        case.write(backend.get_state(case.with_ttl(ON_WRITE)), 1)
        backend = self.restored(harness, backend)
        changed = case.with_ttl(evolve(ON_WRITE, ttl_ms=ttl_ms))
        clock.now_ms = ttl_ms - 1
        assert case.read(backend.get_state(changed)) == case.content(1)
        assert backend.restore_reports[0].compatibility.kind is CompatibilityKind.AS_IS
        assert backend.restore_reports[0].entries_migrated == 0
        clock.now_ms = ttl_ms
        assert case.read(backend.get_state(changed)) == case.nothing

    @every_case
    def test_time_to_live_can_be_turned_on_and_off_again(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend = self.fresh(harness)
        case.write(backend.get_state(case.with_ttl(ON_WRITE)), 1)
        clock.now_ms = TTL_MS
        # Expired entries that were not removed stay when the time-to-live is removed.
        backend = self.restored(harness, backend)
        assert case.read(backend.get_state(case.with_ttl(None))) == case.content(1)
        backend = self.restored(harness, backend, as_savepoint=True)
        clock.now_ms = 10 * TTL_MS
        assert case.read(backend.get_state(case.with_ttl(ON_WRITE))) == case.content(1)
        clock.now_ms = 11 * TTL_MS - 1
        backend = self.restored(harness, backend)
        assert case.read(backend.get_state(case.with_ttl(ON_WRITE))) == case.content(1)
        clock.now_ms = 11 * TTL_MS
        assert case.read(backend.get_state(case.with_ttl(ON_WRITE))) == case.nothing

    @pytest.mark.parametrize("ttls", [(None, ON_WRITE), (ON_WRITE, None), (ON_WRITE, ON_WRITE)])
    @pytest.mark.parametrize("kind", KINDS)
    def test_values_that_do_not_fit_are_rejected_as_without_time_to_live(
        self, harness: BackendHarness, clock: ManualClock, kind: str, ttls: Any
    ) -> None:
        old, new = (
            evolve(_of_every_kind(serializer)[kind], ttl=ttl)
            for serializer, ttl in zip((flight_v1(), flight_v3()), ttls, strict=True)
        )
        backend = self.fresh(harness)
        _write(kind, backend.get_state(old), FLIGHTS)
        backend = self.restored(harness, backend)
        with pytest.raises(StateMigrationException, match=r"\.number") as rejection:
            backend.get_state(new)
        assert "last_access" not in str(rejection.value)
        assert content(harness, backend, old) == {1: _written(kind, FLIGHTS)}

    @pytest.mark.parametrize("kind", KINDS)
    def test_state_with_time_to_live_uses_the_reconfigured_serializer(
        self, harness: BackendHarness, clock: ManualClock, kind: str
    ) -> None:
        backend = self.fresh(harness)
        _write(kind, backend.get_state(evolve(_of_every_kind(OLD_WORDS)[kind], ttl=ON_WRITE)), ["red", "green"])
        new = evolve(_of_every_kind(NEW_WORDS)[kind], ttl=ON_WRITE)
        for _ in range(2):
            backend = self.restored(harness, backend)
            assert content(harness, backend, new) == {1: _written(kind, ["red", "green"])}
        _write(kind, backend.get_state(new), ["blue"])
        assert content(harness, self.restored(harness, backend), new)

    @every_case
    def test_unregistered_state_keeps_its_times(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase
    ) -> None:
        backend, descriptor = self.fresh(harness), case.with_ttl(ON_WRITE)
        case.write(backend.get_state(descriptor), 1)
        for as_savepoint in (False, True, False):
            backend = self.restored(harness, backend, as_savepoint=as_savepoint)
        clock.now_ms = TTL_MS - 1
        assert case.read(backend.get_state(descriptor)) == case.content(1)
        clock.now_ms = TTL_MS
        assert case.read(backend.get_state(descriptor)) == case.nothing

    @every_case
    @pytest.mark.parametrize("way", ["savepoint", "new base"])
    @pytest.mark.parametrize("is_cleaned", [True, False], ids=["cleaned up", "not cleaned up"])
    def test_a_full_snapshot_has_no_expired_entries(
        self, harness: BackendHarness, clock: ManualClock, case: TtlCase, way: str, is_cleaned: bool
    ) -> None:
        backend = self.fresh(harness)
        descriptor = case.with_ttl(evolve(ON_WRITE, cleanup_full_snapshot=is_cleaned))
        for key, namespace, now in ((1, "first", 0), (1, "second", 50), (2, "first", 50), (2, "second", 0)):
            clock.now_ms = now
            harness.at(backend, key)
            case.write(backend.get_partitioned_state(namespace, TEXT, descriptor), key)
        if way == "new base":
            # State of another parallelism is rewritten.
            handle = harness.snapshot(backend).handle
            backend = harness.open(self.create_state_backend(), handle, subtask=0, parallelism=2)
            backend.get_or_create_keyed_state(TEXT, descriptor)
        clock.now_ms = TTL_MS
        handle = harness.export(backend) if way == "savepoint" else harness.snapshot(backend).handle
        clock.now_ms = 60
        parallelism = 1 if way == "savepoint" else 2
        restored = harness.open(self.create_state_backend(), handle, subtask=0, parallelism=parallelism)
        found = {}
        for key in (1, 2):
            for namespace in ("first", "second"):
                harness.at(restored, key)
                found[key, namespace] = case.read(restored.get_partitioned_state(namespace, TEXT, descriptor))
        late = {(1, "second"), (2, "first")}
        assert found == {
            place: case.content(place[0]) if place in late or not is_cleaned else case.nothing for place in found
        }

    def test_a_full_snapshot_of_a_list_has_no_expired_elements(
        self, harness: BackendHarness, clock: ManualClock
    ) -> None:
        backend = self.fresh(harness)
        for now in range(0, 100, 10):
            clock.now_ms = now
            backend.get_state(LIST).add(now)
            if now in (40, 70):
                harness.snapshot(backend)
        clock.now_ms = 155
        handle = harness.export(backend)
        clock.now_ms = 0
        assert self.reopen(harness, handle).get_state(LIST).get() == [60, 70, 80, 90]
        assert backend.get_state(LIST).get() == list(range(0, 100, 10))
        clock.now_ms = 10_000
        assert harness.export(backend).files == ()

    def test_every_snapshot_filters_by_its_own_time(self, harness: BackendHarness, clock: ManualClock) -> None:
        backend = self.fresh(harness)
        backend.get_state(LIST).add(1)
        handle = harness.snapshot(backend).handle
        backend = harness.open(self.create_state_backend(), handle, subtask=0, parallelism=2)
        backend.get_state(LIST)
        clock.now_ms = 50
        filters = [backend.row_filter("list")]
        task = backend.prepare_snapshot(100, "state-100")
        # The filter uses the time of the synchronous part, not of the write.
        clock.now_ms = TTL_MS
        filters.append(backend.row_filter("list"))
        written = task.run().handle
        batch = next(backend.export_state("list"))
        row = batch.values[0]
        assert row is not None
        assert [None if one is None else one(row) for one in filters] == [row, None]
        clock.now_ms = 50
        restored = harness.open(self.create_state_backend(), written, subtask=0, parallelism=2)
        harness.at(restored, 1)
        assert restored.get_state(LIST).get() == [1]

    def test_state_without_time_to_live_is_never_filtered(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        backend.get_state(evolve(LIST, ttl=None)).add(1)
        assert backend.row_filter("list") is None
        assert backend.row_filter("unknown") is None
