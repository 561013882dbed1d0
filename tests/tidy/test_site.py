"""The documentation site: every page is in its navigation once, and every page of the navigation exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_navigation_names_every_page_once() -> None:
    configuration = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())
    named = Counter(_pages(configuration["nav"]))
    pages = {path.relative_to(REPOSITORY / "docs").as_posix() for path in (REPOSITORY / "docs").rglob("*.md")}
    assert named == Counter(pages)


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    for part in nav.values() if isinstance(nav, dict) else nav:
        yield from _pages(part)
