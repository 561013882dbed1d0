"""Texts that a spreadsheet would run as formulas: a CSV export warns about them, or escapes them."""

from __future__ import annotations

import csv
import decimal
import json
from pathlib import Path

import pytest

from statebackend import ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.savepoint.rewrite import Plan, SavepointWriter

FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1", '=cmd|"/c calc"!A1', "-"]
TEXTS = ["", "a=1", "-5", "+5.25", "-1e9", "'=1", " x", "7"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("state") / "savepoint"
    plan = (
        Plan()
        .add_operator("texts", "int")
        .add_state("texts", ValueStateDescriptor("text", str), enumerate([*FORMULAS, *TEXTS]))
        .add_state("texts", ValueStateDescriptor("amount", decimal.Decimal), [(1, decimal.Decimal("-9.50"))])
    )
    SavepointWriter.new(path, max_parallelism=4).write(plan)
    return str(path)


def exported(path: Path) -> list[str]:
    with open(path, newline="") as file:
        rows = {int(row["key"]): row["value"] for row in csv.DictReader(file)}
    return [rows[key] for key in sorted(rows)]


def test_formulas_are_counted_in_a_warning(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    assert main(["export", place, "texts", "text", str(out), "--to", "csv", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["formula_cells"] == len(FORMULAS)
    assert captured.err == (
        f"warning: a spreadsheet would run {len(FORMULAS)} cells as formulas; use --escape-formulas\n"
    )
    assert exported(out) == [*FORMULAS, *TEXTS]


def test_formulas_are_escaped(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    assert main(["export", place, "texts", "text", str(out), "--to", "csv", "--escape-formulas"]) == 0
    assert capsys.readouterr().err == ""
    assert exported(out) == [*(f"'{text}" for text in FORMULAS), *TEXTS]


def test_a_negative_decimal_is_a_number(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    assert main(["export", place, "texts", "amount", str(out), "--to", "csv"]) == 0
    assert capsys.readouterr().err == ""
    assert exported(out) == ["-9.50"]


def test_only_csv_has_formulas(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["export", place, "texts", "text", str(out), "--to", "json"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["export", place, "texts", "text", str(out), "--to", "json", "--escape-formulas"]) == 64
