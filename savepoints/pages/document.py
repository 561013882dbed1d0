"""A whole page: its head, tiles of numbers, sections with plots and tables, and its style.

The page forbids itself to load or run anything (a content security policy of ``default-src 'none'``), so that what is
wrong in it can do no harm. It follows the light or dark scheme of whoever looks, and is as readable on a phone as on a
desk. It is written to a temporary name beside its own, and then moved, so nobody sees half of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final

from attrs import field, frozen

from savepoints.pages.markup import Html, element, joined, text
from savepoints.whole_files import whole_file

__all__ = ["Section", "Table", "Tile", "document", "figure", "figures", "fragment", "paragraph", "tiles", "write_page"]


def _indexes(numbers: Iterable[int]) -> frozenset[int]:
    return frozenset(numbers)


@frozen
class Tile:
    """A number worth a place of its own, what it is, and what else is to be said of it."""

    name: str
    value: str
    note: str = ""


@frozen
class Table:
    """Rows of texts under their columns; ``numbers`` are the indexes of those that are aligned to the right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = field(factory=frozenset, converter=_indexes)

    def html(self) -> Html:
        """As HTML, in a frame that can be moved sideways where it is too wide."""
        if not self.rows:
            return paragraph(f"{self.caption}: none.")
        head = joined(
            element("th", text(name), {"scope": "col", "class": self._class(index)})
            for index, name in enumerate(self.columns)
        )
        body = joined(
            element("tr", joined(element("td", text(cell), {"class": self._class(i)}) for i, cell in enumerate(row)))
            for row in self.rows
        )
        parts = [
            element("caption", text(self.caption)),
            element("thead", element("tr", head)),
            element("tbody", body),
        ]
        frame = {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": self.caption}
        return element("div", element("table", joined(parts)), frame)

    def _class(self, index: int) -> str | None:
        return "number" if index in self.numbers else None


@frozen
class Section:
    """A part of the page under a heading."""

    title: str
    parts: Sequence[Html]


def paragraph(content: str) -> Html:
    """A paragraph of text."""
    return element("p", text(content), {"class": "said"})


def figure(caption: str, plot: Html) -> Html:
    """A plot with its caption."""
    return element("figure", joined([element("figcaption", text(caption)), plot]))


def figures(several: Sequence[Html], table: Table | None = None) -> Html:
    """Plots beside each other, and the table with their numbers, to be opened."""
    row = element("div", joined(several), {"class": "figures"})
    if table is None:
        return row
    details = element("details", joined([element("summary", text(f"{table.caption} as a table")), table.html()]))
    return joined([row, details])


def tiles(several: Sequence[Tile]) -> Html:
    """Numbers beside each other."""
    made = (
        element(
            "div",
            joined(
                [
                    element("dt", text(one.name)),
                    element("dd", text(one.value), {"class": "value"}),
                    element("dd", text(one.note), {"class": "note"}) if one.note else Html(""),
                ]
            ),
        )
        for one in several
    )
    return element("dl", joined(made), {"class": "tiles"})


def document(
    title: str, *, kind: str, status: str, facts: Sequence[tuple[str, str]], body: Sequence[Html | Section]
) -> str:
    """A whole page. ``status`` is one word: ``running``, ``ended``, ``failed`` or ``stored``."""
    head = element(
        "header",
        joined(
            [
                element("p", text(kind), {"class": "kind"}),
                element(
                    "h1", joined([text(title), element("span", text(status), {"class": f"status {_word(status)}"})])
                ),
                element(
                    "ul",
                    joined(
                        element("li", joined([element("b", text(name)), Html(" "), text(value)]))
                        for name, value in facts
                    ),
                    {"class": "facts"},
                ),
            ]
        ),
    )
    sections = [_section(one, number) if isinstance(one, Section) else one for number, one in enumerate(body)]
    parts = [
        Html("<!DOCTYPE html>"),
        Html('<html lang="en">'),
        element(
            "head",
            joined(
                [
                    element("meta", None, {"charset": "utf-8"}),
                    element(
                        "meta",
                        None,
                        {
                            "http-equiv": "Content-Security-Policy",
                            "content": "default-src 'none'; style-src 'unsafe-inline'",
                        },
                    ),
                    element("meta", None, {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
                    element("meta", None, {"name": "color-scheme", "content": "light dark"}),
                    element("title", text(f"{title} – {kind}")),
                    element("style", _style()),
                ]
            ),
        ),
        element("body", element("main", joined([head, *sections]))),
        Html("</html>\n"),
    ]
    return joined(parts, "\n")


def fragment(title: str, rows: Sequence[tuple[str, str, Html]]) -> str:
    """A piece for somebody else's page, such as a notebook: names, values and small plots, in the colours there."""
    cells = (
        element(
            "tr", joined([element("th", text(name), _LEFT), element("td", text(value), _LEFT), element("td", plot)])
        )
        for name, value, plot in rows
    )
    caption = element("caption", element("b", text(title)), {"style": "text-align:left;padding:4px 8px"})
    return element("table", joined([caption, element("tbody", joined(cells))]))


_LEFT: Final = {"style": "text-align:left;padding:2px 12px 2px 8px"}


def write_page(path: str | os.PathLike[str], page: str, *, overwrite: bool = True) -> None:
    """Writes a page in one step: whoever opens the file finds all of it, or what was there. Raises as `whole_file`."""
    with whole_file(path, overwrite=overwrite) as file:
        file.write(page.encode())


def _section(section: Section, number: int) -> Html:
    name = f"section-{number}"
    heading = element("h2", text(section.title), {"id": name})
    return element("section", joined([heading, *section.parts]), {"aria-labelledby": name})


def _word(status: str) -> str:
    return status if status.isalpha() else "other"


def _style() -> Html:
    return Html(files("savepoints.pages").joinpath("page.css").read_text("utf-8"))
