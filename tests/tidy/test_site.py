"""The documentation site: every page is in its navigation once, and no page is too long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_navigation_names_every_page_once() -> None:
    named = Counter(_pages(_navigation()))
    pages = {path.relative_to(REPOSITORY / "docs").as_posix() for path in (REPOSITORY / "docs").rglob("*.md")}
    assert named == Counter(pages)


def _navigation() -> Any:
    return yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    for part in nav.values() if isinstance(nav, dict) else nav:
        yield from _pages(part)


def test_no_page_is_too_long() -> None:
    """A how-to has less than 150 lines and any other page at most 250, except for reference. The README has 120."""
    sections = {name: set(_pages(part)) for section in _navigation() for name, part in section.items()}
    how_to = sections["How-to"] | sections["Coming from"]
    any_length = sections["Reference"] | {"flink-behaviours.md"}
    too_long = {
        page: lines
        for page in set().union(*sections.values()) - any_length
        if (lines := len((REPOSITORY / "docs" / page).read_text("utf-8").splitlines()))
        > (149 if page in how_to else 250)
    }
    assert too_long == {}
    assert len((REPOSITORY / "README.md").read_text("utf-8").splitlines()) <= 120
