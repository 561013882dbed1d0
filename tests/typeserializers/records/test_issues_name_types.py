"""Issues name the types of the program, and the declaration that fixes them."""

from __future__ import annotations

import datetime
import decimal
from typing import Annotated, Any

import attrs
import pytest

import typeserializers as ts
from snapshots import CompatibilityIssue, resolve_compatibility

CONVERT = "converted_by(function)"
INT32 = Annotated[int, ts.IntSerializer()]


def rejection(old: Any, new: Any) -> CompatibilityIssue:
    records = [attrs.make_class("Flight", {"x": attrs.field(type=hint)}) for hint in (old, new)]
    before, after = map(ts.AttrsSerializer, records)
    compatibility = resolve_compatibility(before.snapshot_configuration(), after)
    assert compatibility.is_incompatible
    (issue,) = compatibility.issues
    return issue


@pytest.mark.parametrize(
    ("old", "new", "rule", "reason", "fix"),
    [
        (
            str,
            decimal.Decimal,
            "field-type-changed",
            "from str to Decimal,",
            "convert it to Decimal: add",
        ),
        (decimal.Decimal, int, "field-type-narrowed", "from Decimal to int,", "Keep Decimal, or"),
        (int, INT32, "field-type-narrowed", "from int (LongSerializer) to int (IntSerializer)", CONVERT),
        (list[int], dict[str, int], "field-type-changed", "from list[int] to dict[str, int]", CONVERT),
        (set[str], frozenset[int], "field-type-changed", "from set[str] to frozenset[int]", CONVERT),
        (tuple[int, str], datetime.date, "field-type-changed", "from tuple[int, str] to date", CONVERT),
        (int | str, bytes, "field-type-changed", "from int | str to bytes", CONVERT),
        (int | None, int, "field-became-required", "may hold None", CONVERT),
    ],
)
def test_a_rejected_field_names_both_types_and_the_converter(
    old: Any, new: Any, rule: str, reason: str, fix: str
) -> None:
    issue = rejection(old, new)
    assert (issue.path, issue.rule) == (".x", rule)
    assert reason in issue.reason
    assert fix in issue.fix
    if "(" not in reason:
        assert "Serializer" not in str(issue)


def test_at_the_top_of_a_state_the_types_are_named_too() -> None:
    compatibility = resolve_compatibility(
        ts.serializer_for(decimal.Decimal).snapshot_configuration(), ts.serializer_for(int)
    )
    assert "the state holds Decimal, and int cannot read it" in str(compatibility)
    compatibility = resolve_compatibility(ts.serializer_for(int).snapshot_configuration(), ts.IntSerializer())
    assert "the state holds int (LongSerializer), and int (IntSerializer) cannot" in str(compatibility)
    compatibility = resolve_compatibility(ts.serializer_for(list[int]).snapshot_configuration(), ts.StringSerializer())
    assert "the state holds list[int], and str cannot" in str(compatibility)


def test_a_class_without_default_values_is_named_by_its_serializer() -> None:
    class Strange(ts.LongSerializer):
        def create_instance(self) -> int:
            raise ValueError("there is no empty value")

    assert Strange().type_name == "Strange"
