"""A user's file that hides one of our packages is reported in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from snapshots.packages import SUBMODULE_OF

REPOSITORY = Path(__file__).resolve().parents[2]


def run_beside(script: Path, program: str) -> subprocess.CompletedProcess[str]:
    script.write_text(f"import sys\nsys.path.append({str(REPOSITORY)!r})\n{program}\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-E", str(script)], capture_output=True, text=True, check=False, cwd=script.parent
    )


@pytest.mark.parametrize("package", [name for name in SUBMODULE_OF if name != "statebackend"])
def test_a_file_next_to_the_program_with_the_name_of_a_package_is_named(tmp_path, package: str) -> None:
    foreign = tmp_path / f"{package}.py"
    foreign.write_text("", encoding="utf-8")

    ended = run_beside(tmp_path / "program.py", "from statebackend import DataStream")

    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("ImportError")]
    assert f"{foreign} is found in place of the package '{package}' of Statebackend: rename it" in line


def test_a_folder_with_the_name_of_a_package_is_named(tmp_path) -> None:
    (tmp_path / "migration").mkdir()
    (tmp_path / "migration" / "__init__.py").write_text("", encoding="utf-8")

    ended = run_beside(tmp_path / "program.py", "from statebackend import DataStream")

    assert "'migration' of Statebackend" in ended.stderr


def test_a_file_named_checkpoint_does_not_matter(tmp_path) -> None:
    (tmp_path / "checkpoint.py").write_text("raise SystemExit(3)", encoding="utf-8")

    ended = run_beside(tmp_path / "program.py", "from statebackend import DataStream; print('fine')")

    assert (ended.returncode, ended.stdout) == (0, "fine\n"), ended.stderr
