"""Tables for somebody else's page, such as a notebook: bounded, escaped, and in the colours that are there.

Nothing here says a colour, so that what is light on dark stays so. Names and values are anybody's and of any length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from savepoints.pages.markup import Html, element, joined, text
from snapshots.value_text import cut

__all__ = ["table_fragment"]

SHOWN_ROWS: Final = 200
SHOWN_CHARACTERS: Final = 500


def table_fragment(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """The rows under their columns, the first so many of them; None is an empty cell."""
    left = iter(rows)
    shown = list(islice(left, SHOWN_ROWS))
    more = sum(1 for _ in left)
    parts = [
        element("caption", element("b", _cell(title)), _CAPTION),
        element("thead", element("tr", joined(element("th", _cell(name), _LEFT) for name in columns))),
        element("tbody", joined(_row(row) for row in shown)),
    ]
    if more:
        note = element("td", text(f"and {more:,} more"), {**_LEFT, "colspan": len(columns)})
        parts.append(element("tfoot", element("tr", note)))
    return element("table", joined(parts))


def _row(cells: Sequence[object]) -> Html:
    return element("tr", joined(element("td", _cell(cell), _LEFT) for cell in cells))


def _cell(content: object) -> Html:
    return text("" if content is None else cut(str(content), SHOWN_CHARACTERS))


_LEFT: Final = {"style": "text-align:left;vertical-align:top;padding:2px 12px 2px 8px"}
_CAPTION: Final = {"style": "text-align:left;padding:4px 8px"}
