"""The messages in docs/error-messages.md exist in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "error-messages.md").read_text("utf-8")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
ANYTHING = "…"


def texts_of(node: ast.AST) -> Iterator[str]:
    """The texts in a module, with an ellipsis in place of each formatted value."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else ANYTHING for part in child.values)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        else:
            yield from texts_of(child)


@pytest.fixture(scope="module")
def code() -> str:
    modules = (
        path for name in ("statebackend", "typeserializers", "snapshots") for path in (REPOSITORY / name).rglob("*.py")
    )
    return "\n".join(text for path in sorted(modules) for text in texts_of(ast.parse(path.read_text("utf-8"))))


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_in_the_code(message: str, code: str) -> None:
    parts = [re.escape(part) for part in message.split(ANYTHING)]
    assert re.search(".*".join(parts), code), message


def test_the_page_has_many_messages() -> None:
    assert len(MESSAGES) > 50
