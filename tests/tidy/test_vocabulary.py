"""Words that the project does not use: each has a replacement in the field's terms.

Identifiers, docstrings, comments and messages of the packages are checked, and all documents. Only words that have no
other meaning here are listed; reviewers watch the rest. Documents are checked for more words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from test_architecture_document import DOCUMENTS, name_of
from test_tidy import MODULES, PACKAGES, VERIFICATION, modules_of, tree_of

WORDS: Mapping[str, str] = {
    "refuse": "reject",
    "refused": "rejected, incompatible",
    "refuses": "rejects",
    "refusal": "rejection, error",
    "verdict": "compatibility result",
    "judged": "checked",
    "judges": "checks",
    "told": "reported",
    "anew": "again",
    "cited": "formatted",
    "upkeep": "maintenance",
    "errand": "mail",
    "forthwith": "at once",
    "hidden time": "event-time column",
    "time epoch": "no-data epoch",
    "former records": "metadata v1",
    "steady clock": "monotonic clock",
    "due again": "rescheduled",
    "streamjobs": "statebackend.streaming",
    "by and by": "gradually",
    "house": "project",
    "testkit": "statebackend.testing",
}
"""A word of the old vocabulary, and what to write."""

MORE_WORDS = ("tells", "begun", "rim", "whoever")
"""Words that no document may use."""


def pattern_of(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)


def lines_with(pattern: re.Pattern[str], text: str) -> list[str]:
    return [f"line {n}: {line.strip()}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def words_of(identifier: str) -> str:
    """Splits `keptFiles`, `KeptFiles` and `kept_files` into "kept files"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", " ", identifier).lower()


def identifiers_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@pytest.mark.parametrize("package", [*PACKAGES, *VERIFICATION])
def test_code_uses_the_words_of_the_field(package: str) -> None:
    pattern = pattern_of(WORDS)
    found = {}
    for module in modules_of(package):
        identifiers = {name for name in identifiers_of(tree_of(module)) if pattern.search(words_of(name))}
        lines = lines_with(pattern, MODULES[module].read_text(encoding="utf-8"))
        if identifiers or lines:
            found[module] = [*sorted(identifiers), *lines]

    assert found == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_a_document_uses_the_words_of_the_field(document: Path) -> None:
    assert lines_with(pattern_of((*WORDS, *MORE_WORDS)), document.read_text(encoding="utf-8")) == []
