"""An integer of a megabyte is printed by its size; exports keep all its digits, and comparisons are exact."""

from __future__ import annotations

import decimal
import json
from pathlib import Path
from typing import Any

import pytest

from statebackend import MapStateDescriptor, Savepoint, SplitListStateDescriptor, ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from typeserializers import BigIntSerializer, ListSerializer

LARGE = 3 << 8_000_000
"""An integer of one megabyte. The usual algorithm is quadratic and needs minutes for its 2.4 million digits."""


def savepoint_of(path: Path, number: int) -> str:
    state = ValueStateDescriptor("last", BigIntSerializer())
    by_number = MapStateDescriptor("by number", BigIntSerializer(), BigIntSerializer())
    plan = Plan().add_operator("payments", "string").add_state("payments", state, [("a", number)])
    plan = plan.add_state("payments", by_number, [("a", number, -number)])
    SavepointWriter.new(path, max_parallelism=1).write(plan)
    return str(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    return savepoint_of(tmp_path_factory.mktemp("state") / "savepoint", LARGE)


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_a_large_integer_is_printed_by_its_size(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    [entry] = run(capsys, "show", place, "payments", "last")
    assert entry["value"] == "(integer of 8,000,002 bits)"
    [entry] = run(capsys, "show", place, "payments", "by number")
    assert (entry["user_key"], entry["value"]) == (
        "(integer of 8,000,002 bits)",
        "(negative integer of 8,000,002 bits)",
    )
    assert main(["show", place, "payments", "last"]) == 0
    assert "(integer of 8,000,002 bits)" in capsys.readouterr().out


def test_an_entry_with_a_large_integer_has_a_repr(place: str, tmp_path: Path) -> None:
    [entry] = Savepoint.open(place).read("payments", "last")
    assert repr(entry) == (
        f"StateEntry(key_group={entry.key_group}, key='a', namespace=None, user_key=None, "
        f"value='(integer of 8,000,002 bits)', last_access_ms=None)"
    )
    seen = SplitListStateDescriptor("seen", ListSerializer(BigIntSerializer()))
    plan = Plan().add_operator("payments", "string").add_operator_state("payments", seen, [[1, LARGE]])
    SavepointWriter.new(tmp_path / "elements", max_parallelism=1).write(plan)
    [element] = Savepoint.open(tmp_path / "elements").read_operator_state("payments", "seen")
    assert "value=[1, '(integer of 8,000,002 bits)']" in repr(element)


def test_a_condition_compares_a_large_integer(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(run(capsys, "show", place, "payments", "last", "--where", "value>1e4999")) == 1
    assert run(capsys, "show", place, "payments", "last", "--where", "value<=1e4999") == []
    assert run(capsys, "show", place, "payments", "last", "--where", "value=1") == []


def test_two_large_integers_of_one_size_differ(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = savepoint_of(tmp_path / "savepoint", LARGE + 1)
    found = run(capsys, "diff", place, other, "--entries", status=1)["entries"]
    assert [(one["state"], one["change"]) for one in found] == [
        ("last", "changed"),
        ("by number", "removed"),
        ("by number", "added"),
    ]
    assert run(capsys, "diff", place, place, "--entries")["entries"] == []


@pytest.mark.parametrize("file_format", ["csv", "json", "parquet"])
def test_an_export_has_all_digits_of_a_large_integer(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], file_format: str
) -> None:
    out = tmp_path / "out"
    run(capsys, "export", place, "payments", "last", str(out), "--to", file_format, "--as-text")
    with decimal.localcontext() as context:
        context.prec, context.Emax = decimal.MAX_PREC, decimal.MAX_EMAX
        digits = f"{decimal.Decimal(3) * decimal.Decimal(2) ** 8_000_000:f}".encode()
    if file_format == "parquet":
        import pyarrow.parquet as pq

        assert pq.read_table(out)["value"].to_pylist() == [digits.decode()]
    else:
        assert digits in out.read_bytes()
