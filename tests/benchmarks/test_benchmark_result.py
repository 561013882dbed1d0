"""A benchmark's line says which side is faster, in whatever unit it was measured."""

from __future__ import annotations

import io
import json

import pytest

from benchmarks.result import Result, format_value, print_json, print_table


def test_more_rows_in_a_second_are_faster() -> None:
    assert Result("count", 300_000.0, 30_000.0, "theirs", "rows/s").ratio == pytest.approx(10)


def test_fewer_milliseconds_are_faster() -> None:
    assert Result("epoch", 50.0, 100.0, "theirs", "ms").ratio == pytest.approx(2)


@pytest.mark.parametrize(("ours", "peer"), [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_without_two_sides_there_is_no_ratio(ours: float | None, peer: float | None) -> None:
    assert Result("count", ours, peer, "theirs", "rows/s").ratio is None


def test_a_line_of_json_has_exactly_the_documented_keys() -> None:
    out = io.StringIO()
    print_json([Result("count", 300_000.4, 30_000.0, "theirs", "rows/s")], out)
    assert json.loads(out.getvalue()) == {
        "name": "count",
        "ours": 300_000.0,
        "peer": 30_000.0,
        "peer_name": "theirs",
        "unit": "rows/s",
        "ratio": 10.0,
    }
    assert out.getvalue().count("\n") == 1


def test_the_table_shows_a_dash_for_what_was_not_measured() -> None:
    out = io.StringIO()
    print_table([Result("count", None, 30_000.0, "theirs", "rows/s")], out)
    header, line = out.getvalue().splitlines()
    assert header.split() == ["benchmark", "peer", "ours", "peer's", "unit", "ratio"]
    assert line.split() == ["count", "theirs", "-", "30,000", "rows/s", "-"]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0.123456, "0.1235"), (88.5, "88.5"), (281_689.7, "281,690")]
)
def test_values_are_shown_without_noise(value: float | None, shown: str) -> None:
    assert format_value(value) == shown
