"""The contract of bulk operations: they have the same effect as single operations for each key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from snapshots.compatibility import CompatibilityKind
from snapshots.errors import SerializationError
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.folding_states import ReducingStateDescriptor
from statebackend.state.key_batch import KeyBatch
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER, KeyedStateBackend
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.ttl_config import StateTtlConfig, TtlUpdateType
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import (
    FlightV1,
    FlightV2,
    LegV1,
    LegV2,
    flight_v1,
    flight_v2,
    leg_v1,
    leg_v2,
    migrated_flight,
    migrated_leg,
)
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, ContractBase, content
from typeserializers.containers.lists import ListSerializer
from typeserializers.scalars.fixed_width import LongSerializer

LEG: ValueStateDescriptor[LegV1] = ValueStateDescriptor("leg", leg_v1())
TIMED: ValueStateDescriptor[int] = ValueStateDescriptor("timed", int, ttl=StateTtlConfig("1 hour"))
SUM: ReducingStateDescriptor[int] = ReducingStateDescriptor("sum", lambda left, right: left + right, int)

_FLIGHTS = [FlightV1(number, 10 * number, "UA") for number in range(4)]
_LEGS = [LegV1("EWR", number) for number in range(4)]


def batch_of(harness: BackendHarness, backend: KeyedStateBackend, keys: Sequence[int]) -> KeyBatch:
    """Return keys with their key groups."""
    return KeyBatch(keys, [harness.key_group(key) for key in keys], backend.key_setter())


HandleOf = Callable[[KeyedStateBackend, StateDescriptor], Any]


class BulkContract(ContractBase):
    """Bulk operations on a backend, with the handles of per-record functions and of batch functions."""

    @pytest.fixture(params=[False, True], ids=["by record", "by batch"])
    def handle_of(self, request: pytest.FixtureRequest) -> HandleOf:
        """Return a function that returns the internal handle of a state."""

        def handle(backend: KeyedStateBackend, descriptor: StateDescriptor) -> Any:
            if request.param:
                backend.access_in_bulk()
            return backend.get_or_create_keyed_state(VOID_NAMESPACE_SERIALIZER, descriptor)

        return handle

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    @pytest.mark.parametrize("descriptor", [VALUE, TIMED], ids=lambda one: one.name)
    def test_values_of_many_keys(
        self,
        harness: BackendHarness,
        backend: KeyedStateBackend,
        handle_of: HandleOf,
        descriptor: Any,
        after_a_barrier: bool,
    ) -> None:
        state = handle_of(backend, descriptor)
        harness.at(backend, 3)
        state.update(30)
        keys = batch_of(harness, backend, [4, 3, 25, 3])
        assert state.get_many(keys) == [None, 30, None, 30]
        state.put_many(keys, [40, 31, 250, 32])
        if after_a_barrier:
            harness.snapshot(backend)
        assert state.get_many(keys) == [40, 32, 250, 32]
        state.put_many(batch_of(harness, backend, [25, 4]), [None, 41])
        assert state.get_many(keys) == [41, 32, None, 32]
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert content(harness, restored, descriptor) == {3: 32, 4: 41}

    def test_bulk_and_single_writes_have_the_same_digest(self, harness: BackendHarness, handle_of: HandleOf) -> None:
        digests = set()
        for is_bulk in (False, True):
            backend = harness.open(self.create_state_backend())
            state = handle_of(backend, VALUE)
            keys = batch_of(harness, backend, range(40))
            if is_bulk:
                state.put_many(keys, [key * key for key in range(40)])
            else:
                for key in keys.each():
                    state.update(key * key)
            digests.add(harness.snapshot(backend).digest)
        assert len(digests) == 1

    @pytest.mark.parametrize("update_type", TtlUpdateType)
    def test_rows_expire_as_values_do(
        self, harness: BackendHarness, handle_of: HandleOf, update_type: TtlUpdateType
    ) -> None:
        timed = ValueStateDescriptor("timed", int, 0, ttl=StateTtlConfig("1 hour", update_type=update_type))
        clock: Any = harness.clock
        read, digests = [], []
        for uses_rows in (False, True):
            clock.now_ms = 0
            backend = harness.open(self.create_state_backend())
            state = handle_of(backend, timed)
            if state.row_serializer is None:
                pytest.skip("this handle has no rows")
            write, values = state.row_serializer.to_bytes, []
            for minutes, keys, given in ((0, range(6), [*range(1, 6), None]), (30, (2, 3, 2), [20, None, 21])):
                clock.now_ms = minutes * 60_000
                written = batch_of(harness, backend, keys)
                if uses_rows:
                    state.put_rows(written, [None if value is None else write(value) for value in given])
                else:
                    state.put_many(written, given)
            for minutes in (40, 70, 99, 100, 130):
                clock.now_ms = minutes * 60_000
                asked = batch_of(harness, backend, [0, 2] if minutes < 70 else [0, 2, 1, 0])
                rows = state.get_rows(asked) if uses_rows else state.get_many(asked)
                values.append([state.row_serializer.from_bytes(row) if uses_rows else row for row in rows])
                digests.append(harness.snapshot(backend).digest)
            read.append(values)
        assert read[0] == read[1]
        assert digests[:5] == digests[5:]
        assert read[0][0] == [1, 21]
        assert (read[0][2] == [0, 0, 0, 0]) == (update_type is TtlUpdateType.ON_CREATE_AND_WRITE)

    @pytest.mark.parametrize("is_replaced", [False, True])
    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_rows_of_elements_are_appended_as_elements(
        self, harness: BackendHarness, handle_of: HandleOf, is_replaced: bool, after_a_barrier: bool
    ) -> None:
        lists, digests = [], []
        for uses_rows in (False, True):
            backend = harness.open(self.create_state_backend())
            state = handle_of(backend, LIST)
            if state.row_serializer is None:
                pytest.skip("this handle has no rows")
            first, second = batch_of(harness, backend, [1, 2, 1]), batch_of(harness, backend, [2, 1])
            state.add_many(first, [10, 20, 11])
            if is_replaced:
                state.put_many(batch_of(harness, backend, [1]), [[7, 8]])
            if after_a_barrier:
                harness.snapshot(backend)
            if uses_rows:
                state.add_rows(second, list(map(state.row_serializer.to_bytes, [21, 12])))
            else:
                state.add_many(second, [21, 12])
            keys = batch_of(harness, backend, [1, 2, 3])
            read: Any = ListSerializer(state.row_serializer).from_bytes
            lists += [
                list(map(read, state.get_rows(keys))),
                state.get_many(keys),
                list(map(read, state.get_rows(keys))),
            ]
            digests.append(harness.snapshot(backend).digest)
            lists.append(list(map(read, state.get_rows(keys))))
        assert lists == [[[7, 8, 12] if is_replaced else [10, 11, 12], [20, 21], []]] * 8
        assert digests[0] == digests[1]

    def test_a_bulk_result_belongs_to_the_caller(
        self, harness: BackendHarness, backend: KeyedStateBackend, handle_of: HandleOf
    ) -> None:
        state = handle_of(backend, LEG)
        keys = batch_of(harness, backend, [1, 2])
        state.put_many(keys, [leg_v1().create_instance()] * 2)
        first, second = state.get_many(keys)
        assert first == second == leg_v1().create_instance()
        assert first is not second

    @pytest.mark.parametrize("canonical", [False, True])
    @pytest.mark.parametrize("ttl", [None, StateTtlConfig("1 hour")], ids=["kept", "expiring"])
    @pytest.mark.parametrize("was_bulk", [False, True], ids=["written by record", "written by batch"])
    @pytest.mark.parametrize(
        ("old", "new", "values", "added", "migrated"),
        [
            (flight_v1(), flight_v2(), _FLIGHTS, FlightV2(7, 0.5, None, 3), migrated_flight),
            (leg_v1(), leg_v2(), _LEGS, LegV2("LGA", 0.5, ["late"]), migrated_leg),
        ],
        ids=["immutable", "mutable"],
    )
    def test_values_evolve_between_functions_by_record_and_by_batch(
        self,
        harness: BackendHarness,
        handle_of: HandleOf,
        was_bulk: bool,
        ttl: StateTtlConfig | None,
        canonical: bool,
        old: Any,
        new: Any,
        values: Sequence[Any],
        added: Any,
        migrated: Callable[[Any], Any],
    ) -> None:
        former = harness.open(self.create_state_backend())
        if was_bulk:
            former.access_in_bulk()
        state: Any = former.get_or_create_keyed_state(
            VOID_NAMESPACE_SERIALIZER, ValueStateDescriptor("record", old, ttl=ttl)
        )
        state.put_many(batch_of(harness, former, range(4)), values)
        harness.snapshot(former)
        state.put_many(batch_of(harness, former, [1, 2]), [None, values[3]])
        backend = self.reopen(harness, harness.export(former) if canonical else harness.snapshot(former).handle)
        descriptor = ValueStateDescriptor("record", new, ttl=ttl)
        state = handle_of(backend, descriptor)
        assert backend.restore_reports[0].compatibility.kind is CompatibilityKind.AFTER_MIGRATION
        expected = [migrated(values[0]), None, migrated(values[3]), migrated(values[3])]
        assert state.get_many(batch_of(harness, backend, range(4))) == expected
        state.put_many(batch_of(harness, backend, [0, 1]), [None, added])
        again = self.reopen(harness, harness.snapshot(backend).handle)
        assert content(harness, again, descriptor) == {1: added, 2: expected[2], 3: expected[3]}

    @pytest.mark.parametrize("forms", ["brb", "bbr", "rbb", "bbb"])
    def test_values_of_later_namespaces_by_record_and_by_batch(self, harness: BackendHarness, forms: str) -> None:
        handles: list[KeyedStateHandle] = []
        expected: dict[int, list[int | None]] = {}
        for epoch, form in enumerate(forms, start=1):
            backend = harness.open(self.create_state_backend(), *handles[-1:], local="namespaces")
            if form == "b":
                backend.access_in_bulk()
            state: Any = backend.get_or_create_keyed_state(LongSerializer(), VALUE)
            for namespace in (epoch, epoch + 1, epoch):
                state.set_current_namespace(namespace)
                keys, before = batch_of(harness, backend, [1, 2, 3]), expected.get(namespace, [None, None, None])
                assert state.get_many(keys) == before
                after = expected[namespace] = [epoch, before[0], None]
                state.put_many(keys, after)
            handles.append(harness.snapshot(backend).handle)
            backend.close()

    def test_a_value_that_does_not_fit_is_rejected(
        self, harness: BackendHarness, backend: KeyedStateBackend, handle_of: HandleOf
    ) -> None:
        state = handle_of(backend, VALUE)
        with pytest.raises(SerializationError, match="state 'value'"):
            state.put_many(batch_of(harness, backend, [1, 2]), [1, "two"])

    def test_lists_of_many_keys(self, harness: BackendHarness, backend: KeyedStateBackend, handle_of: HandleOf) -> None:
        state = handle_of(backend, LIST)
        state.add_many(batch_of(harness, backend, [1, 2, 1]), [10, 20, 11])
        keys = batch_of(harness, backend, [1, 2, 3])
        assert state.get_many(keys) == [[10, 11], [20], []]
        state.put_many(keys, [[1, 2], None, [3]])
        assert state.get_many(keys) == [[1, 2], [], [3]]
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert content(harness, restored, LIST) == {1: [1, 2], 3: [3]}

    def test_entries_of_many_maps(
        self, harness: BackendHarness, backend: KeyedStateBackend, handle_of: HandleOf
    ) -> None:
        state = handle_of(backend, MAP)
        pairs = batch_of(harness, backend, [1, 2, 1, 1])
        state.put_many(pairs, ["a", "a", "b", "a"], [1, 2, 3, 4])
        assert state.get_many(pairs, ["a", "a", "b", "c"]) == [4, 2, 3, None]
        assert state.contains_many(pairs, ["a", "b", "b", "c"]) == [True, False, True, False]
        state.remove_many(batch_of(harness, backend, [1, 2]), ["a", "missing"])
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert content(harness, restored, MAP) == {1: {"b": 3}, 2: {"a": 2}}

    def test_folded_values_of_many_keys(
        self, harness: BackendHarness, backend: KeyedStateBackend, handle_of: HandleOf
    ) -> None:
        state = handle_of(backend, SUM)
        keys = batch_of(harness, backend, [1, 2])
        assert state.get_internal_many(keys) == [None, None]
        state.update_internal_many(keys, [5, 6])
        harness.at(backend, 1)
        state.add(7)
        state.update_internal_many(batch_of(harness, backend, [2]), [None])
        assert state.get_internal_many(keys) == [12, None]
