"""The tutorials work as shown: files are written, commands are run, and their output is compared.

A block with a title is a file. A second block with the same title changes that file: its classes and functions replace
those with the same name, and its imports are added. In command output, a line of dots matches any lines.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

PAGES = ("fraud-detector.md", "fraud-detector-deploy.md")
_BLOCK = re.compile(r'^```(?:python title="(?P<file>[^"]+)"|(?P<console>console))\n(?P<text>.*?)^```$', re.M | re.S)


@pytest.mark.extended
def test_the_first_steps(tmp_path: Path) -> None:
    follow((REPOSITORY / "docs" / "first-steps.md").read_text("utf-8"), tmp_path)


@pytest.fixture(scope="module")
def seven_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which all steps of the fraud detector that need no Spark were followed."""
    directory = tmp_path_factory.mktemp("fraud-detector")
    follow(fraud_detector()[0], directory)
    return directory


@pytest.mark.extended
def test_the_first_seven_steps_of_the_fraud_detector(seven_steps: Path) -> None:
    assert (seven_steps / "monday" / "_metadata").is_file()


@pytest.mark.spark
@pytest.mark.extended
def test_the_fraud_detector_continues_on_spark(seven_steps: Path) -> None:
    follow(fraud_detector()[1], seven_steps)


def fraud_detector() -> tuple[str, str]:
    """Both pages of the tutorial as one text, split at the step that needs Spark."""
    pages = "".join((REPOSITORY / "docs" / page).read_text("utf-8") for page in PAGES)
    before, _, after = pages.partition("## 8. Deploy")
    return before, after


def follow(page: str, directory: Path) -> None:
    """Write the files and run the commands of a page."""
    assert _BLOCK.search(page)
    for block in _BLOCK.finditer(page):
        if block["file"] is not None:
            path = directory / block["file"]
            path.write_text(changed(path.read_text(), block["text"]) if path.exists() else block["text"])
            continue
        for command, expected in commands(block["text"]):
            output = run(command, directory)
            assert matches(expected, output), f"$ {command}\n{output}"


def changed(old: str, change: str) -> str:
    """Replace definitions with the same name, and add imports."""
    replaced = {node.name: node for node in ast.parse(change).body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    lines = change.splitlines(keepends=True)
    new_imports = [
        "".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.parse(change).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    old_lines = old.splitlines(keepends=True)
    for node in reversed(ast.parse(old).body):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in replaced:
            new = replaced[node.name]
            old_lines[first_line(node) - 1 : node.end_lineno] = lines[first_line(new) - 1 : new.end_lineno]
    return "".join((*new_imports, *old_lines))


def first_line(node: ast.ClassDef | ast.FunctionDef) -> int:
    return min((node.lineno, *(decorator.lineno for decorator in node.decorator_list)))


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, with the output below it."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def run(command: str, directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120"}
    done = subprocess.run(["bash", "-c", command], cwd=directory, env=environment, capture_output=True, text=True)
    # A tutorial may kill a program, but no command may fail.
    assert "Traceback" not in done.stderr, f"$ {command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def matches(expected: str, output: str) -> bool:
    pattern = "".join(r"(?:.*\n)*?" if line == "...\n" else re.escape(line) for line in expected.splitlines(True))
    return re.fullmatch(pattern, output) is not None
