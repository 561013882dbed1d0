"""The code blocks of the documentation.

Every Python block of a page runs, in order and in one namespace. A comment above a block can prevent that: it gives a
reason (``<!-- not run: needs Spark -->``) or names the test that runs the block (``<!-- tests/... runs this -->``). A
comment that starts with ``<!-- setup`` is code that runs but that readers do not see. A block of ``text`` is the
expected output since the previous one. A line of dots matches any lines.

Blocks that do not run are checked. They parse, their imports from this project exist, and these accept the arguments in
the block. Commands have the options that the blocks show.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from statebackend.cli.main import COMMANDS, load_command

from .test_tutorials import matches

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
PACKAGES = ("snapshots", "typeserializers", "migration", "statebackend", "examples", "verification")

RUN_BY_TESTS = {
    "changing-state.md": "tests/savepoint/rewrite/test_changing_state_document.py",
    "first-steps.md": "tests/docs/test_tutorials.py",
    "fraud-detector.md": "tests/docs/test_tutorials.py",
    "fraud-detector-deploy.md": "tests/docs/test_tutorials.py",
    "move-a-flink-job.md": "tests/savepoint/foreign/test_move_a_flink_job_document.py",
    "move-a-spark-job.md": "tests/spark/test_spark_moved_queries.py",
    "on-call.md": "tests/savepoint/test_operating_document.py",
    "state-tables.md": "tests/spark/state_tables/test_spark_state_tables.py",
}
"""Pages whose blocks another test runs."""

RUN_WITH = "runs with "
"""The start of a comment. Its block runs only if the named package is installed, which some Python releases lack."""

_BLOCK = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->$"
    r"|^```text\n(?P<output>.*?)^```$"
    r"|(?:^<!-- (?P<note>[^\n]*?) -->\n)?^```python[^\n]*\n(?P<code>.*?)^```$",
    re.M | re.S,
)


class Block:
    """A Python block of a page, with the comment above it."""

    def __init__(self, page: str, found: re.Match[str], text: str) -> None:
        self.page = page
        [part] = (part for part in ("setup", "output", "code") if found[part] is not None)
        self.is_output = part == "output"
        self.line = text.count("\n", 0, found.start(part)) + 1
        self.note: str | None = found["note"]
        self.text: str = found[part]

    @property
    def is_run(self) -> bool:
        if self.note is not None and self.note.startswith(RUN_WITH):
            return importlib.util.find_spec(self.note.removeprefix(RUN_WITH)) is not None
        return self.note is None and not self.is_output and self.page not in RUN_BY_TESTS

    def parsed(self) -> ast.Module:
        # Empty lines in front make tracebacks show the line of the page.
        return ast.parse("\n" * (self.line - 1) + self.text, f"docs/{self.page}")


def blocks_of(page: str) -> list[Block]:
    text = (DOCS / page).read_text("utf-8")
    return [Block(page, found, text) for found in _BLOCK.finditer(text)]


RUN = [page for page in PAGES if any(block.is_run for block in blocks_of(page))]
NOT_RUN = [block for page in PAGES for block in blocks_of(page) if not block.is_run and not block.is_output]


@pytest.mark.usefixtures("own_registrations")
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks_of(page):
        if block.is_output:
            assert matches(block.text, capsys.readouterr().out), f"{page}:{block.line}"
        elif block.is_run:
            exec(compile(block.parsed(), f"docs/{page}", "exec", dont_inherit=True), names)


def test_a_comment_above_a_block_gives_a_reason_or_names_a_test_that_reads_the_page() -> None:
    for page, test in RUN_BY_TESTS.items():
        assert page in (REPOSITORY / test).read_text("utf-8")
    for block in NOT_RUN:
        if block.note is not None and not block.note.startswith(("not run: ", RUN_WITH)):
            [test] = re.findall(r"tests/\S+\.py", block.note)
            assert block.page in (REPOSITORY / test).read_text("utf-8"), f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", NOT_RUN, ids=lambda block: f"{block.page}:{block.line}")
def test_a_block_that_does_not_run_names_what_exists(block: Block) -> None:
    tree = block.parsed()
    imported = dict(_imports(tree))
    assert [name for name, value in imported.items() if value is None] == []
    wrong = [
        f"{ast.unparse(call.func)}(): {keyword.arg}"
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if not _takes(_resolved(call.func, imported), keyword.arg)
    ]
    assert wrong == []


def _imports(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """The imports of a block from this project, by name; None if an import does not exist."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
            module = importlib.import_module(node.module)
            for alias in node.names:
                yield alias.asname or alias.name, getattr(module, alias.name, None)


def _resolved(func: ast.expr, imported: dict[str, Any]) -> Any:
    """The called object, as far as a block shows it; None if it is not from this project."""
    if isinstance(func, ast.Name):
        return imported.get(func.id)
    if isinstance(func, ast.Attribute):
        return getattr(_resolved(func.value, imported), func.attr, None)
    return None


def _takes(called: Any, keyword: str | None) -> bool:
    if called is None or keyword is None:
        return True
    parameters = inspect.signature(called).parameters.values()
    return any(p.name == keyword or p.kind is p.VAR_KEYWORD for p in parameters)


_COMMAND = re.compile(rf"^(?:    |\$ )?(statebackend (?:{'|'.join(COMMANDS)}) .*?)(?:  +#.*)?$", re.M)
COMMANDS_SHOWN = sorted({(page, one) for page in PAGES for one in _COMMAND.findall((DOCS / page).read_text("utf-8"))})


@pytest.mark.parametrize(("page", "command"), COMMANDS_SHOWN)
def test_a_command_of_a_page_has_the_options_that_it_shows(page: str, command: str) -> None:
    name, *arguments = shlex.split(command)[1:]
    application = typer.Typer()
    application.command()(load_command(name))
    declared = {option for parameter in typer.main.get_command(application).params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= declared


def test_a_page_that_shows_a_console_is_read_by_another_test() -> None:
    tests = "".join(
        path.read_text("utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py") if path != Path(__file__)
    )
    shown = [page for page in PAGES if "```console\n" in (DOCS / page).read_text("utf-8")]
    assert [page for page in shown if page not in tests] == []
