"""Rules passed to a job apply in its start and its subtasks, and are sent to other processes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen

from migration import CONVERSIONS, LIBRARY_RULES, Conversion, EvolutionRules
from snapshots.compatibility import CompatibilityIssue, FieldCompatibility, Plan, TypeSerializerSchemaCompatibility
from snapshots.type_serializer_snapshot import RULES, CompatibilityRules, TypeSerializerSnapshot
from statebackend import KeyedProcessFunction, SplitListStateDescriptor, StateMigrationException, ValueStateDescriptor
from statebackend.local import LocalStreamEnvironment
from typeserializers import LongSerializer, StringSerializer, TypeSerializer
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.scalars.strings import StringSerializerSnapshot


class Remember(KeyedProcessFunction[str, Any, Any]):
    """Stores the last value of a key, and all values of a subtask; emits both previous values."""

    def __init__(self, serializer: TypeSerializer[Any]) -> None:
        self.serializer = serializer

    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", self.serializer))
        self.all = context.operator_state.get_list_state(SplitListStateDescriptor("all", self.serializer))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        last = self.last.value()
        yield None if last is None else str(last), [str(one) for one in self.all.get()]
        self.last.update(value["value"])
        self.all.add(value["value"])


@frozen
class AsTextPlan(Plan):
    """Converts a number to its digits."""


class AsTextConversion(Conversion):
    def emit_value(self, reader: ReadEmitter) -> str:
        return f"str({self.old.emit_read(reader)})"

    @property
    def reads_old_whole(self) -> bool:
        return True


def adopt_numbers(
    old: TypeSerializerSnapshot[Any], new: TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any] | None:
    if not isinstance(old.restore_serializer(), LongSerializer):
        return None
    as_text = CompatibilityIssue("", FieldCompatibility.MIGRATE, "as-text", "a number becomes its digits")
    return TypeSerializerSchemaCompatibility.compatible_after_migration([as_text], plan=AsTextPlan())


def rules_with_text() -> EvolutionRules:
    compatibilities = CompatibilityRules(RULES)
    compatibilities.adopts(StringSerializerSnapshot)(adopt_numbers)
    return EvolutionRules(
        compatibilities, evolve(CONVERSIONS, by_plan={**CONVERSIONS.by_plan, AsTextPlan: AsTextConversion})
    )


def run(directory: Path, backend: str, serializer: TypeSerializer[Any], value: Any, **options: Any) -> list[Any]:
    environment = LocalStreamEnvironment(job_dir=directory, backend=backend, **options)
    found: list[Any] = []
    records = environment.from_elements([{"k": "a", "value": value}])
    records.key_by("k").process(
        Remember(serializer), uid="remember", schema="last string, every array<string>"
    ).sink_to(found)
    environment.execute()
    return found


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_job_checks_and_migrates_with_its_passed_rules(tmp_path: Path, backend: str) -> None:
    run(tmp_path, backend, LongSerializer(), 7)
    with pytest.raises(StateMigrationException, match="'last'"):
        run(tmp_path, backend, StringSerializer(), "8")
    assert run(tmp_path, backend, StringSerializer(), "8", rules=rules_with_text()) == [("7", ["7"])]
    # The state is migrated now, so the next run needs no rules.
    assert run(tmp_path, backend, StringSerializer(), "9") == [("8", ["7", "8"])]


def test_passed_rules_are_pickled_and_library_rules_are_identical_everywhere() -> None:
    travelled = pickle.loads(pickle.dumps(rules_with_text()))
    assert travelled.compatibilities.base is RULES
    assert travelled.compatibilities.adopt_rule_of(StringSerializerSnapshot) is adopt_numbers
    assert travelled.conversions.by_plan[AsTextPlan] is AsTextConversion
    assert pickle.loads(pickle.dumps(LIBRARY_RULES)).compatibilities is RULES
