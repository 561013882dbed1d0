"""HTML pages are complete, load nothing, run no scripts, and escape every text."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from page_reader import PageReader

from statebackend.savepoint import atomic_files as atomic_files
from statebackend.savepoint.html_pages import (
    MOST_BARS,
    MOST_POINTS,
    Section,
    Series,
    Table,
    Tile,
    bar_plot,
    document,
    element,
    figure,
    figures,
    fragment,
    line_plot,
    spark_line,
    text,
    tiles,
    write_page,
)
from statebackend.savepoint.sizes import format_bytes, format_count, format_duration, format_short_bytes, format_time

HOSTILE = "</script></title><b onload='x'>\"&\n\x00\ud800'"
SHOWN = "</script></title><b onload='x'>\"&\\n\\x00\\xd800'"


def page_of(name: str, values: list[float | None]) -> str:
    def plot(series: list[Series]) -> Any:
        return figure(name, line_plot(series, title=name, shown=format_count, ends=(name, name)))

    table = Table(name, (name, "b"), [(name, "1")], {1})
    bars = bar_plot(
        [one or 0.0 for one in values], title=name, shown=format_short_bytes, ends=(name, name), is_binary=True
    )
    return document(
        name,
        kind=name,
        status=name,
        facts=[(name, name)],
        body=[
            tiles([Tile(name, name, name)]),
            Section(name, [figures([plot([Series(name, values), Series("b", values)]), figure(name, bars)], table)]),
        ],
    )


def test_a_hostile_name_is_shown_and_never_executed() -> None:
    page = page_of(HOSTILE, [1.0, 2.0])
    page.encode("utf-8")
    read = PageReader(page)
    assert read.texts.count(SHOWN) >= 12
    assert HOSTILE not in page


@settings(max_examples=examples(40))
@example("", [1.51e308])
@example("", [1.79e308])
@example("", [-1.79e308, 1.0, 1.79e308])
@given(st.text(), st.lists(st.none() | st.floats() | st.integers(0, 1 << 70), max_size=40))
def test_any_names_and_numbers_yield_a_page(name: str, values: list[Any]) -> None:
    page = page_of(name, values)
    PageReader(page)
    drawn = re.findall(r'(?:\bd|points|x|y|cx|cy|width|height)="([^"]*)"', page)
    assert not any(word in " ".join(drawn) for word in ("nan", "inf"))


def test_a_page_forbids_loading_and_supports_light_dark_and_phones() -> None:
    page = page_of("a", [1.0])
    assert "default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;" in page
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    assert "http://" not in page
    assert "https://" not in page


def test_a_plot_has_a_description_and_a_table() -> None:
    page = page_of("size", [1.0, math.nan, 5.0, math.inf, None, 2.0])
    read = PageReader(page)
    assert read.elements["svg"] == read.elements["desc"] == 2
    assert "size: at least 1, at most 5, at last 2." in read.text
    assert read.elements["table"] == read.elements["caption"] == 1
    assert 'role="img"' in page


def test_a_bar_plot_has_its_own_title_and_one_for_each_bar() -> None:
    drawn = bar_plot([1.0, 2.0], title="sizes", shown=format_count, ends=("", ""))
    assert re.findall("<title>(.*?)</title>", drawn) == ["sizes", "1", "2"]


def test_plots_of_many_values_are_bounded_and_keep_the_peaks() -> None:
    values = [0.0] * 100_000
    values[77_777] = 9.0
    drawn = line_plot([Series("a", values)], title="a", shown=format_count, ends=("", ""))
    assert drawn.count(" L") < 2 * MOST_POINTS + 10
    assert "at most 9" in drawn
    assert len({y for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", drawn)}) == 2
    assert bar_plot(values, title="a", shown=format_count, ends=("", "")).count("<rect") == MOST_BARS
    assert len(spark_line(values, title="a")) < 3000


@pytest.mark.parametrize("values", [[], [None], [0.0], [3.0], [-1.0, -2.0], [math.nan], [5e-324], [1.8e308]])
def test_plots_of_few_or_odd_values_are_complete(values: list[float | None]) -> None:
    PageReader(f"<div>{line_plot([Series('a', values)], title='a', shown=format_count, ends=('', ''))}</div>")
    PageReader(f"<div>{spark_line(values, title='a')}</div>")


def test_a_long_label_of_an_axis_is_squeezed_into_the_margin() -> None:
    drawn = line_plot([Series("a", [205.0])], title="a", shown=format_duration, ends=("", ""))
    assert re.findall(r'textLength="44"[^>]*>([^<]*)<', drawn) == ["2 min 30 s", "5 min 00 s"]
    assert re.findall(r'y="[\d.]+">([^<]*)<', drawn)[0] == "0 s"


def test_a_page_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write_page(path, "first")
    assert path.stat().st_mode & 0o444 == 0o444 & ~_umask()

    def fail(source: str, target: str) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(atomic_files.os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        write_page(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["report.html"]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_notebook_fragment_has_no_global_style() -> None:
    piece = fragment(HOSTILE, [(HOSTILE, HOSTILE, spark_line([1.0, 2.0], title=HOSTILE))])
    assert "<style" not in piece
    assert PageReader(piece).texts.count(SHOWN) == 4


def test_text_and_attributes_are_escaped() -> None:
    assert text("<&\"'>") == "&lt;&amp;&quot;&#x27;&gt;"
    assert element("p", text("a"), {"title": '"><b>', "left-out": None}) == '<p title="&quot;&gt;&lt;b&gt;">a</p>'


def test_sizes_durations_counts_and_times_are_readable() -> None:
    assert [format_short_bytes(one) for one in (0, 1023, 1024, 1536, 1 << 20, 5 << 40)] == [
        "0 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "5 TiB",
    ]  # fmt: skip
    durations = [format_duration(one) for one in (None, 0, 0.0004, 0.012, 0.9999, 3.44, 125, 12000, 300000, -2.0)]
    assert durations == ["–", "0 s", "0.4 ms", "12 ms", "1.0 s", "3.4 s", "2 min 05 s", "3 h 20 min", "3.5 d", "-2.0 s"]
    assert [format_duration(days * 86400) for days in (99.9, 99.96, 20_779.7)] == ["99.9 d", "100 d", "20,780 d"]
    counts = [format_count(one) for one in (0, 9_999, 12_345, 4_500_000, 7e9)]
    assert counts == [
        "0",
        "9,999",
        "12.3 k",
        "4.5 M",
        "7.0 G",
    ]
    for shown in (format_short_bytes, format_bytes, format_count, format_duration):
        assert [shown(one) for one in (math.nan, math.inf, -math.inf)] == ["–"] * 3
    assert format_time(0) == "1970-01-01 00:00:00"
    assert format_time(1 << 62) == f"{1 << 62} ms"
    assert format_time(None) == "–"
