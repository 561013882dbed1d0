"""One result of a benchmark, and how results are printed.

A result compares ours with one peer. Invariant: `ratio` > 1 means that ours is faster, for every unit. The JSON form
has exactly the keys `name`, `ours`, `peer`, `peer_name`, `unit` and `ratio`. A value that could not be measured is
null, and so is then the ratio. A result with an aim (the least ratio that is required) also has the keys `aim` and
`met`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TextIO

from attrs import field, frozen
from attrs.validators import instance_of

#: Units of speed, in which more is better. Every other unit is a cost, in which less is better.
UNITS_OF_SPEED = frozenset({"rows/s", "values/s", "operations/s", "entries/s", "MB/s"})


@frozen
class Result:
    """The measured values of ours and of one peer, both in `unit`; None for a value that could not be measured."""

    name: str = field(validator=instance_of(str))
    ours: float | None
    peer: float | None
    peer_name: str
    unit: str
    aim: float | None = None

    @property
    def ratio(self) -> float | None:
        """How many times as fast ours is; None if a value is missing or the divisor is zero."""
        faster, slower = (self.ours, self.peer) if self.unit in UNITS_OF_SPEED else (self.peer, self.ours)
        if faster is None or not slower:
            return None
        return faster / slower

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the aim; None without an aim, False if the ratio could not be measured."""
        if self.aim is None:
            return None
        ratio = self.ratio
        return ratio is not None and ratio >= self.aim

    def as_json(self) -> str:
        """Return the result as one line of JSON."""
        ratio = self.ratio
        line: dict[str, object] = {
            "name": self.name,
            "ours": _rounded(self.ours),
            "peer": _rounded(self.peer),
            "peer_name": self.peer_name,
            "unit": self.unit,
            "ratio": None if ratio is None else round(ratio, 3),
        }
        if self.aim is not None:
            line |= {"aim": self.aim, "met": self.met}
        return json.dumps(line)


def print_json(results: Iterable[Result], out: TextIO) -> None:
    """Print each result as soon as it is available, one JSON object per line."""
    for result in results:
        print(result.as_json(), file=out, flush=True)


def print_table(results: Iterable[Result], out: TextIO) -> None:
    """Print all results as a table, with their aims if any result has one."""
    kept = list(results)
    has_aims = any(result.aim is not None for result in kept)
    rows = [("benchmark", "peer", "ours", "peer's", "unit", "ratio", *(("aim", "met") if has_aims else ()))]
    for result in kept:
        ratio = "-" if result.ratio is None else f"{result.ratio:.2f}"
        aim = (format_value(result.aim), _MET[result.met]) if has_aims else ()
        values = format_value(result.ours), format_value(result.peer)
        rows.append((result.name, result.peer_name, *values, result.unit, ratio, *aim))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        left = "  ".join(cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True))
        right = "  ".join(cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True))
        print(f"{left}  {right}", file=out, flush=True)


_MET = {None: "-", True: "yes", False: "NO"}


def format_value(value: float | None) -> str:
    """Return a readable value: four significant digits or whole units, thousands separated, a dash for None."""
    rounded = _rounded(value)
    if rounded is None:
        return "-"
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:,g}"


def _rounded(value: float | None) -> float | None:
    """Round to four significant digits or to whole units, because further digits are noise."""
    if value is None:
        return None
    return float(round(value)) if abs(value) >= 1000 else float(f"{value:.4g}")
