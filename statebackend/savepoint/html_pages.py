"""Builds HTML pages and fragments with inline SVG plots, for reports and notebooks.

- Safety: a function that takes `str` escapes it; `Html` is inserted unchanged. Names and values may come from anyone.
  Characters that no page can show are shown by their number. A page forbids loading and running anything by a content
  security policy of ``default-src 'none'``.
- Pages follow the reader's light or dark scheme and work on a phone. `write_page` writes atomically.
- Fragments for foreign pages, such as notebooks, are bounded in size and set no colours.
- Plots are as wide as their container, in units of about one pixel of a phone. Each column of pixels shows the largest
  of its values; a missing number is a gap. A title and a description say in words what a plot shows.
"""

from __future__ import annotations

import html
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import islice
from typing import Final, NewType

from attrs import field, frozen

from snapshots.errors import cut
from statebackend.savepoint.atomic_files import atomic_file
from statebackend.savepoint.sizes import format_bytes, format_short_bytes
from statebackend.savepoint.statistics import CheckpointSizes
from statebackend.state.priority_queue import displayed_state

__all__ = [
    "Html",
    "Link",
    "Section",
    "Series",
    "Table",
    "Tile",
    "bar_plot",
    "checkpoint_growth",
    "document",
    "element",
    "figure",
    "figures",
    "fragment",
    "growth_figures",
    "joined",
    "line_plot",
    "page_style",
    "paragraph",
    "sizes_section",
    "spark_line",
    "table_fragment",
    "text",
    "tiles",
    "write_page",
]


Html = NewType("Html", str)


def text(content: object) -> Html:
    """Escape a text."""
    shown = "".join(one if one.isprintable() else _number(one) for one in str(content))
    return Html(html.escape(shown, quote=True))


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """Concatenate parts."""
    return Html(between.join(parts))


def element(name: str, content: Html | None = None, attributes: Mapping[str, object] | None = None) -> Html:
    """Return an element. Without content it has no end tag. Attributes are escaped; None omits one."""
    given = "".join(f' {key}="{text(value)}"' for key, value in (attributes or {}).items() if value is not None)
    return Html(f"<{name}{given}>" if content is None else f"<{name}{given}>{content}</{name}>")


def _number(character: str) -> str:
    return "\\n" if character == "\n" else f"\\x{ord(character):02x}"


SHOWN_ROWS: Final = 200
SHOWN_CHARACTERS: Final = 500


def table_fragment(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Return the first rows as a table. None is an empty cell."""
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


def _indexes(numbers: Iterable[int]) -> frozenset[int]:
    return frozenset(numbers)


@frozen
class Tile:
    """A prominent number with its label and a note."""

    name: str
    value: str
    note: str = ""


@frozen
class Link:
    """A text that leads to another page of the same server."""

    label: str
    href: str

    def html(self) -> Html:
        """Return the link."""
        return element("a", text(self.label), {"href": self.href})


@frozen
class Table:
    """Rows of texts and links under columns. ``numbers`` are the indexes of right-aligned columns."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Link]]
    numbers: frozenset[int] = field(factory=frozenset, converter=_indexes)

    def html(self) -> Html:
        """Return the table in a frame that scrolls sideways."""
        if not self.rows:
            return paragraph(f"{self.caption}: none.")
        head = joined(
            element("th", text(name), {"scope": "col", "class": self._class(index)})
            for index, name in enumerate(self.columns)
        )
        body = joined(
            element(
                "tr", joined(element("td", _content(cell), {"class": self._class(i)}) for i, cell in enumerate(row))
            )
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


def _content(cell: str | Link) -> Html:
    return cell.html() if isinstance(cell, Link) else text(cell)


@frozen
class Section:
    """A part of the page with a heading."""

    title: str
    parts: Sequence[Html]


def paragraph(content: str) -> Html:
    """Return a paragraph of text."""
    return element("p", text(content), {"class": "message"})


def figure(caption: str, plot: Html) -> Html:
    """Return a plot with its caption."""
    return element("figure", joined([element("figcaption", text(caption)), plot]))


def figures(several: Sequence[Html], table: Table | None = None) -> Html:
    """Return plots side by side, with a collapsible table of their numbers."""
    row = element("div", joined(several), {"class": "figures"})
    if table is None:
        return row
    details = element("details", joined([element("summary", text(f"{table.caption} as a table")), table.html()]))
    return joined([row, details])


def tiles(several: Sequence[Tile]) -> Html:
    """Return tiles side by side."""
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
    title: str, *, kind: str, status: str = "", facts: Sequence[tuple[str, str]], body: Sequence[Html | Section]
) -> str:
    """Return a whole page. ``status`` is one word next to the title, such as ``running`` or ``failed``."""
    word = status if status.isalpha() else "other"
    shown_status = element("span", text(status), {"class": f"status {word}"}) if status else Html("")
    head = element(
        "header",
        joined(
            [
                element("p", text(kind), {"class": "kind"}),
                element("h1", joined([text(title), shown_status])),
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
                    element("style", page_style()),
                ]
            ),
        ),
        element("body", element("main", joined([head, *sections]))),
        Html("</html>\n"),
    ]
    return joined(parts, "\n")


