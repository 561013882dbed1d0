"""Plots as inline SVG: lines over a sequence, and bars beside each other.

A plot is as wide as its place, in units of which a phone shows about one per pixel, so its letters are as large as
those around it. Colours are classes of the page's style, which knows light and dark. Of many values each column of
pixels shows the largest; what is no number is a gap. A title and a description say in words what is to be seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from savepoints.pages.markup import Html, element, joined, text

__all__ = ["Series", "bar_plot", "line_plot", "spark_line"]

MOST_POINTS: Final = 160
MOST_SERIES: Final = 6
MOST_BARS: Final = 64

_SMALLEST: Final = 1e-12

_WIDTH, _HEIGHT = 340.0, 150.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 8.0, 10.0, 20.0

Shown = Callable[[float], str]


@frozen
class Series:
    """Values by a name; None, and what is no number, is a gap."""

    name: str
    values: Sequence[float | None]


def line_plot(
    series: Sequence[Series], *, title: str, shown: Shown, ends: tuple[str, str], is_binary: bool = False
) -> Html:
    """Lines from the first to the last value; the first `MOST_SERIES` of them, whose names stand below.

    ``ends`` are what the first and last value are of. ``is_binary`` is for bytes, whose round numbers are others.
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
    """A bar for each value; of more than `MOST_BARS` the largest of neighbours."""
    known = [value if math.isfinite(value) else 0.0 for value in values]
    bars = [value or 0.0 for value in _thinned(known, MOST_BARS)]
    scale = _Scale(0.0, _round_up(max(bars, default=0.0), is_binary))
    parts = [_frame(scale, shown, ends)]
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(bars), 1)
    gap = min(3.0, step * 0.25)
    width = min(step - gap, 36.0)
    for place, value in enumerate(bars):
        x = _LEFT + place * step + (step - width) / 2
        y = scale.y(max(value, 0.0))
        height = max(_HEIGHT - _BOTTOM - y, 0.0)
        told = element("title", text(shown(value)))
        place_of_bar = {"class": "bar", "x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height), "rx": 1.5}
        parts.append(element("rect", told, place_of_bar))
    described = _described(Series(f"{len(known)} bars", known), shown) if known else "No values yet."
    return _svg(title, described, parts)


def spark_line(values: Sequence[float | None], *, title: str) -> Html:
    """A small line without axes, for the place beside a number."""
    drawn = _thinned(_finite(values), 60)
    known = [value for value in drawn if value is not None]
    scale = _Scale(min(*known, 0.0) if known else 0.0, max(known, default=0.0) or 1.0, 2.0, 26.0)
    width = 110.0
    points = [(2 + (width - 4) * (place / max(len(drawn) - 1, 1)), value) for place, value in enumerate(drawn)]
    parts = _line(points, scale, 0, is_alone=False)
    head = element("title", text(title))
    # Where there is no style, as in a notebook, the line has the colour of the text.
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
    top: float = _TOP
    bottom: float = _HEIGHT - _BOTTOM

    def y(self, value: float) -> float:
        # Of halves, since the difference of two numbers may be larger than any.
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
        line = {"class": kind, "x1": _n(_LEFT), "x2": _n(_WIDTH - _RIGHT), "y1": _n(y), "y2": _n(y)}
        parts.append(element("line", Html(""), line))
        place = {"class": "tick end", "x": _n(_LEFT - 6), "y": _n(y + 3.5)}
        parts.append(element("text", text(shown(value)), place))
    below = _HEIGHT - 5
    parts.append(element("text", text(ends[0]), {"class": "tick", "x": _n(_LEFT), "y": _n(below)}))
    if ends[1] != ends[0]:
        parts.append(element("text", text(ends[1]), {"class": "tick end", "x": _n(_WIDTH - _RIGHT), "y": _n(below)}))
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
    # The last value, or the only one, is where one looks.
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
    """At most so many values, each the largest of its neighbours."""
    if len(values) <= most:
        return list(values)
    bounds = [round(place * len(values) / most) for place in range(most + 1)]
    thinned: list[float | None] = []
    for begin, end in itertools.pairwise(bounds):
        known = [value for value in values[begin:end] if value is not None]
        thinned.append(max(known, default=None))
    return thinned


def _round_up(value: float, is_binary: bool) -> float:
    """The next number that is easily read, and 1 for nothing; the number itself where the next one is infinite."""
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
    inside = _WIDTH - _LEFT - _RIGHT - 3
    return _LEFT + inside * (place / (count - 1) if count > 1 else 1.0)


def _n(number: float) -> str:
    return f"{number:.1f}".rstrip("0").rstrip(".")
