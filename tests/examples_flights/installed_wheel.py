"""Installs the project as a user does: a wheel in a new virtual environment in another directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def python_with_wheel(directory: Path) -> Path:
    """Create an environment below ``directory`` with this project's wheel and its dependencies; return its interpreter.

    A path file makes the dependencies of the running interpreter importable. It does not include this project: an
    editable installation works only in its own environment.
    """
    # Building writes next to the sources, which a test must not do.
    sources = directory / "sources"
    ignored = shutil.ignore_patterns(".*", "tests", "build", "*.egg-info", "__pycache__", "data")
    shutil.copytree(REPOSITORY, sources, ignore=ignored)
    wheels = directory / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _run([*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(wheels), str(sources)])
    environment = directory / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "python"


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        pytest.fail(f"{' '.join(command)}: {ended.stdout[-1000:]}{ended.stderr[-2000:]}")
