"""The program of the README is a file in examples/, and its output is the one in the README."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pyarrow.dataset
import pyarrow.parquet
import pytest
from installed_wheel import python_with_wheel

from examples.data.staging import stage_flights
from snapshots.compatibility import CompatibilityKind
from typeserializers import AttrsSerializer, former_names

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "examples" / "first_job.py"
UPGRADE_MARK = "airport: str | None = attrs.field"


def readme_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text("utf-8"), re.DOTALL)


def test_the_readme_shows_the_program_as_it_is() -> None:
    assert PROGRAM.read_text("utf-8") in readme_blocks()


def test_the_program_has_twenty_five_lines_without_imports() -> None:
    lines = [line for line in PROGRAM.read_text("utf-8").splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith(("import ", "from "))]) <= 25


def test_the_upgrade_of_the_readme_restores_the_state_of_the_program() -> None:
    before: dict[str, Any] = {"attrs": attrs}
    after: dict[str, Any] = {"attrs": attrs, "former_names": former_names}
    (old,) = re.findall(r"@attrs\.frozen\nclass Aircraft:\n(?:    .*\n)+", PROGRAM.read_text("utf-8"))
    (new,) = [block for block in readme_blocks() if UPGRADE_MARK in block]
    exec(old, before)
    exec(new, after)
    stored = AttrsSerializer(before["Aircraft"]).snapshot_configuration()
    compatibility = stored.resolve_schema_compatibility(AttrsSerializer(after["Aircraft"]))
    assert compatibility.kind is CompatibilityKind.AFTER_MIGRATION
    assert {(issue.rule, issue.path) for issue in compatibility.issues} == {
        ("field-renamed", ".airport"),
        ("field-added", ".cancelled"),
    }


def run_elsewhere(python: Path, *arguments: str | Path, directory: Path) -> str:
    """The output of an interpreter without the repository on its path."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    command = [str(python), *map(str, arguments)]
    ended = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.spark
@pytest.mark.extended
def test_the_program_follows_each_aircraft_and_continues_with_new_files_from_an_installed_wheel(
    tmp_path: Path,
) -> None:
    python = python_with_wheel(tmp_path / "installed")
    program = shutil.copy(PROGRAM, tmp_path)
    where = run_elsewhere(python, "-c", "import statebackend; print(statebackend.__file__)", directory=tmp_path)
    assert Path(where).is_relative_to(tmp_path / "installed" / "environment")
    arrived = stage_flights(tmp_path / "flights", 0, 1)
    run_elsewhere(python, program, tmp_path / "flights", tmp_path / "work", directory=tmp_path)
    arrived += stage_flights(tmp_path / "flights", 1, 2)
    run_elsewhere(python, program, tmp_path / "flights", tmp_path / "work", directory=tmp_path)

    flights = [flight for path in arrived for flight in pyarrow.parquet.read_table(path).to_pylist()]
    expected = []
    followed: dict[str, tuple[int, str | None]] = {}
    for flight in flights:
        if flight["tailnum"] is not None:
            count, airport = followed.get(flight["tailnum"], (0, None))
            expected.append((flight["tailnum"], count + 1, airport, flight["dest"]))
            followed[flight["tailnum"]] = (count + 1, flight["dest"])

    rows = pyarrow.dataset.dataset(tmp_path / "work" / "rows", format="parquet", partitioning="hive").to_table()
    columns = [rows[name].to_pylist() for name in ("tailnum", "flights", "previous_airport", "airport")]
    assert set(rows["epoch"].to_pylist()) == {0, 1}
    assert sorted(zip(*columns, strict=True), key=lambda row: row[:2]) == sorted(expected, key=lambda row: row[:2])