def fragment(title: str, rows: Sequence[tuple[str, str, Html]]) -> str:
    """Return a fragment for a foreign page, such as a notebook."""
    cells = (
        element(
            "tr",
            joined(
                [
                    element("th", text(name), _LEFT_IN_DOCUMENT),
                    element("td", text(value), _LEFT_IN_DOCUMENT),
                    element("td", plot),
                ]
            ),
        )
        for name, value, plot in rows
    )
    caption = element("caption", element("b", text(title)), {"style": "text-align:left;padding:4px 8px"})
    return element("table", joined([caption, element("tbody", joined(cells))]))


_LEFT_IN_DOCUMENT: Final = {"style": "text-align:left;padding:2px 12px 2px 8px"}


def write_page(path: str | os.PathLike[str], page: str, *, overwrite: bool = True) -> None:
    """Write a page atomically. Raises as `atomic_file`."""
    with atomic_file(path, overwrite=overwrite) as file:
        file.write(page.encode())


def _section(section: Section, number: int) -> Html:
    name = f"section-{number}"
    heading = element("h2", text(section.title), {"id": name})
    return element("section", joined([heading, *section.parts]), {"aria-labelledby": name})


def page_style() -> Html:
    """Return the style sheet of every page."""
    return Html(files("statebackend.savepoint").joinpath("page.css").read_text("utf-8"))


MOST_POINTS: Final = 160
MOST_SERIES: Final = 6
MOST_BARS: Final = 64

_SMALLEST: Final = 1e-12

_WIDTH, _HEIGHT = 340.0, 150.0
_LEFT_MARGIN, _RIGHT_MARGIN, _TOP_MARGIN, _BOTTOM_MARGIN = 52.0, 8.0, 10.0, 20.0
_LABEL_CHARACTERS: Final = 8
"""Longer labels of the axis are squeezed into the margin."""

Shown = Callable[[float], str]


@frozen
class Series:
    """A named sequence of values. None and NaN are gaps."""

    name: str
    values: Sequence[float | None]


