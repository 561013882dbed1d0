"""Integers for float fields: each one keeps its exact value, or is rejected."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from state_contents import entries_of

from statebackend import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from statebackend.savepoint.errors import EntryError
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.state.state_kind import StateDescriptor
from typeserializers.scalars.fixed_width import FloatSerializer

ODD = (1 << 53) + 1


@attrs.frozen
class Price:
    name: str
    amount: float | None


def write(path: Path, descriptor: StateDescriptor, entries: Any) -> dict[Any, Any]:
    plan = Plan().add_operator("o", "string").add_state("o", descriptor, entries)
    SavepointWriter.new(path, max_parallelism=8).write(plan)
    return entries_of(path, "o", descriptor.name)


@pytest.mark.parametrize(
    ("descriptor", "entry"),
    [
        (ValueStateDescriptor("v", float), ("a", ODD)),
        (ValueStateDescriptor("v", float), ("a", Decimal("0.1"))),
        (ValueStateDescriptor("v", FloatSerializer()), ("a", (1 << 24) + 1)),
        (ValueStateDescriptor("v", float, ttl=StateTtlConfig(1000)), ("a", ODD)),
        (ValueStateDescriptor("v", float | None), ("a", ODD)),
        (ValueStateDescriptor("v", Price), ("a", Price("apple", ODD))),
        (ValueStateDescriptor("v", tuple[str, float]), ("a", ("x", ODD))),
        (ValueStateDescriptor("v", dict[str, list[float]]), ("a", {"x": [1.0, ODD]})),
        (ListStateDescriptor("v", float), ("a", [0.5, ODD])),
        (ListStateDescriptor("v", float, ttl=StateTtlConfig(1000)), ("a", [0.5, ODD])),
        (MapStateDescriptor("v", float, int), ("a", ODD, 1)),
        (MapStateDescriptor("v", str, float), ("a", "x", ODD)),
    ],
)
def test_a_number_that_would_change_is_rejected(tmp_path: Path, descriptor: StateDescriptor, entry: Any) -> None:
    with pytest.raises(
        EntryError, match=r"key 'a': the .* does not fit: .* cannot be stored as a float: it would become"
    ):
        write(tmp_path / "new", descriptor, [entry])
    assert not (tmp_path / "new").exists()


def test_a_column_of_integers_is_a_float_column_only_if_exact(tmp_path: Path) -> None:
    descriptor = ValueStateDescriptor("v", float)
    assert write(tmp_path / "few", descriptor, pa.table({"key": ["a", "b"], "value": [1, ODD - 1]})) == {
        "a": 1.0,
        "b": float(ODD - 1),
    }
    with pytest.raises(EntryError, match=r"key 'b': the value does not fit: .*: 9007199254740993 cannot be stored"):
        write(tmp_path / "many", descriptor, pa.table({"key": ["a", "b"], "value": [1, ODD]}))


def test_exact_floats_are_kept(tmp_path: Path) -> None:
    values = [1, True, Decimal("0.5"), 0.1, float("inf"), ODD - 1]
    entries = [(str(number), value) for number, value in enumerate(values)]
    assert write(tmp_path / "new", ValueStateDescriptor("v", float), entries) == dict(entries)
    rounded = write(tmp_path / "short", ValueStateDescriptor("v", FloatSerializer()), [("a", 0.1), ("b", 7)])
    assert rounded == {"a": pytest.approx(0.1), "b": 7.0}
    assert write(tmp_path / "none", ValueStateDescriptor("v", Price), [("a", Price("apple", None))])["a"].amount is None


def test_values_of_a_function_are_exact_too(tmp_path: Path) -> None:
    write(tmp_path / "new", ValueStateDescriptor("v", int), [("a", ODD)])
    plan = Plan().change_values("o", "v", ValueStateDescriptor("v", float), lambda value: value)
    with pytest.raises(EntryError, match=r"it would become 9007199254740992\.0"):
        SavepointWriter.copy_of(tmp_path / "new", tmp_path / "copy").write(plan)
