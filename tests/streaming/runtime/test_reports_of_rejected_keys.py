"""A report on state with rejected keys starts with them, for every state, and once in the error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshots.compatibility import CompatibilityKind, FieldCompatibility
from statebackend import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StateMigrationException,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.rewrite import Plan, SavepointWriter

COUNT = ValueStateDescriptor("count", int, default=0)
TEXT = ValueStateDescriptor("text", str)


class Counting(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.count, self.text = context.get_state(COUNT), context.get_state(TEXT)

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        yield context.current_key, self.count.value()


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    plan = Plan().add_operator("counting", "string").add_state("counting", COUNT, [("a", 1)])
    SavepointWriter.new(tmp_path / "savepoint", max_parallelism=128).write(
        plan.add_state("counting", TEXT, [("a", "b")])
    )
    return tmp_path / "savepoint"


def environment(key_type: str) -> LocalStreamEnvironment:
    env = LocalStreamEnvironment()
    keys: list[Any] = ["a"] if key_type == "string" else [1]
    elements = env.from_elements([(key,) for key in keys], f"k {key_type}")
    elements.key_by("k").process(Counting(), uid="counting", schema=f"k {key_type}, n bigint").sink_to([])
    return env


def test_a_report_starts_with_rejected_keys_and_no_state_in_it_looks_compatible(savepoint: Path) -> None:
    report = environment("bigint").check(from_savepoint=savepoint)["counting"]
    assert not report.is_compatible
    assert {compatibility.kind for compatibility in (report.key_compatibility, *report.compatibilities)} == {
        CompatibilityKind.INCOMPATIBLE
    }
    first, reported, *_ = str(report).splitlines()
    assert first == "operator 'counting': incompatible"
    assert reported.strip() == str(report.key_compatibility).splitlines()[0]
    assert "as is" not in str(report)
    with pytest.raises(StateMigrationException) as rejected:
        report.raise_if_incompatible()
    # Both states are compatible. Only the keys are rejected, and each reason is in the error once.
    rejections = [
        one.reason for one in report.key_compatibility.issues if one.compatibility is FieldCompatibility.REJECT
    ]
    assert rejections
    assert [str(rejected.value).count(reason) for reason in rejections] == [1] * len(rejections)
    assert "state 'count'" not in str(rejected.value)


def test_a_report_of_compatible_keys_does_not_mention_them(savepoint: Path) -> None:
    report = environment("string").check(from_savepoint=savepoint)["counting"]
    assert report.is_compatible
    assert str(report).splitlines() == [
        "operator 'counting': compatible",
        "  state 'count': compatible as is",
        "  state 'text': compatible as is",
    ]
    report.raise_if_incompatible()
