"""`statebackend migrate` converts state to the types of a program before its deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import programs
import pytest

from statebackend import Savepoint, ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.cli.streams import LOSES, REJECTED
from statebackend.savepoint.rewrite import Plan, SavepointWriter


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The state that the job of `programs.as_it_was` stores."""
    totals: Any = programs.totals_class()
    plan = Plan().add_operator("totals", "string").change_parallelism(2)
    plan.add_state("totals", ValueStateDescriptor("count", int), [(f"shop {one}", one) for one in range(50)])
    entries = [(f"shop {one}", totals(sales=one, note="n")) for one in range(50)]
    plan.add_state("totals", ValueStateDescriptor("totals", totals), entries)
    SavepointWriter.new(tmp_path / "stored", max_parallelism=128).write(plan)
    return tmp_path / "stored"


def migrated(stored: Path, factory: str, *options: str) -> tuple[int, Path]:
    new = stored.parent / "new"
    return main(["migrate", str(stored), str(new), "--job", f"programs:{factory}", *options]), new


def test_state_has_the_types_of_the_program(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, new = migrated(stored, "wider", "--json")
    assert status == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["uri"] == str(new)
    rows = {"totals": 50, "count": 50}
    assert reported["operators"]["totals"] == {
        "is_copied": False,
        "rows": rows,
        "operator_state_rows": {},
        "left_out": {},
    }
    savepoint = Savepoint.open(new)
    [record] = savepoint.schema("totals", "totals").types["value"].records
    assert [(part.name, part.type_name) for part in record.fields] == [("sales", "float64"), ("note", "str")]
    assert {entry.key: entry.value.sales for entry in savepoint.read("totals", "totals")} == {
        f"shop {one}": float(one) for one in range(50)
    }
    assert savepoint.statistics("totals", "count").entries == 50
    assert main(["check", str(new), "--job", "programs:wider"]) == 0
    assert "as is" in capsys.readouterr().out


@pytest.mark.parametrize(("factory", "status"), [("narrower", REJECTED), ("without_a_field", LOSES)])
def test_incompatible_state_and_data_loss_are_not_written(
    stored: Path, capsys: pytest.CaptureFixture[str], factory: str, status: int
) -> None:
    ended, new = migrated(stored, factory)
    assert ended == status
    assert "totals" in capsys.readouterr().out
    assert not new.exists()


def test_data_loss_is_accepted_on_request(stored: Path) -> None:
    status, new = migrated(stored, "without_a_field", "--allow-loss")
    assert status == 0
    [record] = Savepoint.open(new).schema("totals", "totals").types["value"].records
    assert [part.name for part in record.fields] == ["sales"]
