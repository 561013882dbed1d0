"""Staged parts are complete, without duplicates, and in time order."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from examples.data import staging
from examples.data.flights_dataset import PART_COUNT, part_name, part_path
from examples.data.staging import stage_flights


def by_modification_time(directory: Path) -> list[str]:
    return [path.name for path in sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime_ns)]


def test_modification_times_increase_strictly_in_time_order(tmp_path: Path) -> None:
    staged = stage_flights(tmp_path / "in")
    times = [path.stat().st_mtime_ns for path in staged]
    assert len(staged) == PART_COUNT
    assert all(before < after for before, after in pairwise(times))
    assert by_modification_time(tmp_path / "in") == [part_name(index) for index in range(PART_COUNT)]


def test_a_range_leaves_out_its_last_part_and_copies_content(tmp_path: Path) -> None:
    staged = stage_flights(tmp_path, 3, 5)
    assert [path.name for path in staged] == [part_name(3), part_name(4)]
    assert sorted(tmp_path.iterdir()) == staged
    assert staged[0].read_bytes() == part_path(3).read_bytes()


def test_parts_staged_later_sort_after_those_staged_earlier(tmp_path: Path) -> None:
    stage_flights(tmp_path, 0, 2)
    stage_flights(tmp_path, 2, 4)
    assert by_modification_time(tmp_path) == [part_name(index) for index in range(4)]


def test_an_existing_part_is_left_unchanged(tmp_path: Path) -> None:
    first = stage_flights(tmp_path, 0, 2)
    before = [path.stat() for path in first]
    assert stage_flights(tmp_path, 0, 2) == first
    assert [path.stat().st_ino for path in first] == [status.st_ino for status in before]
    assert [path.stat().st_mtime_ns for path in first] == [status.st_mtime_ns for status in before]


def test_an_interrupted_copy_leaves_no_visible_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_half_and_fail(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:1000])
        raise OSError("no space left")

    monkeypatch.setattr(shutil, "copyfile", copy_half_and_fail)
    with pytest.raises(OSError, match="no space left"):
        stage_flights(tmp_path, 0, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_is_hidden_until_its_date_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def look_at_the_directory(path: Path, times: tuple[int, int]) -> None:
        seen.extend(entry.name for entry in tmp_path.iterdir())

    monkeypatch.setattr(staging.os, "utime", look_at_the_directory)
    stage_flights(tmp_path, 0, 1)
    assert len(seen) == 1
    assert seen[0].startswith(".")


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (4, 3), (0, PART_COUNT + 1)])
def test_an_impossible_range_is_rejected_before_copying(tmp_path: Path, first: int, last: int) -> None:
    with pytest.raises(ValueError, match="last is not included"):
        stage_flights(tmp_path / "in", first, last)
    assert not (tmp_path / "in").exists()
