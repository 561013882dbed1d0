"""Compatibility rules and conversions are objects: a backend uses only the passed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen

from migration import CONVERSIONS, Conversion
from snapshots.compatibility import CompatibilityIssue, FieldCompatibility, Plan, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.type_serializer_snapshot import (
    RULES,
    CompatibilityRules,
    RuledTypeSerializerSnapshot,
    resolve_compatibility,
    rules_in_use,
)
from statebackend import ListStateDescriptor, StateBackend, StateMigrationException, ValueStateDescriptor
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import BackendHarness
from typeserializers import ListSerializer, TypeSerializer
from typeserializers.kernel.code_generation import ReadEmitter


class MoneySerializer(TypeSerializer[int]):
    """An amount in the smallest coin of a currency."""

    def __init__(self, currency: str = "") -> None:
        self.currency = currency

    @property
    def is_immutable_type(self) -> bool:
        return True

    def serialize(self, value: int, out: DataOutputView) -> None:
        out.write_long(value)

    def deserialize(self, source: DataInputView) -> int:
        return source.read_long()

    def create_instance(self) -> int:
        return 0

    def snapshot_configuration(self) -> MoneySerializerSnapshot:
        return MoneySerializerSnapshot(self.currency)


@register_snapshot("tests.passed_rules.MoneySerializerSnapshot")
class MoneySerializerSnapshot(RuledTypeSerializerSnapshot[int]):
    def __init__(self, currency: str = "") -> None:
        self.currency = currency

    @property
    def current_version(self) -> int:
        return 1

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(self.currency)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.currency = source.read_utf()

    def restore_serializer(self) -> MoneySerializer:
        return MoneySerializer(self.currency)


@frozen
class ExchangePlan(Plan):
    rate: int


class ExchangeConversion(Conversion):
    plan: ExchangePlan

    def emit_value(self, reader: ReadEmitter) -> str:
        return f"({self.old.emit_read(reader)} * {self.plan.rate})"

    @property
    def reads_old_whole(self) -> bool:
        return True


def rules_with_rate(rate: int) -> CompatibilityRules:
    rules = CompatibilityRules(RULES)

    @rules.resolves(MoneySerializerSnapshot)
    def compatibility_of(
        old: MoneySerializerSnapshot, new: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        if isinstance(new, MoneySerializer) and new.currency == old.currency:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        exchanged = CompatibilityIssue("", FieldCompatibility.MIGRATE, "exchanged", f"at {rate}")
        return TypeSerializerSchemaCompatibility.compatible_after_migration([exchanged], plan=ExchangePlan(rate))

    return rules


EXCHANGES = evolve(CONVERSIONS, by_plan={**CONVERSIONS.by_plan, ExchangePlan: ExchangeConversion})


@pytest.mark.parametrize("backend", [HeapStateBackend(), RocksDBStateBackend()], ids=lambda backend: backend.name)
def test_a_backend_checks_and_migrates_with_the_passed_rules(tmp_path: Path, backend: StateBackend) -> None:
    harness = BackendHarness(str(tmp_path))
    parameters = evolve(harness.parameters(), rules=rules_with_rate(1))
    opened = backend.create_keyed_state_backend(parameters)
    harness.at(opened, 1)
    opened.get_state(ValueStateDescriptor("price", MoneySerializer("usd"))).update(7)
    opened.get_state(ListStateDescriptor("paid", MoneySerializer("usd"))).add_all([1, 2])
    handle = harness.snapshot(opened).handle
    opened.close()

    def restored(**passed: Any) -> KeyedStateBackend:
        again = backend.create_keyed_state_backend(evolve(harness.parameters(handle), **passed))
        harness.at(again, 1)
        return again

    for rate in (3, 10):
        with restored(rules=rules_with_rate(rate), conversions=EXCHANGES) as exchanging:
            price = exchanging.get_state(ValueStateDescriptor("price", MoneySerializer("eur")))
            assert price.value() == 7 * rate
            paid = exchanging.get_state(ListStateDescriptor("paid", MoneySerializer("eur")))
            assert paid.get() == [rate, 2 * rate]
    # A backend does not see the rules that were passed to another backend.
    with restored() as plain, pytest.raises((StateMigrationException, TypeError), match="no compatibility rule"):
        plain.get_state(ValueStateDescriptor("price", MoneySerializer("eur")))


def test_passed_rules_apply_to_nested_parts_and_only_for_this_check() -> None:
    old, new = ListSerializer(MoneySerializer("usd")), ListSerializer(MoneySerializer("eur"))
    compatibility = resolve_compatibility(old.snapshot_configuration(), new, rules_with_rate(2))
    assert compatibility.is_after_migration
    assert [issue.rule for issue in compatibility.issues] == ["exchanged"]
    assert rules_in_use() is RULES
    with pytest.raises(TypeError, match="no compatibility rule"):
        resolve_compatibility(old.snapshot_configuration(), new)
