"""Documents match the tree: the modules, tests and files that they name exist, and links have targets.

`docs/architecture.md` has a row for every package of the product, and the glossary has every word once.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_tidy import PACKAGES, REPOSITORY, TREE

ARCHITECTURE = REPOSITORY / "docs" / "architecture.md"
GLOSSARY = REPOSITORY / "docs" / "glossary.md"
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
TOP_MODULES = ("benchmarks", "examples", "verification")
"""Further packages that documents name."""
NAMES_IN_FILES = {
    "statebackend.backends",
    "statebackend.checksum",
    "statebackend.epoch",
    "statebackend.files",
    "statebackend.format_version",
    "statebackend.keyed_state",
    "statebackend.lineage",
    "statebackend.metadata_version",
    "statebackend.operator_state",
}
"""Names in durable files and packaging that look like modules."""

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PACKAGE = "|".join((*PACKAGES, *TOP_MODULES))
DOTTED = re.compile(rf"(?:{PACKAGE})(?:\.\w+)+(?<!\.py)")
ROW = re.compile(r"^\| (.+?) \| (.+?) \|", re.MULTILINE)
FILE = re.compile(rf"(?:{PACKAGE}|tests|docs|scripts)/[\w./-]+")


def name_of(document: Path) -> str:
    return document.relative_to(REPOSITORY).as_posix()


def text_of(document: Path) -> str:
    """A document without its blocks of code."""
    return FENCED.sub("", document.read_text(encoding="utf-8"))


def anchors_of(document: Path) -> set[str]:
    """The anchors of headings in rendered Markdown: lower case, no punctuation, hyphens for blanks."""
    headings = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in HEADING.findall(text_of(document)))
    return {heading.replace(" ", "-") for heading in headings}


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """The names that a module defines or imports, and the members of its classes."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(alias.asname or alias.name for alias in node.names)
    return frozenset(found)


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        stem = REPOSITORY.joinpath(*parts[:length])
        for path in (stem.with_suffix(".py"), stem / "__init__.pyi", stem / "__init__.py"):
            if path.is_file():
                return all(name in names_in(path) for name in parts[length:])
    return False


def named_code(document: Path) -> Iterator[str]:
    yield from CODE.findall(text_of(document))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_has_a_target(document: Path) -> None:
    broken = []
    for link in LINK.findall(CODE.sub("", text_of(document))):
        place, _, anchor = link.partition("#")
        if "://" in place:
            continue
        target = (document.parent / place).resolve() if place else document
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)

    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_named_module_exists(document: Path) -> None:
    named = {code for code in named_code(document) if DOTTED.fullmatch(code)} - NAMES_IN_FILES

    assert sorted(name for name in named if not is_there(name)) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_named_file_exists(document: Path) -> None:
    named = {code.partition("::")[0] for code in named_code(document) if FILE.fullmatch(code.partition("::")[0])}

    assert sorted(name for name in named if not (REPOSITORY / name).exists()) == []


@pytest.mark.parametrize("package", TREE)
def test_every_package_has_a_row_in_the_architecture(package: str) -> None:
    sentences = [sentence for named, sentence in ROW.findall(text_of(ARCHITECTURE)) if named == f"`{package}`"]

    assert len(sentences) == 1, f"{package} needs a row in one table of docs/architecture.md"
    assert len(sentences[0].split()) >= 5


def test_every_word_of_the_glossary_is_once_in_its_place() -> None:
    words = [named for named, _ in ROW.findall(text_of(GLOSSARY))][1:]

    assert len(words) > 50
    assert words == sorted(words, key=str.lower)
    assert len(set(words)) == len(words)


def test_the_index_of_decisions_lists_each_with_its_title_in_order() -> None:
    decisions = REPOSITORY / "docs" / "decisions"
    rows = []
    for record in sorted(decisions.glob("[0-9]*.md")):
        title = record.read_text(encoding="utf-8").splitlines()[0]
        rows.append((f"[{record.name[:4]}]({record.name})", title.removeprefix(f"# {int(record.name[:4])}. ")))

    assert ROW.findall((decisions / "README.md").read_text(encoding="utf-8"))[1:] == rows
