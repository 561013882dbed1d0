"""Upgrades under contract: every serializer over its golden files, and all forms of evolution."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import contract_cases
import pytest

import typeserializers as ts
from snapshots import CompatibilityKind
from statebackend.testing.serializers import GoldenFiles
from statebackend.testing.upgrades import UpgradeContract, check_upgrade

GOLDEN = Path(__file__).parent.parent / "golden" / "serializers"
AS_IS, MIGRATE = CompatibilityKind.AS_IS, CompatibilityKind.AFTER_MIGRATION
RECONFIGURE, REJECT = CompatibilityKind.WITH_RECONFIGURED_SERIALIZER, CompatibilityKind.INCOMPATIBLE


@pytest.mark.parametrize("name", contract_cases.CASES)
def test_files_of_released_versions_are_compatible_as_is(name: str) -> None:
    case = contract_cases.CASES[name]
    equal = case.equal or (lambda left, right: left == right or (left != left and right != right))
    versions = list(GoldenFiles(GOLDEN / name).versions())
    assert versions, f"no golden files of {name}; tests/testing/generate_golden.py writes those of a release"
    for golden in versions:
        pairs = list(zip(golden.encoded_values, case.values, strict=True))
        check_upgrade(golden.snapshot, case.make(), AS_IS, pairs, equal)
        for encoded, value in pairs:
            assert case.make().to_bytes(value) == encoded


def record(name: str, **fields: Any) -> Any:
    return attrs.make_class(
        name,
        {key: attrs.field(type=item[0], default=item[1]) if isinstance(item, tuple) else attrs.field(type=item)
         for key, item in fields.items()},
        frozen=True,
    )  # fmt: skip


OLD = record("Flight", a=int, late=float)
NEW = record("Flight", a=float, extra=(str, "x"))


class TestWideningRemovingAndAdding(UpgradeContract):
    expected = MIGRATE

    def old_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.AttrsSerializer(OLD)

    def new_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.AttrsSerializer(NEW)

    def values(self) -> Sequence[tuple[Any, Any]]:
        return [(OLD(1, 0.5), NEW(1.0)), (OLD(-(2**40), 0.0), NEW(-(2.0**40)))]


class TestTheSameInsideAListOfMaps(TestWideningRemovingAndAdding):
    def old_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.ListSerializer(ts.MapSerializer(ts.StringSerializer(), super().old_serializer()))

    def new_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.ListSerializer(ts.MapSerializer(ts.StringSerializer(), super().new_serializer()))

    def values(self) -> Sequence[tuple[Any, Any]]:
        return [([{"k": old}, {}, {"n": None}], [{"k": new}, {}, {"n": None}]) for old, new in super().values()]


class TestNarrowing(UpgradeContract):
    expected = REJECT

    def old_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.AttrsSerializer(record("Flight", a=float))

    def new_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.AttrsSerializer(record("Flight", a=int))

    def values(self) -> Sequence[tuple[Any, Any]]:
        return []


class TestGrowingAnEnum(UpgradeContract):
    expected = RECONFIGURE

    OldStatus = enum.Enum("Status", ["LATE", "DONE"])
    NewStatus = enum.Enum("Status", ["DONE", "PLANNED", "LATE"])

    def old_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.ListSerializer(ts.EnumSerializer(self.OldStatus))

    def new_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.ListSerializer(ts.EnumSerializer(self.NewStatus))

    def values(self) -> Sequence[tuple[Any, Any]]:
        names = ["DONE", "LATE"]
        return [([self.OldStatus[name] for name in names], [self.NewStatus[name] for name in names])]

    def equal(self, left: Any, right: Any) -> bool:
        return [item.name for item in left] == [item.name for item in right]


class TestConvertingAValue(UpgradeContract):
    expected = MIGRATE

    def old_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.LongSerializer()

    def new_serializer(self) -> ts.TypeSerializer[Any]:
        return ts.ConvertingSerializer(ts.StringSerializer(), {ts.LongSerializer(): hex})

    def values(self) -> Sequence[tuple[Any, Any]]:
        return [(255, "0xff"), (-1, "-0x1")]


def test_golden_files_are_written_once_and_read_by_the_contract(tmp_path: Path) -> None:
    class Contract(TestWideningRemovingAndAdding):
        golden_directory = tmp_path / "flight"

    contract = Contract()
    with pytest.raises(AssertionError, match="no golden files"):
        contract.test_files_of_released_versions_have_the_expected_compatibility()
    contract.generate("1.0")
    contract.test_files_of_released_versions_have_the_expected_compatibility()
    with pytest.raises(FileExistsError):
        contract.generate("1.0")
    data = tmp_path / "flight" / "1.0" / "test-data"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ValueError, match="values describes 32 bytes, but test-data has 31"):
        contract.test_files_of_released_versions_have_the_expected_compatibility()


def test_the_contract_detects_a_wrong_expectation() -> None:
    class Contract(TestWideningRemovingAndAdding):
        expected = AS_IS

    with pytest.raises(AssertionError, match="expected compatible as is"):
        Contract().test_the_old_state_has_the_expected_compatibility()
