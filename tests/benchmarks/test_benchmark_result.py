"""The line of a benchmark says which side is faster, in any unit."""

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
def test_there_is_no_ratio_without_two_sides(ours: float | None, peer: float | None) -> None:
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


@pytest.mark.parametrize(("ours", "met"), [(60.0, True), (50.0, True), (40.0, False), (None, False)])
def test_an_aim_is_met_by_a_ratio_that_reaches_it(ours: float | None, met: bool) -> None:
    assert Result("count", ours, 100.0, "theirs", "rows/s", aim=0.5).met is met


def test_a_line_with_an_aim_shows_it_and_whether_it_is_met() -> None:
    line = json.loads(Result("pause", 25.0, 20.0, "required", "ms", aim=1.0).as_json())
    assert (line["aim"], line["met"], line["ratio"]) == (1.0, False, 0.8)


def test_the_table_shows_aims_if_any_result_has_one() -> None:
    out = io.StringIO()
    print_table([Result("a", 2.0, 1.0, "b", "rows/s", aim=1.0), Result("c", 2.0, 1.0, "d", "rows/s")], out)
    header, with_aim, without = (line.split() for line in out.getvalue().splitlines())
    assert header[-2:] == ["aim", "met"]
    assert with_aim[-3:] == ["2.00", "1", "yes"]
    assert without[-3:] == ["2.00", "-", "-"]


def test_the_table_shows_a_dash_for_missing_measurements() -> None:
    out = io.StringIO()
    print_table([Result("count", None, 30_000.0, "theirs", "rows/s")], out)
    header, line = out.getvalue().splitlines()
    assert header.split() == ["benchmark", "peer", "ours", "peer's", "unit", "ratio"]
    assert line.split() == ["count", "theirs", "-", "30,000", "rows/s", "-"]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0.123456, "0.1235"), (88.5, "88.5"), (281_689.7, "281,690")]
)
def test_values_are_rounded(value: float | None, shown: str) -> None:
    assert format_value(value) == shown
