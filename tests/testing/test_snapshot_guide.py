"""The serializers in the two pages on snapshots meet the contract, and evolve as the pages describe."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from snapshots import CompatibilityKind, SnapshotFormatError, read_versioned_snapshot, write_versioned_snapshot
from snapshots.data_views import DataInputView, DataOutputView
from statebackend.testing.serializers import SerializerContract
from statebackend.testing.upgrades import UpgradeContract
from typeserializers import IntSerializer, StringSerializer, TypeSerializer

# Names are registered for the whole process, so other tests must not use those of the guide.
_DOCS = Path(__file__).parents[2] / "docs"
_PAGES = ("writing-a-snapshot.md", "writing-a-composite-snapshot.md")
_GUIDE = "".join((_DOCS / page).read_text() for page in _PAGES).replace('"my.', '"tests.guide.')

_PAGE: dict[str, Any] = {"__name__": __name__}
for _block in re.findall(r"^```python\n(.*?)^```", _GUIDE, re.DOTALL | re.MULTILINE):
    exec(_block, _PAGE)

MoneySerializer = _PAGE["MoneySerializer"]
MoneySerializerSnapshot = _PAGE["MoneySerializerSnapshot"]
Range = _PAGE["Range"]
RangeSerializer = _PAGE["RangeSerializer"]


class TestMoneySerializer(SerializerContract):
    expected_length = 8

    def serializer(self) -> TypeSerializer[Any]:
        return MoneySerializer(2, "CHF")

    def values(self) -> list[Any]:
        return [Decimal("0.00"), Decimal("1.25"), Decimal("-12345678901234.56")]


class TestRangeSerializer(SerializerContract):
    expected_length = 8

    def serializer(self) -> TypeSerializer[Any]:
        return RangeSerializer(IntSerializer(), is_closed=False)

    def values(self) -> list[Any]:
        return [Range(0, 1), Range(-5, 2**31 - 1)]


class TestRangeOfTexts(SerializerContract):
    def serializer(self) -> TypeSerializer[Any]:
        return RangeSerializer(StringSerializer())

    def values(self) -> list[Any]:
        return [Range("", "z"), Range("a", "ä")]


class TestMoneyWithMoreDigits(UpgradeContract):
    expected = CompatibilityKind.AFTER_MIGRATION

    def old_serializer(self) -> TypeSerializer[Any]:
        return MoneySerializer(2)

    def new_serializer(self) -> TypeSerializer[Any]:
        return MoneySerializer(4)

    def values(self) -> list[tuple[Any, Any]]:
        return [(Decimal("1.25"), Decimal("1.2500")), (Decimal("-0.01"), Decimal("-0.0100"))]


@pytest.mark.parametrize("changed", [("digits", 1), ("currency", "USD")])
def test_money_with_fewer_digits_or_of_another_currency_is_rejected(changed: tuple[str, Any]) -> None:
    new = MoneySerializer(**dict([changed]))
    compatibility = MoneySerializer().snapshot_configuration().resolve_schema_compatibility(new)
    assert compatibility.is_incompatible


def test_version_1_of_the_money_snapshot_is_still_read() -> None:
    out = DataOutputView()
    out.write_byte(3)
    old = MoneySerializerSnapshot()
    old.read_snapshot(1, DataInputView(out.to_bytes()))
    assert old.restore_serializer() == MoneySerializer(3, "EUR")


@pytest.mark.parametrize("version", [0, 3])
def test_a_version_of_the_money_snapshot_that_is_not_known_is_rejected(version: int) -> None:
    with pytest.raises(SnapshotFormatError, match="is not supported"):
        MoneySerializerSnapshot().read_snapshot(version, DataInputView(bytes(10)))


def test_a_range_stores_the_snapshot_of_its_ends_and_whether_it_is_closed() -> None:
    out = DataOutputView()
    write_versioned_snapshot(out, RangeSerializer(IntSerializer(), is_closed=False).snapshot_configuration())
    restored = read_versioned_snapshot(DataInputView(out.to_bytes()))
    assert restored.restore_serializer() == RangeSerializer(IntSerializer(), is_closed=False)
    assert restored.resolve_schema_compatibility(RangeSerializer(IntSerializer(), is_closed=True)).is_incompatible
    rejected = restored.resolve_schema_compatibility(RangeSerializer(StringSerializer(), is_closed=False))
    assert [issue.path for issue in rejected.issues] == [".end"]