def line_plot(
    series: Sequence[Series], *, title: str, shown: Shown, ends: tuple[str, str], is_binary: bool = False
) -> Html:
    """Return a line plot of the first `MOST_SERIES` series, with a legend below.

    Args:
        ends: Labels of the first and last value.
        is_binary: Use round numbers of bytes on the axis.
    """
    drawn = [Series(one.name, _thinned(_finite(one.values))) for one in series[:MOST_SERIES]]
    known = [value for one in drawn for value in one.values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = _Scale(min(low, 0.0), _round_up(high, is_binary))
    parts = [_frame(scale, shown, ends)]
    for number, one in enumerate(drawn):
        points = [(_x(place, len(one.values)), value) for place, value in enumerate(one.values)]
        parts += _line(points, scale, number, is_alone=len(drawn) == 1)
    described = f"From {ends[0]} to {ends[1]}. " + " ".join(_described(one, shown) for one in drawn)
    return joined([_svg(title, described if known else "No values yet.", parts), _legend(drawn)])


def bar_plot(
    values: Sequence[float], *, title: str, shown: Shown, ends: tuple[str, str], is_binary: bool = False
) -> Html:
    """Return a bar plot. Beyond `MOST_BARS` values, neighbours share a bar with the largest."""
    known = [value if math.isfinite(value) else 0.0 for value in values]
    bars = [value or 0.0 for value in _thinned(known, MOST_BARS)]
    scale = _Scale(0.0, _round_up(max(bars, default=0.0), is_binary))
    parts = [_frame(scale, shown, ends)]
    step = (_WIDTH - _LEFT_MARGIN - _RIGHT_MARGIN) / max(len(bars), 1)
    gap = min(3.0, step * 0.25)
    width = min(step - gap, 36.0)
    for place, value in enumerate(bars):
        x = _LEFT_MARGIN + place * step + (step - width) / 2
        y = scale.y(max(value, 0.0))
        height = max(_HEIGHT - _BOTTOM_MARGIN - y, 0.0)
        place_of_bar = {"class": "bar", "x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height), "rx": 1.5}
        parts.append(element("rect", element("title", text(shown(value))), place_of_bar))
    described = _described(Series(f"{len(known)} bars", known), shown) if known else "No values yet."
    return _svg(title, described, parts)


def spark_line(values: Sequence[float | None], *, title: str) -> Html:
    """Return a small line without axes, to put next to a number."""
    drawn = _thinned(_finite(values), 60)
    known = [value for value in drawn if value is not None]
    scale = _Scale(min(*known, 0.0) if known else 0.0, max(known, default=0.0) or 1.0, 2.0, 26.0)
    width = 110.0
    points = [(2 + (width - 4) * (place / max(len(drawn) - 1, 1)), value) for place, value in enumerate(drawn)]
    parts = _line(points, scale, 0, is_alone=False)
    head = element("title", text(title))
    # Without a style sheet, as in a notebook, the line has the colour of the text.
    size = {
        "class": "spark",
        "viewBox": f"0 0 {_n(width)} 28",
        "role": "img",
        "width": 110,
        "height": 28,
        "stroke": "currentColor",
        "fill": "none",
    }
    return element("svg", joined([head, *parts]), size)


@frozen
class _Scale:
    low: float
    high: float
    top: float = _TOP_MARGIN
    bottom: float = _HEIGHT - _BOTTOM_MARGIN

    def y(self, value: float) -> float:
        # Halve first: the difference of two floats may overflow.
        reach = self.high / 2 - self.low / 2
        part = (value / 2 - self.low / 2) / reach if reach > 0 else 0.0
        return self.bottom - part * (self.bottom - self.top)


def _svg(title: str, described: str, parts: Sequence[Html]) -> Html:
    head = [element("title", text(title)), element("desc", text(described))]
    size = {"viewBox": f"0 0 {_n(_WIDTH)} {_n(_HEIGHT)}", "role": "img", "class": "plot"}
    return element("svg", joined([*head, *parts]), size)


def _frame(scale: _Scale, shown: Shown, ends: tuple[str, str]) -> Html:
    parts = []
    for part in (0.0, 0.5, 1.0):
        value = scale.low * (1 - part) + scale.high * part
        y = scale.y(value)
        kind = "axis" if part == 0.0 else "grid"
        line = {"class": kind, "x1": _n(_LEFT_MARGIN), "x2": _n(_WIDTH - _RIGHT_MARGIN), "y1": _n(y), "y2": _n(y)}
        parts.append(element("line", Html(""), line))
        label = shown(value)
        place = {"class": "tick end", "x": _n(_LEFT_MARGIN - 6), "y": _n(y + 3.5)}
        if len(label) > _LABEL_CHARACTERS:
            place |= {"textLength": _n(_LEFT_MARGIN - 8), "lengthAdjust": "spacingAndGlyphs"}
        parts.append(element("text", text(label), place))
    below = _HEIGHT - 5
    parts.append(element("text", text(ends[0]), {"class": "tick", "x": _n(_LEFT_MARGIN), "y": _n(below)}))
    if ends[1] != ends[0]:
        parts.append(
            element("text", text(ends[1]), {"class": "tick end", "x": _n(_WIDTH - _RIGHT_MARGIN), "y": _n(below)})
        )
    return joined(parts)


def _line(points: Sequence[tuple[float, float | None]], scale: _Scale, number: int, *, is_alone: bool) -> list[Html]:
    parts: list[Html] = []
    run: list[tuple[float, float]] = []
    for x, value in [*points, (0.0, None)]:
        if value is not None:
            run.append((x, scale.y(value)))
        elif run:
            parts += _run(run, scale, number, is_alone=is_alone)
            run = []
    return parts


def _run(run: Sequence[tuple[float, float]], scale: _Scale, number: int, *, is_alone: bool) -> list[Html]:
    parts: list[Html] = []
    path = " ".join(f"{'L' if place else 'M'}{_n(x)} {_n(y)}" for place, (x, y) in enumerate(run))
    if is_alone and len(run) > 1:
        base = _n(scale.y(max(scale.low, 0.0)))
        area = f"{path} L{_n(run[-1][0])} {base} L{_n(run[0][0])} {base} Z"
        parts.append(element("path", Html(""), {"class": f"area f{number}", "d": area}))
    if len(run) > 1:
        parts.append(element("path", Html(""), {"class": f"line s{number}", "d": path}))
    # A dot marks the last value.
    x, y = run[-1]
    parts.append(element("circle", Html(""), {"class": f"dot f{number}", "cx": _n(x), "cy": _n(y), "r": 2.4}))
    return parts


def _legend(drawn: Sequence[Series]) -> Html:
    if len(drawn) < 2:
        return Html("")
    entries = (
        element("li", joined([element("span", Html(""), {"class": f"key f{number}"}), text(one.name)]))
        for number, one in enumerate(drawn)
    )
    return element("ul", joined(entries), {"class": "legend"})


def _described(one: Series, shown: Shown) -> str:
    known = [value for value in _finite(one.values) if value is not None]
    if not known:
        return f"{one.name}: no values."
    return f"{one.name}: at least {shown(min(known))}, at most {shown(max(known))}, at last {shown(known[-1])}."


def _finite(values: Sequence[float | None]) -> list[float | None]:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _thinned(values: Sequence[float | None], most: int = MOST_POINTS) -> list[float | None]:
    """Return at most so many values, each the largest of its neighbours."""
    if len(values) <= most:
        return list(values)
    bounds = [round(place * len(values) / most) for place in range(most + 1)]
    thinned: list[float | None] = []
    for begin, end in itertools.pairwise(bounds):
        known = [value for value in values[begin:end] if value is not None]
        thinned.append(max(known, default=None))
    return thinned


def _round_up(value: float, is_binary: bool) -> float:
    """Return the next round number, 1 for zero, or the number itself if the next is infinite."""
    if value <= _SMALLEST:
        return 1.0 if value <= 0 else _SMALLEST
    if is_binary and value >= 1024:
        unit = 1024.0 ** int(math.log(value, 1024))
        rounded = unit * _round_up(value / unit, False)
        return rounded if math.isfinite(rounded) else value
    power = 10.0 ** math.floor(math.log10(value))
    steps = (step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if value * 0.999999 <= step * power < math.inf)
    return next(steps, value)


def _x(place: int, count: int) -> float:
    inside = _WIDTH - _LEFT_MARGIN - _RIGHT_MARGIN - 3
    return _LEFT_MARGIN + inside * (place / (count - 1) if count > 1 else 1.0)


def _n(number: float) -> str:
    return f"{number:.1f}".rstrip("0").rstrip(".")


def sizes_section(newest: CheckpointSizes, growth: Sequence[Html] = ()) -> Section:
    """Return the state sizes of the newest checkpoint: growth plots, then by operator, state and subtask."""
    operators = [
        (
            one.uid,
            one.name,
            str(one.parallelism),
            format_bytes(one.size_bytes),
            format_bytes(max(one.bytes_by_subtask)),
            f"{one.skew:.2f}",
        )
        for one in newest.operators
    ]
    names = ("operator", "name", "subtasks", "state", "largest subtask", "skew")
    states = [
        (one.uid, displayed_state(state), format_bytes(size_bytes), _share(size_bytes, newest.size_bytes))
        for one in newest.operators
        for state, size_bytes in sorted(one.bytes_by_state.items(), key=lambda state: -state[1])
    ]
    subtasks = [
        (one.uid, str(index), format_bytes(size_bytes))
        for one in newest.operators
        for index, size_bytes in enumerate(one.bytes_by_subtask)
    ]
    spread = [
        figure(
            f"Subtasks of {one.uid}: skew {one.skew:.2f}",
            bar_plot(
                one.bytes_by_subtask,
                title=f"Bytes of state by subtask of operator {one.uid}",
                shown=format_short_bytes,
                ends=("subtask 0", f"subtask {one.parallelism - 1}"),
                is_binary=True,
            ),
        )
        for one in newest.operators[:MOST_SERIES]
    ]
    title = f"State in checkpoint {newest.checkpoint_id}"
    return Section(
        title,
        [
            *growth,
            Table("Operators", names, operators, {2, 3, 4, 5}).html(),
            Table("Keyed states, by their files", ("operator", "state", "files", "share"), states, {2, 3}).html(),
            figures(spread, Table("Sizes of subtasks", ("operator", "subtask", "state"), subtasks, {1, 2})),
        ],
    )


def growth_figures(sizes: Iterable[tuple[str, Sequence[int | None]]], ends: tuple[str, str], caption: str) -> Html:
    """Return a plot of how sizes grew, by name, largest first."""
    ordered = sorted(sizes, key=lambda one: -(one[1][-1] or 0) if one[1] else 0)
    left_out = len(ordered) - MOST_SERIES
    more = f" (the largest {MOST_SERIES}; {left_out} are left out)" if left_out > 0 else ""
    series = [Series(name, values) for name, values in ordered]
    plot = line_plot(series, title=caption, shown=format_short_bytes, ends=ends, is_binary=True)
    return figure(caption + more, plot)


def checkpoint_growth(checkpoints: Sequence[CheckpointSizes]) -> list[Html]:
    """Return the growth of several checkpoints, by operator and by state; nothing for a single one."""
    if len(checkpoints) < 2:
        return []
    ends = f"checkpoint {checkpoints[0].checkpoint_id}", f"checkpoint {checkpoints[-1].checkpoint_id}"
    by_operator: dict[str, list[int | None]] = {}
    by_state: dict[str, list[int | None]] = {}
    for place, checkpoint in enumerate(checkpoints):
        for operator in checkpoint.operators:
            by_operator.setdefault(operator.uid, [None] * len(checkpoints))[place] = operator.size_bytes
            for state, size_bytes in operator.bytes_by_state.items():
                name = f"{operator.uid} / {displayed_state(state)}"
                by_state.setdefault(name, [None] * len(checkpoints))[place] = size_bytes
    return [
        figures(
            [
                growth_figures(list(by_operator.items()), ends, "Growth by operator"),
                growth_figures(list(by_state.items()), ends, "Growth by state"),
            ]
        )
    ]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"
